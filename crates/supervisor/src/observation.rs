//! What a watched box was seen to do, kept under bounds.
//!
//! An agent can name files as fast as it can make calls. So only so many are kept one by one; of others the directory they
//! are in, which is what rules are about; and when there are too many of those as well, their number.

use belljar_sandbox::native::{Deeds, Found, Sighting, Sightings};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// The most entries of each kind.
const MOST_PATHS: usize = 16_384;
/// The most bytes of their names.
const MOST_BYTES: usize = 4 << 20;
const MOST_ADDRESSES: usize = 256;

/// Everything a box was seen to do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Observation {
    /// Files it named.
    pub files: Paths,
    /// Directories of further files, which are not kept one by one.
    pub directories: Paths,
    /// How often it named a file of which nothing is kept.
    pub not_kept: u64,
    /// Processes it made.
    pub spawned: u64,
    /// Servers it looked for on its own loopback and did not find, and how often.
    #[serde(serialize_with = "addresses")]
    pub loopback_refused: BTreeMap<SocketAddr, u64>,
}

/// Paths, and what was done with each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paths {
    uses: BTreeMap<PathBuf, PathUse>,
    bytes: usize,
}

/// What was done with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathUse {
    /// What.
    pub deeds: Deeds,
    /// Whether it was ever there.
    pub found: Found,
}

impl Observation {
    pub(crate) fn note(&mut self, sighting: Sighting) {
        match sighting {
            Sighting::File { path, deeds, found } => {
                let seen = PathUse { deeds, found };
                let path = normal(&path);
                if self.files.note(&path, seen) {
                    return;
                }
                let directory = match deeds.is_within() {
                    true => path.as_path(),
                    false => path.parent().unwrap_or(&path),
                };
                if !self.directories.note(directory, seen) {
                    self.not_kept += 1;
                }
            }
            Sighting::Spawned => self.spawned += 1,
            Sighting::LoopbackRefused { address } => {
                let is_known = self.loopback_refused.contains_key(&address);
                if is_known || self.loopback_refused.len() < MOST_ADDRESSES {
                    *self.loopback_refused.entry(address).or_default() += 1;
                }
            }
            _ => {}
        }
    }

    /// Whether it was too much to keep all of it.
    pub fn is_whole(&self) -> bool {
        self.directories.is_empty() && self.not_kept == 0
    }
}

impl Paths {
    /// Each path in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, PathUse)> {
        self.uses.iter().map(|(path, seen)| (path.as_path(), *seen))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.uses.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.uses.is_empty()
    }

    /// Adds to what is known of a path, if there is room for it.
    pub(crate) fn note(&mut self, path: &Path, seen: PathUse) -> bool {
        if let Some(known) = self.uses.get_mut(path) {
            known.deeds = known.deeds.and(seen.deeds);
            known.found = better(known.found, seen.found);
            return true;
        }
        let bytes = self.bytes + path.as_os_str().len();
        if self.uses.len() >= MOST_PATHS || bytes > MOST_BYTES {
            return false;
        }
        self.bytes = bytes;
        self.uses.insert(path.to_owned(), seen);
        true
    }
}

/// What was there once counts as there.
fn better(one: Found, other: Found) -> Found {
    match (one, other) {
        (Found::There, _) | (_, Found::There) => Found::There,
        (Found::New, _) | (_, Found::New) => Found::New,
        (Found::Nowhere, Found::Nowhere) => Found::Nowhere,
    }
}

/// Without `.` and `..`, for paths that the kernel did not find.
fn normal(path: &Path) -> PathBuf {
    use std::path::Component;
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

/// A path as text, whatever is in it: what is not text as `\xNN`.
pub(crate) fn path_text(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a String can't fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

impl Serialize for Paths {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Row {
            path: String,
            deeds: Vec<&'static str>,
            found: &'static str,
        }
        to.collect_seq(self.iter().map(|(path, seen)| Row {
            path: path_text(path),
            deeds: deed_words(seen.deeds),
            found: match seen.found {
                Found::There => "there",
                Found::New => "new",
                Found::Nowhere => "nowhere",
            },
        }))
    }
}

/// Deeds as stable words.
pub(crate) fn deed_words(deeds: Deeds) -> Vec<&'static str> {
    let words = [
        (deeds.looks(), "look"),
        (deeds.reads(), "read"),
        (deeds.writes(), "write"),
        (deeds.executes(), "execute"),
    ];
    let done = words.into_iter().filter(|(done, _)| *done);
    done.map(|(_, word)| word).collect()
}

fn addresses<S: Serializer>(all: &BTreeMap<SocketAddr, u64>, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Row<'a> {
        address: &'a SocketAddr,
        count: u64,
    }
    to.collect_seq(all.iter().map(|(address, count)| Row {
        address,
        count: *count,
    }))
}

/// Listens to a watched box, in a thread of its own: a box waits to be heard.
#[derive(Debug)]
pub(crate) struct Watcher {
    sightings: Arc<Sightings>,
    listener: JoinHandle<Observation>,
}

impl Watcher {
    /// `program` is what the box starts with. Nobody inside sees that: until it runs, its process is one of ours, and ours
    /// alone to look into.
    pub(crate) fn start(sightings: Sightings, program: &Path) -> std::io::Result<Self> {
        let sightings = Arc::new(sightings);
        let heard = Arc::clone(&sightings);
        let mut observation = Observation::default();
        observation.note(Sighting::File {
            path: program.canonicalize().unwrap_or_else(|_| program.into()),
            deeds: Deeds::EXECUTE,
            found: Found::There,
        });
        observation.note(Sighting::File {
            path: program.to_owned(),
            deeds: Deeds::LOOK,
            found: Found::There,
        });
        let listen = move || {
            while let Some(sighting) = heard.next() {
                observation.note(sighting);
            }
            observation
        };
        let listener = std::thread::Builder::new()
            .name("belljar-watch".into())
            .spawn(listen)?;
        Ok(Self {
            sightings,
            listener,
        })
    }

    /// All that was seen. Call it when the box is gone.
    pub(crate) fn finish(self) -> Observation {
        self.sightings.close();
        // It does nothing that could panic; should it all the same, what is known is that not all is.
        self.listener.join().unwrap_or_else(|_| Observation {
            not_kept: u64::MAX,
            ..Observation::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(found: Found) -> PathUse {
        PathUse {
            deeds: Deeds::default(),
            found,
        }
    }

    #[test]
    fn memory_is_bounded_by_number_and_by_bytes() {
        let mut paths = Paths::default();
        let kept = (0..100_000)
            .filter(|n| paths.note(&PathBuf::from(format!("/d/{n}")), seen(Found::There)))
            .count();
        assert_eq!(kept, MOST_PATHS);
        let mut paths = Paths::default();
        let long = "x".repeat(4000);
        let kept = (0..100_000)
            .filter(|n| paths.note(&PathBuf::from(format!("/{n}/{long}")), seen(Found::There)))
            .count();
        assert!(kept < 1100 && kept > 1000, "{kept}");
        // What is known stays known.
        assert!(paths.note(&PathBuf::from(format!("/0/{long}")), seen(Found::New)));
    }

    #[test]
    fn a_path_is_text_whatever_is_in_it() {
        use std::ffi::OsStr;
        let path = Path::new(OsStr::from_bytes(b"/a\xff\n"));
        assert_eq!(path_text(path), "/a\\xff\n");
    }
}
