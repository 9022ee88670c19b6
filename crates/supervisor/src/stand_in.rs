//! Stand-ins: empty entries put where a protected path does not exist yet.
//!
//! The kernel can forbid writing to a path by mounting over it, but only a path that is there can be mounted over. So
//! for the time of the run something empty takes the place; in the box it is covered and can't be changed. It is a
//! directory, which git, for one, does not see, except for names that programs read as files in a home. Several
//! boxes may share one: each holds a lock on it, and the last to leave takes it away. Directories are not made and
//! removed each time but moved to and from a pool in the state directory: a file system that has just freed an inode
//! is slow to give out another.

use belljar_sandbox::plan::Kind;
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags, flock,
};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Modes that mark something as ours: nobody gives a private entry of their own the sticky bit. They are the owner's
/// bits alone, which no umask takes away, so that a stand-in is marked from its first moment.
const DIRECTORY_MARK: u32 = 0o1700;
const FILE_MARK: u32 = 0o1600;

/// Whether a mode, type included, is that of a stand-in.
pub(crate) fn is_marked(mode: u32) -> bool {
    match FileType::from_raw_mode(mode) {
        FileType::Directory => mode & 0o7777 == DIRECTORY_MARK,
        FileType::RegularFile => mode & 0o7777 == FILE_MARK,
        _ => false,
    }
}

/// How many directories the pool keeps.
const SPARES: usize = 64;

/// Names that shells, git and others read as a file in a home directory, and complain when it is none.
const FILES: &[&str] = &[
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".inputrc",
    ".gitconfig",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".git-credentials",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".viminfo",
    ".claude.json",
    ".Xauthority",
    ".ICEauthority",
];

/// What stands in for a path, on behalf of a user whose home is `home`.
pub(crate) fn kind_of(path: &Path, home: &Path) -> Kind {
    let name = path.file_name().and_then(|name| name.to_str());
    if path.parent() == Some(home) && name.is_some_and(|name| FILES.contains(&name)) {
        Kind::File
    } else {
        Kind::Directory
    }
}

/// A stand-in in use.
#[derive(Debug)]
pub(crate) struct StandIn {
    path: PathBuf,
    pool: PathBuf,
    // Shared lock: "in use".
    lock: Option<OwnedFd>,
}

impl StandIn {
    /// Puts a stand-in at `path`, or joins one that another box put there. `None` if something else is there.
    pub(crate) fn put(path: &Path, kind: Kind, pool: &mut Pool) -> Result<Option<Self>, Errno> {
        // Another box may take its stand-in away just when we want to join it; not for ever.
        for _ in 0..100 {
            let made = match make(path, kind, pool) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(errno) => return Err(errno),
            };
            match Self::join(path, pool) {
                Ok(None) if made => {}
                Err(Errno::NOENT | Errno::AGAIN) => {}
                other => return other,
            }
        }
        Err(Errno::BUSY)
    }

    /// Joins a stand-in that is there, if that is what is there.
    pub(crate) fn join(path: &Path, pool: &Pool) -> Result<Option<Self>, Errno> {
        let entry = match open(path) {
            Ok(entry) => entry,
            Err(Errno::NOENT) => return Err(Errno::NOENT),
            Err(_) => return Ok(None),
        };
        let stat = rustix::fs::fstat(&entry)?;
        if !is_marked(stat.st_mode) {
            return Ok(None);
        }
        flock(&entry, FlockOperation::LockShared)?;
        // The last user may have taken it away between our look and our lock.
        if !is_at(&stat, path) {
            let _ = flock(&entry, FlockOperation::Unlock);
            return Err(Errno::AGAIN);
        }
        Ok(Some(Self {
            path: path.to_owned(),
            pool: pool.directory.clone(),
            lock: Some(entry),
        }))
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        if let Some(entry) = self.lock.take() {
            take_away(&entry, &self.path, &self.pool);
        }
    }
}

fn make(path: &Path, kind: Kind, pool: &mut Pool) -> Result<(), Errno> {
    match kind {
        Kind::Directory => match pool.take(path) {
            Some(result) => result,
            None => rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(DIRECTORY_MARK)),
        },
        Kind::File => {
            let flags =
                OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::from_raw_mode(FILE_MARK)).map(drop)
        }
    }
}

/// Directories that wait to be used.
#[derive(Debug)]
pub(crate) struct Pool {
    directory: PathBuf,
    /// Read once: what is gone when its turn comes was another box's.
    ready: Option<Vec<PathBuf>>,
}

impl Pool {
    pub(crate) fn at(directory: PathBuf) -> Self {
        Self {
            directory,
            ready: None,
        }
    }

    /// Moves a directory into place; `None` if there is none to be had.
    fn take(&mut self, path: &Path) -> Option<Result<(), Errno>> {
        let directory = &self.directory;
        let ready = self.ready.get_or_insert_with(|| {
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            let mut spares: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            // Many boxes at once leave many.
            for surplus in spares.drain(spares.len().min(SPARES)..) {
                let _ = std::fs::remove_dir(surplus);
            }
            spares
        });
        while let Some(spare) = ready.pop() {
            match rustix::fs::renameat_with(CWD, &spare, CWD, path, RenameFlags::NOREPLACE) {
                Ok(()) => return Some(Ok(())),
                Err(Errno::EXIST) => {
                    ready.push(spare);
                    return Some(Err(Errno::EXIST));
                }
                // Another box was quicker.
                Err(Errno::NOENT) => {}
                // Another file system, or one that can't.
                Err(_) => {
                    ready.clear();
                    return None;
                }
            }
        }
        None
    }
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

fn is_at(held: &rustix::fs::Stat, path: &Path) -> bool {
    rustix::fs::lstat(path)
        .is_ok_and(|there| (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino))
}

/// Takes a stand-in away that a killed keeper left, unless another box uses it.
pub(crate) fn remove(path: &Path, pool: &Path) {
    if let Ok(entry) = open(path) {
        take_away(&entry, path, pool);
    }
}

/// Takes a stand-in away, and gives up whatever lock we have on it. By name, not by closing: a box that another thread
/// starts at this moment has a copy of every descriptor, and the lock would live on in it.
fn take_away(entry: &OwnedFd, path: &Path, pool: &Path) {
    take_away_locked(entry, path, pool);
    let _ = flock(entry, FlockOperation::Unlock);
}

/// If somebody on the host put something in it, it becomes theirs.
fn take_away_locked(entry: &OwnedFd, path: &Path, pool: &Path) {
    let Ok(stat) = rustix::fs::fstat(entry) else {
        return;
    };
    // Turns our own lock into an exclusive one; fails while another box holds one too. And the path may be somebody
    // else's by now.
    if !is_marked(stat.st_mode)
        || flock(entry, FlockOperation::NonBlockingLockExclusive).is_err()
        || !is_at(&stat, path)
    {
        return;
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        if stat.st_size == 0 {
            let _ = rustix::fs::unlinkat(CWD, path, AtFlags::empty());
        } else {
            let _ = rustix::fs::fchmod(entry, Mode::from_raw_mode(plain_mode(stat.st_mode)));
        }
        return;
    }
    if !is_empty(entry) {
        let _ = rustix::fs::fchmod(entry, Mode::from_raw_mode(plain_mode(stat.st_mode)));
    } else if !to_pool(path, pool, stat.st_ino) {
        let _ = rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR);
    }
}

/// What a file or directory that a user makes usually has.
fn plain_mode(mode: u32) -> u32 {
    if FileType::from_raw_mode(mode) == FileType::Directory {
        0o755
    } else {
        0o644
    }
}

fn is_empty(directory: &OwnedFd) -> bool {
    let mut buffer = [std::mem::MaybeUninit::uninit(); 512];
    let mut entries = rustix::fs::RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        match entry {
            Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
            _ => return false,
        }
    }
    true
}

fn to_pool(path: &Path, pool: &Path, number: u64) -> bool {
    let place = pool.join(number.to_string());
    rustix::fs::renameat_with(CWD, path, CWD, place, RenameFlags::NOREPLACE).is_ok()
}
