//! A map by path that finds the longest entry containing a path.
//!
//! `Path` compares component by component, which costs too much for a table that every launch
//! builds. Here a path is keyed by its bytes with `/` as 0: comparing bytes then orders component by
//! component, parents first, because 0 is in no name and below every byte that is.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A map from normal absolute paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathMap<T> {
    entries: BTreeMap<Vec<u8>, (PathBuf, T)>,
}

impl<T> PathMap<T> {
    pub(crate) fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
        }
    }

    /// Enters a value; where there is one already, `replaces(new, held)` decides.
    pub(crate) fn claim(&mut self, path: PathBuf, value: T, replaces: impl FnOnce(&T, &T) -> bool) {
        match self.entries.entry(key(&path)) {
            MapEntry::Occupied(mut held) if replaces(&value, &held.get().1) => {
                held.get_mut().1 = value;
            }
            MapEntry::Occupied(_) => {}
            MapEntry::Vacant(free) => {
                free.insert((path, value));
            }
        }
    }

    /// The entry of the longest path that contains this one.
    pub(crate) fn longest_prefix(&self, path: &Path) -> Option<(&Path, &T)> {
        if !path.is_absolute() {
            return None;
        }
        let mut key = key(path);
        loop {
            if let Some((path, value)) = self.entries.get(&key) {
                return Some((path, value));
            }
            let parent = key.iter().rposition(|byte| *byte == 0)?;
            key.truncate(parent);
        }
    }

    /// The entry of this very path.
    pub(crate) fn get(&self, path: &Path) -> Option<&T> {
        self.entries.get(&key(path)).map(|(_, value)| value)
    }

    /// The entry of this very path, to change it.
    pub(crate) fn get_mut(&mut self, path: &Path) -> Option<&mut T> {
        self.entries.get_mut(&key(path)).map(|(_, value)| value)
    }

    /// The entries, parents before children.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Path, &T)> {
        self.entries
            .values()
            .map(|(path, value)| (path.as_path(), value))
    }
}

/// `/` is the empty key, `/a/b` is `\0a\0b`.
fn key(path: &Path) -> Vec<u8> {
    let bytes = path.as_os_str().as_bytes();
    let bytes = bytes.strip_suffix(b"/").unwrap_or(bytes);
    bytes
        .iter()
        .map(|byte| if *byte == b'/' { 0 } else { *byte })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_path_is_found_by_component() {
        let mut map = PathMap::new();
        for path in ["/", "/a", "/a/b", "/a.b", "/ab"] {
            map.claim(PathBuf::from(path), path, |_, _| true);
        }
        let at = |path: &str| map.longest_prefix(Path::new(path)).map(|(_, value)| *value);
        assert_eq!(at("/"), Some("/"));
        assert_eq!(at("/a"), Some("/a"));
        assert_eq!(at("/a/"), Some("/a"));
        assert_eq!(at("/a/bc"), Some("/a"));
        assert_eq!(at("/a/b/c"), Some("/a/b"));
        assert_eq!(at("/abc"), Some("/"));
        assert_eq!(at("a"), None);
        let order: Vec<_> = map.iter().map(|(_, value)| *value).collect();
        assert_eq!(order, ["/", "/a", "/a/b", "/a.b", "/ab"]);
    }

    #[test]
    fn the_rule_given_decides_what_stays() {
        let mut map = PathMap::new();
        for value in [2, 1, 3] {
            map.claim(PathBuf::from("/a"), value, |new, held| new < held);
        }
        assert_eq!(
            map.longest_prefix(Path::new("/a")),
            Some((Path::new("/a"), &1))
        );
    }
}
