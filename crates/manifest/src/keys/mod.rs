//! Keys that sign lineage manifests, and the set of them a verifier trusts.
//!
//! The algorithm is a property of the key in the set, never of the message: nobody who writes a message can
//! choose how it is checked.

mod document;
mod keyset;
mod public;
mod secret;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub use document::{InvalidKeyset, MAX_KEYSET_BYTES};
pub use keyset::{
    CannotSign, KeyEntry, KeyState, Keyset, KeysetError, MAX_KEYS, PreviousKey, Signer, VerifyFault,
};
pub use public::{InvalidPublicKey, PublicKey};
pub use secret::{InvalidSecretKey, SecretKey, WrongAlgorithm};

use crate::text_form::hex_form;

/// How a key signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Ed25519: whoever verifies can't sign.
    Ed25519,
    /// HMAC-SHA256: whoever verifies could sign.
    Hmac,
}

impl Algorithm {
    /// The name in documents.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ed25519 => "ed25519",
            Self::Hmac => "hmac",
        }
    }
}

/// The name of a key: a short hash of what it is, so that it can't be given to another key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; 8]);

hex_form!(KeyId, 8, InvalidKeyId, "a key id");

/// What is hashed says what it is for, so that no key has the same id under two algorithms.
const ED25519_LABEL: &[u8] = b"belljar key id v1 ed25519\0";
const HMAC_LABEL: &[u8] = b"belljar key id v1 hmac\0";

impl KeyId {
    fn of_ed25519(public: &[u8; 32]) -> Self {
        let mut hash = Sha256::new();
        hash.update(ED25519_LABEL);
        hash.update(public);
        Self::shortened(&hash.finalize())
    }

    /// A keyed hash: it says nothing about the key.
    fn of_hmac(key: &[u8; 32]) -> Self {
        Self::shortened(&hmac_sha256(key, HMAC_LABEL).finalize().into_bytes())
    }

    fn shortened(hash: &[u8]) -> Self {
        let mut id = [0; 8];
        id.iter_mut().zip(hash).for_each(|(to, from)| *to = *from);
        Self(id)
    }
}

/// What a keyset knows of a key: enough to verify with it, or at least to name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyIdentity {
    /// The public half.
    Ed25519(PublicKey),
    /// The id alone: an HMAC key has no half that could be shown.
    Hmac(KeyId),
}

impl KeyIdentity {
    /// The key's name.
    #[must_use]
    pub fn id(&self) -> KeyId {
        match self {
            Self::Ed25519(public) => public.id(),
            Self::Hmac(id) => *id,
        }
    }
}

impl From<PublicKey> for KeyIdentity {
    fn from(key: PublicKey) -> Self {
        Self::Ed25519(key)
    }
}

fn hmac_sha256(key: &[u8; 32], message: &[u8]) -> Hmac<Sha256> {
    // A key of 32 bytes is shorter than a block: it needs no hashing, and this form can't fail.
    let mut block = hmac::digest::Key::<Hmac<Sha256>>::default();
    block.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    let mut mac = Hmac::<Sha256>::new(&block);
    zeroize::Zeroize::zeroize(block.as_mut_slice());
    mac.update(message);
    mac
}
