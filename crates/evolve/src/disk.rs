//! Files that are replaced as a whole, and locks, for everything this crate keeps in a state directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Makes a directory that only its owner may enter, and those above it.
pub(crate) fn private_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

/// A file replaced as a whole: after a crash or a power cut it is what it was, or what it is to be.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    belljar_files::replace(path, bytes, belljar_files::PRIVATE)
}

/// A new file for its owner alone, on disk when this returns. One that is there already is left alone.
pub(crate) fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Makes the names in a directory survive a power cut.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// A file of at most `most` bytes; nothing if there is none. A longer one is an error, not a part of it.
pub(crate) fn read_bounded(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("longer than {most} bytes")));
    }
    Ok(Some(bytes))
}

/// Whether only its owner may read a file.
pub(crate) fn is_private(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.mode() & 0o077 == 0)
}

/// An exclusive lock, let go when dropped. Whoever waits for it waits.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    pub(crate) fn take(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
        Ok(Self(file))
    }
}

impl Drop for Lock {
    /// By name: a process that another thread starts holds a copy of the descriptor for a moment.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, rustix::fs::FlockOperation::Unlock);
    }
}

/// Bytes out of the kernel's random source.
pub(crate) fn random<const N: usize>() -> io::Result<zeroize::Zeroizing<[u8; N]>> {
    let mut bytes = zeroize::Zeroizing::new([0u8; N]);
    let mut filled = 0;
    while filled < N {
        let part = bytes.get_mut(filled..).unwrap_or_default();
        filled += rustix::rand::getrandom(part, rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}
