//! A snapshot: what the caller made of the entries up to some size, so that it need not read them again.
//!
//! It is bound to the log by the root at its size and to its bytes by their digest, and both are signed: who can write to
//! the directory can delete a snapshot, but not make one up. It lies beside the log and can be deleted at any time.

use std::io;

use crate::checkpoint::decimal;
use crate::disk::Disk;
use crate::fault::Fault;
use crate::hash::Hash;
use crate::key::KnownKey;
use crate::ledger::Ledger;
use crate::note::{Distrust, InvalidNote, MAX_NOTE, Note, SealError};
use crate::proof::{Hashes, ProveError};
use crate::reader::Reader;

/// The longest payload that is written or read.
pub const MAX_SNAPSHOT: usize = 256 << 20;
const FILE: &str = "snapshot";
const NEW_FILE: &str = "snapshot.new";
const FIRST_LINE: &str = "belljar-ledger-snapshot-v1";
/// Between the signed note and the payload. A note has no zero byte.
const END_OF_NOTE: u8 = 0;

/// A state of the caller's at some size of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Entries that are in it.
    pub size: u64,
    /// The caller's bytes.
    pub payload: Vec<u8>,
}

/// The snapshot was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteSnapshotError {
    /// Longer than [`MAX_SNAPSHOT`].
    #[error("a snapshot of {0} bytes is too long (at most {MAX_SNAPSHOT} bytes)")]
    TooLong(usize),
    /// The log has no such size.
    #[error("the log can't be read at this size")]
    Log(#[from] ProveError),
    /// It can't be signed.
    #[error("the snapshot can't be signed")]
    Seal(#[from] SealError),
    /// The file can't be written. The log is as it was.
    #[error("the snapshot can't be written")]
    Io(#[from] io::Error),
}

/// There is a snapshot, and it can't be used. Reading all entries gives what it would have given.
#[derive(Debug, thiserror::Error)]
pub enum UnusableSnapshot {
    /// Cut off, or never a snapshot.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// The signed head can't be parsed.
    #[error("malformed")]
    Note(#[from] InvalidNote),
    /// Not signed by a known key.
    #[error("the snapshot can't be trusted")]
    Distrust(#[from] Distrust),
    /// Of another log, or of another history of this one.
    #[error("the snapshot is not of this log")]
    OtherLog,
    /// It has entries that the log has not.
    #[error("the snapshot is of {size} entries, the log has {log_size}")]
    Ahead {
        /// Entries in the snapshot.
        size: u64,
        /// Entries in the log.
        log_size: u64,
    },
    /// The payload is not the one that was signed.
    #[error("the payload was changed")]
    Payload,
    /// The files can't be read.
    #[error("can't be read")]
    Unreadable(#[source] Fault),
}

impl Ledger {
    /// Keeps the caller's state as of the first `size` entries, in the place of an earlier snapshot.
    pub fn write_snapshot(&self, size: u64, payload: &[u8]) -> Result<(), WriteSnapshotError> {
        if payload.len() > MAX_SNAPSHOT {
            return Err(WriteSnapshotError::TooLong(payload.len()));
        }
        let root = Hashes::new(self.disk(), self.size()).root_at(size)?;
        let origin = self.checkpoint().origin();
        let digest = Hash::of_bytes(payload);
        let text = format!("{FIRST_LINE}\n{origin}\n{size}\n{root}\n{digest}\n");
        let mut head = self.seal().sign(&text)?.into_bytes();
        head.push(END_OF_NOTE);
        let file = self.disk().create(NEW_FILE)?;
        self.disk().write(&file, &head, 0)?;
        self.disk().write(&file, payload, head.len() as u64)?;
        Ok(self.disk().rename(NEW_FILE, FILE)?)
    }

    /// The last snapshot, if it is of this log and signed by a key that this ledger knows.
    pub fn read_snapshot(&self) -> Result<Option<Snapshot>, UnusableSnapshot> {
        read(
            self.disk(),
            self.checkpoint().origin(),
            self.size(),
            &self.known_keys(),
        )
    }
}

impl Reader {
    /// The last snapshot, if it is of this log and signed by a known key.
    pub fn read_snapshot(&self, known: &[KnownKey]) -> Result<Option<Snapshot>, UnusableSnapshot> {
        read(self.disk(), self.checkpoint().origin(), self.size(), known)
    }
}

fn read(
    disk: &Disk,
    origin: &str,
    log_size: u64,
    known: &[KnownKey],
) -> Result<Option<Snapshot>, UnusableSnapshot> {
    let limit = (MAX_SNAPSHOT + MAX_NOTE) as u64;
    let read = disk.read(FILE, limit).map_err(Fault::unreadable(FILE));
    let Some(mut bytes) = read.map_err(UnusableSnapshot::Unreadable)? else {
        return Ok(None);
    };
    let end = bytes
        .iter()
        .take(MAX_NOTE + 1)
        .position(|byte| *byte == END_OF_NOTE)
        .ok_or(UnusableSnapshot::Malformed("no end of the head"))?;
    let (size, root, digest) = {
        let note = Note::parse(&bytes[..end])?;
        note.signed_by(known)?;
        parse_head(note.text, origin)?
    };
    let payload = bytes.split_off(end + 1);
    if size > log_size {
        return Err(UnusableSnapshot::Ahead { size, log_size });
    }
    match Hashes::new(disk, log_size).root_at(size) {
        Ok(found) if found == root => {}
        Ok(_) | Err(ProveError::OutOfRange { .. }) => return Err(UnusableSnapshot::OtherLog),
        Err(ProveError::Log(fault)) => return Err(UnusableSnapshot::Unreadable(fault)),
    }
    if Hash::of_bytes(&payload) != digest {
        return Err(UnusableSnapshot::Payload);
    }
    Ok(Some(Snapshot { size, payload }))
}

fn parse_head(text: &str, origin: &str) -> Result<(u64, Hash, Hash), UnusableSnapshot> {
    let lines: Vec<_> = text.lines().collect();
    let [FIRST_LINE, of, size, root, digest] = lines[..] else {
        return Err(UnusableSnapshot::Malformed("another kind of note"));
    };
    if of != origin {
        return Err(UnusableSnapshot::OtherLog);
    }
    decimal(size)
        .zip(Hash::from_base64(root))
        .zip(Hash::from_base64(digest))
        .map(|((size, root), digest)| (size, root, digest))
        .ok_or(UnusableSnapshot::Malformed("a malformed head"))
}
