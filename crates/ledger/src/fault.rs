//! What can be wrong with a log.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::key::KeyId;
use crate::note::{Distrust, InvalidNote};

/// Why a log does not verify. Each kind calls for another answer, so they are told apart.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Something is not what was signed.
    #[error("tampered: {0}")]
    Tampered(Place),
    /// Entries that were signed for are gone.
    #[error("truncated: {have} entries are left of {expected}")]
    Truncated {
        /// Entries that can still be read.
        have: u64,
        /// Entries there must be.
        expected: u64,
    },
    /// There is no checkpoint, or none that counts.
    #[error("unsigned: {0}")]
    Unsigned(Unsigned),
    /// The checkpoint is too old: the log may have been put back to an earlier state, or its writer is dead.
    #[error("stale: the last checkpoint is {} s old", age.as_secs())]
    Stale {
        /// Time since the checkpoint was signed.
        age: Duration,
    },
    /// A key signed that the caller does not know.
    #[error("signed by the unknown key {name} ({id}); pass its verifier key if you trust it")]
    UnknownKey {
        /// Name in the signature line.
        name: String,
        /// Key id in the signature line.
        id: KeyId,
    },
    /// This is another log than the one asked for.
    #[error("this is the log {found:?}, not {expected:?}")]
    OtherLog {
        /// Origin in the checkpoint.
        found: String,
        /// Origin that was asked for.
        expected: String,
    },
    /// The files can't be read.
    #[error("can't read {path}")]
    Unreadable {
        /// Path below the log's directory.
        path: String,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
}

/// Where a log differs from what was signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// This entry's bytes.
    Entry(u64),
    /// Some of these entries; their hashes were changed along with them.
    Entries {
        /// Index of the first.
        first: u64,
        /// Index of the last.
        last: u64,
    },
    /// This tile of hashes; the entries are as signed.
    Tile {
        /// The tile's level: 0 holds the hashes of entries.
        level: u32,
        /// The tile's number in its level.
        index: u64,
    },
    /// Bytes after the last entry of this full bundle.
    Bundle(u64),
    /// Entries and hashes agree with each other, not with the signed root.
    Root,
    /// Entries before this size: an earlier checkpoint was signed for other ones.
    History {
        /// Size of the earlier checkpoint.
        size: u64,
    },
}

/// Why a checkpoint does not count.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Unsigned {
    /// There is none.
    #[error("there is no checkpoint")]
    Missing,
    /// It can't be parsed.
    #[error("the checkpoint is malformed: {0}")]
    Malformed(InvalidNote),
    /// The signature is not that of the key it names.
    #[error("the signature under the name {name} is invalid")]
    BadSignature {
        /// Whose signature it claims to be.
        name: String,
    },
    /// The checkpoint says nothing about when it was signed, and an age was asked for.
    #[error("the checkpoint bears no time")]
    Undated,
}

impl Fault {
    pub(crate) fn unreadable(path: impl Into<String>) -> impl FnOnce(io::Error) -> Fault {
        let path = path.into();
        move |cause| Fault::Unreadable { path, cause }
    }
}

impl From<InvalidNote> for Fault {
    fn from(invalid: InvalidNote) -> Self {
        Fault::Unsigned(Unsigned::Malformed(invalid))
    }
}

impl From<Distrust> for Fault {
    fn from(distrust: Distrust) -> Self {
        match distrust {
            Distrust::UnknownKey { name, id } => Fault::UnknownKey { name, id },
            Distrust::BadSignature { name } => Fault::Unsigned(Unsigned::BadSignature { name }),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Entry(index) => write!(f, "entry {index}"),
            Place::Entries { first, last } => write!(f, "an entry from {first} to {last}"),
            Place::Tile { level, index } => write!(f, "hash tile {index} of level {level}"),
            Place::Bundle(index) => write!(f, "extra bytes after entry bundle {index}"),
            Place::Root => f.write_str("the whole does not match its signed root"),
            Place::History { size } => {
                write!(
                    f,
                    "the first {size} entries are not those of the earlier checkpoint"
                )
            }
        }
    }
}
