//! The writing end: append, commit, sign.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::bundle::MAX_ENTRY;
use crate::checkpoint::{Checkpoint, is_origin};
use crate::disk::Disk;
use crate::fault::Fault;
use crate::key::{KnownKey, Signer};
use crate::load::Recovery;
use crate::lock::{Held, LockFile, Wait};
use crate::note::{Seal, SealError};
use crate::open::{io_at, known_keys, open_directory, open_locked};
use crate::state::State;

/// Appended and not yet committed: no more than this is held in memory.
pub const MAX_BACKLOG: usize = 64 << 20;

/// A log that this process alone may write to, until it is dropped or released.
///
/// Entries are [appended](Ledger::append) to memory and become part of the log, all or none, with
/// [`commit`](Ledger::commit). After an error of the file system the ledger refuses everything: what is on disk is then
/// unknown, and opening it anew is the way to know.
pub struct Ledger {
    state: State,
    _held: Held,
}

/// What a commit must survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// The end of this process, at any point.
    Crash,
    /// A power cut, too: synced to storage before the checkpoint is written, and after.
    Power,
}

/// How to open a log.
#[derive(Clone, Debug)]
pub struct Options {
    /// Keys besides the signer's own that the last checkpoint may be signed with.
    pub known_keys: Vec<KnownKey>,
    /// Refuse a log with fewer entries than this: a mark kept elsewhere, so that a deleted log is noticed.
    pub min_size: u64,
    /// Where checkpoints get their time from.
    pub clock: fn() -> SystemTime,
}

/// Opening failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process writes to this log.
    #[error("another process is writing to this log")]
    Locked,
    /// The log is not as it was signed. It is left as it is.
    #[error(
        "the log is damaged; move its directory aside to keep it as evidence, or restore it from a copy"
    )]
    Damaged(#[source] Fault),
    /// Unusable as the first line of a checkpoint.
    #[error("a log's origin is 1 to 255 bytes without control characters")]
    Origin,
    /// The signer can't be used.
    #[error("can't sign for this log")]
    Seal(#[from] SealError),
    /// The directory can't be made, locked or written.
    #[error("can't open the log's directory {}", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
}

/// The entry was not taken.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AppendError {
    /// Longer than the format allows.
    #[error(
        "an entry of {0} bytes is too long: put a digest in its place (at most {MAX_ENTRY} bytes)"
    )]
    TooLong(usize),
    /// Too much was appended without a commit.
    #[error("too much is waiting for a commit (at most {MAX_BACKLOG} bytes)")]
    Backlog,
    /// An earlier commit failed.
    #[error("the log takes no more entries after a failed write; open it again")]
    Poisoned,
}

/// The commit did not happen, or it is unknown whether it did.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Nothing was written: the commit may be tried again.
    #[error("the checkpoint can't be signed")]
    Seal(#[from] SealError),
    /// The file system failed. The ledger takes nothing more.
    #[error("the log can't be written; it takes no more entries")]
    Io(#[from] io::Error),
    /// An earlier commit failed.
    #[error("the log takes no more entries after a failed write; open it again")]
    Poisoned,
}

/// A log that was open, let go of, and is cheap to open again. See [`Ledger::release`].
pub struct Released {
    state: State,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            known_keys: Vec::new(),
            min_size: 0,
            clock: SystemTime::now,
        }
    }
}

impl Ledger {
    /// Opens the log in `dir`, made if it does not exist, and takes the right to write to it.
    ///
    /// It costs the same for any size: the last checkpoint and the right edge are read and checked against the signature.
    /// What a crash left past the checkpoint is removed and reported.
    pub fn lock_and_open(
        dir: &Path,
        origin: &str,
        signer: Arc<dyn Signer>,
        options: Options,
        wait: Wait,
    ) -> Result<(Ledger, Recovery), OpenError> {
        if !is_origin(origin) {
            return Err(OpenError::Origin);
        }
        let seal = Seal::new(signer)?;
        let (disk, held) = open_directory(dir, wait)
            .map_err(io_at(dir))?
            .ok_or(OpenError::Locked)?;
        let (state, recovery) = open_locked(dir, disk, origin, seal, options)?;
        Ok((Ledger { state, _held: held }, recovery))
    }

    /// Takes an entry, in order. It is not in the log before the next commit. Returns the index it will have.
    pub fn append(&mut self, entry: &[u8]) -> Result<u64, AppendError> {
        self.state.append(entry)
    }

    /// Puts all that was appended in the log: entries, hashes, and a signed checkpoint, in this order.
    pub fn commit(&mut self, durability: Durability) -> Result<&Checkpoint, CommitError> {
        let state = &mut self.state;
        let size = state.edge.size();
        let settled = size == state.checkpoint.size()
            && (durability == Durability::Crash || state.checkpoint.durable() == size);
        if settled && !state.poisoned {
            return Ok(&state.checkpoint);
        }
        state.write(durability)
    }

    /// Forgets what was appended and not committed.
    pub fn discard(&mut self) {
        self.state.discard();
    }

    /// Signs the present state anew, with the time of now: so that a verifier can tell a quiet log from a dead one.
    /// Commits what was appended, too.
    pub fn refresh(&mut self, durability: Durability) -> Result<&Checkpoint, CommitError> {
        self.state.write(durability)
    }

    /// Lets another key sign from now on. The next checkpoint bears its signature.
    pub fn sign_with(&mut self, signer: Arc<dyn Signer>) -> Result<(), SealError> {
        let seal = Seal::new(signer)?;
        seal.check()?;
        let previous = std::mem::replace(&mut self.state.seal, seal);
        self.state.options.known_keys.push(previous.key().clone());
        Ok(())
    }

    /// The last committed state.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.state.checkpoint
    }

    /// Entries in the log, without those that wait for a commit.
    pub fn size(&self) -> u64 {
        self.state.checkpoint.size()
    }

    /// Entries that wait for a commit.
    pub fn pending(&self) -> u64 {
        self.state.edge.size() - self.state.checkpoint.size()
    }

    /// The log's directory.
    pub fn directory(&self) -> &Path {
        &self.state.path
    }

    /// Lets other processes write, and remembers the state: [`Released::lock_and_resume`] is cheap when none did.
    /// Entries that were not committed are lost.
    pub fn release(mut self) -> Released {
        self.discard();
        Released { state: self.state }
    }

    pub(crate) fn seal(&self) -> &Seal {
        &self.state.seal
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.state.disk
    }

    /// Own key first, then the others that were given.
    pub(crate) fn known_keys(&self) -> Vec<KnownKey> {
        known_keys(&self.state.seal, &self.state.options)
    }
}

impl Released {
    /// Takes the right to write again. If nobody wrote meanwhile, nothing but the checkpoint is read.
    pub fn lock_and_resume(self, wait: Wait) -> Result<(Ledger, Recovery), OpenError> {
        let mut state = self.state;
        let path = state.path.clone();
        // What we saw committed must still be there, whoever wrote meanwhile.
        state.options.min_size = state.options.min_size.max(state.checkpoint.size());
        if !state.disk.is_at(&path).map_err(io_at(&path))? {
            let (disk, held) = open_directory(&path, wait)
                .map_err(io_at(&path))?
                .ok_or(OpenError::Locked)?;
            let (state, recovery) =
                open_locked(&path, disk, &state.origin, state.seal, state.options)?;
            return Ok((Ledger { state, _held: held }, recovery));
        }
        let held = LockFile::open(&state.disk)
            .and_then(|file| file.lock(wait))
            .map_err(io_at(&path))?
            .ok_or(OpenError::Locked)?;
        if state.is_current().map_err(io_at(&path))? {
            return Ok((Ledger { state, _held: held }, Recovery::default()));
        }
        let (state, recovery) =
            open_locked(&path, state.disk, &state.origin, state.seal, state.options)?;
        Ok((Ledger { state, _held: held }, recovery))
    }

    /// Whether nothing on disk is different.
    #[cfg(test)]
    pub(crate) fn is_current(&self) -> io::Result<bool> {
        self.state.is_current()
    }

    /// The state at the time of release.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.state.checkpoint
    }
}
