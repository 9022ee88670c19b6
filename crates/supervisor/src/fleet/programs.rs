//! What a manifest says of a program: the digest of its file and its arguments.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use belljar_manifest::lineage::Digest;

use crate::environment;
use crate::lower::Command;

/// The most of a program's file that is read; a larger one stands for itself by its first part and size.
const LONGEST: u64 = 1 << 30;
/// Digests that are remembered.
const MOST: usize = 64;

/// Digests of programs. A family mostly runs one, so they are remembered for as long as the file is the same.
#[derive(Debug, Default)]
pub(crate) struct Programs(Mutex<HashMap<PathBuf, (Identity, Digest)>>);

/// A file that was not changed since has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl From<&Metadata> for Identity {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Programs {
    /// The digest of a command that starts in `work`.
    pub(crate) fn digest(&self, command: &Command, work: &Path) -> Digest {
        let file = command.argv.first().and_then(|name| find(name, work));
        // A program that is not there has no bytes; its start will say so.
        let binary = file
            .and_then(|file| self.file(&file))
            .unwrap_or_else(|| Digest::of(b""));
        let words: Vec<&[u8]> = command.argv.iter().map(|word| word.as_bytes()).collect();
        Digest::of_program(&binary, words)
    }

    fn file(&self, path: &Path) -> Option<Digest> {
        let mut file = File::open(path).ok()?;
        let identity = Identity::from(&file.metadata().ok().filter(Metadata::is_file)?);
        let known = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(path)
            .copied();
        if let Some((same, digest)) = known
            && same == identity
        {
            return Some(digest);
        }
        let mut bytes = Vec::new();
        file.by_ref().take(LONGEST).read_to_end(&mut bytes).ok()?;
        let digest = Digest::of(&bytes);
        let mut digests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if digests.len() >= MOST {
            digests.clear();
        }
        digests.insert(path.to_owned(), (identity, digest));
        Some(digest)
    }
}

fn find(name: &OsStr, work: &Path) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(work.join(name));
    }
    let path =
        std::env::var_os(environment::PATH).unwrap_or_else(|| environment::DEFAULT_PATH.into());
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}
