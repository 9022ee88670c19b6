//! Which paths a layer has made.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

/// Known by keyed hashes, so that long names take no more memory than short ones. The keys are ours: nobody can make two paths
/// that are taken for one.
#[derive(Default)]
pub(super) struct MadePaths {
    keys: RandomState,
    seen: HashSet<u64>,
}

impl MadePaths {
    pub(super) fn contains(&self, path: &[u8]) -> bool {
        self.seen.contains(&self.keys.hash_one(path))
    }

    /// Whether it is new.
    pub(super) fn insert(&mut self, path: &[u8]) -> bool {
        self.seen.insert(self.keys.hash_one(path))
    }

    pub(super) fn clear(&mut self) {
        self.seen.clear();
    }
}
