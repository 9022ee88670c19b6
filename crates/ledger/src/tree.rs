//! The right edge of the tree: all that is needed to append and to know the root.

use crate::hash::Hash;
use crate::tile::{HEIGHT, LEVELS};

/// The roots of the perfect subtrees that a log of some size is made of, the largest first.
///
/// It is as big as the size has bits set, whatever the size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edge {
    size: u64,
    peaks: Vec<Hash>,
}

impl Edge {
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Adds a leaf. `completed` gets each hash that belongs in a tile: the leaf itself at level 0, and the root of
    /// every tile that became full, one level up.
    pub(crate) fn push(&mut self, leaf: Hash, mut completed: impl FnMut(u32, Hash)) {
        completed(0, leaf);
        let mut hash = leaf;
        // Each trailing one of the size is a peak of the same height as what we carry.
        for height in 1..=self.size.trailing_ones() {
            let Some(left) = self.peaks.pop() else { break };
            hash = Hash::of_node(&left, &hash);
            if height.is_multiple_of(HEIGHT) && height / HEIGHT < LEVELS {
                completed(height / HEIGHT, hash);
            }
        }
        self.peaks.push(hash);
        self.size += 1;
    }

    pub(crate) fn root(&self) -> Hash {
        let mut peaks = self.peaks.iter().rev();
        let Some(last) = peaks.next() else {
            return Hash::of_nothing();
        };
        peaks.fold(*last, |right, left| Hash::of_node(left, &right))
    }

    /// From the partial tiles at the right edge: `partial(level)` gives the hashes of the last tile of that level that is
    /// not full.
    pub(crate) fn from_tiles<E>(
        size: u64,
        mut partial: impl FnMut(u32) -> Result<Vec<Hash>, E>,
    ) -> Result<Self, E> {
        let mut peaks = Vec::new();
        for level in (0..LEVELS).rev() {
            let width = (size >> (HEIGHT * level)) & 0xff;
            if width == 0 {
                continue;
            }
            let hashes = partial(level)?;
            let mut rest = &hashes[..];
            for bit in (0..HEIGHT).rev().filter(|bit| width >> bit & 1 == 1) {
                let (peak, after) = rest.split_at((1 << bit).min(rest.len()));
                peaks.push(perfect_root(peak));
                rest = after;
            }
        }
        Ok(Edge { size, peaks })
    }
}

/// The root above a power of two of hashes.
pub(crate) fn perfect_root(hashes: &[Hash]) -> Hash {
    match hashes {
        [] => Hash::of_nothing(),
        [hash] => *hash,
        [left, right] => Hash::of_node(left, right),
        _ => {
            let (left, right) = hashes.split_at(hashes.len() / 2);
            Hash::of_node(&perfect_root(left), &perfect_root(right))
        }
    }
}
