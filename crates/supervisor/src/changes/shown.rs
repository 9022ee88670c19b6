//! One change as text that people read.

use super::hunks::FileHunks;
use super::listing::Made;
use super::tree::{Cursor, open_plain};
use super::{Change, ChangeKind, Overlay};
use crate::changes::content::content_of;
use belljar_policy::{harmless, harmless_path, harmless_text};
use std::ffi::OsStr;
use std::io::{self, Read};

const LARGEST: u64 = 1 << 20;

/// Both sides of a change, as far as they can be shown.
enum Sides {
    /// A line says it all.
    Word(String),
    Texts {
        before: String,
        after: String,
    },
}

/// How many lines a change adds and removes; nothing where it is not text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineCount {
    /// Lines that are new.
    pub added: usize,
    /// Lines that are gone.
    pub removed: usize,
}

impl Overlay {
    /// A unified diff of one change; a word about it where it is not text. Nothing in it is obeyed by a terminal, nor is a line
    /// in it the agent's that does not begin with a sign of ours.
    pub fn diff(&self, change: &Change) -> String {
        let name = harmless_path(&change.path);
        let (before, after) = match self.sides(change) {
            Sides::Word(word) => return format!("{name}: {word}\n"),
            Sides::Texts { before, after } => (before, after),
        };
        let nothing = "/dev/null".to_owned();
        let (from, to) = match change.kind {
            ChangeKind::Added => (nothing, name.into_owned()),
            ChangeKind::Modified => (name.clone().into_owned(), name.into_owned()),
            ChangeKind::Deleted => (name.into_owned(), nothing),
        };
        let text = similar::TextDiff::from_lines(&before, &after)
            .unified_diff()
            .header(&from, &to)
            .to_string();
        harmless_lines(&text)
    }

    /// How many lines a change adds and removes; nothing where it is not text.
    pub fn count_lines(&self, change: &Change) -> Option<LineCount> {
        let Sides::Texts { before, after } = self.sides(change) else {
            return None;
        };
        let mut count = LineCount {
            added: 0,
            removed: 0,
        };
        for line in similar::TextDiff::from_lines(&before, &after).iter_all_changes() {
            match line.tag() {
                similar::ChangeTag::Insert => count.added += 1,
                similar::ChangeTag::Delete => count.removed += 1,
                similar::ChangeTag::Equal => {}
            }
        }
        Some(count)
    }

    /// The hunks of a change, if it is one of a text into another: each can be applied without the others.
    pub fn hunks(&self, change: &Change) -> Option<FileHunks> {
        let node = self.listing.nodes.get(change.node)?;
        let is_plain = matches!(node.entry.as_ref()?.made, Some(Made::Plain { .. }));
        match self.sides(change) {
            Sides::Texts { before, after } if is_plain && change.kind == ChangeKind::Modified => {
                Some(FileHunks::new(before, after))
            }
            _ => None,
        }
    }

    fn sides(&self, change: &Change) -> Sides {
        let entry = self.listing.nodes.get(change.node);
        let made = entry.and_then(|node| node.entry.as_ref()?.made.as_ref());
        match made {
            Some(Made::Special) => {
                return Sides::Word("a socket, pipe or device, which is not applied".to_owned());
            }
            Some(Made::Link { target }) => {
                let target = target.clone().read().unwrap_or_default();
                let target = harmless_path(target.as_ref()).into_owned();
                return Sides::Word(format!("a link to {target}"));
            }
            Some(Made::Directory { mode }) => {
                return Sides::Word(format!("a directory, {mode:03o}"));
            }
            Some(Made::Plain { .. }) | None => {}
        }
        let after = match made {
            Some(Made::Plain { content, .. }) => match self.kept_text(change, content) {
                Kept::Text(text) => Some(text),
                Kept::NoText => None,
                Kept::Altered => {
                    return Sides::Word("what is kept is no longer what was listed".to_owned());
                }
            },
            _ => Some(String::new()),
        };
        let before = match change.kind {
            ChangeKind::Added => Some(String::new()),
            _ => self.host_text(change),
        };
        match (before, after) {
            (Some(before), Some(after)) => Sides::Texts { before, after },
            _ => Sides::Word("not shown as text".to_owned()),
        }
    }

    fn kept_text(&self, change: &Change, content: &super::content::Content) -> Kept {
        if content.size > LARGEST {
            return Kept::NoText;
        }
        let (root, names) = self.listing.way(change.node);
        let read = || -> io::Result<Option<Vec<u8>>> {
            let Some((name, above)) = names.split_last() else {
                return Ok(None);
            };
            let mut layer = Cursor::at(self.store.changes(root)?);
            let file = go(&mut layer, above, name)?;
            let mut bytes = Vec::new();
            (&file).take(LARGEST).read_to_end(&mut bytes)?;
            Ok((content_of(&file)? == *content).then_some(bytes))
        };
        match read() {
            Ok(Some(bytes)) => text(bytes).map_or(Kept::NoText, Kept::Text),
            Ok(None) | Err(_) => Kept::Altered,
        }
    }

    fn host_text(&self, change: &Change) -> Option<String> {
        let (root, names) = self.listing.way(change.node);
        let (name, above) = names.split_last()?;
        let file = go(&mut Cursor::open(root).ok()?, above, name).ok()?;
        let mut bytes = Vec::new();
        (&file).take(LARGEST + 1).read_to_end(&mut bytes).ok()?;
        (bytes.len() as u64 <= LARGEST)
            .then_some(bytes)
            .and_then(text)
    }
}

/// Text of ours with lines of the agent's in it, each behind a sign of ours.
pub(super) fn harmless_lines(text: &str) -> String {
    text.split_inclusive('\n')
        .map(|line| match line.strip_suffix('\n') {
            Some(line) => format!("{}\n", harmless_text(line)),
            None => harmless(line).into_owned(),
        })
        .collect()
}

enum Kept {
    Text(String),
    NoText,
    Altered,
}

fn text(bytes: Vec<u8>) -> Option<String> {
    String::from_utf8(bytes)
        .ok()
        .filter(|text| !text.contains('\0'))
}

fn go(cursor: &mut Cursor, above: &[&OsStr], name: &OsStr) -> io::Result<std::fs::File> {
    for name in above {
        cursor.enter(name)?;
    }
    open_plain(cursor.here()?, name)
}
