//! Who may review: names and public keys, in one file that only its owner writes.

use std::fmt;
use std::path::{Path, PathBuf};

use belljar_manifest::keys::{InvalidPublicKey, KeyId, PublicKey};
use serde::{Deserialize, Serialize};

use crate::disk;

/// The most reviewers a state directory may have.
pub const MAX_REVIEWERS: usize = 64;
const MOST_BYTES: u64 = 64 * 1024;

/// A reviewer's name. Lower-case ASCII alone, so that no two names look alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ReviewerName(String);

/// A text is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a reviewer's name is 1 to 32 of a–z, 0–9, `.`, `-` and `_`, and begins with a letter")]
pub struct InvalidName;

impl ReviewerName {
    /// Checks a name.
    ///
    /// # Errors
    /// When it is none.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        let begins = text.starts_with(|c: char| c.is_ascii_lowercase());
        if begins && text.len() <= 32 && text.chars().all(good) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidName)
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ReviewerName {
    type Error = InvalidName;
    fn try_from(text: String) -> Result<Self, InvalidName> {
        Self::new(&text)
    }
}

impl From<ReviewerName> for String {
    fn from(name: ReviewerName) -> Self {
        name.0
    }
}

impl fmt::Display for ReviewerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Somebody who may review, or might once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reviewer {
    /// Their name.
    pub name: ReviewerName,
    /// The key that signs for them.
    pub key: PublicKey,
    /// When they were added, in seconds of Unix time.
    pub added_s: u64,
    /// When they were revoked: nothing they approved counts any more.
    pub revoked_s: Option<u64>,
}

/// Everybody who may review. A value: reading and writing is [`Registry::load`] and [`Registry::change`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registry {
    reviewers: Vec<Reviewer>,
}

/// As it stands in the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    v: u8,
    reviewers: Vec<Line>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    name: ReviewerName,
    public: String,
    added_s: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revoked_s: Option<u64>,
}

/// Why the list of reviewers was not read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The name is taken. A revoked reviewer's too: what they signed must not become somebody else's.
    #[error("there is, or was, a reviewer {0}")]
    NameTaken(ReviewerName),
    /// The key is taken.
    #[error("the key {key} is {name}'s")]
    KeyTaken {
        /// Which.
        key: KeyId,
        /// Whose.
        name: ReviewerName,
    },
    /// No such reviewer.
    #[error("there is no reviewer {0}")]
    Unknown(String),
    /// Too many.
    #[error("there are {MAX_REVIEWERS} reviewers, and there can be no more")]
    Full,
    /// A key in the file can't be trusted.
    #[error("the key of the reviewer {name} can't be trusted")]
    Key {
        /// Whose.
        name: ReviewerName,
        /// What is wrong with it.
        source: InvalidPublicKey,
    },
    /// The file is not one of ours.
    #[error("{path} is not a list of reviewers")]
    Form {
        /// Which.
        path: PathBuf,
        /// How.
        source: serde_json::Error,
    },
    /// The file can't be used.
    #[error("{path} can't be used")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl RegistryError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NameTaken(_) => "choose another name, `ada-2` say; a name is never given twice",
            Self::KeyTaken { .. } => "each person has a key of their own, which nobody else has",
            Self::Unknown(_) => "`belljar reviewer list` names them",
            Self::Full => "start a new state directory",
            Self::Key { .. } | Self::Form { .. } => {
                "restore the file from a copy; `belljar audit list` says who was added when"
            }
            Self::File { .. } => "run it as the user whose state directory it is",
        }
    }
}

impl Registry {
    /// The reviewers of this file; nobody if there is none.
    ///
    /// # Errors
    /// When it can't be read or can't be believed.
    pub fn load(path: &Path) -> Result<Self, RegistryError> {
        let failed = |source| RegistryError::File {
            path: path.to_owned(),
            source,
        };
        let Some(bytes) = disk::read_bounded(path, MOST_BYTES).map_err(failed)? else {
            return Ok(Self::default());
        };
        let file: File = serde_json::from_slice(&bytes).map_err(|source| RegistryError::Form {
            path: path.to_owned(),
            source,
        })?;
        let mut registry = Self::default();
        for line in file.reviewers {
            let key = PublicKey::from_hex(&line.public).map_err(|source| RegistryError::Key {
                name: line.name.clone(),
                source,
            })?;
            registry.add(line.name.clone(), key, line.added_s)?;
            if let (Some(at), Some(last)) = (line.revoked_s, registry.reviewers.last_mut()) {
                last.revoked_s = Some(at);
            }
        }
        Ok(registry)
    }

    /// Reads the file, lets `change` change it, and writes it, under a lock. Nothing is written if `change` fails.
    ///
    /// # Errors
    /// When it can't be read, changed or written.
    pub fn change<T, E: From<RegistryError>>(
        path: &Path,
        change: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let failed = |source| RegistryError::File {
            path: path.to_owned(),
            source,
        };
        let directory = path.parent().unwrap_or(Path::new("."));
        disk::private_directory(directory).map_err(failed)?;
        let _lock = disk::Lock::take(&directory.join("lock")).map_err(failed)?;
        let mut registry = Self::load(path)?;
        let given = change(&mut registry)?;
        let file = File {
            v: 1,
            reviewers: registry.reviewers.iter().map(line).collect(),
        };
        let bytes = serde_json::to_vec_pretty(&file).map_err(|error| failed(error.into()))?;
        disk::replace(path, &bytes).map_err(failed)?;
        Ok(given)
    }

    /// Everybody, the revoked too, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Reviewer> {
        self.reviewers.iter()
    }

    /// The reviewer of this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Reviewer> {
        self.iter().find(|one| one.name.as_str() == name)
    }

    /// The reviewer with this key.
    #[must_use]
    pub fn with_key(&self, key: KeyId) -> Option<&Reviewer> {
        self.iter().find(|one| one.key.id() == key)
    }

    /// Adds somebody.
    ///
    /// # Errors
    /// When the name or the key is, or was, somebody's.
    pub fn add(
        &mut self,
        name: ReviewerName,
        key: PublicKey,
        added_s: u64,
    ) -> Result<&Reviewer, RegistryError> {
        if self.named(name.as_str()).is_some() {
            return Err(RegistryError::NameTaken(name));
        }
        if let Some(other) = self.with_key(key.id()) {
            return Err(RegistryError::KeyTaken {
                key: key.id(),
                name: other.name.clone(),
            });
        }
        if self.reviewers.len() >= MAX_REVIEWERS {
            return Err(RegistryError::Full);
        }
        let at = self.reviewers.len();
        self.reviewers.push(Reviewer {
            name,
            key,
            added_s,
            revoked_s: None,
        });
        Ok(&self.reviewers[at])
    }

    /// Takes somebody's right away, for good.
    ///
    /// # Errors
    /// When there is nobody of that name.
    pub fn revoke(&mut self, name: &str, now_s: u64) -> Result<&Reviewer, RegistryError> {
        let found = self
            .reviewers
            .iter_mut()
            .find(|one| one.name.as_str() == name);
        let one = found.ok_or_else(|| RegistryError::Unknown(name.to_owned()))?;
        one.revoked_s.get_or_insert(now_s);
        Ok(one)
    }
}

fn line(one: &Reviewer) -> Line {
    Line {
        name: one.name.clone(),
        public: one.key.to_string(),
        added_s: one.added_s,
        revoked_s: one.revoked_s,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use belljar_manifest::keys::SecretKey;

    fn key(seed: u8) -> PublicKey {
        SecretKey::ed25519(&[seed; 32]).public_key().unwrap()
    }

    #[test]
    fn names_that_could_be_mistaken_are_none() {
        for bad in ["", "Ada", "аda", "1a", "a b", "a/b", "..", "a\u{202e}b"] {
            assert_eq!(ReviewerName::new(bad), Err(InvalidName), "{bad}");
        }
        assert!(ReviewerName::new("ada.l-2_x").is_ok());
    }

    #[test]
    fn a_name_and_a_key_are_given_once_for_all_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("reviewers.json");
        let ada = ReviewerName::new("ada").unwrap();
        let add = |name: &str, seed| {
            let name = ReviewerName::new(name).unwrap();
            Registry::change(&path, |all| all.add(name, key(seed), 5).map(|_| ()))
        };
        add("ada", 1).unwrap();
        assert!(matches!(add("ada", 2), Err(RegistryError::NameTaken(_))));
        assert!(matches!(add("bob", 1), Err(RegistryError::KeyTaken { .. })));
        Registry::change(&path, |all| all.revoke("ada", 9).map(|_| ())).unwrap();
        assert!(matches!(add("ada", 3), Err(RegistryError::NameTaken(_))));
        assert!(matches!(add("bob", 1), Err(RegistryError::KeyTaken { .. })));
        let read = Registry::load(&path).unwrap();
        assert_eq!(read.named("ada").unwrap().revoked_s, Some(9));
        assert_eq!(read.with_key(key(1).id()).unwrap().name, ada);
    }
}
