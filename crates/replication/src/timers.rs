//! When something is due. Entries are not moved when their moment is: they are looked at again when
//! they come up, so that a heartbeat costs one store.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::Jti;
use crate::grants::Grants;
use crate::tree::{NEVER, Tree};

/// Entries that mean nothing any more are cleared when there are more of them than this and than live ones.
const SLACK: usize = 1024;

/// One entry that counts for each live worker that has a moment at all.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerTimers {
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
    /// By slot: the moment of the entry that counts. Others of the worker are left over.
    due: Vec<u64>,
}

impl WorkerTimers {
    /// Nothing is due any more; the memory stays.
    pub(crate) fn clear(&mut self) {
        self.heap.clear();
        self.due.clear();
    }

    /// The earliest moment that may be due.
    pub(crate) fn first(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((due, _, _))| *due)
    }

    /// Sets the moment of a worker.
    pub(crate) fn set(&mut self, tree: &Tree, due: u64, slot: u32, generation: u32) {
        let at = slot as usize;
        if self.due.len() <= at {
            self.due.resize(at + 1, NEVER);
        }
        self.due[at] = due;
        self.heap.push(Reverse((due, slot, generation)));
        if self.heap.len() > 2 * tree.len() + SLACK {
            let counts = &self.due;
            self.heap
                .retain(|Reverse(entry)| is_current(counts, tree, *entry));
        }
    }

    /// Takes out the next worker whose moment has come, if it is still alive.
    pub(crate) fn pop_due(&mut self, tree: &Tree, now_ns: u64) -> Option<u32> {
        while self.first().is_some_and(|due| due <= now_ns) {
            let Reverse(entry) = self.heap.pop()?;
            if is_current(&self.due, tree, entry) {
                return Some(entry.1);
            }
        }
        None
    }
}

fn is_current(due: &[u64], tree: &Tree, entry: (u64, u32, u32)) -> bool {
    let (at, slot, generation) = entry;
    due.get(slot as usize) == Some(&at) && tree.still_lives(slot, generation)
}

/// Outstanding grants in the order in which they lapse: that in which they were issued.
#[derive(Clone, Debug, Default)]
pub(crate) struct GrantTimers {
    queue: VecDeque<(u64, Jti)>,
}

impl GrantTimers {
    pub(crate) fn new(grants: &Grants) -> Self {
        let mut queue: Vec<_> = grants
            .iter()
            .map(|grant| (grant.lapses_ns, grant.jti))
            .collect();
        queue.sort_unstable();
        Self {
            queue: queue.into(),
        }
    }

    pub(crate) fn first(&self) -> Option<u64> {
        self.queue.front().map(|(due, _)| *due)
    }

    pub(crate) fn push(&mut self, grants: &Grants, due: u64, jti: Jti) {
        self.queue.push_back((due, jti));
        if self.queue.len() > 2 * grants.len() + SLACK {
            self.queue
                .retain(|(due, jti)| is_outstanding(grants, *due, *jti));
        }
    }

    /// Takes out the next grant that has lapsed.
    pub(crate) fn pop_due(&mut self, grants: &Grants, now_ns: u64) -> Option<Jti> {
        while self.first().is_some_and(|due| due <= now_ns) {
            let (due, jti) = self.queue.pop_front()?;
            if is_outstanding(grants, due, jti) {
                return Some(jti);
            }
        }
        None
    }
}

fn is_outstanding(grants: &Grants, due: u64, jti: Jti) -> bool {
    grants.find(jti).is_some_and(|grant| grant.lapses_ns == due)
}
