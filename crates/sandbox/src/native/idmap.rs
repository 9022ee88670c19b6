//! Showing root's files to a box that runs as nobody: id-mapped mounts, which only root can make.

use super::shown::FileId;
use crate::plan::Identity;
use crate::sys::{self, Placeholder, mount_flag};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use std::path::Path;

/// A user namespace in which the owner's id on disk stands for the box's id.
#[derive(Debug)]
pub(super) struct OwnerMap {
    namespace: OwnedFd,
    /// The process it was made with, which has ended or is about to. Nobody needs to wait for that before the end.
    _maker: Placeholder,
}

impl OwnerMap {
    /// The namespace outlives the short-lived process that it is made with.
    pub(super) fn new(identity: Identity) -> Result<Self, Errno> {
        let maker = Placeholder::new(libc::CLONE_NEWUSER)?;
        let namespace = map_owner(maker.pid(), identity)?;
        maker.dismiss();
        Ok(Self {
            namespace,
            _maker: maker,
        })
    }

    /// Clones the tree at `source` with its owner mapped.
    pub(super) fn clone_tree(&self, source: &Path, flags: u64) -> Result<OwnedFd, Errno> {
        let tree = clone_tree(source)?;
        sys::set_mount_flags(
            tree.as_fd(),
            flags | mount_flag::ID_MAP,
            true,
            Some(self.namespace.as_fd()),
        )?;
        Ok(tree)
    }
}

fn map_owner(pid: i32, identity: Identity) -> Result<OwnedFd, Errno> {
    write_map(pid, "uid_map", identity.owner_uid, identity.uid)?;
    write_map(pid, "gid_map", identity.owner_gid, identity.gid)?;
    let path = format!("/proc/{pid}/ns/user");
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Writes a one-line id map of a new user namespace.
pub(super) fn write_map(pid: i32, file: &str, inside: u32, outside: u32) -> Result<(), Errno> {
    let path = format!("/proc/{pid}/{file}");
    let fd = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&fd, format!("{inside} {outside} 1").as_bytes()).map(drop)
}

/// Clones the tree at `source`, following no symbolic link.
pub(super) fn clone_tree(source: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::openat2(CWD, source, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(&place, "", clone)
}

/// The same with these mount flags, and only if it is the very file that is meant.
pub(super) fn clone_only(
    source: &Path,
    flags: u64,
    only: Option<FileId>,
) -> Result<OwnedFd, Errno> {
    let tree = clone_tree(source)?;
    if let Some(only) = only
        && FileId::of(&rustix::fs::fstat(&tree)?) != only
    {
        return Err(Errno::STALE);
    }
    sys::set_mount_flags(tree.as_fd(), flags, true, None)?;
    Ok(tree)
}
