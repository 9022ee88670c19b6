//! The layer between the host's home directory and the box's copy of it: what of the host's must not show through.
//!
//! A mask goes by name. Whatever comes to be under a masked name while the box runs stays out of sight, which no cover on a
//! file does; and the box can make something of its own there.

use belljar_sandbox::plan::{Kind, MaskEntry, MaskShows};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// What is seen at a path of the home directory in place of what the host has there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HomeCover {
    /// Nothing.
    Absent,
    /// An empty directory.
    Empty,
    /// A file with these contents.
    Text(Arc<[u8]>),
    /// A place for something to be mounted on.
    MountPoint(Kind),
}

impl HomeCover {
    /// Whether what the host has below stays out of sight.
    pub(crate) fn hides_below(&self) -> bool {
        matches!(self, Self::Absent | Self::Empty)
    }
}

/// What is masked, by path below the home directory. Parents come first.
pub(crate) type HomeMask = BTreeMap<PathBuf, HomeCover>;

/// The mask as a layer, with the directories that lead to what it covers.
pub(crate) fn layer_of(mask: &HomeMask, home: &Path) -> Vec<MaskEntry> {
    let mut layer: BTreeMap<PathBuf, MaskShows> = BTreeMap::new();
    let mode_of = |path: &Path| fs::metadata(home.join(path)).map(|found| found.mode() & 0o777);
    for (path, cover) in mask {
        // Names and nothing else: what is made stays in the layer.
        let is_below = path
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        if !is_below || path.as_os_str().is_empty() {
            continue;
        }
        let above = path.ancestors().skip(1);
        for above in above.filter(|above| !above.as_os_str().is_empty()) {
            if !layer.contains_key(above) {
                // The box sees this one's mode.
                let mode = mode_of(above).unwrap_or(0o755);
                layer.insert(above.to_owned(), MaskShows::Directory { mode });
            }
        }
        let shows = match cover {
            HomeCover::Absent => MaskShows::Absent,
            HomeCover::Empty => MaskShows::Empty,
            HomeCover::Text(bytes) => MaskShows::Text {
                bytes: bytes.clone(),
                mode: mode_of(path).unwrap_or(0o600),
            },
            HomeCover::MountPoint(Kind::Directory) => MaskShows::Directory { mode: 0o755 },
            HomeCover::MountPoint(Kind::File) => MaskShows::Text {
                bytes: Arc::from(&b""[..]),
                mode: 0o600,
            },
        };
        layer.insert(path.clone(), shows);
    }
    let entries = layer.into_iter();
    entries
        .map(|(path, shows)| MaskEntry { path, shows })
        .collect()
}
