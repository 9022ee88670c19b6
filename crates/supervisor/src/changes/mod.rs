//! What a box changed in an overlay: seen, applied, or thrown away, after it ended.

mod apply;
mod walk;

use crate::error::RunError;
use crate::state::StateDir;
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What was done to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// It is different.
    Modified,
    /// It is gone.
    Deleted,
}

/// One changed path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The path on the host.
    pub path: PathBuf,
    /// What was done.
    pub kind: ChangeKind,
    /// Where the new state is kept; nothing for a deletion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<PathBuf>,
    /// What the host had when the box ended.
    base: Base,
}

/// What the host had at a path, and in it, when the box ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Base {
    own: Option<Fingerprint>,
    /// Of a directory that goes: everything in it.
    within: Option<Vec<(PathBuf, Fingerprint)>>,
    /// Somebody on the host changed it while the box ran.
    changed_meanwhile: bool,
}

impl Base {
    /// Looks at the host's side of a change in a box that started at `start`.
    fn look(path: &Path, goes: bool, start: Fingerprint) -> Self {
        let own = Fingerprint::of(path);
        let within = (goes && own.is_some_and(|own| own.is_directory)).then(|| tree(path));
        let after = |seen: &Fingerprint| {
            (seen.changed_s, seen.changed_ns) > (start.changed_s, start.changed_ns)
        };
        let changed_meanwhile =
            own.iter().any(after) || within.iter().flatten().any(|(_, seen)| after(seen));
        Self {
            own,
            within,
            changed_meanwhile,
        }
    }

    /// Whether the host still has what it had.
    fn still_holds(&self, path: &Path) -> bool {
        !self.changed_meanwhile
            && Fingerprint::of(path) == self.own
            && self
                .within
                .as_ref()
                .is_none_or(|within| *within == tree(path))
    }
}

/// Everything below a directory.
fn tree(directory: &Path) -> Vec<(PathBuf, Fingerprint)> {
    let mut found = Vec::new();
    list_tree(directory, &mut found);
    found
}

fn list_tree(directory: &Path, into: &mut Vec<(PathBuf, Fingerprint)>) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let Some(seen) = Fingerprint::of(&path) else {
            continue;
        };
        into.push((path.clone(), seen));
        if seen.is_directory {
            list_tree(&path, into);
        }
    }
}

/// Enough of a file to tell whether it has been touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Fingerprint {
    inode: u64,
    is_directory: bool,
    size: u64,
    changed_s: i64,
    changed_ns: i64,
}

impl Fingerprint {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::symlink_metadata(path).ok()?;
        Some(Self {
            inode: metadata.ino(),
            is_directory: metadata.is_dir(),
            // A directory's size and times move with what is in it, which is looked at by itself.
            size: if metadata.is_dir() {
                0
            } else {
                metadata.size()
            },
            changed_s: if metadata.is_dir() {
                0
            } else {
                metadata.ctime()
            },
            changed_ns: if metadata.is_dir() {
                0
            } else {
                metadata.ctime_nsec()
            },
        })
    }
}

/// A path that somebody else changed meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Which.
    pub path: PathBuf,
}

/// The kept changes of one box.
#[derive(Debug)]
pub struct Overlay {
    store: PathBuf,
    changes: Vec<Change>,
}

const ROOTS: &str = "roots.json";
const CHANGES: &str = "changes.json";

fn save<T: Serialize>(path: PathBuf, value: &T) -> Result<(), RunError> {
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let mut options = fs::OpenOptions::new();
    let file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path);
    file.and_then(|mut file| std::io::Write::write_all(&mut file, &bytes))
        .map_err(|source| RunError::State { path, source })
}

fn load<T: for<'de> Deserialize<'de>>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Remembers which directories an overlay stands for.
pub(crate) fn write_roots(store: &Path, roots: &[PathBuf]) -> Result<(), RunError> {
    save(store.join(ROOTS), &roots)
}

/// After the box: lists what it changed, together with what the host has there now. Removes an empty overlay.
/// Whether changes are kept.
pub(crate) fn settle(store: &Path) -> Result<bool, RunError> {
    let roots: Vec<PathBuf> = load(&store.join(ROOTS)).unwrap_or_default();
    // Written just before the box started, by the same clock that stamps the host's files.
    let start = Fingerprint::of(&store.join(ROOTS)).ok_or_else(|| RunError::State {
        path: store.to_owned(),
        source: std::io::Error::from(std::io::ErrorKind::NotFound),
    })?;
    let mut changes = Vec::new();
    for root in &roots {
        let layers = store.join(crate::view::overlay_name(root));
        remove_tree(&layers.join("scratch"));
        remove_tree(&layers.join("stand-ins"));
        walk::changes_in(&layers.join("changes"), root, start, &mut changes);
    }
    if changes.is_empty() {
        remove_store(store)?;
        return Ok(false);
    }
    save(store.join(CHANGES), &changes)?;
    Ok(true)
}

/// Removes a tree in which the kernel may have left directories without any permission.
fn remove_tree(path: &Path) {
    if let Ok(entries) = fs::read_dir(path) {
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let _ = fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o700));
                remove_tree(&entry.path());
            }
        }
    }
    let _ = fs::remove_dir_all(path);
}

/// Removes a whole store.
pub(crate) fn remove_store(store: &Path) -> Result<(), RunError> {
    remove_tree(store);
    if store.exists() {
        let source = std::io::Error::other("some of it could not be removed");
        return Err(RunError::State {
            path: store.to_owned(),
            source,
        });
    }
    Ok(())
}

impl Overlay {
    /// The kept changes of box `id`.
    pub fn open(state: &StateDir, id: &str) -> Result<Self, RunError> {
        let unknown = || RunError::UnknownId { id: id.to_owned() };
        // An id is never a path.
        if id.is_empty()
            || !id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        {
            return Err(unknown());
        }
        let store = state.overlays().join(id);
        let changes = load(&store.join(CHANGES)).ok_or_else(unknown)?;
        Ok(Self { store, changes })
    }

    /// Ids of boxes whose changes wait.
    pub fn waiting(state: &StateDir) -> Vec<String> {
        let Ok(entries) = fs::read_dir(state.overlays()) else {
            return Vec::new();
        };
        let mut ids: Vec<String> = entries
            .flatten()
            .filter(|entry| entry.path().join(CHANGES).exists())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        ids.sort();
        ids
    }

    /// What changed, by path.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// A unified diff of one change; a word about it where it is not text.
    pub fn diff(&self, change: &Change) -> String {
        const LARGEST: u64 = 1 << 20;
        let read = |path: Option<&Path>| -> Option<String> {
            let Some(path) = path else {
                return Some(String::new());
            };
            let metadata = fs::symlink_metadata(path).ok()?;
            if !metadata.is_file() || metadata.len() > LARGEST {
                return None;
            }
            String::from_utf8(fs::read(path).ok()?)
                .ok()
                .filter(|text| !text.contains('\0'))
        };
        let old = (change.kind != ChangeKind::Added).then_some(change.path.as_path());
        let name = change.path.display().to_string();
        let (Some(before), Some(after)) = (read(old), read(change.kept.as_deref())) else {
            return format!("{name}: not shown as text\n");
        };
        let from = if old.is_some() {
            name.clone()
        } else {
            "/dev/null".into()
        };
        let to = if change.kept.is_some() {
            name
        } else {
            "/dev/null".into()
        };
        similar::TextDiff::from_lines(&before, &after)
            .unified_diff()
            .header(&from, &to)
            .to_string()
    }

    /// Makes the changes on the host. All or nothing as far as can be told beforehand: one conflict stops them all.
    pub fn apply(self) -> Result<Vec<Change>, ApplyError> {
        let conflicts: Vec<Conflict> = self
            .changes
            .iter()
            .filter(|change| !change.base.still_holds(&change.path))
            .map(|change| Conflict {
                path: change.path.clone(),
            })
            .collect();
        if !conflicts.is_empty() {
            return Err(ApplyError::Conflicts(conflicts));
        }
        for change in &self.changes {
            apply::perform(change).map_err(|source| ApplyError::Failed {
                path: change.path.clone(),
                source,
            })?;
        }
        remove_store(&self.store).map_err(ApplyError::State)?;
        Ok(self.changes)
    }

    /// Throws the changes away.
    pub fn discard(self) -> Result<(), RunError> {
        remove_store(&self.store)
    }
}

/// Why changes were not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The host's files are not those the box saw. Nothing was changed.
    #[error("{} path(s) changed on the host since the box ran", .0.len())]
    Conflicts(Vec<Conflict>),
    /// A change could not be made; those before it were.
    #[error("{}: {source}", path.display())]
    Failed {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// They were all made, but the store is still there.
    #[error(transparent)]
    State(RunError),
}
