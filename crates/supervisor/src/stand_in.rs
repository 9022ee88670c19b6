//! Stand-ins: empty entries put where a protected path does not exist yet.
//!
//! The kernel can forbid writing to a path by mounting over it, but only a path that is there can be mounted over. So
//! for the time of the run something empty takes the place; in the box it is covered and can't be changed. It is a
//! directory, which git, for one, does not see, except for names that programs read as files. Several boxes may share
//! one: each holds a lock on it, and the last to leave takes it away.
//!
//! Others may have it open, or make something that looks like it. So each is made anew and never used again; what one
//! is, is its device and inode, in the record of the run that put it there; and in the end only that is removed, if
//! there is nothing in it. What looks the same, but is in no record, is covered in the box like anything else, and stays.

use crate::state::StateDir;
use belljar_sandbox::plan::Kind;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Stat, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Modes by which another box's stand-in is told from what a user makes: nobody gives a private entry of their own the
/// sticky bit. They are the owner's bits alone, which no umask takes away. A look-alike gains nothing by it.
const DIRECTORY_MARK: u32 = 0o1700;
const FILE_MARK: u32 = 0o1600;

/// Whether this may be a stand-in, of this user's or another's: it has the mode of one and nothing in it. It may go at
/// any moment, so it counts as missing. (Where it is no stand-in, a cover hides that there is nothing in it.)
pub(crate) fn may_be_one(path: &Path, found: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    match FileType::from_raw_mode(found.mode()) {
        FileType::Directory => found.mode() & 0o7777 == DIRECTORY_MARK && is_empty_or_closed(path),
        FileType::RegularFile => found.mode() & 0o7777 == FILE_MARK && found.len() == 0,
        _ => false,
    }
}

/// Whether there is nothing in a directory, or nobody but its owner, who is not us, could see.
fn is_empty_or_closed(directory: &Path) -> bool {
    match std::fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_none(),
        Err(_) => true,
    }
}

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

/// Settings of git's that are a file, wherever a repository is.
const GIT_FILES: &[&str] = &["config", "config.worktree"];

/// What stands in for a path, on behalf of a user whose home is `home`.
pub(crate) fn kind_of(path: &Path, home: &Path) -> Kind {
    let name = path.file_name().and_then(|name| name.to_str());
    let is_file = match path.parent() {
        Some(parent) if parent == home => name.is_some_and(|name| FILES.contains(&name)),
        Some(parent) => {
            parent.file_name() == Some(OsStr::new(".git"))
                && name.is_some_and(|name| GIT_FILES.contains(&name))
        }
        None => false,
    };
    match is_file {
        true => Kind::File,
        false => Kind::Directory,
    }
}

/// A stand-in that was put, as the record of its run names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutStandIn {
    /// Where.
    pub path: PathBuf,
    /// The file system it is on.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

impl PutStandIn {
    fn is(&self, stat: &Stat) -> bool {
        (self.device, self.inode) == (stat.st_dev, stat.st_ino)
    }
}

/// A stand-in in use.
#[derive(Debug)]
pub(crate) struct StandIn {
    put: PutStandIn,
    // Shared lock: "in use". While it is open nothing else can get its number.
    lock: Option<OwnedFd>,
}

impl StandIn {
    /// Puts a stand-in at `path`, or joins one that another box of this state directory put there. `None` if something
    /// else is there.
    pub(crate) fn put(path: &Path, kind: Kind, state: &StateDir) -> Result<Option<Self>, Errno> {
        let (parent, name) = Parent::of(path)?;
        // Another box may take its stand-in away just when we want to join it; not for ever.
        for _ in 0..100 {
            let made = match make(&parent, name, kind) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(errno) => return Err(errno),
            };
            let entry = match parent.open(name) {
                Ok(entry) => entry,
                Err(Errno::NOENT) => continue,
                Err(_) if !made => return Ok(None),
                Err(errno) => return Err(errno),
            };
            let stat = rustix::fs::fstat(&entry)?;
            let put = PutStandIn {
                path: path.to_owned(),
                device: stat.st_dev,
                inode: stat.st_ino,
            };
            if !is_ours(&stat) || !made && !is_known(&put, state) {
                return Ok(None);
            }
            flock(&entry, FlockOperation::LockShared)?;
            // The last user may have taken it away between our look and our lock.
            if parent.has(name, &put) {
                let lock = Some(entry);
                return Ok(Some(Self { put, lock }));
            }
            let _ = flock(&entry, FlockOperation::Unlock);
        }
        Err(Errno::BUSY)
    }

    /// What it is, for the record.
    pub(crate) fn as_put(&self) -> &PutStandIn {
        &self.put
    }

    /// Takes it away, unless another box uses it; says what became of it.
    pub(crate) fn take_away(mut self) -> Outcome {
        self.lock
            .take()
            .map_or(Outcome::Settled, |entry| take_away(&entry, &self.put))
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        if let Some(entry) = self.lock.take() {
            take_away(&entry, &self.put);
        }
    }
}

/// What became of a stand-in at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is gone, or another box's to take away.
    Settled,
    /// Somebody put something in it, so it is theirs.
    Filled,
    /// Something else that looks like one is in its place, and was left there.
    Swapped,
}

/// The directory that an entry is in. No link on the way is followed: paths are resolved before, and whoever lays a
/// link since then wants the entry made, or removed, elsewhere.
struct Parent(OwnedFd);

impl Parent {
    fn of(path: &Path) -> Result<(Self, &OsStr), Errno> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::INVAL);
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS;
        let opened = rustix::fs::openat2(CWD, parent, flags, Mode::empty(), resolve)?;
        Ok((Self(opened), name))
    }

    fn open(&self, name: &OsStr) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::openat(&self.0, name, flags, Mode::empty())
    }

    fn stat(&self, name: &OsStr) -> Option<Stat> {
        rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    fn has(&self, name: &OsStr, put: &PutStandIn) -> bool {
        self.stat(name).is_some_and(|there| put.is(&there))
    }
}

fn make(parent: &Parent, name: &OsStr, kind: Kind) -> Result<(), Errno> {
    match kind {
        Kind::Directory => {
            rustix::fs::mkdirat(&parent.0, name, Mode::from_raw_mode(DIRECTORY_MARK))
        }
        Kind::File => {
            let flags =
                OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::from_raw_mode(FILE_MARK);
            rustix::fs::openat(&parent.0, name, flags, mode).map(drop)
        }
    }
}

/// Whether something has our owner and the mark. It is not enough to be taken away.
fn is_ours(stat: &Stat) -> bool {
    let mark = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => DIRECTORY_MARK,
        FileType::RegularFile => FILE_MARK,
        _ => return false,
    };
    stat.st_mode & 0o7777 == mark && stat.st_uid == rustix::process::geteuid().as_raw()
}

/// Whether a box that runs has put this, by its record.
fn is_known(put: &PutStandIn, state: &StateDir) -> bool {
    let running = state.running();
    running
        .iter()
        .any(|record| match record.put_stand_ins.is_empty() {
            // It has said where, and is about to say what.
            true => record.stand_ins.contains(&put.path),
            false => record.put_stand_ins.contains(put),
        })
}

/// Takes away what a killed keeper left, unless another box uses it.
pub(crate) fn remove(put: &PutStandIn) {
    if let Ok(entry) = Parent::of(&put.path).and_then(|(parent, name)| parent.open(name)) {
        take_away(&entry, put);
    }
}

/// The same for a keeper that was killed before it could note what it had put, or was of a version that never did: all
/// that is known is the place. Nothing that anybody has put something in goes by this, nor what others hold.
pub(crate) fn remove_unnoted(path: &Path) {
    let entry = Parent::of(path).and_then(|(parent, name)| parent.open(name));
    let Ok((entry, stat)) = entry.and_then(|entry| {
        let stat = rustix::fs::fstat(&entry)?;
        Ok((entry, stat))
    }) else {
        return;
    };
    if is_ours(&stat) {
        let put = PutStandIn {
            path: path.to_owned(),
            device: stat.st_dev,
            inode: stat.st_ino,
        };
        take_away(&entry, &put);
    }
}

/// Takes a stand-in away, and gives up whatever lock we have on it. By name, not by closing: a box that another thread
/// starts at this moment has a copy of every descriptor, and the lock would live on in it.
fn take_away(entry: &OwnedFd, put: &PutStandIn) -> Outcome {
    let outcome = take_away_locked(entry, put).unwrap_or(Outcome::Settled);
    let _ = flock(entry, FlockOperation::Unlock);
    outcome
}

fn take_away_locked(entry: &OwnedFd, put: &PutStandIn) -> Result<Outcome, Errno> {
    let stat = rustix::fs::fstat(entry)?;
    let (parent, name) = Parent::of(&put.path)?;
    if !parent.has(name, put) {
        let swapped = parent.stat(name).is_some_and(|there| is_ours(&there));
        return Ok(match swapped {
            true => Outcome::Swapped,
            false => Outcome::Settled,
        });
    }
    // Turns our own lock into an exclusive one; fails while another box holds one too.
    if !put.is(&stat) || !is_ours(&stat) {
        return Ok(Outcome::Settled);
    }
    flock(entry, FlockOperation::NonBlockingLockExclusive)?;
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let removed = match is_directory {
        // The kernel removes no directory that has something in it.
        true => rustix::fs::unlinkat(&parent.0, name, AtFlags::REMOVEDIR).is_ok(),
        false => {
            // Asked again: it could be written to until now.
            rustix::fs::fstat(entry)?.st_size == 0
                && rustix::fs::unlinkat(&parent.0, name, AtFlags::empty()).is_ok()
        }
    };
    if removed {
        return Ok(Outcome::Settled);
    }
    // What a file or directory that a user makes usually has.
    let plain = match is_directory {
        true => 0o755,
        false => 0o644,
    };
    rustix::fs::fchmod(entry, Mode::from_raw_mode(plain))?;
    Ok(Outcome::Filled)
}
