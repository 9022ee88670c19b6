//! Finds a slot by its id. Ids lie with what they name, not in the table: a table of a million entries then stays small
//! enough for caches to help, which halves the cost of a decision there.

/// An id-to-slot table with open addressing. Ids are random and not chosen by an agent. Whoever looks something up says
/// which id a slot has.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    /// Slots with the hashes of their ids, or [`VACANT`]. Never more than half full, or five eighths from [`LARGE`] on.
    table: Vec<Entry>,
    len: usize,
}

/// A table of so many entries takes so much memory that a longer search is the lesser evil.
const LARGE: usize = 1 << 23;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    slot: u32,
    hash: u32,
}

const VACANT: Entry = Entry {
    slot: u32::MAX,
    hash: 0,
};

impl Default for Index {
    fn default() -> Self {
        Self {
            table: vec![VACANT; 16],
            len: 0,
        }
    }
}

impl Index {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn find(&self, id: u128, id_of: impl Fn(u32) -> u128) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        self.position(id, id_of).map(|at| self.table[at].slot)
    }

    /// Takes everything out. A table that was far too large for what was in it is given back.
    pub(crate) fn clear(&mut self) {
        if self.table.len() > 64 * (self.len + 16) {
            *self = Self::default();
        } else {
            self.table.fill(VACANT);
            self.len = 0;
        }
    }

    /// Adds an id that is not in it.
    pub(crate) fn insert(&mut self, id: u128, slot: u32) {
        let eighths = if self.table.len() < LARGE { 4 } else { 5 };
        if 8 * (self.len + 1) > eighths * self.table.len() {
            self.grow();
        }
        let hash = hash(id);
        self.place(Entry { slot, hash });
        self.len += 1;
    }

    /// Takes an id out.
    pub(crate) fn remove(&mut self, id: u128, id_of: impl Fn(u32) -> u128) -> Option<u32> {
        let mut gap = self.position(id, id_of)?;
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
            let home = entry.hash as usize & mask;
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

    #[inline]
    fn position(&self, id: u128, id_of: impl Fn(u32) -> u128) -> Option<usize> {
        let hash = hash(id);
        let mask = self.table.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let entry = self.table[at];
            if entry == VACANT {
                return None;
            }
            if entry.hash == hash && id_of(entry.slot) == id {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
    }

    fn place(&mut self, entry: Entry) {
        let mask = self.table.len() - 1;
        let mut at = entry.hash as usize & mask;
        while self.table[at] != VACANT {
            at = (at + 1) & mask;
        }
        self.table[at] = entry;
    }

    fn grow(&mut self) {
        let twice = vec![VACANT; 2 * self.table.len()];
        for entry in std::mem::replace(&mut self.table, twice) {
            if entry != VACANT {
                self.place(entry);
            }
        }
    }
}

/// Random ids need no mixing. Those that a simulator counts up lie side by side in the table as they do in memory, which
/// saves a wait for each; whatever else tells ids apart is mixed in. The low bits are the place in the table, the others tell apart
/// who is there.
#[inline]
fn hash(id: u128) -> u32 {
    let folded = (id as u64) ^ ((id >> 64) as u64).rotate_left(32);
    (folded as u32) ^ ((folded >> 32) as u32).wrapping_mul(0x9e37_79b1)
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
            let mut ids = vec![0; 80];
            let mut vacant: Vec<u32> = (0..80).rev().collect();
            for (is_added, number, high) in steps {
                // The second half folds onto the first: ids whose hashes are the same.
                let id = if high == 1 { (number << 64).rotate_left(32) } else { number };
                if is_added && !map.contains_key(&id) {
                    let slot = vacant.pop().expect("80 slots for 80 ids");
                    ids[slot as usize] = id;
                    index.insert(id, slot);
                    map.insert(id, slot);
                } else if !is_added {
                    let removed = map.remove(&id);
                    prop_assert_eq!(index.remove(id, |slot| ids[slot as usize]), removed);
                    vacant.extend(removed);
                }
                prop_assert_eq!(index.len(), map.len());
                prop_assert_eq!(index.slots().count(), map.len());
                let find = |id| index.find(id, |slot| ids[slot as usize]);
                for id in 0..40u128 {
                    prop_assert_eq!(find(id), map.get(&id).copied());
                    let folded = (id << 64).rotate_left(32);
                    prop_assert_eq!(find(folded), map.get(&folded).copied());
                }
            }
        }
    }
}
