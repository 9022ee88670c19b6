//! Making one change on the host.

use super::Change;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

/// Makes the change; a file appears whole or not at all.
pub(super) fn perform(change: &Change) -> io::Result<()> {
    refuse_links_above(&change.path)?;
    let Some(kept) = &change.kept else {
        return remove(&change.path);
    };
    let metadata = fs::symlink_metadata(kept)?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        if !fs::symlink_metadata(&change.path).is_ok_and(|old| old.is_dir()) {
            let _ = remove(&change.path);
            fs::create_dir(&change.path)?;
        }
        own_like_parent(&change.path)?;
        return fs::set_permissions(&change.path, permissions(&metadata));
    }
    let temporary = beside(&change.path);
    let made = if kind.is_symlink() {
        symlink(fs::read_link(kept)?, &temporary)
    } else if kind.is_file() {
        fs::copy(kept, &temporary)
            .and_then(|_| fs::set_permissions(&temporary, permissions(&metadata)))
    } else {
        // Sockets and pipes of a box that is gone lead nowhere.
        return Ok(());
    };
    let placed = made
        .and_then(|()| own_like_parent(&temporary))
        .and_then(|()| {
            if fs::symlink_metadata(&change.path).is_ok_and(|old| old.is_dir()) {
                fs::remove_dir_all(&change.path)?;
            }
            fs::rename(&temporary, &change.path)
        });
    if placed.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    placed
}

/// Nothing of the agent's becomes set-id on the host.
fn permissions(metadata: &fs::Metadata) -> fs::Permissions {
    fs::Permissions::from_mode(metadata.mode() & 0o777)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// A link on the way would carry the change somewhere else.
fn refuse_links_above(path: &Path) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    if parent.canonicalize()? == parent {
        return Ok(());
    }
    Err(io::Error::other(
        "a directory above it has become a symbolic link",
    ))
}

/// Root applies what nobody wrote; the file belongs to whom its directory belongs.
fn own_like_parent(path: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let parent = fs::metadata(path.parent().unwrap_or(Path::new("/")))?;
    if fs::symlink_metadata(path)?.is_symlink() {
        return std::os::unix::fs::lchown(path, Some(parent.uid()), Some(parent.gid()));
    }
    chown(path, Some(parent.uid()), Some(parent.gid()))
}

fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.belljar-{}", std::process::id()))
}
