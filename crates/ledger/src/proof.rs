//! Inclusion and consistency proofs of RFC 6962: making them from tiles, and checking them without the log.

use crate::disk::Disk;
use crate::fault::{Fault, Place};
use crate::hash::Hash;
use crate::rows::{hashes_of, read_tile};
use crate::tile::{HEIGHT, Row, Tile, WIDTH};
use crate::tree::perfect_root;

/// Proves that an entry is in the log at its index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InclusionProof {
    /// The entry's index.
    pub index: u64,
    /// The size of the log that the proof is for.
    pub size: u64,
    /// From the entry's sibling up to the root's child.
    pub hashes: Vec<Hash>,
}

/// Proves that a log only grew from one size to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsistencyProof {
    /// The earlier size.
    pub old: u64,
    /// The later size.
    pub new: u64,
    /// In the order of RFC 6962, section 2.1.2.
    pub hashes: Vec<Hash>,
}

/// There is nothing to prove.
#[derive(Debug, thiserror::Error)]
pub enum ProveError {
    /// No such entry, or no such size.
    #[error("the log has {size} entries; there is no proof for {asked}")]
    OutOfRange {
        /// What was asked for.
        asked: u64,
        /// What there is.
        size: u64,
    },
    /// The hashes can't be read.
    #[error("the log's hashes can't be read")]
    Log(#[from] Fault),
}

impl InclusionProof {
    /// Whether an entry with this hash is in the log with this root.
    pub fn verify(&self, entry: &Hash, root: &Hash) -> bool {
        if self.index >= self.size {
            return false;
        }
        let (mut node, mut last) = (self.index, self.size - 1);
        let mut hash = *entry;
        for sibling in &self.hashes {
            if last == 0 {
                return false;
            }
            if node & 1 == 1 || node == last {
                hash = Hash::of_node(sibling, &hash);
                // At the right edge the tree has no node where the bits are zero.
                while node & 1 == 0 && node != 0 {
                    node >>= 1;
                    last >>= 1;
                }
            } else {
                hash = Hash::of_node(&hash, sibling);
            }
            node >>= 1;
            last >>= 1;
        }
        last == 0 && hash == *root
    }
}

impl ConsistencyProof {
    /// Whether the log with `old_root` is the beginning of the log with `new_root`.
    pub fn verify(&self, old_root: &Hash, new_root: &Hash) -> bool {
        match self.old {
            _ if self.old > self.new => false,
            0 => self.hashes.is_empty() && *old_root == Hash::of_nothing(),
            old if old == self.new => self.hashes.is_empty() && old_root == new_root,
            _ => self.replay(old_root, new_root),
        }
    }

    fn replay(&self, old_root: &Hash, new_root: &Hash) -> bool {
        // A perfect old tree is a node of the new one; its hash is left out of the proof.
        let mut hashes = self
            .old
            .is_power_of_two()
            .then_some(old_root)
            .into_iter()
            .chain(&self.hashes);
        let Some(first) = hashes.next() else {
            return false;
        };
        let (mut node, mut last) = (self.old - 1, self.new - 1);
        while node & 1 == 1 {
            node >>= 1;
            last >>= 1;
        }
        let (mut old, mut new) = (*first, *first);
        for sibling in hashes {
            if last == 0 {
                return false;
            }
            if node & 1 == 1 || node == last {
                old = Hash::of_node(sibling, &old);
                new = Hash::of_node(sibling, &new);
                while node & 1 == 0 && node != 0 {
                    node >>= 1;
                    last >>= 1;
                }
            } else {
                new = Hash::of_node(&new, sibling);
            }
            node >>= 1;
            last >>= 1;
        }
        last == 0 && old == *old_root && new == *new_root
    }
}

/// The hashes of a log, read tile by tile. Keeps the few tiles that one proof needs.
pub(crate) struct Hashes<'a> {
    disk: &'a Disk,
    /// The size of the log on disk; nothing past it is read.
    size: u64,
    tiles: Vec<(Tile, Vec<Hash>)>,
}

impl<'a> Hashes<'a> {
    pub(crate) fn new(disk: &'a Disk, size: u64) -> Self {
        Hashes {
            disk,
            size,
            tiles: Vec::new(),
        }
    }

    pub(crate) fn root_at(&mut self, size: u64) -> Result<Hash, ProveError> {
        self.within(size, self.size)?;
        Ok(self.range(0, size)?)
    }

    pub(crate) fn inclusion(
        &mut self,
        index: u64,
        size: u64,
    ) -> Result<InclusionProof, ProveError> {
        self.within(size, self.size)?;
        if index >= size {
            return Err(ProveError::OutOfRange { asked: index, size });
        }
        let mut hashes = Vec::new();
        let (mut from, mut to) = (0, size);
        while to - from > 1 {
            let middle = from + split(to - from);
            if index < middle {
                hashes.push(self.range(middle, to)?);
                to = middle;
            } else {
                hashes.push(self.range(from, middle)?);
                from = middle;
            }
        }
        hashes.reverse();
        Ok(InclusionProof {
            index,
            size,
            hashes,
        })
    }

    pub(crate) fn consistency(
        &mut self,
        old: u64,
        new: u64,
    ) -> Result<ConsistencyProof, ProveError> {
        self.within(new, self.size)?;
        self.within(old, new)?;
        let mut hashes = Vec::new();
        let (mut from, mut to) = (0, new);
        // Whether the rest of the old tree is a node whose hash the verifier knows already: its own root.
        let mut known = true;
        while old > 0 && old != to {
            let middle = from + split(to - from);
            if old <= middle {
                hashes.push(self.range(middle, to)?);
                to = middle;
            } else {
                hashes.push(self.range(from, middle)?);
                from = middle;
                known = false;
            }
        }
        if old > 0 && !known {
            hashes.push(self.range(from, to)?);
        }
        hashes.reverse();
        Ok(ConsistencyProof { old, new, hashes })
    }

    fn within(&self, asked: u64, size: u64) -> Result<(), ProveError> {
        if asked <= size {
            Ok(())
        } else {
            Err(ProveError::OutOfRange { asked, size })
        }
    }

    /// The hash over the entries `from..to`.
    fn range(&mut self, from: u64, to: u64) -> Result<Hash, Fault> {
        let count = to - from;
        if count == 0 {
            return Ok(Hash::of_nothing());
        }
        if count.is_power_of_two() {
            return self.node(count.trailing_zeros(), from);
        }
        let middle = from + split(count);
        Ok(Hash::of_node(
            &self.range(from, middle)?,
            &self.range(middle, to)?,
        ))
    }

    /// The hash of a perfect subtree of this height that begins at the entry `from`.
    fn node(&mut self, height: u32, from: u64) -> Result<Hash, Fault> {
        let level = height / HEIGHT;
        let first = Row::Hashes(level).items(from);
        let count = 1usize << (height % HEIGHT);
        let hashes = self.tile(Tile {
            row: Row::Hashes(level),
            index: first / WIDTH,
        })?;
        let start = (first % WIDTH) as usize;
        match hashes.get(start..start + count) {
            Some(below) => Ok(perfect_root(below)),
            None => Err(Fault::Tampered(Place::Tile {
                level,
                index: first / WIDTH,
            })),
        }
    }

    fn tile(&mut self, tile: Tile) -> Result<&[Hash], Fault> {
        let known = self.tiles.iter().position(|(known, _)| *known == tile);
        let n = match known {
            Some(n) => n,
            None => {
                let width = tile.width_of(tile.row.items(self.size));
                let bytes = read_tile(self.disk, tile, width)
                    .map_err(Fault::unreadable(tile.path(width)))?
                    .unwrap_or_default();
                self.tiles.push((tile, hashes_of(&bytes, width)));
                self.tiles.len() - 1
            }
        };
        Ok(&self.tiles[n].1)
    }
}

/// The largest power of two below a count of two or more.
fn split(count: u64) -> u64 {
    1 << (63 - (count - 1).leading_zeros())
}
