//! Files that are replaced whole: whatever happens meanwhile, a name leads to what it led to before, or to all of what is new.
//!
//! A crash, `kill -9`, a power cut, a full disk, another writer at the same time: none of them leaves half a file, an empty one, or
//! one that is a mixture. Who writes at the same time is not told of each other; the last one wins.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// For the owner alone.
pub const PRIVATE: u32 = 0o600;

/// Puts these bytes in place of what is there, if anything is. When this returns, a power cut takes nothing of it back.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    replace_with(path, mode, |file| file.write_all(bytes))
}

/// Puts what `write` writes in place of what is there. When this returns, a power cut takes nothing of it back.
pub fn replace_with<E: From<io::Error>>(
    path: &Path,
    mode: u32,
    write: impl FnOnce(&mut File) -> Result<(), E>,
) -> Result<(), E> {
    let fresh = FreshFile::beside(path, mode)?;
    let mut file = &fresh.file;
    write(&mut file.try_clone()?)?;
    file.flush()?;
    // Without this, a name may come to lead to a file whose bytes found no room or never came to the disk.
    file.sync_all()?;
    fresh.rename(path)?;
    sync_directory(parent(path))?;
    Ok(())
}

/// As [`replace_with`], but for what means nothing after this boot, such as what is noted of living processes: a crash of ours
/// takes nothing of it back, a power cut may.
pub fn replace_for_this_boot(
    path: &Path,
    mode: u32,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let mut fresh = FreshFile::beside(path, mode)?;
    write(&mut fresh.file)?;
    fresh.rename(path)
}

/// Makes the names in a directory survive a power cut.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A file under a name of its own, which is gone again unless it takes its place.
struct FreshFile {
    file: File,
    path: PathBuf,
    is_placed: bool,
}

impl FreshFile {
    fn beside(path: &Path, mode: u32) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let mut fresh = OsString::from(".");
        fresh.push(name);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        fresh.push(format!(".{}-{number}.new", std::process::id()));
        let path = parent(path).join(fresh);
        let open = || {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(mode)
                .open(&path)
        };
        let file = match open() {
            // A process of this number was killed here once.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(&path)?;
                open()?
            }
            opened => opened?,
        };
        Ok(Self {
            file,
            path,
            is_placed: false,
        })
    }

    fn rename(mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.is_placed = true;
        Ok(())
    }
}

impl Drop for FreshFile {
    fn drop(&mut self) {
        if !self.is_placed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn names(directory: &Path) -> Vec<OsString> {
        let entries = fs::read_dir(directory).expect("a directory");
        entries
            .map(|entry| entry.expect("an entry").file_name())
            .collect()
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_is_left() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("file");
        replace(&path, b"one", PRIVATE).expect("written");
        replace(&path, b"two", 0o644).expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"two");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777 & !0o022, 0o644 & !0o022);
        replace_for_this_boot(&path, PRIVATE, |file| file.write_all(b"three")).expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"three");
        assert_eq!(names(place.path()), ["file"]);
    }

    #[test]
    fn a_write_that_fails_leaves_what_was_there() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("file");
        replace(&path, b"one", PRIVATE).expect("written");
        let failed = replace_with(&path, PRIVATE, |file| {
            file.write_all(b"tw")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        assert!(failed.is_err());
        assert_eq!(fs::read(&path).expect("read"), b"one");
        assert_eq!(names(place.path()), ["file"]);
    }

    #[test]
    fn a_link_in_the_way_is_replaced_and_not_followed() {
        let place = tempfile::tempdir().expect("a directory");
        let (path, target) = (place.path().join("file"), place.path().join("target"));
        fs::write(&target, b"theirs").expect("written");
        std::os::unix::fs::symlink(&target, &path).expect("a link");
        replace(&path, b"ours", PRIVATE).expect("written");
        assert_eq!(fs::read(&target).expect("read"), b"theirs");
        assert_eq!(fs::read(&path).expect("read"), b"ours");
    }
}
