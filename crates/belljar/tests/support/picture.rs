//! What a directory tree looks like, for "nothing changed" and "changed in just this way".

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Each path below the root with its kind, permissions, owner, and contents.
pub(crate) fn picture(root: &Path) -> BTreeMap<String, String> {
    let mut seen = BTreeMap::new();
    look(root, root, &mut seen);
    seen
}

fn look(root: &Path, directory: &Path, seen: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).expect("read a directory") {
        let path = entry.expect("an entry").path();
        let name = path
            .strip_prefix(root)
            .expect("below the root")
            .to_string_lossy()
            .into_owned();
        let metadata = fs::symlink_metadata(&path).expect("metadata");
        let contents = if metadata.is_symlink() {
            format!("-> {}", fs::read_link(&path).expect("a link").display())
        } else if metadata.is_file() {
            String::from_utf8_lossy(&fs::read(&path).expect("a file")).into_owned()
        } else {
            String::new()
        };
        seen.insert(
            name,
            format!(
                "{:o} {} {contents}",
                metadata.permissions().mode(),
                metadata.uid()
            ),
        );
        if metadata.is_dir() {
            look(root, &path, seen);
        }
    }
}
