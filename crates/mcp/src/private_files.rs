//! Small files that only their owner sees, and that are whole or not there.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The most that is read of one of them.
const LONGEST: u64 = 64 << 20;

/// Makes a directory for its owner alone.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

/// A new file; an error where there is one.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .read(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Reads a file; `None` where there is none. A link is not followed.
pub(crate) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let file = match OpenOptions::new()
        .read(true)
        .custom_flags(no_follow)
        .open(path)
    {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Puts a whole file in place of what is there.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    belljar_files::replace(path, bytes, belljar_files::PRIVATE)
}

/// Puts a whole file where none is yet; an error where there is one.
pub(crate) fn put_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let next = path.with_extension(format!("next-{}", random_id()?));
    let written = create(&next).and_then(|mut file| file.write_all(bytes));
    // A link is made or not, and never over something.
    let done = written.and_then(|()| fs::hard_link(&next, path));
    let _ = fs::remove_file(&next);
    done
}

/// Twelve letters nobody can guess.
pub(crate) fn random_id() -> io::Result<String> {
    let mut bytes = [0_u8; 6];
    let read = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    if read != bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
