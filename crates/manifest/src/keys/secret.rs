//! The secret half of a key. It is wiped when dropped and prints nothing of itself.

use std::fmt;

use ed25519_dalek::{Signer as _, SigningKey};
use hmac::Mac;
use zeroize::{Zeroize, Zeroizing};

use super::{Algorithm, KeyId, KeyIdentity, PublicKey, hmac_sha256};

/// What a key file starts with; the algorithm and the key in hexadecimal follow.
const FILE_MARK: &str = "belljar-secret-key-v1";

/// The most bytes a key file may have.
const MOST_FILE_BYTES: usize = 256;

/// A key that signs.
pub struct SecretKey {
    id: KeyId,
    material: Material,
}

/// On the heap, so that moving the key leaves no copies behind.
enum Material {
    Ed25519(Box<SigningKey>),
    Hmac(Box<Zeroizing<[u8; 32]>>),
}

/// Why a text is no secret key. It never holds a part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a Belljar secret key")]
pub struct InvalidSecretKey;

impl InvalidSecretKey {
    /// What to do about it.
    #[must_use]
    pub fn hint(self) -> &'static str {
        "a key file is one line: belljar-secret-key-v1, ed25519 or hmac, and 64 hexadecimal digits"
    }
}

/// An HMAC key was asked for an Ed25519 signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an HMAC key makes no Ed25519 signatures")]
pub struct WrongAlgorithm;

impl SecretKey {
    /// An Ed25519 key from its seed: 32 bytes out of a secure random source. The caller wipes its own copy.
    #[must_use]
    pub fn ed25519(seed: &[u8; 32]) -> Self {
        let key = Box::new(SigningKey::from_bytes(seed));
        Self {
            id: KeyId::of_ed25519(key.verifying_key().as_bytes()),
            material: Material::Ed25519(key),
        }
    }

    /// An HMAC-SHA256 key: 32 bytes out of a secure random source. The caller wipes its own copy.
    #[must_use]
    pub fn hmac(key: &[u8; 32]) -> Self {
        Self {
            id: KeyId::of_hmac(key),
            material: Material::Hmac(Box::new(Zeroizing::new(*key))),
        }
    }

    /// Reads the text of a key file.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(text: &[u8]) -> Result<Self, InvalidSecretKey> {
        if text.len() > MOST_FILE_BYTES {
            return Err(InvalidSecretKey);
        }
        let text = std::str::from_utf8(text).map_err(|_| InvalidSecretKey)?;
        let mut words = text.strip_suffix('\n').unwrap_or(text).split(' ');
        let (mark, algorithm, hex) = (words.next(), words.next(), words.next());
        if mark != Some(FILE_MARK) || words.next().is_some() {
            return Err(InvalidSecretKey);
        }
        let mut bytes = hex
            .and_then(crate::text_form::bytes_of_hex::<32>)
            .ok_or(InvalidSecretKey)?;
        let key = match algorithm {
            Some("ed25519") => Ok(Self::ed25519(&bytes)),
            Some("hmac") => Ok(Self::hmac(&bytes)),
            _ => Err(InvalidSecretKey),
        };
        bytes.zeroize();
        key
    }

    /// The text of a key file. It belongs in a file that only its owner can read, and is wiped when dropped.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        let bytes = match &self.material {
            Material::Ed25519(key) => key.as_bytes(),
            Material::Hmac(key) => &***key,
        };
        // Sized beforehand: a string that grows leaves its old copies unwiped.
        let mut text = Zeroizing::new(String::with_capacity(MOST_FILE_BYTES));
        text.push_str(FILE_MARK);
        text.push(' ');
        text.push_str(self.algorithm().as_str());
        text.push(' ');
        data_encoding::HEXLOWER.encode_append(bytes, &mut text);
        text.push('\n');
        text
    }

    /// The key's name.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// How it signs.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self.material {
            Material::Ed25519(_) => Algorithm::Ed25519,
            Material::Hmac(_) => Algorithm::Hmac,
        }
    }

    /// The public half of an Ed25519 key.
    #[must_use]
    pub fn public_key(&self) -> Option<PublicKey> {
        match &self.material {
            Material::Ed25519(key) => Some(PublicKey::derived(key.verifying_key())),
            Material::Hmac(_) => None,
        }
    }

    /// What a keyset may know of it.
    #[must_use]
    pub fn identity(&self) -> KeyIdentity {
        self.public_key()
            .map_or(KeyIdentity::Hmac(self.id), KeyIdentity::Ed25519)
    }

    /// Signs with Ed25519: what the log's checkpoints need.
    ///
    /// # Errors
    /// When the key is an HMAC key.
    pub fn sign_ed25519(&self, message: &[u8]) -> Result<[u8; 64], WrongAlgorithm> {
        match &self.material {
            Material::Ed25519(key) => Ok(key.sign(message).to_bytes()),
            Material::Hmac(_) => Err(WrongAlgorithm),
        }
    }

    /// Signs by the key's own algorithm: 64 bytes of Ed25519 or 32 of HMAC.
    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        match &self.material {
            Material::Ed25519(key) => key.sign(message).to_bytes().to_vec(),
            Material::Hmac(key) => {
                let mac = hmac_sha256(key, message).finalize();
                mac.into_bytes().to_vec()
            }
        }
    }

    /// Whether this HMAC key made `code`, compared in constant time. An Ed25519 key makes none.
    pub(super) fn made(&self, message: &[u8], code: &[u8]) -> bool {
        match &self.material {
            Material::Hmac(key) => hmac_sha256(key, message).verify_slice(code).is_ok(),
            Material::Ed25519(_) => false,
        }
    }

    /// The public half as bytes, without a point behind it.
    pub(super) fn public_bytes(&self) -> Option<[u8; 32]> {
        match &self.material {
            Material::Ed25519(key) => Some(key.verifying_key().to_bytes()),
            Material::Hmac(_) => None,
        }
    }
}

/// Names the key and shows nothing of it.
impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
