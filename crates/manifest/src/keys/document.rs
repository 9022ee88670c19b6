//! The keyset's document: JSON, the same bytes for the same set.

use serde::{Deserialize, Serialize};

use super::keyset::is_note;
use super::{Algorithm, KeyEntry, KeyId, KeyState, Keyset, MAX_KEYS};
use crate::text_form::bytes_of_hex;

/// The most bytes a keyset document may have.
pub const MAX_KEYSET_BYTES: usize = 64 * 1024;

const VERSION: u32 = 1;

/// Why bytes are no keyset.
#[derive(Debug, thiserror::Error)]
pub enum InvalidKeyset {
    /// Too large.
    #[error("the keyset is larger than {MAX_KEYSET_BYTES} bytes")]
    TooLarge,
    /// Not the JSON it should be.
    #[error("the keyset is not a keyset document")]
    Json(#[source] serde_json::Error),
    /// From another version of Belljar.
    #[error("the keyset has version {0}; this Belljar reads version {VERSION}")]
    Version(u32),
    /// Too many keys.
    #[error("the keyset has more than {MAX_KEYS} keys")]
    TooMany,
    /// A key twice.
    #[error("the keyset has the key {0} twice")]
    Twice(KeyId),
    /// An id that is not its key's, or a public half where there is none.
    #[error("the entry of key {0} contradicts itself")]
    Contradiction(KeyId),
    /// A signing key that is not there or not active.
    #[error("the signing key {0} is not an active key of the keyset")]
    Signing(KeyId),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysetDocument {
    version: u32,
    signing: Option<KeyId>,
    keys: Vec<KeyDocument>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyDocument {
    id: KeyId,
    algorithm: Algorithm,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    public: Option<String>,
    state: KeyState,
    created_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl Keyset {
    /// Reads a keyset. Ids are checked against their keys; whether a key is a sound point of the curve is checked
    /// when it first verifies, because most runs only sign.
    ///
    /// # Errors
    /// When the bytes are no keyset; see [`InvalidKeyset`].
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidKeyset> {
        if bytes.len() > MAX_KEYSET_BYTES {
            return Err(InvalidKeyset::TooLarge);
        }
        let document: KeysetDocument =
            serde_json::from_slice(bytes).map_err(InvalidKeyset::Json)?;
        if document.version != VERSION {
            return Err(InvalidKeyset::Version(document.version));
        }
        if document.keys.len() > MAX_KEYS {
            return Err(InvalidKeyset::TooMany);
        }
        let mut set = Self::new();
        for key in document.keys {
            if set.key(key.id).is_some() {
                return Err(InvalidKeyset::Twice(key.id));
            }
            set.keys.push(key.entry()?);
        }
        if let Some(id) = document.signing {
            let active = |key: &KeyEntry| key.state == KeyState::Active;
            if !set.key(id).is_some_and(active) {
                return Err(InvalidKeyset::Signing(id));
            }
        }
        set.signing = document.signing;
        Ok(set)
    }

    /// The document of the set. It holds no secret.
    #[must_use]
    pub fn to_json(&self) -> String {
        let document = KeysetDocument {
            version: VERSION,
            signing: self.signing,
            keys: self.keys.iter().map(KeyDocument::of).collect(),
        };
        // Text and numbers under fixed names: there is nothing in it that JSON can't say.
        let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
        text.push('\n');
        text
    }
}

impl KeyDocument {
    fn of(entry: &KeyEntry) -> Self {
        let hex = |bytes: &[u8; 32]| data_encoding::HEXLOWER.encode(bytes);
        Self {
            id: entry.id,
            algorithm: entry.algorithm,
            public: entry.public.as_ref().map(hex),
            state: entry.state,
            created_at: entry.created_at,
            note: entry.note.clone(),
        }
    }

    fn entry(self) -> Result<KeyEntry, InvalidKeyset> {
        let contradiction = InvalidKeyset::Contradiction(self.id);
        let public = match (self.algorithm, self.public) {
            (Algorithm::Hmac, None) => None,
            (Algorithm::Ed25519, Some(hex)) => match bytes_of_hex(&hex) {
                Some(bytes) if KeyId::of_ed25519(&bytes) == self.id => Some(bytes),
                _ => return Err(contradiction),
            },
            _ => return Err(contradiction),
        };
        if !self.note.as_deref().is_none_or(is_note) {
            return Err(contradiction);
        }
        let entry = KeyEntry::new(self.id, public, self.state, self.created_at, self.note);
        Ok(entry)
    }
}
