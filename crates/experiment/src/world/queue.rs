//! What happens next. A calendar: moments fall into buckets of equal width, and only the bucket at hand is sorted, so that
//! millions of entries cost what a few cost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The fewest buckets, and the most.
const BUCKETS: (u64, u64) = (256, 65_536);

/// Something that is to happen. There is one for every worker, so it is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) at_ns: u64,
    pub(crate) slot: u32,
    /// What, and in the bits above the slot's generation as far as they hold it.
    what: u32,
}

/// Bits for an act.
const ACT_BITS: u32 = 3;

impl Entry {
    pub(crate) fn act(&self) -> Act {
        ACTS[(self.what & ((1 << ACT_BITS) - 1)) as usize]
    }

    /// Whether it was put in for this generation of its slot.
    pub(crate) fn is_of(&self, generation: u32) -> bool {
        self.what >> ACT_BITS == generation & (u32::MAX >> ACT_BITS)
    }
}

/// An entry for the bucket at hand; of two at the same moment, the one that was put in first comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Late {
    at_ns: u64,
    order: u64,
    entry: Entry,
}

/// All acts, in their order, and one more so that any three bits name one.
const ACTS: [Act; 1 << ACT_BITS] = [
    Act::Step,
    Act::Beat,
    Act::Report,
    Act::Exit,
    Act::Die,
    Act::Resist,
    Act::Plan,
    Act::Plan,
];

/// What.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Act {
    /// A worker takes a step.
    Step,
    /// A worker says that it lives.
    Beat,
    /// A worker's use is reported.
    Report,
    /// A worker ends by itself.
    Exit,
    /// A box that was ordered killed is dead.
    Die,
    /// A killed worker that resists tries again.
    Resist,
    /// Something planned happens to the whole fleet; the slot is its number.
    Plan,
}

#[derive(Debug)]
pub(crate) struct Queue {
    buckets: Vec<Vec<Entry>>,
    width_bits: u32,
    /// The bucket at hand: its entries are in `sorted`, and those before `next` are over.
    at: usize,
    sorted: Vec<Entry>,
    next: usize,
    /// What was put into the bucket at hand since it was sorted.
    late: BinaryHeap<Reverse<Late>>,
    /// Buckets that are over, to be used again.
    spare: Vec<Vec<Entry>>,
    horizon_ns: u64,
    order: u64,
}

impl Queue {
    /// A calendar up to the horizon. `pace_ns` is how far ahead most entries are put: they ought to fall into other buckets than the
    /// one at hand.
    pub(crate) fn new(horizon_ns: u64, pace_ns: u64) -> Self {
        let count = (horizon_ns / (pace_ns / 2).max(1)).clamp(BUCKETS.0, BUCKETS.1);
        Self {
            buckets: Vec::new(),
            // A power of two, as every entry is divided by it.
            width_bits: (horizon_ns / count + 1).ilog2(),
            at: 0,
            sorted: Vec::new(),
            next: 0,
            late: BinaryHeap::new(),
            spare: Vec::new(),
            horizon_ns,
            order: 0,
        }
    }

    /// A new one in the memory that this one has.
    pub(crate) fn anew(mut self, horizon_ns: u64, pace_ns: u64) -> Self {
        let mut queue = Self::new(horizon_ns, pace_ns);
        self.late.clear();
        self.buckets.push(self.sorted);
        for mut bucket in self.buckets.drain(..) {
            if bucket.capacity() > 0 {
                bucket.clear();
                self.spare.push(bucket);
            }
        }
        (queue.buckets, queue.late, queue.spare) = (self.buckets, self.late, self.spare);
        queue
    }

    /// Puts something in; what comes after the horizon never happens.
    pub(crate) fn push(&mut self, at_ns: u64, slot: u32, generation: u32, act: Act) {
        if at_ns > self.horizon_ns {
            return;
        }
        let entry = Entry {
            at_ns,
            slot,
            what: generation << ACT_BITS | act as u32,
        };
        let bucket = (at_ns >> self.width_bits) as usize;
        if bucket <= self.at {
            self.order += 1;
            let order = self.order;
            self.late.push(Reverse(Late {
                at_ns,
                order,
                entry,
            }));
        } else {
            // Made as they are needed: many families die out long before the horizon.
            if bucket >= self.buckets.len() {
                self.buckets.resize_with(bucket + 1, Vec::new);
            }
            let bucket = &mut self.buckets[bucket];
            if bucket.capacity() == 0
                && let Some(spare) = self.spare.pop()
            {
                *bucket = spare;
            }
            bucket.push(entry);
        }
    }

    /// The moment of the first entry.
    #[inline]
    pub(crate) fn next_ns(&mut self) -> Option<u64> {
        loop {
            let sorted = self.sorted.get(self.next).map(|entry| entry.at_ns);
            let late = self.late.peek().map(|Reverse(late)| late.at_ns);
            match (sorted, late) {
                (Some(sorted), Some(late)) => return Some(sorted.min(late)),
                (Some(first), None) | (None, Some(first)) => return Some(first),
                (None, None) => self.turn_over()?,
            }
        }
    }

    /// Goes on to the next bucket, if there is one.
    fn turn_over(&mut self) -> Option<()> {
        let bucket = self.buckets.get_mut(self.at + 1)?;
        self.at += 1;
        self.next = 0;
        let mut done = std::mem::replace(&mut self.sorted, std::mem::take(bucket));
        if done.capacity() > 0 {
            done.clear();
            self.spare.push(done);
        }
        // They are in the order in which they were put in, which a stable sort keeps; often that is the order of time too.
        if !self.sorted.is_sorted_by_key(|entry| entry.at_ns) {
            self.sorted.sort_by_key(|entry| entry.at_ns);
        }
        Some(())
    }

    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let first_ns = self.next_ns()?;
        match self.sorted.get(self.next) {
            // What was there when the bucket was sorted was put in before what came since.
            Some(entry) if entry.at_ns == first_ns => {
                self.next += 1;
                Some(*entry)
            }
            _ => self.late.pop().map(|Reverse(late)| late.entry),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    #[test]
    fn everything_comes_once_and_in_order() {
        let mut stream = Stream::keyed(5);
        let mut queue = Queue::new(1_000_000, 1000);
        let (mut put, mut taken) = (0u32, Vec::new());
        for _ in 0..500 {
            queue.push(stream.below(900_000), put, 0, Act::Step);
            put += 1;
        }
        while let Some(entry) = queue.pop() {
            taken.push((entry.at_ns, entry.slot));
            if put < 1500 {
                // Some at this very moment, some later.
                queue.push(
                    entry.at_ns + stream.below(3) * stream.below(5000),
                    put,
                    0,
                    Act::Step,
                );
                put += 1;
            }
        }
        assert_eq!(taken.len(), put as usize);
        assert!(taken.is_sorted_by_key(|(at, _)| *at));
        queue.push(1_000_001, 0, 0, Act::Step);
        assert!(queue.pop().is_none(), "after the horizon nothing happens");
    }
}
