//! Every change the ledger makes to the file system, in one place, so that tests can stop it at any of them.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{self, AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// No test can cut the power. Those in this crate count syncs, by the thousand; those in `tests/` make them.
const SYNCS_ARE_COUNTED_ONLY: bool = cfg!(test);

/// A directory that the ledger reads and writes below.
pub(crate) struct Disk {
    dir: OwnedFd,
    #[cfg(test)]
    pub(crate) faults: std::sync::Arc<crate::tests::faults::Faults>,
}

/// A kind of change, as the tests count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) enum Step {
    Create,
    Write,
    Rename,
    Remove,
    Truncate,
    Sync,
}

impl Disk {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Disk {
            dir: fs::openat(CWD, path, flags, Mode::empty())?,
            #[cfg(test)]
            faults: crate::tests::faults::Faults::of_this_thread(),
        })
    }

    /// Whether the path still leads to this directory, and not to one put in its place.
    pub(crate) fn is_at(&self, path: &Path) -> io::Result<bool> {
        let (ours, theirs) = (
            fs::fstat(&self.dir)?,
            fs::statat(CWD, path, AtFlags::empty()),
        );
        match theirs {
            Ok(theirs) => Ok((ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a file for reading; `None` if there is none.
    pub(crate) fn open_file(&self, path: &str) -> io::Result<Option<File>> {
        absent_is_none(self.open_with(path, OFlags::RDONLY))
    }

    /// Opens a file for reading and writing; `None` if there is none.
    pub(crate) fn open_writable(&self, path: &str) -> io::Result<Option<File>> {
        absent_is_none(self.open_with(path, OFlags::RDWR))
    }

    fn open_with(&self, path: &str, flags: OFlags) -> io::Result<File> {
        // A symbolic link in the log's place is never followed: it would lead out of the directory.
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(File::from(fs::openat(
            &self.dir,
            path,
            flags,
            Mode::from_raw_mode(0o600),
        )?))
    }

    /// Opens the lock file, made if need be.
    pub(crate) fn open_lock(&self) -> io::Result<File> {
        self.open_with("lock", OFlags::RDWR | OFlags::CREATE)
    }

    /// The first `limit` bytes of a file; `None` if there is none.
    pub(crate) fn read(&self, path: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        match self.open_file(path)? {
            Some(file) => read_up_to(&file, limit).map(Some),
            None => Ok(None),
        }
    }

    pub(crate) fn length(&self, path: &str) -> io::Result<Option<u64>> {
        let stat = fs::statat(&self.dir, path, AtFlags::SYMLINK_NOFOLLOW);
        Ok(absent_is_none(stat.map_err(Into::into))?
            .map(|stat| u64::try_from(stat.st_size).unwrap_or(0)))
    }

    pub(crate) fn exists(&self, path: &str) -> io::Result<bool> {
        self.length(path).map(|length| length.is_some())
    }

    /// Names in a directory; none if there is no such directory.
    pub(crate) fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = fs::openat(&self.dir, path, flags, Mode::empty());
        let Some(dir) = absent_is_none(opened.map_err(Into::into))? else {
            return Ok(Vec::new());
        };
        let mut names = Vec::new();
        for entry in fs::Dir::read_from(dir)? {
            if let Ok(name) = entry?.file_name().to_str()
                && !matches!(name, "." | "..")
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// An empty file, new or emptied; directories above it are made as needed.
    pub(crate) fn create(&self, path: &str) -> io::Result<File> {
        self.step(Step::Create)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
        match self.open_with(path, flags) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_directories_above(path)?;
                self.open_with(path, flags)
            }
            opened => opened,
        }
    }

    fn make_directories_above(&self, path: &str) -> io::Result<()> {
        for (end, _) in path.match_indices('/') {
            match fs::mkdirat(&self.dir, &path[..end], Mode::from_raw_mode(0o700)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub(crate) fn write(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        #[cfg(test)]
        if let Err(error) = self.step(Step::Write) {
            // What a kill in the middle of a long write leaves.
            file.write_all_at(&bytes[..bytes.len() / 2], at)?;
            return Err(error);
        }
        file.write_all_at(bytes, at)
    }

    pub(crate) fn truncate(&self, file: &File, length: u64) -> io::Result<()> {
        self.step(Step::Truncate)?;
        file.set_len(length)
    }

    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.step(Step::Rename)?;
        match fs::renameat(&self.dir, from, &self.dir, to) {
            Err(Errno::NOENT) => {
                self.make_directories_above(to)?;
                Ok(fs::renameat(&self.dir, from, &self.dir, to)?)
            }
            renamed => Ok(renamed?),
        }
    }

    /// Swaps two names at once. Unlike a rename onto an existing file it makes ext4 flush nothing.
    /// Where the file system can't, the plain rename does the same at a higher price.
    pub(crate) fn exchange(&self, new: &str, current: &str) -> io::Result<()> {
        self.step(Step::Rename)?;
        let flags = RenameFlags::EXCHANGE;
        match fs::renameat_with(&self.dir, new, &self.dir, current, flags) {
            Ok(()) => Ok(()),
            // NOENT: there is no current file yet.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP | Errno::NOENT) => {
                Ok(fs::renameat(&self.dir, new, &self.dir, current)?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a file; true if there was one.
    pub(crate) fn remove(&self, path: &str) -> io::Result<bool> {
        self.step(Step::Remove)?;
        let removed = fs::unlinkat(&self.dir, path, AtFlags::empty());
        Ok(absent_is_none(removed.map_err(Into::into))?.is_some())
    }

    /// Removes a directory if it is there and empty.
    pub(crate) fn remove_directory(&self, path: &str) -> io::Result<()> {
        self.step(Step::Remove)?;
        match fs::unlinkat(&self.dir, path, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn sync(&self, file: impl AsFd) -> io::Result<()> {
        self.step(Step::Sync)?;
        if SYNCS_ARE_COUNTED_ONLY {
            return Ok(());
        }
        Ok(fs::fdatasync(file)?)
    }

    /// Makes the names in a directory survive a power cut.
    pub(crate) fn sync_directory(&self, path: &str) -> io::Result<()> {
        self.step(Step::Sync)?;
        if SYNCS_ARE_COUNTED_ONLY {
            return Ok(());
        }
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let dir = fs::openat(&self.dir, path, flags, Mode::empty())?;
        Ok(fs::fsync(dir)?)
    }

    /// Everything on this file system: dearer than a few files, cheaper than thousands.
    pub(crate) fn sync_all(&self) -> io::Result<()> {
        self.step(Step::Sync)?;
        if SYNCS_ARE_COUNTED_ONLY {
            return Ok(());
        }
        Ok(fs::syncfs(&self.dir)?)
    }

    #[cfg(test)]
    fn step(&self, step: Step) -> io::Result<()> {
        self.faults.step(step)
    }

    #[cfg(not(test))]
    #[inline(always)]
    fn step(&self, _: Step) -> io::Result<()> {
        Ok(())
    }
}

/// The first `limit` bytes of an open file: nobody can fill our memory with a long one.
pub(crate) fn read_up_to(file: &File, limit: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len().min(limit);
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0) + 1);
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn absent_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
