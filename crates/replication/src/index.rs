//! Finds a slot by its id. Ids lie beside the table, not in it: a table of a million entries then stays small enough
//! for caches to help, which halves the cost of a decision there.

/// An id-to-slot table with open addressing. Ids are random and not chosen by an agent.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    /// A slot and some bits of its id's hash, or [`VACANT`]. Never more than half full.
    table: Vec<Entry>,
    /// By slot.
    ids: Vec<u128>,
    len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    slot: u32,
    tag: u32,
}

const VACANT: Entry = Entry {
    slot: u32::MAX,
    tag: 0,
};

impl Default for Index {
    fn default() -> Self {
        Self {
            table: vec![VACANT; 16],
            ids: Vec::new(),
            len: 0,
        }
    }
}

impl Index {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn find(&self, id: u128) -> Option<u32> {
        self.position(id).map(|at| self.table[at].slot)
    }

    /// Adds an id that is not in it.
    pub(crate) fn insert(&mut self, id: u128, slot: u32) {
        let at = slot as usize;
        if self.ids.len() <= at {
            self.ids.resize(at + 1, 0);
        }
        self.ids[at] = id;
        if 2 * (self.len + 1) > self.table.len() {
            self.grow();
        }
        self.place(hash(id), slot);
        self.len += 1;
    }

    /// Takes an id out.
    pub(crate) fn remove(&mut self, id: u128) -> Option<u32> {
        let mut gap = self.position(id)?;
        let slot = self.table[gap].slot;
        let mask = self.table.len() - 1;
        let mut at = gap;
        // Those behind the gap that would be looked for before it move up, so that no search ends too early.
        loop {
            at = (at + 1) & mask;
            let entry = self.table[at];
            if entry == VACANT {
                break;
            }
            let home = hash(self.ids[entry.slot as usize]) as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.table[gap] = entry;
                gap = at;
            }
        }
        self.table[gap] = VACANT;
        self.len -= 1;
        Some(slot)
    }

    /// The slots in it, in no order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        let taken = self.table.iter().filter(|entry| **entry != VACANT);
        taken.map(|entry| entry.slot)
    }

    fn position(&self, id: u128) -> Option<usize> {
        let hash = hash(id);
        let mask = self.table.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let entry = self.table[at];
            if entry == VACANT {
                return None;
            }
            if entry.tag == tag(hash) && self.ids[entry.slot as usize] == id {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
    }

    fn place(&mut self, hash: u64, slot: u32) {
        let mask = self.table.len() - 1;
        let mut at = hash as usize & mask;
        while self.table[at] != VACANT {
            at = (at + 1) & mask;
        }
        self.table[at] = Entry {
            slot,
            tag: tag(hash),
        };
    }

    fn grow(&mut self) {
        let twice = vec![VACANT; 2 * self.table.len()];
        for entry in std::mem::replace(&mut self.table, twice) {
            if entry != VACANT {
                self.place(hash(self.ids[entry.slot as usize]), entry.slot);
            }
        }
    }
}

/// Folds and mixes, so that ids counted up by a simulator spread too.
fn hash(id: u128) -> u64 {
    let folded = (id as u64) ^ ((id >> 64) as u64).rotate_left(32);
    let mixed = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}

fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use proptest::test_runner::{Config, RngSeed};

    use super::*;

    proptest! {
        #![proptest_config(Config { cases: 64, rng_seed: RngSeed::Fixed(11), failure_persistence: None, ..Config::default() })]

        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((any::<bool>(), 0u128..40, 0u8..2), 0..400)) {
            let mut index = Index::default();
            let mut map = HashMap::new();
            let mut vacant: Vec<u32> = (0..80).rev().collect();
            for (is_added, number, high) in steps {
                // The second half folds onto the first: ids whose hashes are the same.
                let id = if high == 1 { (number << 64).rotate_left(32) } else { number };
                if is_added && !map.contains_key(&id) {
                    let slot = vacant.pop().expect("80 slots for 80 ids");
                    index.insert(id, slot);
                    map.insert(id, slot);
                } else if !is_added {
                    let removed = map.remove(&id);
                    prop_assert_eq!(index.remove(id), removed);
                    vacant.extend(removed);
                }
                prop_assert_eq!(index.len(), map.len());
                prop_assert_eq!(index.slots().count(), map.len());
                for id in 0..40u128 {
                    prop_assert_eq!(index.find(id), map.get(&id).copied());
                    let folded = (id << 64).rotate_left(32);
                    prop_assert_eq!(index.find(folded), map.get(&folded).copied());
                }
            }
        }
    }
}
