//! Stand-ins: empty directories put where a protected path does not exist yet.
//!
//! The kernel can forbid writing to a path by mounting over it, but only a path that is there can be mounted over. So
//! for the time of the run a directory takes the place; in the box it is covered and can't be changed, on the host it
//! is an empty directory (which git, for one, does not see). Several boxes may share one: each holds a lock on it, and
//! the last to leave removes it.

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, ResolveFlags, flock};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Marks a directory as ours: nobody sets the sticky bit on an empty directory of their own in a workspace.
const MARK: u32 = 0o1000;

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
        match rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(MARK | 0o755)) {
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

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

fn is_marked(directory: &OwnedFd) -> Result<bool, Errno> {
    Ok(rustix::fs::fstat(directory)?.st_mode & MARK != 0)
}

/// Removes a stand-in that nobody uses any more. If somebody on the host put something in it, it becomes theirs.
pub(crate) fn remove(path: &Path) {
    let Ok(directory) = open(path) else { return };
    if !matches!(is_marked(&directory), Ok(true))
        || flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err()
    {
        return;
    }
    if rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR) == Err(Errno::NOTEMPTY) {
        let _ = rustix::fs::fchmod(&directory, Mode::from_raw_mode(0o755));
    }
}
