//! A tree that is made of what strangers wrote, and stays inside.
//!
//! Everything is done through handles of directories. A parent is opened by `openat2` with `RESOLVE_BENEATH` and
//! `RESOLVE_NO_SYMLINKS`: the kernel follows no link, whoever made it, in this layer or an earlier one. What is made is made
//! new, by exclusive creation: nothing is written through what was there before. Devices, pipes and sockets are left out,
//! set-id bits and extended attributes dropped. Whoever builds owns everything, and may enter and change every directory.

mod made;
mod path;
mod removal;

pub use path::EntryPath;

use crate::bounds::Bounds;
use crate::error::ImageError;
use crate::record::LeftOut;
use made::MadePaths;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write as _};
use std::path::Path;

/// What of a mode is kept of a file, and of a directory: no set-id bits; a directory may be sticky.
const FILE_BITS: u32 = 0o777;
const DIRECTORY_BITS: u32 = 0o1777;
const SET_ID_BITS: u32 = 0o6000;
/// What whoever builds may do, whatever the image says: read files, and use directories.
const FILE_LEAST: u32 = 0o400;
const DIRECTORY_LEAST: u32 = 0o700;
/// The mode of a directory that an archive does not name.
const IMPLIED: u32 = 0o755;
const AT_ONCE: usize = 128 * 1024;

/// A tree in the making.
pub struct Tree {
    root: OwnedFd,
    bounds: Bounds,
    bytes: u64,
    entries: u64,
    implied: u64,
    left_out: LeftOut,
    /// What this layer has made, and the directories above it: what a whiteout of its own does not mean.
    layer: MadePaths,
    /// The directory that was used last: most entries follow others of the same.
    last: Option<(EntryPath, OwnedFd)>,
    buffer: Vec<u8>,
}

/// How large a tree became, and what it lacks. What later layers replaced is counted too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of files.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
    /// What is not there.
    pub left_out: LeftOut,
}

/// What is kept of a file besides its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Meta {
    /// Its permission bits.
    pub mode: u32,
    /// When it was changed last, in seconds since 1970.
    pub mtime: i64,
}

impl Tree {
    /// A tree in this directory, which is empty.
    pub fn new(root: &Path, bounds: Bounds) -> Result<Self, ImageError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || -> Result<OwnedFd, Errno> {
            let root = rustix::fs::open(root, flags, Mode::empty())?;
            rustix::fs::fchmod(&root, Mode::from_raw_mode(IMPLIED))?;
            Ok(root)
        };
        Ok(Self {
            root: open().map_err(|errno| ImageError::store(root)(errno.into()))?,
            bounds,
            bytes: 0,
            entries: 0,
            implied: 0,
            left_out: LeftOut::default(),
            layer: MadePaths::default(),
            last: None,
            buffer: vec![0; AT_ONCE],
        })
    }

    /// From here on, entries are of another layer.
    pub fn begin_layer(&mut self) {
        self.layer.clear();
    }

    /// What there is now.
    #[must_use]
    pub fn extent(&self) -> Extent {
        Extent {
            bytes: self.bytes,
            entries: self.entries,
            left_out: self.left_out,
        }
    }

    /// Counts something that is not a file, a directory or a link, and is not made.
    pub fn leave_out_special(&mut self) -> Result<(), ImageError> {
        self.left_out.special_files += 1;
        self.count()
    }

    /// Counts a directory whose contents are another file system's.
    pub fn leave_out_mount(&mut self) {
        self.left_out.mounts += 1;
    }

    /// A directory, or the mode of one that is there.
    pub fn directory(&mut self, path: &EntryPath, mode: u32) -> Result<(), ImageError> {
        self.count()?;
        let mode = mode & DIRECTORY_BITS | DIRECTORY_LEAST;
        let Some((parent, name)) = path.split() else {
            // A root that its user can't enter is no use to anybody.
            return rustix::fs::fchmod(&self.root, Mode::from_raw_mode(mode | IMPLIED))
                .map_err(|errno| failed(path, errno));
        };
        self.enter(&parent)?;
        let parent = self.last_directory();
        let made = match open_directory(parent, name) {
            Ok(there) => Ok(there),
            Err(Errno::NOENT) => make_directory(parent, name),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                removal::remove(parent, name).and_then(|()| make_directory(parent, name))
            }
            Err(errno) => Err(errno),
        };
        made.and_then(|made| rustix::fs::fchmod(made, Mode::from_raw_mode(mode)))
            .map_err(|errno| failed(path, errno))?;
        self.made(path);
        Ok(())
    }

    /// A file of these bytes, in place of whatever was there. Says how many they were.
    pub fn file(
        &mut self,
        path: &EntryPath,
        meta: Meta,
        contents: &mut dyn Read,
    ) -> Result<u64, ImageError> {
        let name = self.begin(path)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fresh = Mode::from_raw_mode(0o600);
        let mut file = rustix::fs::openat(self.last_directory(), name, flags, fresh)
            .map(File::from)
            .map_err(|errno| failed(path, errno))?;
        let written = self.pour(path, contents, &mut file)?;
        if meta.mode & SET_ID_BITS != 0 {
            self.left_out.set_id_bits += 1;
        }
        let moment = Timespec {
            tv_sec: meta.mtime,
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: moment,
            last_modification: moment,
        };
        let mode = Mode::from_raw_mode(meta.mode & FILE_BITS | FILE_LEAST);
        rustix::fs::fchmod(&file, mode)
            .and_then(|()| rustix::fs::futimens(&file, &times))
            .map_err(|errno| failed(path, errno))?;
        self.made(path);
        Ok(written)
    }

    /// A symbolic link, as it is: nothing here ever follows it.
    pub fn symlink(&mut self, path: &EntryPath, target: &[u8]) -> Result<(), ImageError> {
        let name = self.begin(path)?;
        rustix::fs::symlinkat(target, self.last_directory(), name)
            .map_err(|errno| failed(path, errno))?;
        self.made(path);
        Ok(())
    }

    /// Another name for a file of this tree, found without following a link.
    pub fn hard_link(&mut self, path: &EntryPath, target: &EntryPath) -> Result<(), ImageError> {
        if path == target {
            return Ok(());
        }
        let Some((above, original)) = target.split() else {
            return Err(failed(path, Errno::PERM));
        };
        let from = open_beneath(self.root.as_fd(), &above).map_err(|errno| failed(path, errno))?;
        let name = self.begin(path)?;
        rustix::fs::linkat(
            from,
            original,
            self.last_directory(),
            name,
            AtFlags::empty(),
        )
        .map_err(|errno| failed(path, errno))?;
        self.made(path);
        Ok(())
    }

    /// What earlier layers have at this path is gone; what this one has, stays.
    pub fn whiteout(&mut self, path: &EntryPath) -> Result<(), ImageError> {
        self.count()?;
        let Some((parent, name)) = path.split() else {
            return self.opaque(path);
        };
        if self.layer.contains(path.as_bytes()) {
            return self.opaque(path);
        }
        match open_beneath(self.root.as_fd(), &parent) {
            Ok(parent) => {
                removal::remove(parent.as_fd(), name).map_err(|errno| failed(path, errno))?
            }
            // Nothing is there, or not below a directory: nothing to take away.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => return Err(failed(path, errno)),
        }
        self.last = None;
        Ok(())
    }

    /// What earlier layers have in this directory is gone; what this one has, stays.
    pub fn opaque(&mut self, path: &EntryPath) -> Result<(), ImageError> {
        let directory = match open_beneath(self.root.as_fd(), path) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(errno) => return Err(failed(path, errno)),
        };
        removal::clear(directory.as_fd(), path, &self.layer)
            .map_err(|errno| failed(path, errno))?;
        self.last = None;
        Ok(())
    }

    /// Makes room for something new that is not a directory, and says its name in the last directory.
    fn begin<'p>(&mut self, path: &'p EntryPath) -> Result<&'p [u8], ImageError> {
        self.count()?;
        let parent = path.split().map(|(parent, _)| parent);
        self.enter(&parent.ok_or_else(|| failed(path, Errno::ISDIR))?)?;
        let name = path.as_bytes().rsplit(|byte| *byte == b'/').next();
        let name = name.unwrap_or_default();
        let is_gone = removal::remove(self.last_directory(), name);
        is_gone.map_err(|errno| failed(path, errno))?;
        Ok(name)
    }

    /// Makes a directory the last one, and those above it that are not there.
    fn enter(&mut self, path: &EntryPath) -> Result<(), ImageError> {
        if self.last.as_ref().is_some_and(|(last, _)| last == path) {
            return Ok(());
        }
        let opened = match open_beneath(self.root.as_fd(), path) {
            Ok(opened) => opened,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => self.make_way(path)?,
            Err(errno) => return Err(failed(path, errno)),
        };
        self.last = Some((path.clone(), opened));
        Ok(())
    }

    /// Walks down, name by name. What an earlier layer has in the way gives way, as it does where layers are mounted over
    /// each other; what this layer itself has there is an attack or a mistake.
    fn make_way(&mut self, path: &EntryPath) -> Result<OwnedFd, ImageError> {
        let fail = |errno| failed(path, errno);
        let mut at = rustix::io::dup(&self.root).map_err(fail)?;
        let mut walked = EntryPath::default();
        for name in path.names() {
            walked = walked.join(name)?;
            at = match open_directory(at.as_fd(), name) {
                Ok(next) => next,
                Err(Errno::NOENT) => {
                    self.count_implied()?;
                    make_directory(at.as_fd(), name).map_err(fail)?
                }
                Err(Errno::NOTDIR | Errno::LOOP) if self.layer.contains(walked.as_bytes()) => {
                    let what = format!(
                        "{} is below {}, which is no directory in the same layer",
                        path.shown(),
                        walked.shown()
                    );
                    return Err(ImageError::refused(what, "don't use this image"));
                }
                Err(Errno::NOTDIR | Errno::LOOP) => removal::remove(at.as_fd(), name)
                    .and_then(|()| make_directory(at.as_fd(), name))
                    .map_err(fail)?,
                Err(errno) => return Err(fail(errno)),
            };
        }
        Ok(at)
    }

    fn last_directory(&self) -> BorrowedFd<'_> {
        self.last
            .as_ref()
            .map_or(self.root.as_fd(), |(_, directory)| directory.as_fd())
    }

    /// Notes that this layer has it, and so the directories above.
    fn made(&mut self, path: &EntryPath) {
        let mut path = path.clone();
        while let Some((parent, _)) = path.split() {
            if !self.layer.insert(path.as_bytes()) {
                break;
            }
            path = parent;
        }
    }

    /// Counts an entry, made or not.
    pub(crate) fn count(&mut self) -> Result<(), ImageError> {
        self.entries += 1;
        if self.entries > self.bounds.entries {
            let most = self.bounds.entries;
            return Err(ImageError::TooLarge(format!("more than {most} entries")));
        }
        Ok(())
    }

    /// Counts a directory that no entry names.
    fn count_implied(&mut self) -> Result<(), ImageError> {
        self.implied += 1;
        let most = self.bounds.entries;
        if self.implied > most {
            let what = format!("more than {most} directories that it does not name");
            return Err(ImageError::TooLarge(what));
        }
        Ok(())
    }

    /// Bytes that a file may have.
    pub(crate) fn most_in_file(&self) -> u64 {
        self.bounds.file
    }

    fn pour(
        &mut self,
        path: &EntryPath,
        from: &mut dyn Read,
        to: &mut File,
    ) -> Result<u64, ImageError> {
        let mut written = 0;
        loop {
            let read = match from.read(&mut self.buffer) {
                Ok(0) => return Ok(written),
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(ImageError::read(path.shown())(error)),
            };
            written += read as u64;
            self.bytes += read as u64;
            if written > self.bounds.file {
                let most = self.bounds.file;
                let what = format!("{} has more than {most} bytes", path.shown());
                return Err(ImageError::TooLarge(what));
            }
            if self.bytes > self.bounds.bytes {
                let most = self.bounds.bytes;
                return Err(ImageError::TooLarge(format!("more than {most} bytes")));
            }
            let part = self.buffer.get(..read).unwrap_or_default();
            to.write_all(part).map_err(|source| ImageError::Unpack {
                entry: path.shown(),
                source,
            })?;
        }
    }
}

fn failed(path: &EntryPath, errno: Errno) -> ImageError {
    ImageError::Unpack {
        entry: path.shown(),
        source: errno.into(),
    }
}

/// A directory of the tree. The kernel follows no link on the way and does not leave the root.
fn open_beneath(root: BorrowedFd<'_>, path: &EntryPath) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let path = if path.is_root() {
        b"."
    } else {
        path.as_bytes()
    };
    loop {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            opened => return opened,
        }
    }
}

/// A directory in a directory, by its plain name.
fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

fn make_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(IMPLIED))?;
    let made = open_directory(parent, name)?;
    rustix::fs::fchmod(&made, Mode::from_raw_mode(IMPLIED))?;
    Ok(made)
}
