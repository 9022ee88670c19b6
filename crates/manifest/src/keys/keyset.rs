//! The keys a verifier trusts, and how far.

use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use super::{Algorithm, InvalidPublicKey, KeyId, KeyIdentity, PublicKey, SecretKey};

/// The most keys a set may have. Rotating weekly, that is more than a year.
pub const MAX_KEYS: usize = 64;

/// The most bytes a key's note may have.
pub(super) const MOST_NOTE_BYTES: usize = 200;

/// What a key may still do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyState {
    /// It signs and verifies.
    Active,
    /// It verifies what it signed, and signs no more.
    Retired,
    /// Somebody else may have it: it verifies nothing.
    Compromised,
}

/// What becomes of the signing key when another takes its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreviousKey {
    /// It signs no more.
    #[default]
    Retire,
    /// It may go on signing until it is retired: for controllers that have not heard of the new one yet.
    KeepActive,
}

/// One key of a set.
#[derive(Clone, Debug)]
pub struct KeyEntry {
    pub(super) id: KeyId,
    pub(super) algorithm: Algorithm,
    pub(super) state: KeyState,
    pub(super) created_at: u64,
    pub(super) note: Option<String>,
    /// The public half as written; none for HMAC.
    pub(super) public: Option<[u8; 32]>,
    /// The checked key. Checking takes a tenth of a millisecond, and most runs verify with no key at all.
    checked: OnceLock<Result<PublicKey, InvalidPublicKey>>,
    /// The HMAC key itself, where it was attached. It is in no document.
    secret: Option<Arc<SecretKey>>,
}

impl KeyEntry {
    pub(super) fn new(
        id: KeyId,
        public: Option<[u8; 32]>,
        state: KeyState,
        created_at: u64,
        note: Option<String>,
    ) -> Self {
        Self {
            id,
            algorithm: match public {
                Some(_) => Algorithm::Ed25519,
                None => Algorithm::Hmac,
            },
            state,
            created_at,
            note,
            public,
            checked: OnceLock::new(),
            secret: None,
        }
    }

    /// The key's name.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// How it signs.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// What it may still do.
    #[must_use]
    pub fn state(&self) -> KeyState {
        self.state
    }

    /// When it was added, in seconds of Unix time.
    #[must_use]
    pub fn created_at(&self) -> u64 {
        self.created_at
    }

    /// What its owner wrote about it.
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The public half of an Ed25519 key, checked at the first call.
    ///
    /// # Errors
    /// When the bytes in the document are no key to trust.
    pub fn public_key(&self) -> Result<Option<&PublicKey>, InvalidPublicKey> {
        let Some(bytes) = &self.public else {
            return Ok(None);
        };
        let checked = self.checked.get_or_init(|| PublicKey::from_bytes(bytes));
        checked.as_ref().map(Some).map_err(|invalid| *invalid)
    }
}

/// The keys a verifier trusts. At most one of them is the signing key: the one new signatures are made with.
#[derive(Clone, Debug, Default)]
pub struct Keyset {
    pub(super) signing: Option<KeyId>,
    pub(super) keys: Vec<KeyEntry>,
}

/// Why a set was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysetError {
    /// It has the key already.
    #[error("the keyset has the key {0} already")]
    Known(KeyId),
    /// It has no such key.
    #[error("the keyset has no key {0}")]
    Unknown(KeyId),
    /// It is full.
    #[error("the keyset has {MAX_KEYS} keys and takes no more")]
    Full,
    /// A compromised key stays compromised.
    #[error("the key {0} is compromised, which can't be taken back")]
    Compromised(KeyId),
    /// The note is too long or can't be shown.
    #[error("a key's note is at most {MOST_NOTE_BYTES} bytes without control characters")]
    Note,
    /// A key in the set is no key to trust.
    #[error("the key {id} of the keyset can't be trusted")]
    Invalid {
        /// Which.
        id: KeyId,
        /// What is wrong with it.
        source: InvalidPublicKey,
    },
    /// The secret is another key, or no HMAC key.
    #[error("the key {0} is not an HMAC key of the keyset")]
    NotHmac(KeyId),
}

/// Why a key may not sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotSign {
    /// The set has no such key.
    #[error("the keyset has no key {0}")]
    Unknown(KeyId),
    /// It is not active.
    #[error("the key {id} is {}", match .state { KeyState::Compromised => "compromised", _ => "retired" })]
    NotActive {
        /// Which.
        id: KeyId,
        /// What it is.
        state: KeyState,
    },
    /// The set has another key under the same id.
    #[error("the keyset's key {0} is another one")]
    Other(KeyId),
}

/// Why a signature does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyFault {
    /// The set has no such key.
    #[error("the key {0} is not in the keyset")]
    Unknown(KeyId),
    /// The key verifies nothing.
    #[error("the key {0} is compromised")]
    Compromised(KeyId),
    /// The key in the set is no key to trust.
    #[error("the key {0} can't be trusted")]
    Weak(KeyId, #[source] InvalidPublicKey),
    /// An HMAC key that was not attached.
    #[error("the HMAC key {0} is not at hand")]
    Missing(KeyId),
    /// The signature is not the key's.
    #[error("the signature is not one of the key {0}")]
    Signature(KeyId),
}

/// A secret key that its keyset lets sign. It is the proof that somebody looked.
#[derive(Clone, Copy, Debug)]
pub struct Signer<'k>(&'k SecretKey);

impl Signer<'_> {
    /// The key's name.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.0.id()
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.0.sign(message)
    }
}

impl Keyset {
    /// A set without keys: it trusts nobody.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The keys, oldest first.
    pub fn keys(&self) -> impl Iterator<Item = &KeyEntry> {
        self.keys.iter()
    }

    /// One of the keys.
    #[must_use]
    pub fn key(&self, id: KeyId) -> Option<&KeyEntry> {
        self.keys.iter().find(|key| key.id == id)
    }

    /// The key that new signatures are made with.
    #[must_use]
    pub fn signing_key(&self) -> Option<KeyId> {
        self.signing
    }

    /// Lets a secret key sign, if it is an active key of the set. No point is decoded and no signature checked, so
    /// loading a set and signing costs little more than the signature.
    ///
    /// # Errors
    /// When the key may not sign; see [`CannotSign`].
    pub fn signer<'k>(&self, secret: &'k SecretKey) -> Result<Signer<'k>, CannotSign> {
        let id = secret.id();
        let entry = self.key(id).ok_or(CannotSign::Unknown(id))?;
        if entry.state != KeyState::Active {
            let state = entry.state;
            return Err(CannotSign::NotActive { id, state });
        }
        if entry.public != secret.public_bytes() {
            return Err(CannotSign::Other(id));
        }
        Ok(Signer(secret))
    }

    /// Adds a key and makes it the signing key. Other active keys stay active.
    ///
    /// # Errors
    /// When the key is there already, the set is full, or a key of it can't be trusted.
    pub fn add(
        &mut self,
        key: &KeyIdentity,
        created_at: u64,
        note: Option<&str>,
    ) -> Result<KeyId, KeysetError> {
        self.check()?;
        let id = key.id();
        if self.key(id).is_some() {
            return Err(KeysetError::Known(id));
        }
        if self.keys.len() >= MAX_KEYS {
            return Err(KeysetError::Full);
        }
        if !note.is_none_or(is_note) {
            return Err(KeysetError::Note);
        }
        let public = match key {
            KeyIdentity::Ed25519(public) => Some(public.bytes()),
            KeyIdentity::Hmac(_) => None,
        };
        let note = note.map(str::to_owned);
        let entry = KeyEntry::new(id, public, KeyState::Active, created_at, note);
        self.keys.push(entry);
        self.signing = Some(id);
        Ok(id)
    }

    /// Adds a key as the signing key in place of the one before.
    ///
    /// # Errors
    /// As [`Keyset::add`]; the set is then as it was.
    pub fn rotate(
        &mut self,
        key: &KeyIdentity,
        created_at: u64,
        note: Option<&str>,
        previous: PreviousKey,
    ) -> Result<KeyId, KeysetError> {
        let before = self.signing;
        let id = self.add(key, created_at, note)?;
        if let (Some(before), PreviousKey::Retire) = (before, previous) {
            self.retire(before)?;
        }
        Ok(id)
    }

    /// Takes a key's right to sign. If it was the signing key, there is none until another is added.
    ///
    /// # Errors
    /// When there is no such key, or it is compromised, which is less than retired.
    pub fn retire(&mut self, id: KeyId) -> Result<(), KeysetError> {
        if self.entry(id)?.state == KeyState::Compromised {
            return Err(KeysetError::Compromised(id));
        }
        self.demote(id, KeyState::Retired)
    }

    /// Takes all trust from a key, for good.
    ///
    /// # Errors
    /// When there is no such key.
    pub fn compromise(&mut self, id: KeyId) -> Result<(), KeysetError> {
        self.demote(id, KeyState::Compromised)
    }

    /// Lends the set an HMAC key to verify with. It is kept in memory only.
    ///
    /// # Errors
    /// When the set has no such HMAC key.
    pub fn attach_hmac(&mut self, secret: Arc<SecretKey>) -> Result<(), KeysetError> {
        let id = secret.id();
        let entry = self.entry(id)?;
        if entry.algorithm != Algorithm::Hmac || secret.algorithm() != Algorithm::Hmac {
            return Err(KeysetError::NotHmac(id));
        }
        entry.secret = Some(secret);
        Ok(())
    }

    /// Checks every key that still verifies. Loading a set does not, for the cost; adding to it does.
    ///
    /// # Errors
    /// The first key that can't be trusted.
    pub fn check(&self) -> Result<(), KeysetError> {
        let trusted = self
            .keys
            .iter()
            .filter(|key| key.state != KeyState::Compromised);
        for key in trusted {
            let id = key.id;
            key.public_key()
                .map_err(|source| KeysetError::Invalid { id, source })?;
        }
        Ok(())
    }

    /// Whether `signature` is one of the key `id` for `message`. The key's entry says by which algorithm.
    ///
    /// # Errors
    /// Why it does not count.
    pub fn verify(&self, id: KeyId, message: &[u8], signature: &[u8]) -> Result<(), VerifyFault> {
        let entry = self.key(id).ok_or(VerifyFault::Unknown(id))?;
        match entry.state {
            KeyState::Active | KeyState::Retired => {}
            KeyState::Compromised => return Err(VerifyFault::Compromised(id)),
        }
        let public = entry
            .public_key()
            .map_err(|invalid| VerifyFault::Weak(id, invalid))?;
        let genuine = match (public, &entry.secret) {
            (Some(key), _) => key.verifies(message, signature),
            (None, Some(secret)) => secret.made(message, signature),
            (None, None) => return Err(VerifyFault::Missing(id)),
        };
        if genuine {
            Ok(())
        } else {
            Err(VerifyFault::Signature(id))
        }
    }

    fn entry(&mut self, id: KeyId) -> Result<&mut KeyEntry, KeysetError> {
        let found = self.keys.iter_mut().find(|key| key.id == id);
        found.ok_or(KeysetError::Unknown(id))
    }

    fn demote(&mut self, id: KeyId, state: KeyState) -> Result<(), KeysetError> {
        self.entry(id)?.state = state;
        if self.signing == Some(id) {
            self.signing = None;
        }
        Ok(())
    }
}

pub(super) fn is_note(note: &str) -> bool {
    note.len() <= MOST_NOTE_BYTES && !note.chars().any(char::is_control)
}
