//! The public half of an Ed25519 key, checked.

use std::fmt;

use ed25519_dalek::{Signature, VerifyingKey};

use super::KeyId;
use crate::text_form::bytes_of_hex;

/// An Ed25519 public key that is what it seems: one spelling, one point, of full order.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

/// Why 32 bytes are no public key to trust.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPublicKey {
    /// Not 64 hexadecimal digits.
    #[error("a public key is 64 lower-case hexadecimal digits")]
    Text,
    /// No point of the curve.
    #[error("the public key is no point of the curve")]
    NoPoint,
    /// A second spelling of a point: two ids for one key.
    #[error("the public key is written in a form that is not canonical")]
    NotCanonical,
    /// A point of small order: anybody can sign for it.
    #[error("the public key is weak: anybody could sign for it")]
    SmallOrder,
    /// A point with a part of small order: verifiers disagree about its signatures.
    #[error("the public key has a part of small order")]
    MixedOrder,
}

impl PublicKey {
    /// Checks a public key. It takes about a tenth of a millisecond.
    ///
    /// # Errors
    /// When the bytes are no key to trust; see [`InvalidPublicKey`].
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, InvalidPublicKey> {
        let key = VerifyingKey::from_bytes(bytes).map_err(|_| InvalidPublicKey::NoPoint)?;
        let point = key.to_edwards();
        if point.compress().as_bytes() != bytes {
            return Err(InvalidPublicKey::NotCanonical);
        }
        if point.is_small_order() {
            return Err(InvalidPublicKey::SmallOrder);
        }
        if !point.is_torsion_free() {
            return Err(InvalidPublicKey::MixedOrder);
        }
        Ok(Self(key))
    }

    /// Reads the hexadecimal form and checks the key.
    ///
    /// # Errors
    /// When the text is no key to trust; see [`InvalidPublicKey`].
    pub fn from_hex(text: &str) -> Result<Self, InvalidPublicKey> {
        Self::from_bytes(&bytes_of_hex(text).ok_or(InvalidPublicKey::Text)?)
    }

    /// A key that was derived here and so needs no check.
    pub(super) fn derived(key: VerifyingKey) -> Self {
        Self(key)
    }

    /// The key as bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// The key's name.
    #[must_use]
    pub fn id(&self) -> KeyId {
        KeyId::of_ed25519(self.0.as_bytes())
    }

    /// Whether `signature` is this key's for `message`, by the strict rules: one valid signature has one spelling,
    /// and none is valid for many messages.
    #[must_use]
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        Signature::from_slice(signature)
            .is_ok_and(|signature| self.0.verify_strict(message, &signature).is_ok())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(self.0.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}
