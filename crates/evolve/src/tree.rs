//! A project's files without its history: what proposals start from and lead to, named by their contents.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use belljar_gate::record::hex;
use sha1::Digest as _;

use crate::blob::Blob;
use crate::path::{InvalidPath, TreePath, is_git};

/// The most files of a project.
const MOST_FILES: usize = 100_000;
/// The most bytes of one file.
const LONGEST_FILE: u64 = 64 << 20;
/// The most bytes of all of them: they are held in memory.
const MOST_BYTES: u64 = 1 << 30;

/// Directories of any project that hold what programs made, not what people wrote.
pub const MADE: [&str; 8] = [
    "target",
    "node_modules",
    ".venv",
    "venv",
    "__pycache__",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
];

/// What an entry is. Directories are not entries: they are there because of what is in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// A file.
    File,
    /// A program.
    Executable,
    /// A symbolic link; its blob is where it leads.
    Link,
}

impl Mode {
    /// As git writes it.
    #[must_use]
    pub fn as_git(self) -> &'static str {
        match self {
            Self::File => "100644",
            Self::Executable => "100755",
            Self::Link => "120000",
        }
    }
}

/// A file: its mode and its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub mode: Mode,
    /// What is in it.
    pub blob: Blob,
}

impl Entry {
    /// An ordinary file.
    #[must_use]
    pub fn file(text: impl Into<Vec<u8>>) -> Self {
        Self {
            mode: Mode::File,
            blob: Blob::from(text.into()),
        }
    }

    /// Its contents as text, unless they are none.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        let text = std::str::from_utf8(&self.blob).ok()?;
        (!text.contains('\0')).then_some(text)
    }
}

/// All files of a project.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    entries: BTreeMap<TreePath, Entry>,
    /// Its digest, once somebody asked. Whatever changes an entry takes it away.
    name: OnceLock<String>,
}

impl PartialEq for Tree {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl Eq for Tree {}

/// A tree can't be read, made or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The disk refused.
    #[error("{} can't be used", path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A name that is none.
    #[error("a name in the tree can't be used")]
    Path(#[from] InvalidPath),
    /// Not text.
    #[error("{} has a name that is not text", .0.display())]
    NotText(PathBuf),
    /// A socket, a device, a pipe.
    #[error("{} is neither a file nor a link", .0.display())]
    Odd(PathBuf),
    /// A repository inside the repository.
    #[error("{} is a repository of its own (a submodule)", .0.display())]
    Submodule(PathBuf),
    /// More than a project may have.
    #[error("more than {MOST_FILES} files, or more than {MOST_BYTES} bytes")]
    TooLarge,
    /// Two names that are one on another system.
    #[error("{0} and {1} are one file where case or spelling does not count")]
    Collision(TreePath, TreePath),
    /// A file where a directory is needed.
    #[error("{0} is a file, and {1} is inside it")]
    Inside(TreePath, TreePath),
}

impl Tree {
    /// Reads a project's directory, without `.git` and without directories of a name in `left_out`. No link is followed.
    ///
    /// # Errors
    /// When something in it can't be part of a tree.
    pub fn read(project: &Path, left_out: &[String]) -> Result<Self, TreeError> {
        let mut tree = Self::default();
        let mut bytes = 0u64;
        let mut waiting = vec![(project.to_owned(), String::new())];
        while let Some((directory, prefix)) = waiting.pop() {
            for item in fs::read_dir(&directory).map_err(io(&directory))? {
                let item = item.map_err(io(&directory))?;
                let place = item.path();
                let name = item
                    .file_name()
                    .into_string()
                    .map_err(|_| TreeError::NotText(place.clone()))?;
                let kind = item.file_type().map_err(io(&place))?;
                if name.eq_ignore_ascii_case(".git") {
                    if prefix.is_empty() {
                        continue;
                    }
                    return Err(TreeError::Submodule(directory));
                }
                // Git's rules of filters and submodules are the operator's; nothing here obeys or shows them.
                if !kind.is_dir() && is_git(&name) {
                    continue;
                }
                let inside = format!("{prefix}{name}");
                if kind.is_dir() {
                    if !left_out.contains(&name) {
                        waiting.push((place, format!("{inside}/")));
                    }
                    continue;
                }
                let entry = read_entry(&place, kind)?;
                bytes += entry.blob.len() as u64;
                if bytes > MOST_BYTES || tree.entries.len() >= MOST_FILES {
                    return Err(TreeError::TooLarge);
                }
                tree.entries.insert(TreePath::new(inside)?, entry);
            }
        }
        Ok(tree)
    }

    /// The entry of a path.
    #[must_use]
    pub fn get(&self, path: &TreePath) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// Puts an entry in, in place of the one that is there.
    pub fn put(&mut self, path: TreePath, entry: Entry) {
        self.name.take();
        self.entries.insert(path, entry);
    }

    /// Takes an entry out.
    pub fn take(&mut self, path: &TreePath) -> Option<Entry> {
        self.name.take();
        self.entries.remove(path)
    }

    /// Every entry in order.
    pub fn iter(&self) -> impl Iterator<Item = (&TreePath, &Entry)> {
        self.entries.iter()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sees that no two names are one, and that no file is above another.
    ///
    /// # Errors
    /// The first two that can't be together.
    pub fn check_names(&self) -> Result<(), TreeError> {
        let mut folded: BTreeMap<String, &TreePath> = BTreeMap::new();
        // Directories too: `Src/a` and `src/b` are two trees here and one elsewhere.
        let mut directories: BTreeMap<String, (String, &TreePath)> = BTreeMap::new();
        for path in self.entries.keys() {
            if let Some(other) = folded.insert(path.folded(), path) {
                return Err(TreeError::Collision(other.clone(), path.clone()));
            }
            for above in path.above() {
                let Ok(directory) = TreePath::new(above) else {
                    continue;
                };
                if self.entries.contains_key(&directory) {
                    return Err(TreeError::Inside(directory, path.clone()));
                }
                match directories.get(&directory.folded()) {
                    Some((spelled, other)) if spelled != above => {
                        return Err(TreeError::Collision((*other).clone(), path.clone()));
                    }
                    Some(_) => {}
                    None => {
                        directories.insert(directory.folded(), (above.to_owned(), path));
                    }
                }
            }
        }
        Ok(())
    }

    /// The tree's name: SHA-256 over every path, mode and content, each with its length before it.
    #[must_use]
    pub fn digest(&self) -> String {
        self.name.get_or_init(|| self.hashed()).clone()
    }

    fn hashed(&self) -> String {
        let mut hasher = sha2::Sha256::new();
        hasher.update(b"belljar tree 1\0");
        for (path, entry) in &self.entries {
            hasher.update((path.as_str().len() as u64).to_be_bytes());
            hasher.update(path.as_str());
            hasher.update(entry.mode.as_git());
            hasher.update(entry.blob.sha256());
        }
        hex(&hasher.finalize())
    }

    /// What git calls it. People compare it; nothing is trusted for it.
    #[must_use]
    pub fn git_hash(&self) -> String {
        let all: Vec<(&str, &Entry)> = self
            .iter()
            .map(|(path, entry)| (path.as_str(), entry))
            .collect();
        hex(&git_tree(&all))
    }

    /// How many bytes its files have.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.entries
            .values()
            .map(|entry| entry.blob.len() as u64)
            .sum()
    }
}

fn read_entry(place: &Path, kind: fs::FileType) -> Result<Entry, TreeError> {
    if kind.is_symlink() {
        let target = fs::read_link(place).map_err(io(place))?;
        let target = target
            .into_os_string()
            .into_string()
            .map_err(|_| TreeError::NotText(place.to_owned()))?;
        return Ok(Entry {
            mode: Mode::Link,
            blob: Blob::from(target.into_bytes()),
        });
    }
    if !kind.is_file() {
        return Err(TreeError::Odd(place.to_owned()));
    }
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let mut file: File = OpenOptions::new()
        .read(true)
        .custom_flags(no_follow)
        .open(place)
        .map_err(io(place))?;
    let facts = file.metadata().map_err(io(place))?;
    if !facts.is_file() {
        return Err(TreeError::Odd(place.to_owned()));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(facts.len()).unwrap_or_default());
    let read = Read::by_ref(&mut file)
        .take(LONGEST_FILE + 1)
        .read_to_end(&mut bytes);
    read.map_err(io(place))?;
    if bytes.len() as u64 > LONGEST_FILE {
        return Err(TreeError::TooLarge);
    }
    let mode = if facts.permissions().mode() & 0o100 != 0 {
        Mode::Executable
    } else {
        Mode::File
    };
    Ok(Entry {
        mode,
        blob: Blob::from(bytes),
    })
}

pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> TreeError {
    let path = path.to_owned();
    |source| TreeError::Io { path, source }
}

fn git_object(kind: &str, bytes: &[u8]) -> [u8; 20] {
    let mut hasher = sha1::Sha1::new();
    hasher.update(format!("{kind} {}\0", bytes.len()));
    hasher.update(bytes);
    hasher.finalize().into()
}

/// The hash of a directory whose entries, in order of their paths, are these.
fn git_tree(entries: &[(&str, &Entry)]) -> [u8; 20] {
    // Git sorts directories as if their names ended in a slash.
    let mut rows: BTreeMap<String, (&'static str, &str, [u8; 20])> = BTreeMap::new();
    let mut rest = entries;
    while let Some((path, entry)) = rest.first() {
        let Some((name, _)) = path.split_once('/') else {
            rows.insert(
                (*path).to_owned(),
                (entry.mode.as_git(), path, git_object("blob", &entry.blob)),
            );
            rest = &rest[1..];
            continue;
        };
        let start = name.len() + 1;
        let inside = |other: &str| {
            other.len() > start && other.starts_with(name) && other.as_bytes()[start - 1] == b'/'
        };
        // Others may sort in between (`a-b` before `a/c`), so all of a directory are gathered at its first.
        rows.entry(format!("{name}/")).or_insert_with(|| {
            let below: Vec<(&str, &Entry)> = rest
                .iter()
                .filter(|(other, _)| inside(other))
                .map(|(other, entry)| (&other[start..], *entry))
                .collect();
            ("40000", name, git_tree(&below))
        });
        rest = &rest[1..];
    }
    let mut bytes = Vec::new();
    for (mode, name, hash) in rows.values() {
        bytes.extend_from_slice(format!("{mode} {name}\0").as_bytes());
        bytes.extend_from_slice(hash);
    }
    git_object("tree", &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::new(text).unwrap()
    }

    fn tree(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (name, text) in files {
            tree.put(path(name), Entry::file(*text));
        }
        tree
    }

    #[test]
    fn git_gives_a_tree_the_same_name() {
        let place = tempfile::tempdir().unwrap();
        let project = place.path().join("p");
        let mut tree = tree(&[
            ("a/c.py", "1\n"),
            ("a-b.py", "2\n"),
            ("a.py", ""),
            ("ab/d/e.txt", "3"),
            ("z", "4"),
        ]);
        tree.put(
            path("run.sh"),
            Entry {
                mode: Mode::Executable,
                blob: b"#!/bin/sh\n".as_slice().into(),
            },
        );
        tree.put(
            path("link"),
            Entry {
                mode: Mode::Link,
                blob: b"a.py".as_slice().into(),
            },
        );
        tree.export(&project).unwrap();
        let git = |words: &[&str]| {
            let out = std::process::Command::new("git")
                .args(words)
                .current_dir(&project)
                .output()
                .unwrap();
            assert!(out.status.success(), "{out:?}");
            String::from_utf8(out.stdout).unwrap().trim().to_owned()
        };
        git(&["init", "-q"]);
        git(&["add", "-A"]);
        assert_eq!(git(&["write-tree"]), tree.git_hash());
        // The same tree comes back, without git's directory.
        assert_eq!(Tree::read(&project, &[]).unwrap(), tree);
    }

    #[test]
    fn every_path_mode_and_byte_counts_for_the_digest() {
        let one = tree(&[("a", "x"), ("b", "y")]);
        let mut modes = one.clone();
        modes.put(
            path("a"),
            Entry {
                mode: Mode::Executable,
                blob: b"x".as_slice().into(),
            },
        );
        for other in [
            tree(&[("a", "xb"), ("c", "y")]),
            tree(&[("a", "x")]),
            tree(&[("a", "y"), ("b", "x")]),
            modes,
        ] {
            assert_ne!(one.digest(), other.digest());
        }
        assert_eq!(one.digest(), tree(&[("b", "y"), ("a", "x")]).digest());
    }

    #[test]
    fn names_that_are_one_elsewhere_are_refused() {
        assert!(tree(&[("a.py", ""), ("A.py", "")]).check_names().is_err());
        assert!(
            tree(&[("Src/a.py", ""), ("src/b.py", "")])
                .check_names()
                .is_err()
        );
        assert!(tree(&[("a", ""), ("a/b", "")]).check_names().is_err());
        assert!(
            tree(&[("a/b", ""), ("a/c", ""), ("ab", "")])
                .check_names()
                .is_ok()
        );
    }

    #[test]
    fn a_repository_inside_is_refused_and_filters_are_left_out() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join(".gitattributes"), "* filter=evil\n").unwrap();
        fs::write(place.path().join("a.py"), "").unwrap();
        assert_eq!(Tree::read(place.path(), &[]).unwrap().len(), 1);
        fs::create_dir_all(place.path().join("sub/.git")).unwrap();
        assert!(matches!(
            Tree::read(place.path(), &[]),
            Err(TreeError::Submodule(_))
        ));
    }
}
