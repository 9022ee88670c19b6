//! Who signs, and whose signatures count.

use std::fmt;
use std::str::FromStr;

use ed25519_dalek::{Signature, VerifyingKey};

use crate::base64;
use crate::hash::Hash;

/// The signature type "Ed25519" of signed notes.
const ED25519: u8 = 1;
/// More than any real key name; bounds what is read from outside.
const MAX_NAME: usize = 255;

/// Signs checkpoints and snapshots. Private keys live with the implementor, not in this crate.
pub trait Signer: Send + Sync {
    /// The name in the signature line; the log's origin, by custom.
    fn key_name(&self) -> &str;
    /// The Ed25519 public key.
    fn verifying_key(&self) -> [u8; 32];
    /// An Ed25519 signature over the message.
    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SignError>;
}

/// The signer could not sign.
#[derive(Debug, thiserror::Error)]
#[error("the signer refused")]
pub struct SignError(#[source] Box<dyn std::error::Error + Send + Sync>);

impl SignError {
    /// Wraps the signer's own error.
    pub fn new(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        SignError(cause.into())
    }
}

/// A public key with its name: what a verifier must know beforehand. Written as a C2SP verifier key,
/// `name+id+base64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownKey {
    name: String,
    id: KeyId,
    key: VerifyingKey,
}

/// The short number by which a signature line points to a key. It identifies; it proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyId(pub u32);

/// This is no key we can use.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidKey {
    /// Empty, too long, or with a space, a plus or a control character.
    #[error("the key name must have no space, no plus sign and at most {MAX_NAME} bytes")]
    Name,
    /// Not a point of the curve, or one of small order that would accept forged signatures.
    #[error("the bytes are no Ed25519 public key")]
    Key,
    /// Not of the form `name+id+base64`, or the id is not the key's.
    #[error("a verifier key looks like name+1a2b3c4d+base64")]
    Text,
}

impl KnownKey {
    /// A key under a name.
    pub fn new(name: &str, key: [u8; 32]) -> Result<Self, InvalidKey> {
        if !is_name(name) {
            return Err(InvalidKey::Name);
        }
        let parsed = VerifyingKey::from_bytes(&key).map_err(|_| InvalidKey::Key)?;
        if parsed.is_weak() {
            return Err(InvalidKey::Key);
        }
        let mut preimage = Vec::with_capacity(name.len() + 34);
        preimage.extend_from_slice(name.as_bytes());
        preimage.extend_from_slice(&[b'\n', ED25519]);
        preimage.extend_from_slice(&key);
        let [a, b, c, d, ..] = Hash::of_bytes(&preimage).0;
        Ok(KnownKey {
            name: name.to_owned(),
            id: KeyId(u32::from_be_bytes([a, b, c, d])),
            key: parsed,
        })
    }

    /// The key that this signer signs with.
    pub fn of(signer: &dyn Signer) -> Result<Self, InvalidKey> {
        KnownKey::new(signer.key_name(), signer.verifying_key())
    }

    /// The key's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key's short number.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The key itself.
    pub fn bytes(&self) -> [u8; 32] {
        self.key.to_bytes()
    }

    /// Strict: malleable signatures and weak keys count as invalid.
    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8; 64]) -> bool {
        self.key
            .verify_strict(message, &Signature::from_bytes(signature))
            .is_ok()
    }
}

impl fmt::Display for KnownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut encoded = vec![ED25519];
        encoded.extend_from_slice(self.key.as_bytes());
        write!(f, "{}+{}+{}", self.name, self.id, base64::encode(&encoded))
    }
}

impl FromStr for KnownKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        // The base64 part may have plus signs of its own.
        let mut parts = text.splitn(3, '+');
        let (Some(name), Some(id), Some(encoded)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(InvalidKey::Text);
        };
        let key = match base64::decode(encoded).as_deref() {
            Some([ED25519, key @ ..]) => key.try_into().map_err(|_| InvalidKey::Text)?,
            _ => return Err(InvalidKey::Text),
        };
        let known = KnownKey::new(name, key)?;
        if known.id.to_string() == id {
            Ok(known)
        } else {
            Err(InvalidKey::Text)
        }
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

pub(crate) fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && !name
            .chars()
            .any(|c| c.is_whitespace() || c.is_control() || c == '+')
}
