//! Through a directory, in order, by handles.

use crate::error::ImageError;
use crate::tree::EntryPath;
use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};

/// One thing in a directory.
pub(super) struct Found<'w> {
    pub(super) path: &'w EntryPath,
    pub(super) parent: BorrowedFd<'w>,
    pub(super) name: &'w [u8],
    pub(super) stat: &'w Stat,
    /// A directory where another file system begins. It is not gone into.
    pub(super) is_mount: bool,
}

impl Found<'_> {
    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

/// What tells a file from every other on this host.
pub(super) type Inode = (u64, u64);

pub(super) fn inode(stat: &Stat) -> Inode {
    (stat.st_dev, stat.st_ino)
}

/// Visits everything below `directory`, a directory before what is in it. `skipped` is not seen at all.
pub(super) fn walk(
    directory: BorrowedFd<'_>,
    path: &EntryPath,
    skipped: Option<Inode>,
    visit: &mut dyn FnMut(&Found<'_>) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    let fail = |errno: rustix::io::Errno| ImageError::read(path.shown())(errno.into());
    let here = rustix::fs::fstat(directory).map_err(fail)?;
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    for name in names {
        let inner = path.join(&name)?;
        let fail = |errno: rustix::io::Errno| ImageError::read(inner.shown())(errno.into());
        let stat = rustix::fs::statat(directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(fail)?;
        if skipped == Some(inode(&stat)) {
            continue;
        }
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let found = Found {
            path: &inner,
            parent: directory,
            name: &name,
            stat: &stat,
            is_mount: is_directory && stat.st_dev != here.st_dev,
        };
        visit(&found)?;
        if is_directory && !found.is_mount {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(directory, name.as_slice(), flags, Mode::empty())
                .map_err(fail)?;
            walk(opened.as_fd(), &inner, skipped, visit)?;
        }
    }
    Ok(())
}
