//! The hashes of RFC 6962: leaves and nodes are told apart by their first byte.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::base64;

/// A SHA-256 hash of an entry, of a subtree, or of the whole log. Shown as base64, as in checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Bytes of a hash on disk.
    pub(crate) const LEN: usize = 32;

    /// The hash of an entry: the leaf that it is in the tree.
    pub fn of_entry(entry: &[u8]) -> Self {
        let mut digest = Sha256::new();
        digest.update([0u8]);
        digest.update(entry);
        Hash(digest.finalize().into())
    }

    /// The hash of a node above two subtrees.
    pub fn of_node(left: &Hash, right: &Hash) -> Self {
        let mut joined = [1u8; 65];
        joined[1..33].copy_from_slice(&left.0);
        joined[33..].copy_from_slice(&right.0);
        Hash(Sha256::digest(joined).into())
    }

    /// The root of a log without entries.
    pub fn of_nothing() -> Self {
        Hash::of_bytes(&[])
    }

    /// Plain SHA-256, without a place in the tree.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        Hash(Sha256::digest(bytes).into())
    }

    pub(crate) fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Hash)
    }

    pub(crate) fn from_base64(text: &str) -> Option<Self> {
        // Checked first: a long line need not be decoded to be refused.
        if text.len() != 44 {
            return None;
        }
        Hash::from_slice(&base64::decode(text)?)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base64::encode(&self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({self})")
    }
}
