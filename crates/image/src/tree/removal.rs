//! Taking things out of a tree, through handles: nothing that a link leads to is ever removed.

use super::EntryPath;
use super::made::MadePaths;
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, Dir};
use rustix::io::Errno;

/// Removes what is called so, with all that is in it. It need not be there.
pub(super) fn remove(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        done => return done,
    }
    let directory = super::open_directory(parent, name)?;
    for entry in names_in(&directory)? {
        remove(rustix::fd::AsFd::as_fd(&directory), &entry)?;
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// Removes what is in a directory but is not among `kept`.
pub(super) fn clear(
    directory: BorrowedFd<'_>,
    path: &EntryPath,
    kept: &MadePaths,
) -> Result<(), Errno> {
    for name in names_in(directory)? {
        let inner = path.join(&name).map_err(|_| Errno::NAMETOOLONG)?;
        if !kept.contains(inner.as_bytes()) {
            remove(directory, &name)?;
            continue;
        }
        match super::open_directory(directory, &name) {
            Ok(opened) => clear(rustix::fd::AsFd::as_fd(&opened), &inner, kept)?,
            Err(Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// All of them before any is removed: what a directory lists while it changes is anybody's guess.
fn names_in(directory: impl rustix::fd::AsFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}
