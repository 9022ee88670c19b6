//! What a box changed in an overlay: seen, applied, or thrown away, after it ended.
//!
//! What is listed is what is applied: each file's content, kind and mode are written down when the box has ended, and looked at
//! again while the file is copied. Both sides are gone through by descriptors of directories, in which no link is followed.

mod apply;
mod content;
mod host;
mod legacy;
mod listing;
mod shown;
mod store;
#[cfg(test)]
mod tests;
mod tree;
mod walk;

use crate::error::RunError;
use crate::state::StateDir;
use belljar_sandbox::plan::Identity;
pub use listing::Trouble;
use listing::{Listing, Made};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use store::Store;
pub(crate) use tree::{Cursor, TreeAccess, each_below, open_plain};

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The path on the host.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// Its bytes in hexadecimal, where they are no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    /// What was done.
    pub kind: ChangeKind,
    /// What it is now: `directory`, `plain`, `link` or `special`, which is not applied; nothing for a deletion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<&'static str>,
    /// The permissions it has now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    #[serde(skip)]
    node: usize,
}

fn as_text<S: serde::Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&path.to_string_lossy())
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
    store: Store,
    listing: Listing,
}

fn at(path: &Path) -> impl Fn(io::Error) -> RunError + '_ {
    |source| RunError::State {
        path: path.to_owned(),
        source,
    }
}

fn open(path: &Path) -> Result<Store, RunError> {
    let missing = || at(path)(io::ErrorKind::NotFound.into());
    Store::open(path).map_err(at(path))?.ok_or_else(missing)
}

/// Remembers which directories an overlay stands for, and whose box it is.
pub(crate) fn write_roots(store: &Path, owner: u32, roots: &[PathBuf]) -> Result<(), RunError> {
    Store::begun(store)
        .and_then(|opened| opened.write_roots(owner, roots))
        .map_err(at(store))
}

/// Lets the box's user pass to the layers: until now they were made by path, and he could have put links in the way.
pub(crate) fn hand_over(store: &Path, user: &Identity) -> Result<(), RunError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let hand_over = || -> io::Result<()> {
        for entry in fs::read_dir(store)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                std::os::unix::fs::lchown(entry.path(), Some(user.uid), Some(user.gid))?;
            }
        }
        Ok(())
    };
    hand_over().map_err(at(store))
}

/// After the box: lists what it changed, together with what the host has there now. Removes an empty overlay.
/// Whether changes are kept.
pub(crate) fn settle(store: &Path) -> Result<bool, RunError> {
    let opened = open(store)?;
    let listing = opened.list().map_err(at(store))?;
    if listing.is_empty() {
        remove_store(store)?;
        return Ok(false);
    }
    opened.save_listing(&listing).map_err(at(store))?;
    Ok(true)
}

/// Removes a whole store.
pub(crate) fn remove_store(path: &Path) -> Result<(), RunError> {
    store::remove_store(path).map_err(at(path))
}

/// Removes a directory with all that is in it, at once or not at all.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    store::remove_store(path)
}

/// Where the changes of a box are. An id is never a path.
fn store_of(state: &StateDir, id: &str) -> Result<PathBuf, RunError> {
    let is_id = !id.is_empty()
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    match is_id {
        true => Ok(state.overlays().join(id)),
        false => Err(RunError::UnknownId { id: id.to_owned() }),
    }
}

/// Opens the store of a box that has ended.
fn open_ended(state: &StateDir, id: &str) -> Result<Store, RunError> {
    let unknown = || RunError::UnknownId { id: id.to_owned() };
    let path = store_of(state, id)?;
    if !path.parent().is_some_and(Path::is_dir) {
        return Err(unknown());
    }
    // Its layers are in use, and not ours to look through.
    if !Store::is_listed(&path) && state.running().iter().any(|run| run.sandbox_id == id) {
        return Err(unknown());
    }
    Store::open(&path).map_err(at(&path))?.ok_or_else(unknown)
}

impl Overlay {
    /// The kept changes of box `id`.
    pub fn open(state: &StateDir, id: &str) -> Result<Self, RunError> {
        let store = open_ended(state, id)?;
        let listed = store.listing().map_err(|error| store.fail(error))?;
        let listing = match listed {
            Some(listing) => listing,
            // By 0.1.0, or not at all since the keeper was killed.
            None => {
                let listed = store.lock().and_then(|()| store.list());
                let listing = listed.map_err(|error| store.fail(error))?;
                store
                    .save_listing(&listing)
                    .map_err(|error| store.fail(error))?;
                store.unlock();
                listing
            }
        };
        Ok(Self { store, listing })
    }

    /// Ids of boxes whose changes wait.
    pub fn waiting(state: &StateDir) -> Vec<String> {
        let Ok(entries) = fs::read_dir(state.overlays()) else {
            return Vec::new();
        };
        let mut ids: Vec<String> = entries
            .flatten()
            .filter(|entry| Store::is_listed(&entry.path()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|id| store_of(state, id).is_ok())
            .collect();
        ids.sort();
        ids
    }

    /// What changed, by path. A path is made when it is asked for: those of deep trees are long.
    pub fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        let nodes = self.listing.nodes.iter().enumerate();
        let mut path = PathBuf::new();
        let mut depth = 0;
        nodes.filter_map(move |(index, node)| {
            // Each is below one before it.
            for _ in node.depth..depth {
                path.pop();
            }
            path.push(&node.name);
            depth = node.depth + 1;
            let entry = node.entry.as_ref()?;
            let path = path.clone();
            let (file, mode) = match entry.made {
                None => (None, None),
                Some(Made::Directory { mode }) => (Some("directory"), Some(mode)),
                Some(Made::Plain { mode, .. }) => (Some("plain"), Some(mode)),
                Some(Made::Link { .. }) => (Some("link"), None),
                Some(Made::Special) => (Some("special"), None),
            };
            let hex = || data_encoding::HEXLOWER.encode(path.as_os_str().as_bytes());
            Some(Change {
                path_hex: path.to_str().is_none().then(hex),
                path,
                kind: entry.kind,
                file,
                mode,
                node: index,
            })
        })
    }

    /// What could not be looked at when the box had ended. As long as there is something, nothing is applied.
    pub fn troubles(&self) -> &[Trouble] {
        &self.listing.troubles
    }

    /// Makes the changes on the host. All or nothing as far as can be told beforehand: one conflict stops them all. What
    /// was broken off is taken up again: what is done already stays.
    pub fn apply(&self) -> Result<(), ApplyError> {
        if !self.listing.troubles.is_empty() {
            return Err(ApplyError::Troubled(self.listing.troubles.clone()));
        }
        let path = self.store.path();
        self.store
            .lock()
            .map_err(at(path))
            .map_err(ApplyError::State)?;
        apply::perform(&self.store, &self.listing)?;
        remove_store(path).map_err(ApplyError::State)
    }

    /// Throws the changes of box `id` away, listed or not.
    pub fn discard(state: &StateDir, id: &str) -> Result<(), RunError> {
        let store = open_ended(state, id)?;
        store.lock().map_err(|error| store.fail(error))?;
        remove_store(store.path())
    }
}

/// Why changes were not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The host's files are not those the box saw. Nothing was changed, unless it happened while changes were made.
    #[error("{} path(s) changed on the host since the box ran", .0.len())]
    Conflicts(Vec<Conflict>),
    /// Something could not be looked at when the box had ended, so nobody knows all changes. Nothing was changed.
    #[error("{} path(s) could not be looked at when the box had ended", .0.len())]
    Troubled(Vec<Trouble>),
    /// What is kept is not what was listed. It was not applied.
    #[error("{}: what is kept is no longer what was listed", path.display())]
    Altered {
        /// Which.
        path: PathBuf,
    },
    /// A change could not be made; those before it were.
    #[error("{}: {source}", path.display())]
    Failed {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// They were all made, but the store is still there; or somebody else is at it.
    #[error(transparent)]
    State(RunError),
}
