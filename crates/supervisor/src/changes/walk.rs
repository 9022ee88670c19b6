//! Reading an overlay's upper layer: plain files are new content, a 0/0 device is a deletion.

use super::{Change, ChangeKind, Fingerprint};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Adds every change in `layer`, which stands for `root`.
pub(super) fn changes_in(layer: &Path, root: &Path, into: &mut Vec<Change>) {
    walk(layer, root, into);
    into.sort_by(|a, b| a.path.cmp(&b.path));
}

fn walk(layer: &Path, host: &Path, into: &mut Vec<Change>) {
    let Ok(entries) = fs::read_dir(layer) else { return };
    for entry in entries.flatten() {
        let kept = entry.path();
        let path = host.join(entry.file_name());
        let Ok(metadata) = fs::symlink_metadata(&kept) else { continue };
        let base = Fingerprint::of(&path);
        if metadata.file_type().is_char_device() && metadata.rdev() == 0 {
            if base.is_some() {
                into.push(Change { path, kind: ChangeKind::Deleted, kept: None, base });
            }
            continue;
        }
        let was_directory = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir());
        if metadata.is_dir() && was_directory {
            if is_opaque(&kept) {
                delete_the_rest(&kept, &path, into);
            }
            walk(&kept, &path, into);
            continue;
        }
        let kind = if base.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
        let is_directory = metadata.is_dir();
        into.push(Change { path: path.clone(), kind, kept: Some(kept.clone()), base });
        if is_directory {
            walk(&kept, &path, into);
        }
    }
}

/// A directory that was removed and made again hides everything it had before.
fn delete_the_rest(kept: &Path, host: &Path, into: &mut Vec<Change>) {
    let Ok(entries) = fs::read_dir(host) else { return };
    for entry in entries.flatten() {
        if fs::symlink_metadata(kept.join(entry.file_name())).is_err() {
            let path = entry.path();
            let base = Fingerprint::of(&path);
            into.push(Change { path, kind: ChangeKind::Deleted, kept: None, base });
        }
    }
}

fn is_opaque(directory: &Path) -> bool {
    let mut value = [0u8; 4];
    matches!(rustix::fs::getxattr(directory, c"user.overlay.opaque", &mut value[..]), Ok(1) if value[0] == b'y')
}
