//! What a judge knows of a server.

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// A server that a judge judges calls of.
#[derive(Clone, Debug)]
pub struct ServerFacts {
    /// The operator's name for it.
    pub name: String,
    /// SHA-256 of what is run, or of its address: see [`ServerFacts::digest_of`].
    pub digest: String,
    /// Where it runs, if on this machine: paths that are not absolute start there, and links are followed.
    pub directory: Option<PathBuf>,
}

impl ServerFacts {
    /// The digest of a command, or of an address as the only word: each with its length before it.
    #[must_use]
    pub fn digest_of<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> String {
        let mut hasher = Sha256::new();
        for word in words {
            hasher.update((word.len() as u64).to_be_bytes());
            hasher.update(word);
        }
        data_encoding::HEXLOWER.encode(&hasher.finalize())
    }

    /// A server that this machine runs in `directory`.
    #[must_use]
    pub fn local(name: &str, command: &[String], directory: &Path) -> Self {
        Self {
            name: name.to_owned(),
            digest: Self::digest_of(command.iter().map(String::as_bytes)),
            directory: Some(directory.to_owned()),
        }
    }

    /// A server at an address.
    #[must_use]
    pub fn remote(name: &str, address: &str) -> Self {
        Self {
            name: name.to_owned(),
            digest: Self::digest_of([address.as_bytes()]),
            directory: None,
        }
    }
}
