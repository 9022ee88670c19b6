//! Belljar's ledger: a log that can't be changed unnoticed.
//!
//! An RFC 6962 Merkle tree in the on-disk layout of [C2SP tlog-tiles](https://c2sp.org/tlog-tiles), under checkpoints that
//! are [signed notes](https://c2sp.org/signed-note), so that tools of others verify it as well. Entries are opaque bytes.
//!
//! - [`Ledger`] writes: one process at a time, under a lock. [`Writer`] lets many threads share its commits.
//! - [`Reader`] reads without the lock, follows a growing log, and makes proofs.
//! - [`verify`] checks all there is and names what is wrong. [`ProofFile`] proves one entry without the log.
//!
//! # What is in the directory
//!
//! | file | what it is |
//! |---|---|
//! | `checkpoint` | the signed head: origin, size, root, `time`, and how many entries were `durable` |
//! | `tile/entries/…`, `tile/0/…`, `tile/1/…` | entries, their hashes, and the hashes above, 256 to a file; the last of each row is partial, `….p/WIDTH`. Only the current width is kept |
//! | `checkpoint.spare` | the checkpoint before; swapped with the current one, so that no reader sees half of it |
//! | `journal` | durable commits whose tiles are not synced yet |
//! | `snapshot` | a state of the caller's, signed; may be deleted |
//! | `lock` | locked by whoever writes |
//!
//! # What it holds
//!
//! - A kill at any point leaves the log as it was before a commit or after it. What is past the checkpoint is removed by
//!   the next opening, and reported.
//! - A commit with [`Durability::Power`] survives a power cut. One with [`Durability::Crash`] may be lost then, and if its
//!   checkpoint reached the disk before its entries, the log is refused as truncated: that can't be told from an attack.
//! - Entries that were signed for are never given up in silence: with fewer on disk, opening refuses.
//! - Who can write to the directory and has no key can put the log back to an earlier state as a whole. Nothing inside can
//!   show that: keep a checkpoint or a size elsewhere ([`VerifyOptions::since`], [`Options::min_size`]), or ask for a young
//!   checkpoint ([`VerifyOptions::max_age`]).

mod audit;
mod base64;
mod bundle;
mod checkpoint;
mod disk;
mod fault;
mod hash;
mod journal;
mod key;
mod ledger;
mod load;
mod lock;
mod note;
mod open;
mod proof;
mod proof_file;
mod reader;
mod rows;
mod snapshot;
mod state;
#[cfg(test)]
mod tests;
mod tile;
mod tree;
mod verify;
mod writer;

pub use bundle::MAX_ENTRY;
pub use checkpoint::Checkpoint;
pub use fault::{Fault, Place, Unsigned};
pub use hash::Hash;
pub use key::{InvalidKey, KeyId, KnownKey, SignError, Signer};
pub use ledger::{
    AppendError, CommitError, Durability, Ledger, MAX_BACKLOG, OpenError, Options, Released,
};
pub use load::Recovery;
pub use lock::Wait;
pub use note::{Distrust, InvalidNote, SealError};
pub use proof::{ConsistencyProof, InclusionProof, ProveError};
pub use proof_file::{InvalidProof, ProofFile, Unproven};
pub use reader::{Entries, Entry, Reader};
pub use snapshot::{MAX_SNAPSHOT, Snapshot, UnusableSnapshot, WriteSnapshotError};
pub use verify::{MaxAge, Verified, VerifyOptions, verify, verify_and_visit};
pub use writer::{Ticket, WriteError, Writer, WriterHandle};
