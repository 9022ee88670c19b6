//! The kill switch's latch: a file that refuses everything for as long as it is there.
//!
//! It is apart from the log so that engaging never waits for the log, and so that it holds with no controller
//! running. Whatever is at its path engages it, a file that can't be read too: only absence means "off".

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The most that is read of a latch.
const LONGEST: u64 = 16 * 1024;

/// Where the latch of a state directory is.
#[derive(Clone, Debug)]
pub struct Latch {
    path: PathBuf,
}

/// Why and since when it is engaged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Engaged {
    /// Since when, in milliseconds since 1970.
    pub at_ms: u64,
    /// The user who engaged it.
    pub by_uid: u32,
    /// What they said.
    pub reason: String,
}

/// The latch could not be set or taken off.
#[derive(Debug, thiserror::Error)]
#[error("the kill switch's latch {}", path.display())]
pub struct LatchError {
    path: PathBuf,
    source: io::Error,
}

impl Latch {
    /// The latch of this state directory.
    #[must_use]
    pub fn of(state: &Path) -> Self {
        Self {
            path: state.join("kill-switch"),
        }
    }

    /// Since when and why it is engaged, if it is.
    #[must_use]
    pub fn engaged(&self) -> Option<Engaged> {
        match fs::symlink_metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            _ => Some(self.read().unwrap_or_else(|_| Engaged {
                at_ms: 0,
                by_uid: 0,
                reason: "the latch is there and can't be read".to_owned(),
            })),
        }
    }

    fn read(&self) -> io::Result<Engaged> {
        use std::io::Read as _;
        let mut text = Vec::new();
        File::open(&self.path)?
            .take(LONGEST)
            .read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Engages it, durably. One that is engaged keeps its first reason.
    pub fn engage(&self, at_ms: u64, reason: &str) -> Result<(), LatchError> {
        let engaged = Engaged {
            at_ms,
            by_uid: rustix::process::getuid().as_raw(),
            reason: reason.to_owned(),
        };
        self.put(&engaged).map_err(|source| self.failure(source))
    }

    fn put(&self, engaged: &Engaged) -> io::Result<()> {
        if self.engaged().is_some() {
            return Ok(());
        }
        belljar_files::replace(
            &self.path,
            &serde_json::to_vec(engaged)?,
            belljar_files::PRIVATE,
        )
    }

    /// Takes it off, durably.
    pub fn reset(&self) -> Result<(), LatchError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failure(error)),
            _ => self.settle().map_err(|source| self.failure(source)),
        }
    }

    /// A name is durable once its directory is.
    fn settle(&self) -> io::Result<()> {
        belljar_files::sync_directory(self.path.parent().unwrap_or(Path::new(".")))
    }

    fn failure(&self, source: io::Error) -> LatchError {
        LatchError {
            path: self.path.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_until_it_is_reset_and_keeps_its_first_reason() {
        let directory = tempfile::tempdir().unwrap();
        let latch = Latch::of(directory.path());
        assert_eq!(latch.engaged(), None);
        latch.engage(7, "first").unwrap();
        latch.engage(8, "second").unwrap();
        assert_eq!(
            latch.engaged().map(|e| (e.at_ms, e.reason)),
            Some((7, "first".to_owned()))
        );
        latch.reset().unwrap();
        latch.reset().unwrap();
        assert_eq!(latch.engaged(), None);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn whatever_is_in_its_place_engages_it() {
        let directory = tempfile::tempdir().unwrap();
        let latch = Latch::of(directory.path());
        let path = directory.path().join("kill-switch");
        fs::write(&path, b"\xff not JSON").unwrap();
        assert!(latch.engaged().is_some());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(latch.engaged().is_some());
        fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink("/nonexistent", &path).unwrap();
        assert!(latch.engaged().is_some());
    }
}
