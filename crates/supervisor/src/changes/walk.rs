//! Reading an overlay's upper layer: plain files are new content, a 0/0 device is a deletion.

use super::{Base, Change, ChangeKind, Fingerprint};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Adds every change in `layer`, which stands for `root`, in a box that started at `start`.
pub(super) fn changes_in(layer: &Path, root: &Path, start: Fingerprint, into: &mut Vec<Change>) {
    Walk { start, into }.directory(layer, root);
    into.sort_by(|a, b| a.path.cmp(&b.path));
}

struct Walk<'a> {
    start: Fingerprint,
    into: &'a mut Vec<Change>,
}

impl Walk<'_> {
    fn directory(&mut self, layer: &Path, host: &Path) {
        let Ok(entries) = fs::read_dir(layer) else {
            return;
        };
        for entry in entries.flatten() {
            let kept = entry.path();
            let path = host.join(entry.file_name());
            let Ok(metadata) = fs::symlink_metadata(&kept) else {
                continue;
            };
            let before = fs::symlink_metadata(&path).ok();
            if metadata.file_type().is_char_device() && metadata.rdev() == 0 {
                if before.is_some() {
                    self.add(path, ChangeKind::Deleted, None);
                }
                continue;
            }
            let was_directory = before.as_ref().filter(|before| before.is_dir());
            match (metadata.is_dir(), was_directory) {
                (true, Some(before)) => {
                    if is_opaque(&kept) {
                        self.delete_the_rest(&kept, &path);
                    }
                    if metadata.mode() & 0o777 != before.mode() & 0o777 {
                        self.add(path.clone(), ChangeKind::Modified, Some(kept.clone()));
                    }
                }
                _ => {
                    let kind = if before.is_some() {
                        ChangeKind::Modified
                    } else {
                        ChangeKind::Added
                    };
                    self.add(path.clone(), kind, Some(kept.clone()));
                }
            }
            if metadata.is_dir() {
                self.directory(&kept, &path);
            }
        }
    }

    fn add(&mut self, path: PathBuf, kind: ChangeKind, kept: Option<PathBuf>) {
        // A directory stays one when it is only changed; else what is in it goes.
        let stays = kept
            .as_ref()
            .is_some_and(|kept| kept.is_dir() && !kept.is_symlink());
        let base = Base::look(&path, !stays, self.start);
        self.into.push(Change {
            path,
            kind,
            kept,
            base,
        });
    }

    /// A directory that was removed and made again hides everything it had before.
    fn delete_the_rest(&mut self, kept: &Path, host: &Path) {
        let Ok(entries) = fs::read_dir(host) else {
            return;
        };
        for entry in entries.flatten() {
            if fs::symlink_metadata(kept.join(entry.file_name())).is_err() {
                self.add(entry.path(), ChangeKind::Deleted, None);
            }
        }
    }
}

fn is_opaque(directory: &Path) -> bool {
    let mut value = [0u8; 4];
    matches!(rustix::fs::getxattr(directory, c"user.overlay.opaque", &mut value[..]), Ok(1) if value[0] == b'y')
}
