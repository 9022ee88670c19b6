//! Stand-ins: empty entries put where a protected path does not exist yet.
//!
//! The kernel can forbid writing to a path by mounting over it, but only a path that is there can be mounted over. So
//! for the time of the run something empty takes the place; in the box it is covered and can't be changed. It is a
//! directory, which git, for one, does not see, except for names that programs read as files. Several boxes may share
//! one: each holds a lock on it, and the last to leave takes it away.
//!
//! Others may have it open, or make something that looks like it. So each is made anew and never used again; what one
//! is, is its device and inode, in the record of the run that made it; and in the end only that is removed, if there is
//! nothing in it. A run that ends before others that use it leaves them a note of what it made. What looks the same, but
//! is on no record, is covered in the box like anything else, and stays.

use crate::state::StateDir;
use belljar_sandbox::plan::Kind;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Stat, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

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

/// A stand-in that was made, as the record of its run names it.
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
    origin: Origin,
    notes: PathBuf,
    // Shared lock: "in use". While it is open nothing else can get its number.
    lock: Option<OwnedFd>,
}

/// Whose a stand-in is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This run made it.
    Made,
    /// It was there, and looks like one. A lock on it keeps it there, if it is; more is not done on its looks.
    Found,
}

impl StandIn {
    /// Puts a stand-in at `path`, or joins one that another box put there. `None` if something else is there.
    pub(crate) fn put(path: &Path, kind: Kind, state: &StateDir) -> Result<Option<Self>, Errno> {
        let (parent, name) = Parent::of(path)?;
        // Another box may take its stand-in away just when we want to join it; not for ever.
        for _ in 0..100 {
            let origin = match make(&parent, name, kind) {
                Ok(()) => Origin::Made,
                Err(Errno::EXIST) => Origin::Found,
                Err(errno) => return Err(errno),
            };
            let entry = match parent.open(name) {
                Ok(entry) => entry,
                Err(Errno::NOENT) => continue,
                Err(_) if origin == Origin::Found => return Ok(None),
                Err(errno) => return Err(errno),
            };
            let stat = rustix::fs::fstat(&entry)?;
            if !is_marked_ours(&stat) {
                return Ok(None);
            }
            let put = PutStandIn {
                path: path.to_owned(),
                device: stat.st_dev,
                inode: stat.st_ino,
            };
            // Somebody who made it, or found it, may hold it locked for ever; what is not ours to lock is covered all the
            // same, and stays.
            match (lock_shared(&entry), origin) {
                (Ok(()), _) | (Err(Errno::WOULDBLOCK), Origin::Made) => {}
                (Err(Errno::WOULDBLOCK), Origin::Found) => return Ok(None),
                (Err(errno), _) => return Err(errno),
            }
            // The last user may have taken it away between our look and our lock.
            if parent.has(name, &put) {
                return Ok(Some(Self {
                    put,
                    origin,
                    notes: state.stand_in_notes(),
                    lock: Some(entry),
                }));
            }
            let _ = flock(&entry, FlockOperation::Unlock);
        }
        Err(Errno::BUSY)
    }

    /// What it is, for the record, if this run made it.
    pub(crate) fn made(&self) -> Option<&PutStandIn> {
        (self.origin == Origin::Made).then_some(&self.put)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.put.path
    }

    /// Takes it away, unless another box uses it; says what became of it.
    pub(crate) fn take_away(mut self) -> Outcome {
        self.leave()
    }

    fn leave(&mut self) -> Outcome {
        match self.lock.take() {
            Some(entry) => leave(&entry, &self.put, self.origin, &self.notes),
            None => Outcome::Settled,
        }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.leave();
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

/// Locks what other boxes may be leaving just now, which takes them a moment.
fn lock_shared(entry: &OwnedFd) -> Result<(), Errno> {
    const TRIES: usize = 100;
    const A_MOMENT: Duration = Duration::from_millis(5);
    for _ in 0..TRIES {
        match flock(entry, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(A_MOMENT),
            Err(Errno::INTR) => {}
            locked => return locked,
        }
    }
    Err(Errno::WOULDBLOCK)
}

/// Whether something has our owner and the mark. It is not enough to be taken away.
fn is_marked_ours(stat: &Stat) -> bool {
    let mark = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => DIRECTORY_MARK,
        FileType::RegularFile => FILE_MARK,
        _ => return false,
    };
    stat.st_mode & 0o7777 == mark && stat.st_uid == rustix::process::geteuid().as_raw()
}

/// Takes away what killed keepers left, unless another box uses it: those that a record names, and those that were noted.
pub(crate) fn sweep(made: &[PutStandIn], notes: &Path) {
    let noted = std::fs::read_dir(notes).into_iter().flatten().flatten();
    let noted =
        noted.filter_map(|entry| serde_json::from_slice(&std::fs::read(entry.path()).ok()?).ok());
    for put in made.iter().cloned().chain(noted) {
        match Parent::of(&put.path).and_then(|(parent, name)| parent.open(name)) {
            Ok(entry) => drop(leave(&entry, &put, Origin::Made, notes)),
            Err(_) => drop(std::fs::remove_file(note_of(&put, notes))),
        }
    }
}

/// The same for a keeper that was killed before it could note what it had made, or was of a version that never did: all
/// that is known is the place. Nothing that anybody has put something in goes by this, nor what others hold.
pub(crate) fn sweep_unnoted(path: &Path, notes: &Path) {
    let entry = Parent::of(path).and_then(|(parent, name)| parent.open(name));
    let Ok((entry, stat)) = entry.and_then(|entry| {
        let stat = rustix::fs::fstat(&entry)?;
        Ok((entry, stat))
    }) else {
        return;
    };
    if is_marked_ours(&stat) {
        let put = PutStandIn {
            path: path.to_owned(),
            device: stat.st_dev,
            inode: stat.st_ino,
        };
        leave(&entry, &put, Origin::Made, notes);
    }
}

/// Where it is noted that whoever leaves a stand-in last may take it away.
fn note_of(put: &PutStandIn, notes: &Path) -> PathBuf {
    notes.join(format!("{}-{}.json", put.device, put.inode))
}

/// Takes a stand-in away or leaves it to others, and gives up whatever lock we have on it. By name, not by closing: a box
/// that another thread starts at this moment has a copy of every descriptor, and the lock would live on in it.
fn leave(entry: &OwnedFd, put: &PutStandIn, origin: Origin, notes: &Path) -> Outcome {
    let note = note_of(put, notes);
    let mut outcome = Outcome::Settled;
    // Two that leave at once may each see the other's lock. The later of them finds none when it asks again.
    for _ in 0..2 {
        // Turns our own lock into an exclusive one; fails while another box holds one too.
        let is_last = flock(entry, FlockOperation::NonBlockingLockExclusive).is_ok();
        if is_last {
            let is_noted = origin == Origin::Made || note.exists();
            if is_noted {
                outcome = take_away(entry, put).unwrap_or(Outcome::Settled);
                if std::fs::remove_file(&note).is_ok() {
                    let _ = std::fs::remove_dir(notes);
                }
            }
        } else if origin == Origin::Made
            && let Ok(text) = serde_json::to_vec(put)
        {
            let _ = std::fs::create_dir_all(notes);
            let _ = std::fs::write(&note, text);
            // Whoever was last may have taken it away, and the note with it, a moment before this one was written.
            let is_there = Parent::of(&put.path).is_ok_and(|(parent, name)| parent.has(name, put));
            if !is_there && std::fs::remove_file(&note).is_ok() {
                let _ = std::fs::remove_dir(notes);
            }
        }
        let _ = flock(entry, FlockOperation::Unlock);
        if is_last {
            break;
        }
    }
    outcome
}

fn take_away(entry: &OwnedFd, put: &PutStandIn) -> Result<Outcome, Errno> {
    let stat = rustix::fs::fstat(entry)?;
    let (parent, name) = Parent::of(&put.path)?;
    if !parent.has(name, put) {
        let swapped = parent
            .stat(name)
            .is_some_and(|there| is_marked_ours(&there));
        return Ok(match swapped {
            true => Outcome::Swapped,
            false => Outcome::Settled,
        });
    }
    if !put.is(&stat) || !is_marked_ours(&stat) {
        return Ok(Outcome::Settled);
    }
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let removed = match is_directory {
        // The kernel removes no directory that has something in it.
        true => rustix::fs::unlinkat(&parent.0, name, AtFlags::REMOVEDIR).is_ok(),
        false => {
            stat.st_size == 0 && rustix::fs::unlinkat(&parent.0, name, AtFlags::empty()).is_ok()
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
