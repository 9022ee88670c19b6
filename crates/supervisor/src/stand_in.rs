//! Stand-ins: empty directories put where a protected path does not exist yet.
//!
//! The kernel can forbid writing to a path by mounting over it, but only a path that is there can be mounted over. So
//! for the time of the run something empty takes the place; in the box it is covered and can't be changed. It is a
//! directory, which git, for one, does not see, except for names that programs read as files without asking. Several
//! boxes may share one: each holds a lock on it, and the last to leave removes it.

use belljar_sandbox::plan::Kind;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, ResolveFlags, flock};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Marks something as ours: nobody sets the sticky bit on an empty entry of their own in a workspace.
const MARK: u32 = 0o1000;

/// Names that shells, git and others read as a file wherever they are, and complain when it is none.
const FILES: &[&str] = &[
    ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile",
    ".zlogin", ".inputrc", ".gitconfig", ".netrc", ".npmrc", ".pypirc", ".pgpass", ".my.cnf", ".git-credentials",
    ".bash_history", ".zsh_history", ".python_history", ".viminfo", ".claude.json", ".Xauthority", ".ICEauthority",
];

/// What stands in for a path of this name.
pub(crate) fn kind_of(path: &Path) -> Kind {
    let is_file = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| FILES.contains(&name));
    if is_file { Kind::File } else { Kind::Directory }
}

/// A stand-in in use.
#[derive(Debug)]
pub(crate) struct StandIn {
    path: PathBuf,
    // Shared lock: "in use".
    lock: Option<OwnedFd>,
}

impl StandIn {
    /// Puts a stand-in at `path`, or joins one that another box put there. `None` if something else is there.
    pub(crate) fn put(path: &Path, owner: Option<(u32, u32)>) -> Result<Option<Self>, Errno> {
        match make(path) {
            Ok(()) => {
                let directory = open(path)?;
                if let Some((uid, gid)) = owner {
                    rustix::fs::fchown(
                        &directory,
                        Some(rustix::fs::Uid::from_raw(uid)),
                        Some(rustix::fs::Gid::from_raw(gid)),
                    )?;
                }
                flock(&directory, FlockOperation::NonBlockingLockShared)?;
                Ok(Some(Self { path: path.to_owned(), lock: Some(directory) }))
            }
            Err(Errno::EXIST) => Self::join(path),
            Err(errno) => Err(errno),
        }
    }

    /// Joins a stand-in of another box, if that is what is there.
    pub(crate) fn join(path: &Path) -> Result<Option<Self>, Errno> {
        let Ok(directory) = open(path) else { return Ok(None) };
        if !is_marked(&directory)? {
            return Ok(None);
        }
        flock(&directory, FlockOperation::NonBlockingLockShared)?;
        // The last user may have removed it between our look and our lock.
        if rustix::fs::fstat(&directory)?.st_nlink == 0 {
            return Self::put(path, None);
        }
        Ok(Some(Self { path: path.to_owned(), lock: Some(directory) }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.lock = None;
        remove(&self.path);
    }
}

fn make(path: &Path) -> Result<(), Errno> {
    match kind_of(path) {
        Kind::Directory => rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(MARK | 0o755)),
        Kind::File => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::from_raw_mode(MARK | 0o644)).map(drop)
        }
    }
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

fn is_marked(entry: &OwnedFd) -> Result<bool, Errno> {
    Ok(rustix::fs::fstat(entry)?.st_mode & MARK != 0)
}

/// Removes a stand-in that nobody uses any more. If somebody on the host put something in it, it becomes theirs.
pub(crate) fn remove(path: &Path) {
    let Ok(entry) = open(path) else { return };
    let Ok(stat) = rustix::fs::fstat(&entry) else { return };
    if stat.st_mode & MARK == 0 || flock(&entry, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let removed = match is_directory {
        true => rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR),
        false if stat.st_size == 0 => rustix::fs::unlinkat(CWD, path, AtFlags::empty()),
        false => Err(Errno::NOTEMPTY),
    };
    if removed == Err(Errno::NOTEMPTY) {
        let _ = rustix::fs::fchmod(&entry, Mode::from_raw_mode(stat.st_mode & 0o777));
    }
}
