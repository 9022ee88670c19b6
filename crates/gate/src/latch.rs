//! The kill switch's latch: a file that refuses everything for as long as it is there.
//!
//! It is apart from the log so that engaging never waits for the log, and so that it holds with no controller
//! running. Whatever is at its path engages it, a file that can't be read too: only absence means "off".
//!
//! Where the state directory can't be written to, the same file in a runtime directory of the user's own holds it, and where there is
//! none, the memory of the process that engaged it, which then tries the disk again.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A directory for what holds until the machine is started anew, instead of the usual ones.
pub const RUNTIME_DIR: &str = "BELLJAR_RUNTIME_DIR";
const XDG_RUNTIME_DIR: &str = "XDG_RUNTIME_DIR";
/// Below such a directory.
const OWN_PLACE: &str = "belljar";

/// The most that is read of a latch.
const LONGEST: u64 = 16 * 1024;

/// Where the latch of a state directory is.
#[derive(Clone, Debug)]
pub struct Latch {
    path: PathBuf,
    /// Where else it may be.
    others: Vec<PathBuf>,
    /// Where no disk took it: shared by all who have it of one another.
    memory: Arc<Mutex<Option<Engaged>>>,
}

/// What holds an engaged latch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LatchHolder {
    /// The state directory: over restarts of the machine.
    StateDirectory,
    /// A directory that lasts until the machine is started anew.
    RuntimeDirectory(PathBuf),
    /// The process that engaged it, as long as it lives.
    Memory,
}

impl std::fmt::Display for LatchHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::StateDirectory => f.write_str("the state directory"),
            Self::RuntimeDirectory(path) => {
                write!(f, "{}, until the machine is started anew", path.display())
            }
            Self::Memory => f.write_str("the memory of the supervisor, as long as it lives"),
        }
    }
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
        let canonical = state.canonicalize();
        let canonical = canonical.as_deref().unwrap_or(state);
        let digest = Sha256::digest(canonical.as_os_str().as_bytes());
        let digits: String = digest
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let others = runtime_directories().into_iter();
        Self {
            path: state.join("kill-switch"),
            others: others
                .map(|place| place.join(OWN_PLACE).join(format!("kill-switch-{digits}")))
                .collect(),
            memory: Arc::default(),
        }
    }

    /// What holds it, if it is engaged.
    #[must_use]
    pub fn holder(&self) -> Option<LatchHolder> {
        if is_there(&self.path) {
            return Some(LatchHolder::StateDirectory);
        }
        if let Some(path) = self.others.iter().find(|path| is_own(path)) {
            return Some(LatchHolder::RuntimeDirectory(path.clone()));
        }
        self.memory().is_some().then_some(LatchHolder::Memory)
    }

    /// Since when and why it is engaged, if it is.
    #[must_use]
    pub fn engaged(&self) -> Option<Engaged> {
        let path = match self.holder()? {
            LatchHolder::StateDirectory => self.path.clone(),
            LatchHolder::RuntimeDirectory(path) => path,
            LatchHolder::Memory => return self.memory().clone(),
        };
        Some(read(&path).unwrap_or_else(|_| Engaged {
            at_ms: 0,
            by_uid: 0,
            reason: "the latch is there and can't be read".to_owned(),
        }))
    }

    /// Engages it, by whatever holds the longest. One that is engaged keeps its first reason.
    ///
    /// # Errors
    /// When nothing but this process holds it.
    pub fn engage(&self, at_ms: u64, reason: &str) -> Result<LatchHolder, LatchError> {
        let engaged = Engaged {
            at_ms,
            by_uid: rustix::process::getuid().as_raw(),
            reason: reason.to_owned(),
        };
        let Err(source) = self.put(&engaged) else {
            return Ok(LatchHolder::StateDirectory);
        };
        for path in &self.others {
            if is_own(path) || put_aside(path, &engaged).is_ok() {
                return Ok(LatchHolder::RuntimeDirectory(path.clone()));
            }
        }
        self.memory().get_or_insert(engaged);
        Err(self.failure(source))
    }

    /// Puts what only memory or a runtime directory holds into the state directory, once that can be written to again.
    pub fn settle_down(&self) {
        let is_settled = matches!(self.holder(), None | Some(LatchHolder::StateDirectory));
        if !is_settled && let Some(engaged) = self.engaged() {
            let _ = self.put(&engaged);
        }
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Option<Engaged>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whatever it is: only absence means that there is none.
fn is_there(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Err(error) => error.kind() != io::ErrorKind::NotFound,
        Ok(_) => true,
    }
}

/// Where something lasts as long as the machine runs, the user's own directories alone.
fn runtime_directories() -> Vec<PathBuf> {
    let named = |name| {
        let path = std::env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    if let Some(place) = named(RUNTIME_DIR) {
        return vec![place];
    }
    let user = rustix::process::geteuid();
    if user.is_root() {
        return vec![PathBuf::from("/run")];
    }
    let usual = PathBuf::from(format!("/run/user/{}", user.as_raw()));
    let mut all = vec![usual];
    all.extend(named(XDG_RUNTIME_DIR));
    all.dedup();
    all
}

/// A latch in a directory that is our own: what strangers put there counts for nothing.
fn is_own(path: &Path) -> bool {
    path.parent().is_some_and(is_private) && is_there(path)
}

fn is_private(directory: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let found = fs::symlink_metadata(directory);
    found.is_ok_and(|found| found.is_dir() && found.uid() == own && found.mode() & 0o022 == 0)
}

fn put_aside(path: &Path, engaged: &Engaged) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if !is_private(directory) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    write(path, engaged)
}

/// Writes a latch whole.
fn write(path: &Path, engaged: &Engaged) -> io::Result<()> {
    belljar_files::replace(path, &serde_json::to_vec(engaged)?, belljar_files::PRIVATE)
}

fn read(path: &Path) -> io::Result<Engaged> {
    use std::io::Read as _;
    let mut text = Vec::new();
    File::open(path)?.take(LONGEST).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

impl Latch {
    fn put(&self, engaged: &Engaged) -> io::Result<()> {
        if !is_there(&self.path) {
            write(&self.path, engaged)?;
        }
        self.settle()
    }

    /// Takes it off, durably.
    pub fn reset(&self) -> Result<(), LatchError> {
        let others = self.others.iter().filter(|path| is_own(path));
        for path in others.chain([&self.path]) {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(self.failure(error));
                }
                _ => {}
            }
        }
        *self.memory() = None;
        self.settle().map_err(|source| self.failure(source))
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
