//! Directories below a root, by descriptors alone: no link is followed, no depth or length of a path is too much, and no more
//! than a handful of them is open at a time.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// How many directories of a way are kept open; what is further up is opened again, from the root.
const MOST_OPEN: usize = 64;
/// The kernel takes no longer path at once.
const LONGEST_PATH: usize = 4000;

const PLACE: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Which file it is, whatever its name.
type FileId = (u64, u64);

fn id_of(stat: &Stat) -> FileId {
    (stat.st_dev, stat.st_ino)
}

/// A directory somewhere below a root, and the way to it.
#[derive(Debug)]
pub(crate) struct Cursor {
    root: OwnedFd,
    way: Vec<Stop>,
}

#[derive(Debug)]
struct Stop {
    name: OsString,
    id: FileId,
    place: Option<OwnedFd>,
}

impl Cursor {
    pub(super) fn at(root: OwnedFd) -> Self {
        Self {
            root,
            way: Vec::new(),
        }
    }

    /// At a path of the host's in which no part may be a link.
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(Self::at(rustix::fs::openat2(
            CWD,
            root,
            PLACE,
            Mode::empty(),
            resolve,
        )?))
    }

    /// The directory it is at.
    pub(crate) fn here(&mut self) -> io::Result<BorrowedFd<'_>> {
        if self.way.last().is_some_and(|stop| stop.place.is_none()) {
            self.open_again()?;
        }
        let place = self.way.last().and_then(|stop| stop.place.as_ref());
        Ok(place.unwrap_or(&self.root).as_fd())
    }

    /// Goes to a directory in this one.
    pub(crate) fn enter(&mut self, name: &OsStr) -> io::Result<()> {
        let place = open_directory(self.here()?, name)?;
        let id = id_of(&rustix::fs::fstat(&place)?);
        self.way.push(Stop {
            name: name.to_owned(),
            id,
            place: Some(place),
        });
        if let Some(old) = self.way.len().checked_sub(MOST_OPEN + 1)
            && let Some(stop) = self.way.get_mut(old)
        {
            stop.place = None;
        }
        Ok(())
    }

    /// Goes back to the one above.
    pub(super) fn leave(&mut self) {
        self.way.pop();
    }

    /// How far below the root it is.
    pub(super) fn depth(&self) -> usize {
        self.way.len()
    }

    /// What is there by that name, unless nothing is.
    pub(super) fn look(&mut self, name: &OsStr) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(self.here()?, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens the end of the way once more. The directories must be those that were gone through.
    fn open_again(&mut self) -> io::Result<()> {
        let first = self.way.len().saturating_sub(MOST_OPEN / 2);
        let mut place: Option<OwnedFd> = None;
        let mut part = Vec::new();
        let count = self.way.len();
        for (index, stop) in self.way.iter_mut().enumerate() {
            if !part.is_empty() {
                part.push(b'/');
            }
            part.extend_from_slice(stop.name.as_bytes());
            let next_is_too_long = part.len() + 256 > LONGEST_PATH;
            if index < first && !next_is_too_long && index + 1 < count {
                continue;
            }
            let from = place.as_ref().unwrap_or(&self.root);
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let opened = rustix::fs::openat2(
                from,
                OsStr::from_bytes(&part),
                PLACE,
                Mode::empty(),
                resolve | ResolveFlags::NO_MAGICLINKS,
            )?;
            if id_of(&rustix::fs::fstat(&opened)?) != stop.id {
                return Err(io::Error::other("a directory was moved meanwhile"));
            }
            part.clear();
            if index >= first {
                stop.place = Some(rustix::io::fcntl_dupfd_cloexec(&opened, 0)?);
            }
            place = Some(opened);
        }
        Ok(())
    }
}

/// A handle of a directory that can only be gone through; a link is none.
fn open_directory(at: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    if !is_name(name.as_bytes()) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(rustix::fs::openat(at, name, PLACE, Mode::empty())?)
}

/// Whether it names something in a directory, and not another directory.
pub(super) fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
        && name.len() <= 255
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// A directory, to be read or changed itself.
pub(super) fn readable(place: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(place, c".", flags, Mode::empty())?)
}

/// The names in a directory, in order.
pub(super) fn names(place: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::new(readable(place)?)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort();
    Ok(names)
}

/// Opens a plain file to be read, and nothing else.
pub(crate) fn open_plain(at: BorrowedFd<'_>, name: &OsStr) -> io::Result<File> {
    let not_plain = || io::Error::other("it is no longer a plain file");
    let is_plain = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    // A device may do something when it is merely opened.
    if !is_plain(&rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?) {
        return Err(not_plain());
    }
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(at, name, flags, Mode::empty())?;
    if !is_plain(&rustix::fs::fstat(&file)?) {
        return Err(not_plain());
    }
    Ok(file.into())
}

/// Lets its owner do everything with a file or directory, if that is us: an agent may have left it without any permission.
pub(super) fn unlock(place: BorrowedFd<'_>) -> io::Result<()> {
    let stat = rustix::fs::fstat(place)?;
    let owned = rustix::process::geteuid().as_raw() == stat.st_uid;
    if !owned || stat.st_mode & 0o700 == 0o700 {
        return Ok(());
    }
    // A handle takes no `fchmod`; through this it is the same file.
    let itself = format!("/proc/self/fd/{}", place.as_raw_fd());
    let mode = Mode::from_raw_mode(stat.st_mode & 0o777 | 0o700);
    Ok(rustix::fs::chmod(itself, mode)?)
}

/// Removes what is there by that name, with all that is in it.
pub(super) fn remove(cursor: &mut Cursor, name: &OsStr) -> io::Result<()> {
    match cursor.look(name)? {
        None => return Ok(()),
        Some(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => {
            return unlink(cursor.here()?, name, AtFlags::empty());
        }
        Some(_) => {}
    }
    let start = cursor.depth();
    let removed = remove_directory(cursor, name);
    while cursor.depth() > start {
        cursor.leave();
    }
    removed
}

fn remove_directory(cursor: &mut Cursor, name: &OsStr) -> io::Result<()> {
    let mut open = vec![enter_to_remove(cursor, name)?];
    while let Some((own, left)) = open.last_mut() {
        let Some(name) = left.pop() else {
            let own = std::mem::take(own);
            open.pop();
            cursor.leave();
            unlink(cursor.here()?, &own, AtFlags::REMOVEDIR)?;
            continue;
        };
        match cursor.look(&name)? {
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                open.push(enter_to_remove(cursor, &name)?);
            }
            Some(_) => unlink(cursor.here()?, &name, AtFlags::empty())?,
            None => {}
        }
    }
    Ok(())
}

fn enter_to_remove(cursor: &mut Cursor, name: &OsStr) -> io::Result<(OsString, Vec<OsString>)> {
    cursor.enter(name)?;
    let here = cursor.here()?;
    unlock(here)?;
    Ok((name.to_owned(), names(here)?))
}

fn unlink(at: BorrowedFd<'_>, name: &OsStr, flags: AtFlags) -> io::Result<()> {
    match rustix::fs::unlinkat(at, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether directories that their owner may not look into are made readable for him first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TreeAccess {
    AsIs,
    Unlocked,
}

impl TreeAccess {
    fn prepare(self, directory: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Self::AsIs => Ok(()),
            Self::Unlocked => unlock(directory),
        }
    }
}

/// Looks at everything below a directory, a directory before what is in it: how deep, its name, and what it is.
pub(crate) fn each_below(
    cursor: &mut Cursor,
    name: &OsStr,
    access: TreeAccess,
    mut visit: impl FnMut(usize, OsString, &Stat),
) -> io::Result<()> {
    let start = cursor.depth();
    let mut look = || -> io::Result<()> {
        cursor.enter(name)?;
        access.prepare(cursor.here()?)?;
        let mut open = vec![names(cursor.here()?)?.into_iter()];
        while let Some(left) = open.last_mut() {
            let Some(name) = left.next() else {
                open.pop();
                cursor.leave();
                continue;
            };
            let Some(stat) = cursor.look(&name)? else {
                continue;
            };
            let below = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            visit(open.len(), name.clone(), &stat);
            if below {
                cursor.enter(&name)?;
                access.prepare(cursor.here()?)?;
                open.push(names(cursor.here()?)?.into_iter());
            }
        }
        Ok(())
    };
    let looked = look();
    while cursor.depth() > start {
        cursor.leave();
    }
    looked
}

/// The way from one path to another, name by name.
pub(super) fn joined<'a>(root: &Path, names: impl Iterator<Item = &'a OsStr>) -> PathBuf {
    let mut path = root.as_os_str().as_bytes().to_vec();
    for name in names {
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
    }
    PathBuf::from(OsString::from_vec(path))
}
