//! What can be wrong with keys, and what to do about it.

use std::io;
use std::path::PathBuf;

use belljar_manifest::keys::{InvalidKeyset, KeyId, KeysetError};

/// Keys that can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A file could not be read or written.
    #[error("{}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The set is changed over and over.
    #[error("the keys change faster than they can be read")]
    Restless,
    /// There is no key yet.
    #[error("there is no key that signs")]
    NoKey,
    /// Others could read the secret.
    #[error("{} can be read by others than its owner", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// The keyset file is damaged.
    #[error("{}", path.display())]
    Keyset {
        /// The file.
        path: PathBuf,
        /// How.
        source: InvalidKeyset,
    },
    /// What should be a secret key is none, or another one.
    #[error("{from} does not hold the secret of key {id}")]
    WrongSecret {
        /// Where it came from.
        from: String,
        /// The key.
        id: KeyId,
    },
    /// What should be a secret key is none.
    #[error("{from} does not hold a secret key")]
    NotSecret {
        /// Where it came from.
        from: String,
    },
    /// The command that prints the key failed.
    #[error("the command that prints the key failed: {how}")]
    Command {
        /// How.
        how: String,
    },
    /// The set does not take the change.
    #[error("the change is not possible")]
    Change(#[from] KeysetError),
    /// No key, or more than one, begins like this.
    #[error("{found} keys begin with {given:?}")]
    Ambiguous {
        /// As given.
        given: String,
        /// How many.
        found: usize,
    },
}

impl KeyError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::NoKey => "run `belljar keys init`, or `belljar keys rotate` for a new one".to_owned(),
            Self::Restless => "see who runs `belljar keys` all the time".to_owned(),
            Self::Exposed { path } => format!("chmod 600 {}", path.display()),
            Self::Keyset { .. } => "put back a copy of keyset.json, or move the keys directory away to start anew".to_owned(),
            Self::WrongSecret { .. } | Self::NotSecret { .. } => {
                "a key file is one line: belljar-secret-key-v1, ed25519 or hmac, and 64 hexadecimal digits".to_owned()
            }
            Self::Command { .. } => "BELLJAR_KEY_COMMAND must print a key file and exit with 0".to_owned(),
            Self::Ambiguous { .. } => "`belljar keys list` shows the ids".to_owned(),
            Self::Change(KeysetError::Known(_)) => {
                "first put another key where BELLJAR_KEY_FILE or BELLJAR_KEY_COMMAND finds it".to_owned()
            }
            Self::File { .. } | Self::Change(_) => "`belljar keys list` shows what there is".to_owned(),
        }
    }
}
