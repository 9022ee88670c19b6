//! The state of an open log, and the order in which a commit reaches the disk.

use std::io;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::checkpoint::{Checkpoint, Head};
use crate::disk::Disk;
use crate::hash::Hash;
use crate::journal::Journal;
use crate::ledger::{AppendError, CommitError, Durability, MAX_BACKLOG, Options};
use crate::load::{CHECKPOINT, SPARE};
use crate::note::{MAX_NOTE, Seal};
use crate::rows::{RowEnd, sync_range};
use crate::tile::{LEVELS, Row};
use crate::tree::Edge;

/// An open log. Whoever has it holds the lock.
pub(crate) struct State {
    pub(crate) path: PathBuf,
    pub(crate) disk: Disk,
    pub(crate) origin: String,
    pub(crate) seal: Seal,
    pub(crate) options: Options,
    pub(crate) edge: Edge,
    /// The edge without what is pending.
    pub(crate) committed: Edge,
    pub(crate) rows: Vec<RowEnd>,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) journal: Journal,
    /// Entries whose tiles are known to survive a power cut.
    pub(crate) synced: u64,
    pub(crate) pending: Pending,
    pub(crate) poisoned: bool,
}

/// Appended and not yet written.
#[derive(Default)]
pub(crate) struct Pending {
    entries: Vec<u8>,
    /// Where each entry ends.
    ends: Vec<usize>,
    /// New hashes by level.
    hashes: [Vec<u8>; LEVELS as usize],
}

impl State {
    pub(crate) fn append(&mut self, entry: &[u8]) -> Result<u64, AppendError> {
        if self.poisoned {
            return Err(AppendError::Poisoned);
        }
        let length = u16::try_from(entry.len()).map_err(|_| AppendError::TooLong(entry.len()))?;
        let pending = &mut self.pending;
        if pending.entries.len() + entry.len() + 2 > MAX_BACKLOG {
            return Err(AppendError::Backlog);
        }
        pending.entries.extend_from_slice(&length.to_be_bytes());
        pending.entries.extend_from_slice(entry);
        pending.ends.push(pending.entries.len());
        let index = self.edge.size();
        self.edge.push(Hash::of_entry(entry), |level, hash| {
            pending.hashes[level as usize].extend_from_slice(&hash.0);
        });
        Ok(index)
    }

    pub(crate) fn discard(&mut self) {
        self.edge.clone_from(&self.committed);
        self.pending.clear();
    }

    /// Whether the log on disk is as we left it.
    pub(crate) fn is_current(&self) -> io::Result<bool> {
        let note = self.disk.read(CHECKPOINT, MAX_NOTE as u64 + 1)?;
        Ok(!self.poisoned
            && note.as_deref() == Some(self.checkpoint.note().as_bytes())
            && self.rows[0].is_untouched(&self.disk)?
            && self.journal.is_untouched(&self.disk)?)
    }

    /// Signs what there is and writes it.
    pub(crate) fn write(&mut self, durability: Durability) -> Result<&Checkpoint, CommitError> {
        if self.poisoned {
            return Err(CommitError::Poisoned);
        }
        let size = self.edge.size();
        let checkpoint = Checkpoint::sign(
            &Head {
                origin: &self.origin,
                size,
                root: self.edge.root(),
                time: seconds((self.options.clock)()),
                durable: match durability {
                    Durability::Crash => self.checkpoint.durable(),
                    Durability::Power => size,
                },
            },
            &self.seal,
        )?;
        // From here on an error leaves the disk in a state that only opening can tell.
        self.poisoned = true;
        match durability {
            Durability::Crash => self.write_unsynced(&checkpoint)?,
            Durability::Power => self.write_durably(&checkpoint)?,
        }
        self.checkpoint = checkpoint;
        self.committed.clone_from(&self.edge);
        self.poisoned = false;
        Ok(&self.checkpoint)
    }

    fn write_unsynced(&mut self, checkpoint: &Checkpoint) -> io::Result<()> {
        self.write_rows()?;
        publish(&self.disk, checkpoint, Durability::Crash)
    }

    fn write_durably(&mut self, checkpoint: &Checkpoint) -> io::Result<()> {
        let before = self.checkpoint.size();
        let entries = &self.pending.entries;
        if self
            .journal
            .can_take(before, self.synced, checkpoint.note(), entries)
        {
            self.journal
                .append(&self.disk, before, checkpoint, entries)?;
            self.write_unsynced(checkpoint)
        } else {
            self.write_and_sync(checkpoint)
        }
    }

    /// Writes what is pending under this checkpoint, and makes all tiles safe. The journal is not needed after.
    pub(crate) fn write_and_sync(&mut self, checkpoint: &Checkpoint) -> io::Result<()> {
        self.write_rows()?;
        sync_range(&self.disk, self.synced, checkpoint.size())?;
        publish(&self.disk, checkpoint, Durability::Power)?;
        self.synced = checkpoint.size();
        self.journal.clear(&self.disk)
    }

    /// Entries first: as long as there is none past the checkpoint, nothing else is.
    fn write_rows(&mut self) -> io::Result<()> {
        let size = self.edge.size();
        let pending = &mut self.pending;
        for (n, end) in self.rows.iter_mut().enumerate() {
            match n.checked_sub(1) {
                None => end.extend(&self.disk, size, &pending.entries, |items| match items {
                    0 => 0,
                    _ => pending.ends[items as usize - 1],
                })?,
                Some(level) => {
                    let items = Row::Hashes(level as u32).items(size);
                    let hashes = &pending.hashes[level];
                    end.extend(&self.disk, items, hashes, |items| {
                        items as usize * Hash::LEN
                    })?;
                }
            }
        }
        pending.clear();
        Ok(())
    }
}

impl Pending {
    /// Keeps the memory for the next commit, unless one big commit made it large.
    fn clear(&mut self) {
        self.entries.clear();
        self.entries.shrink_to(1 << 20);
        self.ends.clear();
        self.ends.shrink_to(1 << 12);
        for hashes in &mut self.hashes {
            hashes.clear();
            hashes.shrink_to(1 << 17);
        }
    }
}

/// Puts a checkpoint in the place of the current one, at once: a reader sees the old or the new, also after a kill.
pub(crate) fn publish(
    disk: &Disk,
    checkpoint: &Checkpoint,
    durability: Durability,
) -> io::Result<()> {
    let note = checkpoint.note().as_bytes();
    let file = match disk.open_writable(SPARE)? {
        Some(file) => file,
        None => disk.create(SPARE)?,
    };
    if file.metadata()?.len() > note.len() as u64 {
        disk.truncate(&file, 0)?;
    }
    disk.write(&file, note, 0)?;
    if durability == Durability::Power {
        disk.sync(&file)?;
    }
    disk.exchange(SPARE, CHECKPOINT)?;
    if durability == Durability::Power {
        disk.sync_directory(".")?;
    }
    Ok(())
}

/// Seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
