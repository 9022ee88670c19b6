//! When something is due. Entries are not moved when their moment is: they are looked at again when
//! they come up, so that a heartbeat costs one store.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use crate::Jti;
use crate::grants::Grants;
use crate::tree::NEVER;

/// Entries that mean nothing any more are cleared when there are more of them than this and than live ones.
const SLACK: usize = 1024;
/// A page of the calendar: 2³⁰ nanoseconds, about a second.
const PAGE_BITS: u32 = 30;

/// Who is due on a page.
#[derive(Clone, Debug)]
struct Page {
    /// The earliest moment that was set.
    first_ns: u64,
    slots: Vec<u32>,
}

/// At least one entry for each live worker that has a moment at all, at that moment or before it. A calendar: far moments
/// are known by their page alone, and whoever opens a page asks each worker on it when it is due.
#[derive(Clone, Debug)]
pub(crate) struct WorkerTimers {
    /// What is due on pages that are open.
    near: BinaryHeap<Reverse<(u64, u32)>>,
    far: BTreeMap<u64, Page>,
    /// Pages before this one are open.
    closed: u64,
    /// How many entries there are.
    len: usize,
    /// The earliest moment that may be due; [`NEVER`] if there is none.
    first_ns: u64,
}

impl Default for WorkerTimers {
    fn default() -> Self {
        Self {
            near: BinaryHeap::new(),
            far: BTreeMap::new(),
            closed: 0,
            len: 0,
            first_ns: NEVER,
        }
    }
}

impl WorkerTimers {
    /// Nothing is due any more.
    pub(crate) fn clear(&mut self) {
        self.near.clear();
        self.far.clear();
        (self.closed, self.len, self.first_ns) = (0, 0, NEVER);
    }

    /// The earliest moment that may be due; [`NEVER`] if there is none.
    pub(crate) fn first(&self) -> u64 {
        self.first_ns
    }

    /// Sets the moment of a worker.
    pub(crate) fn set(&mut self, due: u64, slot: u32) {
        if due == NEVER {
            return;
        }
        let page = due >> PAGE_BITS;
        if page < self.closed {
            self.near.push(Reverse((due, slot)));
        } else {
            let page = self.far.entry(page).or_insert(Page {
                first_ns: NEVER,
                slots: Vec::new(),
            });
            page.first_ns = page.first_ns.min(due);
            page.slots.push(slot);
        }
        self.first_ns = self.first_ns.min(due);
        self.len += 1;
    }

    /// Whether most entries are of workers that ended: then it is time to begin anew.
    pub(crate) fn is_stale(&self, live: usize) -> bool {
        self.len > 2 * live + SLACK
    }

    /// Takes out the next worker whose moment has come. `due_of` says when a slot is really due, [`NEVER`] if nobody lives there.
    pub(crate) fn pop_due(&mut self, now_ns: u64, due_of: impl Fn(u32) -> u64) -> Option<u32> {
        let found = self.take_due(now_ns, due_of);
        self.first_ns = match self.near.peek() {
            Some(Reverse((due, _))) => *due,
            None => self.far.values().next().map_or(NEVER, |page| page.first_ns),
        };
        found
    }

    fn take_due(&mut self, now_ns: u64, due_of: impl Fn(u32) -> u64) -> Option<u32> {
        loop {
            while let Some(Reverse((at, slot))) = self.near.peek().copied()
                && at <= now_ns
            {
                self.near.pop();
                self.len -= 1;
                let due = due_of(slot);
                if due <= now_ns {
                    return Some(slot);
                }
                self.set(due, slot);
            }
            let page = self.far.first_entry()?;
            if page.get().first_ns > now_ns {
                return None;
            }
            self.closed = *page.key() + 1;
            let slots = page.remove().slots;
            self.open(slots, &due_of);
        }
    }

    fn open(&mut self, mut slots: Vec<u32>, due_of: impl Fn(u32) -> u64) {
        self.len -= slots.len();
        // A slot that was used again, or whose moment was set twice, is there twice.
        slots.sort_unstable();
        slots.dedup();
        for slot in slots {
            self.set(due_of(slot), slot);
        }
    }
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
