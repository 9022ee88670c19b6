//! What a box changed, as it is written down when the box has ended: a tree, one line for each file, with what each was.
//!
//! A tree and not paths, since paths of deep trees are long and would be repeated in one another. What is read is checked
//! as if it were a stranger's.

use super::ChangeKind;
use super::content::Content;
use super::host::Base;
use super::tree::{is_name, joined};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

const VERSION: u32 = 2;
/// The longest line that is read: of a directory that goes, all that was in it is told.
const LONGEST_LINE: u64 = 1 << 30;

/// A name or path as it is, text or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Bytes {
    Text(String),
    Hex { hex: String },
}

impl From<&OsStr> for Bytes {
    fn from(bytes: &OsStr) -> Self {
        match bytes.to_str() {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Hex {
                hex: data_encoding::HEXLOWER.encode(bytes.as_bytes()),
            },
        }
    }
}

impl Bytes {
    pub(super) fn read(self) -> Option<OsString> {
        match self {
            Self::Text(text) => Some(text.into()),
            Self::Hex { hex } => {
                let bytes = data_encoding::HEXLOWER.decode(hex.as_bytes()).ok()?;
                Some(OsString::from_vec(bytes))
            }
        }
    }
}

/// What the box made of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "file", rename_all = "snake_case")]
pub(super) enum Made {
    Directory {
        mode: u32,
    },
    Plain {
        mode: u32,
        #[serde(flatten)]
        content: Content,
    },
    Link {
        target: Bytes,
    },
    /// A socket, a pipe or a device: of a box that is gone, they lead nowhere.
    Special,
}

/// What became of one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) kind: ChangeKind,
    /// Nothing for a deletion.
    pub(super) made: Option<Made>,
    pub(super) base: Base,
    /// What an `apply` of some of its hunks may have put on the host: it is no conflict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) partly: Vec<PartialFile>,
}

/// A file with some of its hunks applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PartialFile {
    pub(super) mode: u32,
    #[serde(flatten)]
    pub(super) content: Content,
}

/// A changed path, or a directory above one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    /// Below a root, which is at 0.
    pub(super) depth: usize,
    pub(super) parent: Option<usize>,
    /// Where it stood in the first listing: it stays that when others have been applied or discarded.
    pub(super) number: usize,
    /// A root's is its path.
    pub(super) name: OsString,
    pub(super) entry: Option<Entry>,
}

/// What could not be looked at. Nothing is applied then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Where.
    pub path: PathBuf,
    /// What happened.
    pub why: String,
}

/// All that a box changed. A directory stands before what is in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// Drawn for this listing: part of the names of temporary files, which nobody is to foretell.
    pub(super) token: String,
    pub(super) nodes: Vec<Node>,
    pub(super) troubles: Vec<Trouble>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Begins {
        version: u32,
        token: String,
    },
    At {
        depth: usize,
        name: Bytes,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        number: Option<usize>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        entry: Option<Entry>,
    },
    Trouble {
        path: Bytes,
        why: String,
    },
    /// So that a listing that was cut off is not taken for a whole one.
    Ends {
        lines: usize,
    },
}

impl Listing {
    pub(super) fn new() -> io::Result<Self> {
        let mut bytes = [0u8; 16];
        let flags = rustix::rand::GetRandomFlags::empty();
        rustix::rand::getrandom(&mut bytes[..], flags)?;
        Ok(Self {
            token: data_encoding::HEXLOWER.encode(&bytes),
            ..Self::default()
        })
    }

    /// Adds a path in the directory that `parent` is.
    pub(super) fn add(
        &mut self,
        parent: Option<usize>,
        name: OsString,
        entry: Option<Entry>,
    ) -> usize {
        let above = parent.and_then(|parent| self.nodes.get(parent));
        let depth = above.map_or(0, |above| above.depth + 1);
        self.nodes.push(Node {
            depth,
            parent,
            number: self.nodes.len(),
            name,
            entry,
        });
        self.nodes.len() - 1
    }

    /// A directory that did not change and has nothing changed in it is not worth telling.
    pub(super) fn forget_if_idle(&mut self, index: usize) {
        let is_last = index + 1 == self.nodes.len();
        if is_last && self.nodes.last().is_some_and(|last| last.entry.is_none()) {
            self.nodes.pop();
        }
    }

    /// The part with these entries, and with the directories that must be made for them.
    pub(super) fn with(&self, chosen: &BTreeSet<usize>) -> Self {
        self.filtered(|index| chosen.contains(&index))
    }

    /// What is left without these entries.
    pub(super) fn without(&self, done: &BTreeSet<usize>) -> Self {
        let mut left = self.filtered(|index| !done.contains(&index));
        left.troubles.clone_from(&self.troubles);
        left
    }

    /// These entries, and the directories above them that the host does not have: none of them can be made without those.
    pub(super) fn closed(&self, chosen: &BTreeSet<usize>) -> BTreeSet<usize> {
        let mut closed = chosen.clone();
        for index in chosen {
            let mut above = self.nodes.get(*index).and_then(|node| node.parent);
            while let Some((at, node)) = above.and_then(|at| Some((at, self.nodes.get(at)?))) {
                let is_new = node.entry.as_ref().is_some_and(|entry| {
                    let is_kept = entry.base.own.is_some_and(|own| own.is_directory);
                    matches!(entry.made, Some(Made::Directory { .. })) && !is_kept
                });
                if is_new {
                    closed.insert(at);
                }
                above = node.parent;
            }
        }
        closed
    }

    fn filtered(&self, is_wanted: impl Fn(usize) -> bool) -> Self {
        let mut stays = vec![false; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let mut next = (node.entry.is_some() && is_wanted(index)).then_some(index);
            while let Some(at) = next {
                match stays.get_mut(at) {
                    Some(stay) if !*stay => *stay = true,
                    _ => break,
                }
                next = self.nodes.get(at).and_then(|node| node.parent);
            }
        }
        let mut part = Self {
            token: self.token.clone(),
            ..Self::default()
        };
        let mut places = vec![None; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            if stays.get(index) != Some(&true) {
                continue;
            }
            let parent = node.parent.and_then(|at| places.get(at).copied().flatten());
            let entry = node.entry.clone().filter(|_| is_wanted(index));
            let at = part.add(parent, node.name.clone(), entry);
            if let Some(added) = part.nodes.get_mut(at) {
                added.number = node.number;
            }
            if let Some(place) = places.get_mut(index) {
                *place = Some(at);
            }
        }
        part
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.iter().all(|node| node.entry.is_none()) && self.troubles.is_empty()
    }

    /// The root a node is below, and the names from there to it.
    pub(super) fn way(&self, index: usize) -> (&Path, Vec<&OsStr>) {
        let mut names = Vec::new();
        let mut next = self.nodes.get(index);
        while let Some(node) = next {
            let above = node.parent.and_then(|parent| self.nodes.get(parent));
            if above.is_none() {
                names.reverse();
                return (Path::new(&node.name), names);
            }
            names.push(node.name.as_os_str());
            next = above;
        }
        (Path::new("/"), names)
    }

    pub(super) fn path(&self, index: usize) -> PathBuf {
        let (root, names) = self.way(index);
        joined(root, names.into_iter())
    }

    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut line = |line: Line| -> io::Result<()> {
            serde_json::to_writer(&mut *to, &line)?;
            to.write_all(b"\n")
        };
        line(Line::Begins {
            version: VERSION,
            token: self.token.clone(),
        })?;
        for (index, node) in self.nodes.iter().enumerate() {
            line(Line::At {
                depth: node.depth,
                name: node.name.as_os_str().into(),
                number: (node.number != index).then_some(node.number),
                entry: node.entry.clone(),
            })?;
        }
        for trouble in &self.troubles {
            line(Line::Trouble {
                path: trouble.path.as_os_str().into(),
                why: trouble.why.clone(),
            })?;
        }
        line(Line::Ends {
            lines: self.nodes.len() + self.troubles.len(),
        })
    }

    pub(super) fn read(mut from: impl BufRead) -> io::Result<Self> {
        let mut listing = None;
        let mut reader = Reader::default();
        let mut bytes = Vec::new();
        for number in 1usize.. {
            bytes.clear();
            io::Read::take(&mut from, LONGEST_LINE).read_until(b'\n', &mut bytes)?;
            let bad = || invalid(format!("the list of changes is damaged in line {number}"));
            let line: Line = serde_json::from_slice(&bytes).map_err(|_| bad())?;
            let Some(known) = listing.as_mut() else {
                listing = Some(begun(line).ok_or_else(bad)?);
                continue;
            };
            if reader.take(known, line).ok_or_else(bad)? {
                break;
            }
        }
        Ok(listing.unwrap_or_default())
    }
}

fn begun(line: Line) -> Option<Listing> {
    match line {
        Line::Begins {
            version: VERSION,
            token,
        } if token.len() == 32 && token.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            Some(Listing {
                token,
                ..Listing::default()
            })
        }
        _ => None,
    }
}

/// The directories that are open while a listing is read, from the root on.
#[derive(Default)]
struct Reader {
    above: Vec<usize>,
}

impl Reader {
    /// Adds what a line says; says whether it was the last. Nothing for one that can't be right.
    fn take(&mut self, listing: &mut Listing, line: Line) -> Option<bool> {
        match line {
            Line::At {
                depth,
                name,
                number,
                entry,
            } => {
                let name = name.read()?;
                let fits = match depth {
                    0 => is_root(&name),
                    _ => is_name(name.as_bytes()) && depth <= self.above.len(),
                };
                let has_made =
                    |entry: &Entry| entry.made.is_some() != (entry.kind == ChangeKind::Deleted);
                if !fits || !entry.as_ref().is_none_or(has_made) {
                    return None;
                }
                self.above.truncate(depth);
                let parent = self.above.last().copied();
                let index = listing.add(parent, name, entry);
                if let (Some(number), Some(node)) = (number, listing.nodes.get_mut(index)) {
                    node.number = number;
                }
                self.above.push(index);
                Some(false)
            }
            Line::Trouble { path, why } => {
                let path = PathBuf::from(path.read()?);
                listing.troubles.push(Trouble { path, why });
                Some(false)
            }
            Line::Ends { lines } => {
                (lines == listing.nodes.len() + listing.troubles.len()).then_some(true)
            }
            Line::Begins { .. } => None,
        }
    }
}

/// Whether it is the path of a directory, with no way around in it.
pub(super) fn is_root(path: &OsStr) -> bool {
    let path = path.as_bytes();
    path == b"/"
        || path.strip_prefix(b"/").is_some_and(|below| {
            path.len() < 4096 && below.split(|byte| *byte == b'/').all(is_name)
        })
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
