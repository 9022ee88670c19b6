//! Opening a log: from the last checkpoint and the right edge alone, whatever the log's size; and clearing away what a
//! commit left that did not come to its end.

use std::io;

use crate::bundle::{Entries, MAX_BUNDLE};
use crate::checkpoint::Checkpoint;
use crate::disk::{Disk, read_up_to};
use crate::fault::{Fault, Place, Unsigned};
use crate::hash::Hash;
use crate::key::KnownKey;
use crate::note::MAX_NOTE;
use crate::rows::{RowEnd, hashes_of, open_tile, read_tile, sweep_tile};
use crate::tile::{LEVELS, Row, Tile, WIDTH};
use crate::tree::Edge;

pub(crate) const CHECKPOINT: &str = "checkpoint";
/// The checkpoint before, or the next one while it is written: swapped with the current one.
pub(crate) const SPARE: &str = "checkpoint.spare";

/// What opening had to mend after a crash. What was dropped had never been acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Whole entries past the last checkpoint.
    pub dropped_entries: u64,
    /// Bytes removed: entries, pieces of entries, and hashes.
    pub dropped_bytes: u64,
    /// Entries that were durably committed and came back from the journal.
    pub replayed_entries: u64,
}

impl Recovery {
    /// Whether the log was as its last writer meant to leave it.
    pub fn is_clean(&self) -> bool {
        *self == Recovery::default()
    }
}

/// A log's state, ready to be extended.
pub(crate) struct Loaded {
    pub(crate) edge: Edge,
    pub(crate) rows: Vec<RowEnd>,
    pub(crate) recovery: Recovery,
}

/// The current checkpoint, its signature and origin checked. `None` in a directory that never held a log.
pub(crate) fn read_checkpoint(
    disk: &Disk,
    origin: &str,
    known: &[KnownKey],
) -> Result<Option<Checkpoint>, Fault> {
    let bytes = disk
        .read(CHECKPOINT, MAX_NOTE as u64 + 1)
        .map_err(Fault::unreadable(CHECKPOINT))?;
    let Some(bytes) = bytes else {
        // The first checkpoint is written before the first entry.
        return match disk.exists("tile").map_err(Fault::unreadable("tile"))? {
            true => Err(Fault::Unsigned(Unsigned::Missing)),
            false => Ok(None),
        };
    };
    let checkpoint = Checkpoint::parse(&bytes)?;
    if checkpoint.origin() != origin {
        return Err(Fault::OtherLog {
            found: checkpoint.origin().to_owned(),
            expected: origin.to_owned(),
        });
    }
    checkpoint.signed_by(known)?;
    Ok(Some(checkpoint))
}

/// Reads the right edge and makes it end exactly at this size. Without a root to hold it against, there is a journal that
/// was: then all that is past the size is swept away, found where it should be or not.
pub(crate) fn load(disk: &Disk, size: u64, root: Option<Hash>) -> Result<Loaded, Fault> {
    let bundle = LastBundle::read(disk, size)?;
    let edge = read_edge(disk, size)?;
    if root.is_some_and(|root| root != edge.root()) {
        return Err(Fault::Tampered(Place::Root));
    }
    if let Some(bundle) = &bundle {
        bundle.check(disk)?;
    }
    let torn = match &bundle {
        _ if root.is_none() => true,
        Some(bundle) if bundle.width < WIDTH => bundle.is_torn(),
        _ => next_bundle_exists(disk, size).map_err(Fault::unreadable("tile/entries"))?,
    };
    let mut recovery = Recovery::default();
    let mut rows = Vec::new();
    // Entries last: as long as they are torn, an opening that is itself cut off will be taken up by the next.
    for row in (0..LEVELS).rev().map(Row::Hashes).chain([Row::Entries]) {
        let end = match &bundle {
            Some(bundle) if row == Row::Entries => bundle.bytes_kept,
            _ => row.items(size) % WIDTH * Hash::LEN as u64,
        };
        let mended = mend_row(disk, row, size, end, torn, &mut recovery);
        rows.push(mended.map_err(Fault::unreadable(format!("tile/{row}")))?);
    }
    rows.reverse();
    Ok(Loaded {
        edge,
        rows,
        recovery,
    })
}

/// The bundle that holds the last entry: full or partial.
struct LastBundle {
    tile: Tile,
    width: u64,
    path: String,
    bytes: Vec<u8>,
    /// Where the entries that were signed for end.
    bytes_kept: u64,
}

impl LastBundle {
    /// `None` for an empty log.
    fn read(disk: &Disk, size: u64) -> Result<Option<Self>, Fault> {
        let Some(last) = size.checked_sub(1) else {
            return Ok(None);
        };
        let tile = Tile {
            row: Row::Entries,
            index: last / WIDTH,
        };
        let width = tile.width_of(size);
        let missing = |found: u64| Fault::Truncated {
            have: tile.index * WIDTH + found,
            expected: size,
        };
        let unreadable = |error| Fault::unreadable(tile.path(width))(error);
        let (file, path) = open_tile(disk, tile, width)
            .map_err(unreadable)?
            .ok_or_else(|| missing(0))?;
        let bytes = read_up_to(&file, MAX_BUNDLE + 1).map_err(unreadable)?;
        let mut entries = Entries::of(&bytes);
        let found = entries.by_ref().take(width as usize).count() as u64;
        if found < width {
            return Err(missing(found));
        }
        let bytes_kept = (bytes.len() - entries.rest().len()) as u64;
        Ok(Some(LastBundle {
            tile,
            width,
            path,
            bytes,
            bytes_kept,
        }))
    }

    /// The entries against their hashes, which the signed root covers.
    fn check(&self, disk: &Disk) -> Result<(), Fault> {
        let tile = Tile {
            row: Row::Hashes(0),
            index: self.tile.index,
        };
        let bytes = read_tile(disk, tile, self.width)
            .map_err(Fault::unreadable(tile.path(self.width)))?
            .unwrap_or_default();
        let hashes = hashes_of(&bytes, self.width);
        if (hashes.len() as u64) < self.width {
            return Err(Fault::Tampered(Place::Tile {
                level: 0,
                index: tile.index,
            }));
        }
        let first = tile.index * WIDTH;
        match Entries::of(&self.bytes)
            .zip(&hashes)
            .position(|(entry, hash)| Hash::of_entry(entry) != *hash)
        {
            Some(bad) => Err(Fault::Tampered(Place::Entry(first + bad as u64))),
            None => Ok(()),
        }
    }

    fn is_torn(&self) -> bool {
        self.bytes.len() as u64 != self.bytes_kept || self.path != self.tile.path(self.width)
    }
}

/// The right edge at some size.
pub(crate) fn read_edge(disk: &Disk, size: u64) -> Result<Edge, Fault> {
    Edge::from_tiles(size, |level| {
        let row = Row::Hashes(level);
        let items = row.items(size);
        let tile = Tile {
            row,
            index: items / WIDTH,
        };
        let width = items % WIDTH;
        let bytes = read_tile(disk, tile, width)
            .map_err(Fault::unreadable(tile.path(width)))?
            .unwrap_or_default();
        let hashes = hashes_of(&bytes, width);
        if hashes.len() as u64 == width {
            Ok(hashes)
        } else {
            Err(Fault::Tampered(Place::Tile {
                level,
                index: tile.index,
            }))
        }
    })
}

/// A crash touches the entries first: where there is none past the checkpoint, nothing else is.
fn next_bundle_exists(disk: &Disk, size: u64) -> io::Result<bool> {
    let next = Tile {
        row: Row::Entries,
        index: size / WIDTH,
    };
    Ok(disk.exists(&next.full_path())? || disk.exists(&next.partial_dir())?)
}

/// Cuts a row to the items that were signed for; `end` is where those of its partial tile end.
fn mend_row(
    disk: &Disk,
    row: Row,
    size: u64,
    end: u64,
    torn: bool,
    recovery: &mut Recovery,
) -> io::Result<RowEnd> {
    let items = row.items(size);
    let (index, width) = (items / WIDTH, items % WIDTH);
    if torn {
        sweep_from(
            disk,
            Tile {
                row,
                index: items.div_ceil(WIDTH),
            },
            recovery,
        )?;
    }
    if width == 0 {
        return Ok(RowEnd::new(row, items));
    }
    let tail = Tile { row, index };
    if disk.length(&tail.path(width))? != Some(end) {
        mend_tail(disk, tail, width, end, recovery)?;
    }
    Ok(RowEnd::with_tail_length(row, items, end))
}

/// Removes this tile and all after it, the last one first: what is left is always found again from the first.
fn sweep_from(disk: &Disk, first: Tile, recovery: &mut Recovery) -> io::Result<()> {
    let mut past = first;
    while disk.exists(&past.full_path())? || disk.exists(&past.partial_dir())? {
        past.index += 1;
    }
    while past.index > first.index {
        past.index -= 1;
        count_entries(disk, past, 0, recovery)?;
        recovery.dropped_bytes += sweep_tile(disk, past)?;
    }
    Ok(())
}

fn mend_tail(
    disk: &Disk,
    tail: Tile,
    width: u64,
    end: u64,
    recovery: &mut Recovery,
) -> io::Result<()> {
    count_entries(disk, tail, width, recovery)?;
    let Some((_, path)) = open_tile(disk, tail, width)? else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let Some(file) = disk.open_writable(&path)? else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let length = file.metadata()?.len();
    if length > end {
        disk.truncate(&file, end)?;
        recovery.dropped_bytes += length - end;
    }
    if path != tail.path(width) {
        disk.rename(&path, &tail.path(width))?;
    }
    Ok(())
}

fn count_entries(disk: &Disk, tile: Tile, kept: u64, recovery: &mut Recovery) -> io::Result<()> {
    if tile.row == Row::Entries
        && let Some((file, _)) = open_tile(disk, tile, kept.max(1))?
    {
        let bytes = read_up_to(&file, MAX_BUNDLE + 1)?;
        recovery.dropped_entries += Entries::of(&bytes).skip(kept as usize).count() as u64;
    }
    Ok(())
}
