//! Belljar's ledger: a log that can't be changed unnoticed.
//!
//! An RFC 6962 Merkle tree in the on-disk layout of [C2SP tlog-tiles](https://c2sp.org/tlog-tiles), under checkpoints that
//! are [signed notes](https://c2sp.org/signed-note), so that tools of others verify it as well. Entries are opaque bytes.

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
