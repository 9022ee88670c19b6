//! The journal: what makes a durable commit cheap.
//!
//! To sync every tile that a commit touches, with the directories above, is a dozen waits for the disk. In its place the
//! entries and the signed checkpoint go to one file, with one sync. Tiles are written all the same, and synced when the
//! journal is full. After a power cut, opening writes again what the journal has and the tiles have not.

use std::fs::File;
use std::io;

use crate::bundle::Entries;
use crate::checkpoint::Checkpoint;
use crate::disk::{Disk, read_up_to};
use crate::fault::{Fault, Place};
use crate::hash::Hash;
use crate::load::read_edge;
use crate::note::MAX_NOTE;
use crate::rows::{hashes_of, read_tile};
use crate::tile::{LEVELS, Row, WIDTH, pieces, rows};

pub(crate) const JOURNAL: &str = "journal";
/// When it would grow longer than this, the tiles are synced and it starts anew.
const MAX_JOURNAL: u64 = 8 << 20;
const MAGIC: &[u8; 4] = b"BJL1";
/// Magic, length of the record, size of the log before it, length of the note.
const HEAD: usize = 4 + 4 + 8 + 4;

/// The journal of an open log.
pub(crate) struct Journal {
    file: Option<File>,
    /// Bytes in use.
    end: u64,
    /// The size of the log that the last record leads to; `None` if there is no record.
    size: Option<u64>,
}

/// One durable commit.
pub(crate) struct Record<'a> {
    /// Entries in the log before it.
    pub(crate) before: u64,
    pub(crate) checkpoint: Checkpoint,
    entries: &'a [u8],
}

impl Journal {
    /// A journal with these bytes on disk, of which the records are all that counts.
    pub(crate) fn new(length: u64, last: Option<&Record<'_>>) -> Self {
        Journal {
            file: None,
            // Something that is no record is at its end: it is not appended to, but emptied with the next full sync.
            end: length,
            size: last.map(|record| record.checkpoint.size()),
        }
    }

    /// Whether a commit can be recorded here: the last record, or what was synced, must lead up to it.
    pub(crate) fn can_take(&self, size: u64, synced: u64, note: &str, entries: &[u8]) -> bool {
        let room = (HEAD + note.len() + entries.len() + Hash::LEN) as u64;
        let follows = match self.size {
            Some(last) => last == size,
            None => self.end == 0 && synced == size,
        };
        follows && self.end + room <= MAX_JOURNAL
    }

    /// Records a commit, safe from a power cut when this returns.
    pub(crate) fn append(
        &mut self,
        disk: &Disk,
        before: u64,
        checkpoint: &Checkpoint,
        entries: &[u8],
    ) -> io::Result<()> {
        let note = checkpoint.note().as_bytes();
        let mut record = Vec::with_capacity(HEAD + note.len() + entries.len() + Hash::LEN);
        let length = (note.len() + entries.len()) as u32;
        record.extend_from_slice(MAGIC);
        record.extend_from_slice(&length.to_be_bytes());
        record.extend_from_slice(&before.to_be_bytes());
        record.extend_from_slice(&(note.len() as u32).to_be_bytes());
        record.extend_from_slice(note);
        record.extend_from_slice(entries);
        let digest = Hash::of_bytes(&record);
        record.extend_from_slice(&digest.0);
        let file = match self.file.take() {
            Some(file) => file,
            None => open(disk)?,
        };
        disk.write(&file, &record, self.end)?;
        disk.sync(&file)?;
        self.file = Some(file);
        self.end += record.len() as u64;
        self.size = Some(checkpoint.size());
        Ok(())
    }

    /// Empties the journal: for when all that it has is safe in tiles.
    pub(crate) fn clear(&mut self, disk: &Disk) -> io::Result<()> {
        if self.end > 0 {
            let file = match self.file.take() {
                Some(file) => file,
                None => open(disk)?,
            };
            disk.truncate(&file, 0)?;
            self.file = Some(file);
        }
        self.end = 0;
        self.size = None;
        Ok(())
    }

    /// Whether the file is as we left it.
    pub(crate) fn is_untouched(&self, disk: &Disk) -> io::Result<bool> {
        Ok(disk.length(JOURNAL)?.unwrap_or(0) == self.end)
    }
}

impl<'a> Record<'a> {
    pub(crate) fn entries(&self) -> Entries<'a> {
        Entries::of(self.entries)
    }
}

/// The journal's bytes, whatever they are.
pub(crate) fn read(disk: &Disk) -> io::Result<Vec<u8>> {
    match disk.open_file(JOURNAL)? {
        Some(file) => read_up_to(&file, MAX_JOURNAL + 1),
        None => Ok(Vec::new()),
    }
}

/// The records that are whole and follow on each other. The rest was cut off, and never acknowledged.
pub(crate) fn records(mut bytes: &[u8]) -> Vec<Record<'_>> {
    let mut records: Vec<Record<'_>> = Vec::new();
    while let Some((record, rest)) = parse(bytes) {
        let last = records.last().map(|last| last.checkpoint.size());
        if last.is_some_and(|last| last != record.before) {
            break;
        }
        records.push(record);
        bytes = rest;
    }
    records
}

/// Whether the tiles have the entries of these records, and their hashes. All lie below `size`.
pub(crate) fn compare_with_journal(
    disk: &Disk,
    size: u64,
    records: &[Record<'_>],
) -> Result<(), Fault> {
    let Some(first) = records.first() else {
        return Ok(());
    };
    let mut edge = read_edge(disk, first.before)?;
    let mut hashes: [Vec<Hash>; LEVELS as usize] = Default::default();
    for entry in records.iter().flat_map(Record::entries) {
        edge.push(Hash::of_entry(entry), |level, hash| {
            hashes[level as usize].push(hash)
        });
    }
    let mut entries = records.iter().flat_map(Record::entries);
    for row in rows(edge.size()) {
        let from = row.items(first.before);
        for piece in pieces(row, from, row.items(edge.size())) {
            let width = piece.tile.width_of(row.items(size));
            let bytes = read_tile(disk, piece.tile, width)
                .map_err(Fault::unreadable(piece.tile.path(width)))?
                .unwrap_or_default();
            let skip = piece.from as usize;
            let count = (piece.to - piece.from) as usize;
            let start = piece.tile.index * WIDTH + piece.from;
            let same = match row {
                Row::Entries => Entries::of(&bytes)
                    .skip(skip)
                    .take(count)
                    .eq(entries.by_ref().take(count)),
                Row::Hashes(level) => {
                    let expected = &hashes[level as usize][(start - from) as usize..][..count];
                    hashes_of(&bytes, piece.to).get(skip..) == Some(expected)
                }
            };
            if !same {
                return Err(match row {
                    Row::Entries => Fault::Truncated {
                        have: start,
                        expected: size,
                    },
                    Row::Hashes(level) => Fault::Tampered(Place::Tile {
                        level,
                        index: piece.tile.index,
                    }),
                });
            }
        }
    }
    Ok(())
}

fn parse(bytes: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (before, rest) = rest.split_first_chunk::<8>()?;
    let (note_length, rest) = rest.split_first_chunk::<4>()?;
    let (content, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    let (digest, rest) = rest.split_first_chunk::<32>()?;
    if Hash::of_bytes(&bytes[..HEAD + content.len()]).0 != *digest {
        return None;
    }
    let note_length = u32::from_be_bytes(*note_length) as usize;
    let (note, entries) = content.split_at_checked(note_length.min(MAX_NOTE + 1))?;
    let before = u64::from_be_bytes(*before);
    let checkpoint = Checkpoint::parse(note).ok()?;
    let mut walk = Entries::of(entries);
    let count = walk.by_ref().count() as u64;
    let adds_up = before.checked_add(count) == Some(checkpoint.size()) && walk.rest().is_empty();
    adds_up.then_some((
        Record {
            before,
            checkpoint,
            entries,
        },
        rest,
    ))
}

fn open(disk: &Disk) -> io::Result<File> {
    if let Some(file) = disk.open_writable(JOURNAL)? {
        return Ok(file);
    }
    let file = disk.create(JOURNAL)?;
    disk.sync_directory(".")?;
    Ok(file)
}
