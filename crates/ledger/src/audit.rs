//! The pass over all entries and tiles, and the question which of them is to blame.

use sha2::{Digest, Sha256};

use crate::bundle::Entries;
use crate::checkpoint::Checkpoint;
use crate::disk::Disk;
use crate::fault::{Fault, Place};
use crate::hash::Hash;
use crate::rows::{hashes_of, read_tile};
use crate::tile::{HEIGHT, LEVELS, Row, Tile, WIDTH};
use crate::tree::{Edge, perfect_root};

/// One pass, from the entries up. Every hash is computed from entries and compared with the stored one.
pub(crate) struct Audit<'a> {
    disk: &'a Disk,
    checkpoint: &'a Checkpoint,
    since: Option<&'a Checkpoint>,
    edge: Edge,
    /// The tile at hand of each level.
    stored: [Option<(u64, Vec<Hash>)>; LEVELS as usize],
    suspects: Suspects,
    torn_tail: bool,
}

/// Differences found on the way. Who is to blame is known at the end, when the root is.
#[derive(Default)]
struct Suspects {
    /// Entries that differ from a hash, where the hash is not known to be the changed one.
    entry: Option<u64>,
    /// Hash tiles that differ from what is below them.
    tile: Option<Place>,
    /// The entries below the first hash above level 0 that differs.
    entries: Option<Place>,
}

impl<'a> Audit<'a> {
    pub(crate) fn new(
        disk: &'a Disk,
        checkpoint: &'a Checkpoint,
        since: Option<&'a Checkpoint>,
    ) -> Self {
        Audit {
            disk,
            checkpoint,
            since,
            edge: Edge::default(),
            stored: Default::default(),
            suspects: Suspects::default(),
            torn_tail: false,
        }
    }

    /// True if there is something past the checkpoint.
    pub(crate) fn run(mut self, mut visit: impl FnMut(u64, &[u8])) -> Result<bool, Fault> {
        let size = self.checkpoint.size();
        let mut history = self.check_history();
        for index in 0..size.div_ceil(WIDTH) {
            let leaves = self.bundle(index, &mut visit)?;
            self.compare_leaves(index, &leaves)?;
            for leaf in leaves {
                self.push(leaf)?;
                history = history.and_then(|()| self.check_history());
            }
        }
        self.judge()?;
        history?;
        let next = Tile {
            row: Row::Entries,
            index: size.div_ceil(WIDTH),
        };
        let past = |path: &str| self.disk.exists(path).map_err(Fault::unreadable(path));
        Ok(self.torn_tail || past(&next.full_path())? || past(&next.partial_dir())?)
    }

    /// When the tree has the size of the earlier checkpoint, it must have its root.
    fn check_history(&self) -> Result<(), Fault> {
        match self.since {
            Some(since) if since.size() == self.edge.size() && since.root() != self.edge.root() => {
                Err(Fault::Tampered(Place::History { size: since.size() }))
            }
            _ => Ok(()),
        }
    }

    /// The hashes of a bundle's entries. All are there, or it is an error.
    fn bundle(
        &mut self,
        index: u64,
        visit: &mut impl FnMut(u64, &[u8]),
    ) -> Result<Vec<Hash>, Fault> {
        let tile = Tile {
            row: Row::Entries,
            index,
        };
        let width = tile.width_of(self.checkpoint.size());
        let bytes =
            read_tile(self.disk, tile, width).map_err(Fault::unreadable(tile.path(width)))?;
        let Some(bytes) = bytes else {
            return Err(self.missing(index, index * WIDTH)?);
        };
        let mut entries = Entries::of(&bytes);
        let mut leaves = Vec::with_capacity(width as usize);
        for (n, entry) in (index * WIDTH..).zip(entries.by_ref().take(width as usize)) {
            leaves.push(Hash::of_entry(entry));
            visit(n, entry);
        }
        if (leaves.len() as u64) < width {
            return Err(self.short_bundle(index, &leaves, entries.rest())?);
        }
        if !entries.rest().is_empty() {
            if width == WIDTH {
                return Err(Fault::Tampered(Place::Bundle(index)));
            }
            self.torn_tail = true;
        }
        Ok(leaves)
    }

    /// A bundle ends too soon: because it was cut, or because a length in it was changed.
    fn short_bundle(&mut self, index: u64, leaves: &[Hash], rest: &[u8]) -> Result<Fault, Fault> {
        let stored = self.stored_tile(0, index)?;
        let differs = leaves
            .iter()
            .zip(&stored)
            .position(|(leaf, hash)| leaf != hash);
        if let Some(n) = differs {
            return Ok(Fault::Tampered(Place::Entry(index * WIDTH + n as u64)));
        }
        let end = index * WIDTH + leaves.len() as u64;
        let whole_but_for_its_length = stored
            .get(leaves.len())
            .is_some_and(|hash| some_prefix_has(rest.get(2..).unwrap_or_default(), hash));
        if whole_but_for_its_length {
            return Ok(Fault::Tampered(Place::Entry(end)));
        }
        self.missing(index, end)
    }

    /// Entries from `end` on are not there: the end of the log was cut off, or a piece was taken out.
    fn missing(&self, index: u64, end: u64) -> Result<Fault, Fault> {
        let size = self.checkpoint.size();
        let last = Tile {
            row: Row::Entries,
            index: (size - 1) / WIDTH,
        };
        let width = last.width_of(size);
        let unreadable = Fault::unreadable(last.path(width));
        let more_follows = last.index != index
            && read_tile(self.disk, last, width)
                .map_err(unreadable)?
                .is_some();
        Ok(if more_follows {
            Fault::Tampered(Place::Entry(end))
        } else {
            Fault::Truncated {
                have: end,
                expected: size,
            }
        })
    }

    fn compare_leaves(&mut self, index: u64, leaves: &[Hash]) -> Result<(), Fault> {
        let stored = self.stored_tile(0, index)?;
        if stored == leaves {
            return Ok(());
        }
        let place = Place::Tile { level: 0, index };
        self.suspects.tile.get_or_insert(place);
        let differs = leaves
            .iter()
            .zip(&stored)
            .position(|(leaf, hash)| leaf != hash);
        // The hash one level up knows which of the two was changed.
        let above = if leaves.len() as u64 == WIDTH {
            self.stored_hash(1, index)?
        } else {
            None
        };
        let entries_hold = above.is_some_and(|above| perfect_root(leaves) == above);
        if let Some(n) = differs.filter(|_| !entries_hold) {
            self.suspects.entry.get_or_insert(index * WIDTH + n as u64);
        }
        Ok(())
    }

    /// Adds a leaf to the tree and compares the hashes that this completes.
    fn push(&mut self, leaf: Hash) -> Result<(), Fault> {
        let mut completed = Vec::new();
        self.edge.push(leaf, |level, hash| {
            if level > 0 {
                completed.push((level, hash));
            }
        });
        let size = self.edge.size();
        for (level, hash) in completed {
            let n = Row::Hashes(level).items(size) - 1;
            if self.stored_hash(level, n)? != Some(hash) {
                self.suspects.tile.get_or_insert(Place::Tile {
                    level,
                    index: n / WIDTH,
                });
                let span = 1 << (HEIGHT * level);
                self.suspects.entries.get_or_insert(Place::Entries {
                    first: size - span,
                    last: size - 1,
                });
            }
        }
        Ok(())
    }

    fn judge(&self) -> Result<(), Fault> {
        let Suspects {
            entry,
            tile,
            entries,
        } = &self.suspects;
        let entries_hold = self.edge.root() == self.checkpoint.root();
        let place = match (entry, tile, entries) {
            (None, None, _) if entries_hold => return Ok(()),
            (_, Some(tile), _) if entries_hold => tile.clone(),
            (Some(entry), _, _) => Place::Entry(*entry),
            (None, _, Some(entries)) => entries.clone(),
            (None, Some(tile), None) => tile.clone(),
            (None, None, None) => Place::Root,
        };
        Err(Fault::Tampered(place))
    }

    fn stored_hash(&mut self, level: u32, n: u64) -> Result<Option<Hash>, Fault> {
        let (index, offset) = (n / WIDTH, (n % WIDTH) as usize);
        let slot = level as usize;
        if self.stored[slot]
            .as_ref()
            .is_none_or(|(at_hand, _)| *at_hand != index)
        {
            self.stored[slot] = Some((index, self.stored_tile(level, index)?));
        }
        Ok(self.stored[slot]
            .as_ref()
            .and_then(|(_, hashes)| hashes.get(offset).copied()))
    }

    /// A missing tile counts as an empty one: it differs from what it should be.
    fn stored_tile(&mut self, level: u32, index: u64) -> Result<Vec<Hash>, Fault> {
        let row = Row::Hashes(level);
        let tile = Tile { row, index };
        let width = tile.width_of(row.items(self.checkpoint.size()));
        let bytes = read_tile(self.disk, tile, width)
            .map_err(Fault::unreadable(tile.path(width)))?
            .unwrap_or_default();
        if bytes.len() as u64 > width * Hash::LEN as u64 {
            // Only a partial tile may hold more: of a commit that is under way or was cut off.
            match width {
                WIDTH => {
                    _ = self
                        .suspects
                        .tile
                        .get_or_insert(Place::Tile { level, index })
                }
                _ => self.torn_tail = true,
            }
        }
        Ok(hashes_of(&bytes, width))
    }
}

/// Whether the entry with this hash begins here, whatever length is written before it.
fn some_prefix_has(bytes: &[u8], hash: &Hash) -> bool {
    let mut digest = Sha256::new_with_prefix([0u8]);
    let ends_here = |digest: &Sha256| digest.clone().finalize()[..] == hash.0;
    if ends_here(&digest) {
        return true;
    }
    bytes.iter().take(crate::bundle::MAX_ENTRY).any(|byte| {
        digest.update([*byte]);
        ends_here(&digest)
    })
}
