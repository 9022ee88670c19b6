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

/// Marks something as ours: nobody sets the sticky bit on an empty entry of their own in a workspace.
const MARK: u32 = 0o1000;
/// How many directories the pool keeps.
const POOL: usize = 64;

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
    pub(crate) fn put(path: &Path, kind: Kind, pool: &Path) -> Result<Option<Self>, Errno> {
        match make(path, kind, pool) {
            Ok(()) | Err(Errno::EXIST) => Self::join(path, pool),
            Err(errno) => Err(errno),
        }
    }

    /// Joins a stand-in that is there, if that is what is there.
    pub(crate) fn join(path: &Path, pool: &Path) -> Result<Option<Self>, Errno> {
        let Ok(entry) = open(path) else {
            return Ok(None);
        };
        let stat = rustix::fs::fstat(&entry)?;
        if stat.st_mode & MARK == 0 {
            return Ok(None);
        }
        flock(&entry, FlockOperation::LockShared)?;
        // The last user may have taken it away between our look and our lock.
        if !is_at(&entry, path) {
            let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            let kind = if is_directory {
                Kind::Directory
            } else {
                Kind::File
            };
            return Self::put(path, kind, pool);
        }
        Ok(Some(Self {
            path: path.to_owned(),
            pool: pool.to_owned(),
            lock: Some(entry),
        }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.lock = None;
        remove(&self.path, &self.pool);
    }
}

fn make(path: &Path, kind: Kind, pool: &Path) -> Result<(), Errno> {
    match kind {
        Kind::Directory => match from_pool(path, pool) {
            Some(result) => result,
            None => rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(MARK | 0o755)),
        },
        Kind::File => {
            let flags =
                OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::from_raw_mode(MARK | 0o644)).map(drop)
        }
    }
}

/// Moves a directory of the pool into place; `None` if there is none to be had.
fn from_pool(path: &Path, pool: &Path) -> Option<Result<(), Errno>> {
    for entry in std::fs::read_dir(pool).ok()?.flatten() {
        match rustix::fs::renameat_with(CWD, entry.path(), CWD, path, RenameFlags::NOREPLACE) {
            Ok(()) => return Some(Ok(())),
            Err(Errno::EXIST) => return Some(Err(Errno::EXIST)),
            // Another box was quicker.
            Err(Errno::NOENT) => {}
            // Another file system, or one that can't.
            Err(_) => return None,
        }
    }
    None
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

fn is_at(entry: &OwnedFd, path: &Path) -> bool {
    let (Ok(held), Ok(there)) = (rustix::fs::fstat(entry), rustix::fs::lstat(path)) else {
        return false;
    };
    (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino)
}

/// Takes a stand-in away that nobody uses any more. If somebody on the host put something in it, it becomes theirs.
pub(crate) fn remove(path: &Path, pool: &Path) {
    let Ok(entry) = open(path) else { return };
    let Ok(stat) = rustix::fs::fstat(&entry) else {
        return;
    };
    if stat.st_mode & MARK == 0 || flock(&entry, FlockOperation::NonBlockingLockExclusive).is_err()
    {
        return;
    }
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let is_empty = match is_directory {
        true => std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none()),
        false => stat.st_size == 0,
    };
    if !is_empty {
        let _ = rustix::fs::fchmod(&entry, Mode::from_raw_mode(stat.st_mode & 0o777));
    } else if !is_directory {
        let _ = rustix::fs::unlinkat(CWD, path, AtFlags::empty());
    } else if !to_pool(path, pool, stat.st_ino) {
        let _ = rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR);
    }
}

fn to_pool(path: &Path, pool: &Path, number: u64) -> bool {
    let has_room = std::fs::read_dir(pool).is_ok_and(|entries| entries.count() < POOL);
    let place = pool.join(number.to_string());
    has_room && rustix::fs::renameat_with(CWD, path, CWD, place, RenameFlags::NOREPLACE).is_ok()
}
