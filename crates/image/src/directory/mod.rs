//! An image out of a directory: its files as they are, less what a box must not have.

mod walk;

use crate::error::ImageError;
use crate::hashed::Hashed;
use crate::name::Digest;
use crate::tree::{EntryPath, Meta, Tree};
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags};
use sha2::Digest as _;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use walk::{Found, Inode, inode, walk};

/// The kernel's clock for files goes in steps. What changed within one of them may change again and look the same.
const STEP: Duration = Duration::from_millis(20);

/// A directory to make an image of.
pub(crate) struct Directory {
    root: OwnedFd,
    mode: u32,
    /// The store itself may be below it, and is not part of it.
    skipped: Option<Inode>,
}

impl Directory {
    pub(crate) fn open(path: &Path, store: &Path) -> Result<Self, ImageError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || -> io::Result<Self> {
            let root = rustix::fs::open(path, flags, Mode::empty())?;
            let mode = rustix::fs::fstat(&root)?.st_mode;
            let store = std::fs::metadata(store).ok();
            let skipped = store.map(|store| (store.dev(), store.ino()));
            Ok(Self {
                root,
                mode,
                skipped,
            })
        };
        open().map_err(ImageError::read(path.display().to_string()))
    }

    /// What it looks like: names, kinds, modes, sizes, times and inodes of everything. Nothing is read.
    pub(crate) fn key(&self) -> Result<String, ImageError> {
        let before = SystemTime::now();
        let (mut key, newest) = self.look()?;
        if newest + STEP > before.duration_since(UNIX_EPOCH).unwrap_or_default() {
            std::thread::sleep(STEP);
            key = self.look()?.0;
        }
        Ok(key)
    }

    fn look(&self) -> Result<(String, Duration), ImageError> {
        let mut hasher = sha2::Sha256::new();
        let mut newest = Duration::ZERO;
        hasher.update(self.mode.to_le_bytes());
        walk(
            self.root.as_fd(),
            &EntryPath::default(),
            self.skipped,
            &mut |found| {
                let stat = found.stat;
                let path = found.path.as_bytes();
                hasher.update((path.len() as u64).to_le_bytes());
                hasher.update(path);
                hasher.update(u64::from(stat.st_mode).to_le_bytes());
                for number in [stat.st_dev, stat.st_ino, stat.st_size.cast_unsigned()] {
                    hasher.update(number.to_le_bytes());
                }
                for (seconds, nanoseconds) in [
                    (stat.st_mtime, stat.st_mtime_nsec),
                    (stat.st_ctime, stat.st_ctime_nsec),
                ] {
                    hasher.update(seconds.to_le_bytes());
                    hasher.update(nanoseconds.to_le_bytes());
                    let seconds = u64::try_from(seconds).unwrap_or(0);
                    let rest = u32::try_from(nanoseconds).unwrap_or(0);
                    newest = newest.max(Duration::new(seconds, rest));
                }
                Ok(())
            },
        )?;
        Ok((format!("directory {}", Digest::from_hasher(hasher)), newest))
    }

    /// Copies it, and says the digest of what is in the copy.
    pub(crate) fn copy_to(&self, tree: &mut Tree) -> Result<Digest, ImageError> {
        let mut copy = Copy {
            tree,
            hasher: sha2::Sha256::new(),
            linked: HashMap::new(),
        };
        let root = EntryPath::default();
        copy.tree.directory(&root, self.mode)?;
        copy.note(b'd', &root, 0, b"");
        walk(self.root.as_fd(), &root, self.skipped, &mut |found| {
            copy.one(found)
        })?;
        Ok(Digest::from_hasher(copy.hasher))
    }
}

struct Copy<'t> {
    tree: &'t mut Tree,
    hasher: sha2::Sha256,
    /// Where files with more than one name were put first.
    linked: HashMap<Inode, EntryPath>,
}

impl Copy<'_> {
    fn one(&mut self, found: &Found<'_>) -> Result<(), ImageError> {
        let mode = found.stat.st_mode & 0o7777;
        match found.kind() {
            FileType::Directory => {
                if found.is_mount {
                    self.tree.leave_out_mount();
                }
                self.tree.directory(found.path, mode)?;
                self.note(b'd', found.path, mode & 0o1777, b"");
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(found.parent, found.name, Vec::new())
                    .map_err(|errno| ImageError::read(found.path.shown())(errno.into()))?;
                self.tree.symlink(found.path, target.to_bytes())?;
                self.note(b'l', found.path, 0, target.to_bytes());
            }
            FileType::RegularFile => self.file(found, mode)?,
            _ => self.tree.leave_out_special()?,
        }
        Ok(())
    }

    fn file(&mut self, found: &Found<'_>, mode: u32) -> Result<(), ImageError> {
        if found.stat.st_nlink > 1 {
            if let Some(first) = self.linked.get(&inode(found.stat)).cloned() {
                self.tree.hard_link(found.path, &first)?;
                self.note(b'h', found.path, 0, first.as_bytes());
                return Ok(());
            }
            self.linked.insert(inode(found.stat), found.path.clone());
        }
        // It may have become a pipe since: opening that must not wait.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(found.parent, found.name, flags, Mode::empty())
            .map(File::from)
            .map_err(|errno| ImageError::read(found.path.shown())(errno.into()))?;
        let is_file = file.metadata().is_ok_and(|now| now.is_file());
        if !is_file {
            let changed = io::Error::other("it changed while it was being read");
            return Err(ImageError::read(found.path.shown())(changed));
        }
        let contents = Hashed::new(file);
        let meta = Meta {
            mode,
            mtime: found.stat.st_mtime,
        };
        self.tree.file(found.path, meta, &mut contents.clone())?;
        let digest = contents.digest();
        self.note(b'f', found.path, mode & 0o777, digest.hex().as_bytes());
        Ok(())
    }

    /// One entry, in a form in which no two different trees are the same.
    fn note(&mut self, kind: u8, path: &EntryPath, mode: u32, what: &[u8]) {
        self.hasher.update([kind]);
        self.hasher.update(mode.to_le_bytes());
        for bytes in [path.as_bytes(), what] {
            self.hasher.update((bytes.len() as u64).to_le_bytes());
            self.hasher.update(bytes);
        }
    }
}
