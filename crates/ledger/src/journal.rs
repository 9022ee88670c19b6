//! The journal: what makes a durable commit cheap.
//!
//! To sync every tile that a commit touches, with the directories above, is a dozen waits for the disk. In its place the
//! entries and the signed checkpoint go to one file, with one sync. Tiles are written all the same, and synced when the
//! journal is full. After a power cut, opening writes again what the journal has and the tiles have not.
//!
//! The file is written over from its beginning again and again, not cut off: a sync that need not tell the file system of a new length
//! waits for one write where it would wait for two, and is several times faster on a disk that others use too. So records
//! of an earlier pass may follow on the last one. They lead up to sizes that the log had before the present pass, and
//! so follow on nothing in it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

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
/// The shortest that the file is made; it is doubled when that is not enough.
const MIN_LENGTH: u64 = 64 << 10;
/// Magic, length of the record, size of the log before it, length of the note.
const HEAD: usize = 4 + 4 + 8 + 4;

/// The journal of an open log.
pub(crate) struct Journal {
    file: Option<File>,
    /// Bytes in use.
    end: u64,
    /// Bytes in the file.
    length: u64,
    /// What tells the first record of this pass from any other, if we wrote it.
    first: Option<Mark>,
    /// The size of the log that the last record leads to; `None` if there is no record.
    size: Option<u64>,
}

/// The head of a record and its digest. One of another length has another head, one of the same length another digest
/// in the same place.
#[derive(PartialEq, Eq)]
struct Mark {
    head: [u8; HEAD],
    digest: [u8; Hash::LEN],
    digest_at: u64,
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
    pub(crate) fn new(bytes: &[u8], last: Option<&Record<'_>>) -> Self {
        let length = bytes.len() as u64;
        let is_empty = bytes.iter().take(HEAD).all(|byte| *byte == 0);
        Journal {
            file: None,
            // Something that is no record is not written over, but only after the next full sync.
            end: if is_empty { 0 } else { length },
            length,
            first: None,
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
        let mut record = encode(before, checkpoint, entries);
        let end = self.end + record.len() as u64;
        if self.end == 0 {
            self.first = Mark::of(&record);
        }
        if end > self.length {
            self.length = end.next_power_of_two().clamp(MIN_LENGTH, MAX_JOURNAL);
            record.resize((self.length - self.end) as usize, 0);
        }
        let file = match self.file.take() {
            Some(file) => file,
            None => open(disk)?,
        };
        disk.write(&file, &record, self.end)?;
        disk.sync(&file)?;
        self.file = Some(file);
        self.end = end;
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
            disk.write(&file, &[0; HEAD], 0)?;
            self.file = Some(file);
        }
        self.end = 0;
        self.first = None;
        self.size = None;
        Ok(())
    }

    /// Whether the file is as we left it. Where that can't be told it counts as touched: then the log is opened as if it were
    /// new, which is slower and as good.
    pub(crate) fn is_untouched(&self, disk: &Disk) -> io::Result<bool> {
        let Some(file) = disk.open_file(JOURNAL)? else {
            return Ok(self.length == 0);
        };
        if file.metadata()?.len() != self.length {
            return Ok(false);
        }
        if self.end == 0 {
            return Ok(self.length < HEAD as u64 || read_at::<HEAD>(&file, 0)? == [0; HEAD]);
        }
        let Some(first) = &self.first else {
            return Ok(false);
        };
        // Somebody may have emptied it and written it anew, or added a record.
        let is_ours =
            read_at(&file, 0)? == first.head && read_at(&file, first.digest_at)? == first.digest;
        let is_last =
            self.end + MAGIC.len() as u64 > self.length || read_at(&file, self.end)? != *MAGIC;
        Ok(is_ours && is_last)
    }
}

impl Mark {
    fn of(record: &[u8]) -> Option<Self> {
        Some(Mark {
            head: *record.first_chunk()?,
            digest: *record.last_chunk()?,
            digest_at: record.len().checked_sub(Hash::LEN)? as u64,
        })
    }
}

impl<'a> Record<'a> {
    /// Whether it was written after `last`, in the same pass. One without entries may be left of an earlier pass at the same
    /// size: its time tells.
    fn follows(&self, last: &Record<'_>) -> bool {
        let is_later = !self.entries.is_empty() || self.checkpoint.time() >= last.checkpoint.time();
        self.before == last.checkpoint.size() && is_later
    }

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
        if records.last().is_some_and(|last| !record.follows(last)) {
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

fn read_at<const N: usize>(file: &File, at: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

pub(crate) fn encode(before: u64, checkpoint: &Checkpoint, entries: &[u8]) -> Vec<u8> {
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
    record
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
