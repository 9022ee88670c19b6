//! Manifests beside the log, each under its own digest: a box is gone soon, and what vouched for it must stay.
//!
//! The log holds the digest, so nothing here needs to be believed. A manifest is on disk before the log names it.

use std::fs::{DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use belljar_manifest::lineage::Digest;

/// The most that is read of one: more than a manifest can have.
const LONGEST: u64 = 4 << 20;

/// Where the manifests of a state directory are.
#[derive(Debug)]
pub struct ManifestStore {
    place: PathBuf,
}

/// A manifest can't be had from the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestStoreError {
    /// None has this digest.
    #[error("no manifest with the digest {0} is kept")]
    Missing(Digest),
    /// Its file was changed.
    #[error("the file of manifest {0} is not what it was: its digest is another")]
    Changed(Digest),
    /// The disk fails.
    #[error("manifest {0} can't be read")]
    Unreadable(Digest, #[source] io::Error),
}

impl ManifestStore {
    /// The store of this state directory.
    #[must_use]
    pub fn of(state: &Path) -> Self {
        Self {
            place: state.join("fleet/manifests"),
        }
    }

    /// Keeps a manifest. One that is there already is the same; what lies there otherwise is none.
    pub(super) fn keep(&self, envelope: &[u8]) -> io::Result<Digest> {
        let digest = Digest::of(envelope);
        let path = self.path(&digest);
        if self.read(&digest).is_ok() {
            return Ok(digest);
        }
        let directory = path.parent().unwrap_or(&self.place);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
        belljar_files::replace(&path, envelope, belljar_files::PRIVATE)?;
        Ok(digest)
    }

    /// The signed bytes of the manifest with this digest.
    pub fn read(&self, digest: &Digest) -> Result<Vec<u8>, ManifestStoreError> {
        let mut bytes = Vec::new();
        let read = File::open(self.path(digest))
            .and_then(|file| file.take(LONGEST).read_to_end(&mut bytes));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(ManifestStoreError::Missing(*digest))
            }
            Err(error) => Err(ManifestStoreError::Unreadable(*digest, error)),
            Ok(_) if Digest::of(&bytes) != *digest => Err(ManifestStoreError::Changed(*digest)),
            Ok(_) => Ok(bytes),
        }
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        let name = digest.to_string();
        // So that no directory has more than some thousands.
        let (shelf, _) = name.split_at_checked(2).unwrap_or((&name, ""));
        self.place.join(shelf).join(format!("{name}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_was_kept_or_an_error() {
        let state = tempfile::tempdir().expect("a directory");
        let store = ManifestStore::of(state.path());
        let digest = store.keep(b"signed").expect("kept");
        assert_eq!(store.keep(b"signed").expect("kept again"), digest);
        assert_eq!(store.read(&digest).expect("read"), b"signed");
        let other = Digest::of(b"other");
        assert!(matches!(
            store.read(&other),
            Err(ManifestStoreError::Missing(_))
        ));
        for left in [b"forged".as_slice(), b""] {
            std::fs::write(store.path(&digest), left).expect("a change");
            assert!(matches!(
                store.read(&digest),
                Err(ManifestStoreError::Changed(_))
            ));
            // What a crash or somebody left under its name is not taken for it.
            assert_eq!(store.keep(b"signed").expect("kept"), digest);
            assert_eq!(store.read(&digest).expect("read"), b"signed");
        }
    }
}
