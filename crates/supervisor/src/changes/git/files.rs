//! The files of a repository's directory, as the host has them and as the box left them. Nothing of git runs, and no link is
//! followed: these are names and bytes that the agent chose.

use crate::changes::listing::{Entry, Listing, Made};
use crate::changes::store::Store;
use crate::changes::tree::{Cursor, names, open_plain};
use crate::changes::{ChangeKind, content::content_of};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Which version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The host's.
    Before,
    /// As it will be when all changes are applied.
    After,
}

/// One directory called `.git`, on both sides.
pub(super) struct GitFiles<'a> {
    store: &'a Store,
    listing: &'a Listing,
    root: PathBuf,
    /// The names from the root to it.
    way: Vec<OsString>,
    /// The changes below it, by their paths from there.
    changes: BTreeMap<Vec<u8>, usize>,
}

impl<'a> GitFiles<'a> {
    /// The directory `way` below `root`, with the changes below it.
    pub(super) fn new(
        store: &'a Store,
        listing: &'a Listing,
        root: &Path,
        way: Vec<OsString>,
        changes: BTreeMap<Vec<u8>, usize>,
    ) -> Self {
        Self {
            store,
            listing,
            root: root.to_owned(),
            way,
            changes,
        }
    }

    /// Changed paths that begin so.
    pub(super) fn changed_below(&self, prefix: &'a [u8]) -> impl Iterator<Item = (&[u8], &Entry)> {
        self.changes
            .range(prefix.to_vec()..)
            .take_while(move |(path, _)| path.starts_with(prefix))
            .filter_map(|(path, index)| Some((path.as_slice(), self.entry(*index)?)))
    }

    fn entry(&self, index: usize) -> Option<&Entry> {
        self.listing.nodes.get(index)?.entry.as_ref()
    }

    /// What became of a path itself.
    pub(super) fn changed(&self, path: &[u8]) -> Option<&Entry> {
        self.entry(*self.changes.get(path)?)
    }

    /// Opens a plain file; nothing if there is none, or if it is something else.
    pub(super) fn open(&self, path: &[u8], side: Side) -> io::Result<Option<File>> {
        if side == Side::After {
            if let Some(entry) = self.changed(path) {
                return match &entry.made {
                    Some(Made::Plain { content, .. }) => {
                        let file = open_at(&mut self.layer()?, path)?;
                        // What was listed, or nothing: the rest is not what `apply` would make.
                        match file {
                            Some(mut file) if content_of(&file)? == *content => {
                                file.rewind()?;
                                Ok(Some(file))
                            }
                            _ => Err(io::Error::other("it is no longer what was listed")),
                        }
                    }
                    _ => Ok(None),
                };
            }
            if self.is_replaced_above(path) {
                return Ok(None);
            }
        }
        match self.host()? {
            Some(mut host) => open_at(&mut host, path),
            None => Ok(None),
        }
    }

    /// Reads a file that is no larger than that.
    pub(super) fn read(&self, path: &[u8], side: Side, most: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.open(path, side)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > most {
            true => Err(io::Error::other("it is too large to be looked into")),
            false => Ok(Some(bytes)),
        }
    }

    /// The names in one of the host's directories.
    pub(super) fn host_names(&self, path: &[u8]) -> Vec<OsString> {
        let list = || -> io::Result<Vec<OsString>> {
            let Some(mut host) = self.host()? else {
                return Ok(Vec::new());
            };
            for name in parts(path) {
                host.enter(name)?;
            }
            names(host.here()?)
        };
        list().unwrap_or_default()
    }

    /// Whether a directory above a path is new, gone, or another file: then nothing of the host's is there.
    fn is_replaced_above(&self, path: &[u8]) -> bool {
        let ends = path
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .filter_map(|(at, _)| path.get(..at));
        ends.filter_map(|above| self.changed(above)).any(|entry| {
            let stays = matches!(entry.made, Some(Made::Directory { .. }));
            entry.kind == ChangeKind::Added || !stays
        })
    }

    fn host(&self) -> io::Result<Option<Cursor>> {
        enter(Cursor::open(&self.root)?, &self.way)
    }

    fn layer(&self) -> io::Result<Cursor> {
        let layer = Cursor::at(self.store.changes(&self.root)?);
        enter(layer, &self.way)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn enter(mut cursor: Cursor, way: &[OsString]) -> io::Result<Option<Cursor>> {
    for name in way {
        match cursor.enter(name) {
            Ok(()) => {}
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(cursor))
}

fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn open_at(cursor: &mut Cursor, path: &[u8]) -> io::Result<Option<File>> {
    let parts: Vec<&OsStr> = parts(path).collect();
    let Some((name, above)) = parts.split_last() else {
        return Ok(None);
    };
    let mut open = || -> io::Result<File> {
        for name in above {
            cursor.enter(name)?;
        }
        open_plain(cursor.here()?, name)
    };
    match open() {
        Ok(file) => Ok(Some(file)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn parts(path: &[u8]) -> impl Iterator<Item = &OsStr> {
    path.split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty())
        .map(OsStr::from_bytes)
}

/// The paths of what was in a directory that is gone, from there.
pub(super) fn paths_within(entry: &Entry) -> Vec<Vec<u8>> {
    let mut paths = Vec::new();
    let mut above: Vec<Vec<u8>> = Vec::new();
    for below in entry.base.within.iter().flatten() {
        let Some(name) = below.name.clone().read() else {
            continue;
        };
        above.truncate(below.depth.saturating_sub(1));
        above.push(name.into_vec());
        if !below.seen.is_directory {
            paths.push(above.join(&b'/'));
        }
    }
    paths
}
