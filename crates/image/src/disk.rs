//! Files that are replaced as a whole, and locks.

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Makes a directory that others can pass through but not read: a box of root's runs as somebody else.
pub(crate) fn passable_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o711))
}

/// A document replaced as a whole: after a crash or a power cut it is what it was, or what it is to be.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    belljar_files::replace(path, &serde_json::to_vec(value)?, belljar_files::PRIVATE)
}

/// Makes the names in a directory survive a power cut.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// A document of at most `most` bytes; nothing if there is none.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path, most: u64) -> io::Result<Option<T>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let bytes = read_bounded(file, most)?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// All of it, which must not be more than `most` bytes.
pub(crate) fn read_bounded(from: impl io::Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("longer than {most} bytes")));
    }
    Ok(bytes)
}

/// A lock on a file, let go when dropped or when the process ends.
#[derive(Debug)]
pub(crate) struct Lock(File);

/// Who else may have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// Others who share it too.
    Shared,
    /// Nobody.
    Alone,
}

impl Lock {
    /// Waits for it. The file is made if it is not there.
    pub(crate) fn wait(path: &Path, share: Share) -> io::Result<Self> {
        let file = open_lock(path)?;
        let operation = match share {
            Share::Shared => FlockOperation::LockShared,
            Share::Alone => FlockOperation::LockExclusive,
        };
        loop {
            match flock(&file, operation) {
                Ok(()) => return Ok(Self(file)),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Takes it, for nobody else, unless somebody has it.
    pub(crate) fn attempt(path: &Path) -> io::Result<Option<Self>> {
        let file = open_lock(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(crate) fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for Lock {
    /// By name: a process that another thread starts holds a copy of the descriptor for a moment.
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
}
