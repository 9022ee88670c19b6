//! A proof that stands alone: C2SP tlog-proof, a text with the index, the hashes and the signed checkpoint.

use std::fmt;

use crate::base64;
use crate::checkpoint::{Checkpoint, decimal};
use crate::hash::Hash;
use crate::key::KnownKey;
use crate::note::{Distrust, InvalidNote};
use crate::proof::InclusionProof;

const FIRST_LINE: &str = "c2sp.org/tlog-proof@v1";
/// A tree of 2^64 entries is no higher.
const MAX_HASHES: usize = 64;
/// The longest entry in base64, the hashes and the longest checkpoint fit.
const MAX_FILE: usize = 128 * 1024;

/// An entry's proof, to be kept apart from the log. By custom in a file that ends in `.tlog-proof`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProofFile {
    extra: Option<Vec<u8>>,
    index: u64,
    hashes: Vec<Hash>,
    checkpoint: Checkpoint,
}

/// The bytes are no proof file.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidProof {
    /// Malformed.
    #[error("not a proof file: {0}")]
    Text(&'static str),
    /// The checkpoint in it is malformed.
    #[error("the checkpoint in the proof file is malformed")]
    Checkpoint(#[from] InvalidNote),
}

/// The proof does not show what it was to show.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Unproven {
    /// The checkpoint is of another log.
    #[error("the proof is for the log {0:?}")]
    OtherLog(String),
    /// The checkpoint can't be trusted.
    #[error("the checkpoint in the proof can't be trusted")]
    Checkpoint(#[from] Distrust),
    /// The entry is not what was logged at this index.
    #[error("entry {index} of the log is another one")]
    OtherEntry {
        /// Index in the proof.
        index: u64,
    },
}

impl ProofFile {
    /// Joins a proof and the checkpoint of the same size. `None` if the sizes differ.
    pub fn new(proof: InclusionProof, checkpoint: Checkpoint) -> Option<Self> {
        (proof.size == checkpoint.size()).then_some(ProofFile {
            extra: None,
            index: proof.index,
            hashes: proof.hashes,
            checkpoint,
        })
    }

    /// The same proof with something added that the reader will need: the entry itself, for instance.
    #[must_use]
    pub fn with_extra(self, extra: Vec<u8>) -> Self {
        ProofFile {
            extra: Some(extra),
            ..self
        }
    }

    /// Reads a proof file.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidProof> {
        if bytes.len() > MAX_FILE {
            return Err(InvalidProof::Text("too long"));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| InvalidProof::Text("not UTF-8"))?;
        let (head, checkpoint) = text
            .split_once("\n\n")
            .ok_or(InvalidProof::Text("no checkpoint"))?;
        let mut lines = head.split('\n').peekable();
        if lines.next() != Some(FIRST_LINE) {
            return Err(InvalidProof::Text("another first line"));
        }
        let extra = match lines.next_if(|line| line.starts_with("extra ")) {
            Some(line) => Some(
                base64::decode(&line["extra ".len()..])
                    .ok_or(InvalidProof::Text("malformed extra data"))?,
            ),
            None => None,
        };
        let index = lines
            .next()
            .and_then(|line| decimal(line.strip_prefix("index ")?))
            .ok_or(InvalidProof::Text("no index"))?;
        let hashes = lines
            .map(Hash::from_base64)
            .collect::<Option<Vec<_>>>()
            .ok_or(InvalidProof::Text("a malformed hash"))?;
        if hashes.len() > MAX_HASHES {
            return Err(InvalidProof::Text("too many hashes"));
        }
        Ok(ProofFile {
            extra,
            index,
            hashes,
            checkpoint: Checkpoint::parse(checkpoint.as_bytes())?,
        })
    }

    /// Checks that this very entry is in the log of this origin, under a signature of a known key. Returns that key.
    pub fn verify<'k>(
        &self,
        entry: &[u8],
        origin: &str,
        known: &'k [KnownKey],
    ) -> Result<&'k KnownKey, Unproven> {
        if self.checkpoint.origin() != origin {
            return Err(Unproven::OtherLog(self.checkpoint.origin().to_owned()));
        }
        let signer = self.checkpoint.signed_by(known)?;
        let proof = InclusionProof {
            index: self.index,
            size: self.checkpoint.size(),
            hashes: self.hashes.clone(),
        };
        if proof.verify(&Hash::of_entry(entry), &self.checkpoint.root()) {
            Ok(signer)
        } else {
            Err(Unproven::OtherEntry { index: self.index })
        }
    }

    /// The entry's index.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The checkpoint that the proof leads to.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// What the maker added. Nothing vouches for it.
    pub fn extra(&self) -> Option<&[u8]> {
        self.extra.as_deref()
    }
}

impl fmt::Display for ProofFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{FIRST_LINE}")?;
        if let Some(extra) = &self.extra {
            writeln!(f, "extra {}", base64::encode(extra))?;
        }
        writeln!(f, "index {}", self.index)?;
        for hash in &self.hashes {
            writeln!(f, "{hash}")?;
        }
        write!(f, "\n{}", self.checkpoint.note())
    }
}
