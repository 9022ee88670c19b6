//! What a manifest says of a program: the digest of its file, or of the image that it is in, and its arguments.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use belljar_manifest::lineage::Digest;

use crate::command::Command;
use crate::environment;

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
    /// The digest of a command that starts in `work`, in the image of this digest if there is one: the host's files are not
    /// there then.
    pub(crate) fn digest(&self, command: &Command, work: &Path, image: Option<&str>) -> Digest {
        let binary = match image {
            Some(image) => Some(Digest::of(image.as_bytes())),
            None => {
                let file = command.argv.first().and_then(|name| find(name, work));
                file.and_then(|file| self.file(&file))
            }
        };
        // A program that is not there has no bytes; its start will say so.
        let binary = binary.unwrap_or_else(|| Digest::of(b""));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_in_an_image_is_the_images_and_not_the_hosts() {
        let programs = Programs::default();
        let digest =
            |name: &str, image| programs.digest(&Command::new([name]), Path::new("/"), image);
        let [one, other] = ["sha256:one", "sha256:other"].map(Some);
        assert_eq!(digest("/bin/sh", one), digest("/bin/sh", one));
        assert_ne!(digest("/bin/sh", one), digest("/bin/sh", other));
        assert_ne!(digest("/bin/sh", one), digest("/bin/sh", None));
        // Whatever the host has by that name.
        let words: [&[u8]; 1] = [b"/nowhere/at/all"];
        let expected = Digest::of_program(&Digest::of(b"sha256:one"), words);
        assert_eq!(digest("/nowhere/at/all", one), expected);
    }
}
