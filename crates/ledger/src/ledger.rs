//! The writing end: append, commit, sign.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::bundle::MAX_ENTRY;
use crate::checkpoint::{Checkpoint, Head, is_origin};
use crate::disk::Disk;
use crate::fault::Fault;
use crate::hash::Hash;
use crate::key::{KnownKey, Signer};
use crate::load::{CHECKPOINT, Loaded, Recovery, SPARE, load, read_checkpoint};
use crate::lock::{Held, LockFile, Wait};
use crate::note::{MAX_NOTE, Seal, SealError};
use crate::rows::{RowEnd, sync_range};
use crate::tile::{LEVELS, Row};
use crate::tree::Edge;

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

struct State {
    path: PathBuf,
    disk: Disk,
    origin: String,
    seal: Seal,
    options: Options,
    edge: Edge,
    /// The edge without what is pending.
    committed: Edge,
    rows: Vec<RowEnd>,
    checkpoint: Checkpoint,
    pending: Pending,
    poisoned: bool,
}

/// Appended and not yet written.
#[derive(Default)]
struct Pending {
    entries: Vec<u8>,
    /// Where each entry ends.
    ends: Vec<usize>,
    /// New hashes by level.
    hashes: [Vec<u8>; LEVELS as usize],
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
        open_locked(dir, disk, held, origin, seal, options)
    }

    /// Takes an entry, in order. It is not in the log before the next commit. Returns the index it will have.
    pub fn append(&mut self, entry: &[u8]) -> Result<u64, AppendError> {
        let state = &mut self.state;
        if state.poisoned {
            return Err(AppendError::Poisoned);
        }
        let length = u16::try_from(entry.len()).map_err(|_| AppendError::TooLong(entry.len()))?;
        let pending = &mut state.pending;
        if pending.entries.len() + entry.len() + 2 > MAX_BACKLOG {
            return Err(AppendError::Backlog);
        }
        pending.entries.extend_from_slice(&length.to_be_bytes());
        pending.entries.extend_from_slice(entry);
        pending.ends.push(pending.entries.len());
        let index = state.edge.size();
        state.edge.push(Hash::of_entry(entry), |level, hash| {
            pending.hashes[level as usize].extend_from_slice(&hash.0);
        });
        Ok(index)
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
        self.state.edge.clone_from(&self.state.committed);
        self.state.pending.clear();
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
        if !state.disk.is_at(&path).map_err(io_at(&path))? {
            let (disk, held) = open_directory(&path, wait)
                .map_err(io_at(&path))?
                .ok_or(OpenError::Locked)?;
            return open_locked(&path, disk, held, &state.origin, state.seal, state.options);
        }
        let held = LockFile::open(&state.disk)
            .and_then(|file| file.lock(wait))
            .map_err(io_at(&path))?
            .ok_or(OpenError::Locked)?;
        if state.is_current().map_err(io_at(&path))? {
            return Ok((Ledger { state, _held: held }, Recovery::default()));
        }
        state.options.min_size = state.options.min_size.max(state.checkpoint.size());
        open_locked(
            &path,
            state.disk,
            held,
            &state.origin,
            state.seal,
            state.options,
        )
    }

    /// The state at the time of release.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.state.checkpoint
    }
}

impl State {
    fn is_current(&self) -> io::Result<bool> {
        let note = self.disk.read(CHECKPOINT, MAX_NOTE as u64 + 1)?;
        Ok(!self.poisoned
            && note.as_deref() == Some(self.checkpoint.note().as_bytes())
            && self.rows[0].is_untouched(&self.disk)?)
    }

    fn write(&mut self, durability: Durability) -> Result<&Checkpoint, CommitError> {
        if self.poisoned {
            return Err(CommitError::Poisoned);
        }
        let size = self.edge.size();
        let checkpoint = Checkpoint::sign(
            &Head {
                origin: &self.origin,
                size,
                root: self.edge.root(),
                time: seconds((self.options.clock)()),
                durable: match durability {
                    Durability::Crash => self.checkpoint.durable(),
                    Durability::Power => size,
                },
            },
            &self.seal,
        )?;
        // From here on an error leaves the disk in a state that only opening can tell.
        self.poisoned = true;
        self.write_rows()?;
        if durability == Durability::Power {
            sync_range(&self.disk, self.checkpoint.durable(), size)?;
        }
        publish(&self.disk, &checkpoint, durability)?;
        self.checkpoint = checkpoint;
        self.committed.clone_from(&self.edge);
        self.poisoned = false;
        Ok(&self.checkpoint)
    }

    /// Entries first: as long as there is none past the checkpoint, nothing else is.
    fn write_rows(&mut self) -> io::Result<()> {
        let size = self.edge.size();
        let pending = &mut self.pending;
        for (n, end) in self.rows.iter_mut().enumerate() {
            match n.checked_sub(1) {
                None => end.extend(&self.disk, size, &pending.entries, |items| match items {
                    0 => 0,
                    _ => pending.ends[items as usize - 1],
                })?,
                Some(level) => {
                    let items = Row::Hashes(level as u32).items(size);
                    let hashes = &pending.hashes[level];
                    end.extend(&self.disk, items, hashes, |items| {
                        items as usize * Hash::LEN
                    })?;
                }
            }
        }
        pending.clear();
        Ok(())
    }
}

impl Pending {
    /// Keeps the memory for the next commit, unless one big commit made it large.
    fn clear(&mut self) {
        self.entries.clear();
        self.entries.shrink_to(1 << 20);
        self.ends.clear();
        self.ends.shrink_to(1 << 12);
        for hashes in &mut self.hashes {
            hashes.clear();
            hashes.shrink_to(1 << 17);
        }
    }
}

fn open_directory(dir: &Path, wait: Wait) -> io::Result<Option<(Disk, Held)>> {
    let disk = match Disk::open(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            if let Some(above) = dir.parent().filter(|above| !above.as_os_str().is_empty()) {
                Disk::open(above)?.sync_directory(".")?;
            }
            Disk::open(dir)?
        }
        opened => opened?,
    };
    let held = LockFile::open(&disk)?.lock(wait)?;
    Ok(held.map(|held| (disk, held)))
}

fn open_locked(
    dir: &Path,
    disk: Disk,
    held: Held,
    origin: &str,
    seal: Seal,
    options: Options,
) -> Result<(Ledger, Recovery), OpenError> {
    let known = known_keys(&seal, &options);
    let checkpoint = read_checkpoint(&disk, origin, &known).map_err(OpenError::Damaged)?;
    let have = checkpoint.as_ref().map_or(0, Checkpoint::size);
    if have < options.min_size {
        return Err(OpenError::Damaged(Fault::Truncated {
            have,
            expected: options.min_size,
        }));
    }
    let checkpoint = match checkpoint {
        Some(checkpoint) => checkpoint,
        None => {
            seal.check()?;
            let time = seconds((options.clock)());
            let root = Hash::of_nothing();
            let head = Head {
                origin,
                size: 0,
                root,
                time,
                durable: 0,
            };
            let checkpoint = Checkpoint::sign(&head, &seal)?;
            publish(&disk, &checkpoint, Durability::Power).map_err(io_at(dir))?;
            checkpoint
        }
    };
    let Loaded {
        edge,
        rows,
        recovery,
    } = load(&disk, &checkpoint).map_err(OpenError::Damaged)?;
    let state = State {
        path: dir.to_owned(),
        disk,
        origin: origin.to_owned(),
        seal,
        options,
        committed: edge.clone(),
        edge,
        rows,
        checkpoint,
        pending: Pending::default(),
        poisoned: false,
    };
    Ok((Ledger { state, _held: held }, recovery))
}

/// Puts a checkpoint in the place of the current one, at once: a reader sees the old or the new, also after a kill.
fn publish(disk: &Disk, checkpoint: &Checkpoint, durability: Durability) -> io::Result<()> {
    let note = checkpoint.note().as_bytes();
    let file = match disk.open_writable(SPARE)? {
        Some(file) => file,
        None => disk.create(SPARE)?,
    };
    if file.metadata()?.len() > note.len() as u64 {
        disk.truncate(&file, 0)?;
    }
    disk.write(&file, note, 0)?;
    if durability == Durability::Power {
        disk.sync(&file)?;
    }
    disk.exchange(SPARE, CHECKPOINT)?;
    if durability == Durability::Power {
        disk.sync_directory(".")?;
    }
    Ok(())
}

fn known_keys(seal: &Seal, options: &Options) -> Vec<KnownKey> {
    let mut known = vec![seal.key().clone()];
    known.extend_from_slice(&options.known_keys);
    known
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> OpenError + use<> {
    let path = path.to_owned();
    move |cause| OpenError::Io { path, cause }
}
