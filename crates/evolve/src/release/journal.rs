//! What was about to happen, what happened, and what must not happen again: lines of JSON, each on disk before what it
//! announces is done.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The most a journal may hold. At half a kilobyte a move, that is more than anybody will make.
const MOST_BYTES: u64 = 64 << 20;

/// Why a place is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveKind {
    /// The first release of a place.
    Install,
    /// On to an approved candidate.
    Promote,
    /// Back to what was before.
    RollBack,
    /// There and back, at a place that nobody looks at.
    Rehearse,
}

/// One move of one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Move {
    /// The place.
    pub place: String,
    /// What it shows before.
    pub from: Option<String>,
    /// What it is to show.
    pub to: String,
    /// Why.
    pub kind: MoveKind,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Line {
    /// About to be made.
    Begin { n: u64, what: Move },
    /// Made, and what it shows was hashed.
    Done { n: u64 },
    /// Not made: a process ended before it was.
    Undone { n: u64 },
    /// This tree failed in use. It is not shown again.
    Abort { tree: String, why: String },
}

/// The journal of a store.
pub(super) struct Journal {
    file: File,
    pub(super) lines: Vec<Line>,
}

impl Journal {
    /// Reads the journal. A last line that was not finished announces nothing that was begun: it is cut off.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(path)?;
        let mut text = Vec::new();
        (&mut file).take(MOST_BYTES).read_to_end(&mut text)?;
        let whole = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        if whole < text.len() {
            text.truncate(whole);
            file.set_len(whole as u64)?;
            file.sync_all()?;
        }
        file.seek(io::SeekFrom::End(0))?;
        let lines = text
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).map_err(io::Error::from))
            .collect::<io::Result<_>>()?;
        Ok(Self { file, lines })
    }

    /// Adds a line. It is on disk when this returns.
    pub(super) fn add(&mut self, line: Line) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(&line)?;
        bytes.push(b'\n');
        self.file.write_all(&bytes)?;
        self.file.sync_all()?;
        self.lines.push(line);
        Ok(())
    }

    /// The number of the next move.
    pub(super) fn next(&self) -> u64 {
        self.lines
            .iter()
            .filter(|line| matches!(line, Line::Begin { .. }))
            .count() as u64
    }

    /// The move that was begun and has no end yet. There is at most one: moves are made under a lock.
    pub(super) fn open_move(&self) -> Option<(u64, &Move)> {
        let begun = self.lines.iter().rev().find_map(|line| match line {
            Line::Begin { n, what } => Some((*n, what)),
            _ => None,
        })?;
        let ended = self
            .lines
            .iter()
            .any(|line| matches!(line, Line::Done { n } | Line::Undone { n } if *n == begun.0));
        (!ended).then_some(begun)
    }

    /// The moves of a place that were made, oldest first.
    pub(super) fn moves<'j>(&'j self, place: &'j str) -> impl DoubleEndedIterator<Item = &'j Move> {
        self.lines.iter().filter_map(move |line| match line {
            Line::Begin { n, what } if what.place == place && self.is_done(*n) => Some(what),
            _ => None,
        })
    }

    fn is_done(&self, number: u64) -> bool {
        self.lines
            .iter()
            .any(|line| matches!(line, Line::Done { n } if *n == number))
    }

    /// Why a tree was given up.
    pub(super) fn aborted(&self, tree: &str) -> Option<&str> {
        self.lines.iter().find_map(|line| match line {
            Line::Abort {
                tree: given_up,
                why,
            } if given_up == tree => Some(why.as_str()),
            _ => None,
        })
    }
}
