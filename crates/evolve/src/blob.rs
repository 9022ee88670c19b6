//! The contents of a file, shared by every tree that has it, and hashed once.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use sha2::Digest as _;

/// The contents of a file. Copies share it, and its digest.
#[derive(Clone)]
pub struct Blob(Arc<Inner>);

struct Inner {
    bytes: Box<[u8]>,
    sha256: OnceLock<[u8; 32]>,
}

impl Blob {
    /// Its SHA-256, made when first asked for.
    #[must_use]
    pub fn sha256(&self) -> &[u8; 32] {
        self.0
            .sha256
            .get_or_init(|| sha2::Sha256::digest(&self.0.bytes).into())
    }

    /// Whether both are one and the same in memory: then they are equal, and nobody has to look.
    #[must_use]
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Inner {
            bytes: bytes.into(),
            sha256: OnceLock::new(),
        }))
    }
}

impl From<&[u8]> for Blob {
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

impl PartialEq for Blob {
    fn eq(&self, other: &Self) -> bool {
        self.is_shared_with(other) || **self == **other
    }
}

impl Eq for Blob {}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.len())
    }
}
