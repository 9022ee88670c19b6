//! Grants that were issued and not yet used. Only what is here can be registered with.

use crate::account::{Share, cost};
use crate::holes::enforced;
use crate::index::Index;
use crate::tree::{NONE, Tree};
use crate::{Jti, WorkerId};

#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) jti: Jti,
    pub(crate) worker: WorkerId,
    pub(crate) parent: u32,
    pub(crate) depth: u32,
    pub(crate) share: Share,
    pub(crate) lapses_ns: u64,
    next: u32,
    previous: u32,
}

impl Grant {
    pub(crate) fn new(
        jti: Jti,
        worker: WorkerId,
        parent: u32,
        depth: u32,
        share: Share,
        lapses_ns: u64,
    ) -> Self {
        Self {
            jti,
            worker,
            parent,
            depth,
            share,
            lapses_ns,
            next: NONE,
            previous: NONE,
        }
    }
}

/// The outstanding grants; each parent's are chained through its node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grants {
    slots: Vec<Grant>,
    vacant: Vec<u32>,
    index: Index,
}

impl Grants {
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// None is outstanding any more; the memory stays.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.vacant.clear();
        self.index.clear();
    }

    #[inline]
    pub(crate) fn find(&self, jti: Jti) -> Option<&Grant> {
        let jti_of = |slot| self.slots[slot as usize].jti.0;
        let slot = self.index.find(jti.0, jti_of)?;
        Some(&self.slots[slot as usize])
    }

    /// Adds a grant and debits its parent.
    pub(crate) fn insert(&mut self, tree: &mut Tree, mut grant: Grant) {
        if enforced!(BudgetReserved, true) {
            let price = cost(&grant.share.granted, grant.depth);
            tree.take(grant.parent, &price);
        }
        let parent = tree.node_mut(grant.parent);
        grant.next = parent.first_grant;
        let jti = grant.jti;
        let second = grant.next;
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.slots[slot as usize] = grant;
                slot
            }
            None => {
                self.slots.push(grant);
                (self.slots.len() - 1) as u32
            }
        };
        parent.first_grant = slot;
        if second != NONE {
            self.slots[second as usize].previous = slot;
        }
        self.index.insert(jti.0, slot);
    }

    /// Takes a grant out. What it cost stays debited: the caller makes it a worker or gives it back.
    pub(crate) fn remove(&mut self, tree: &mut Tree, jti: Jti) -> Option<&Grant> {
        let slots = &self.slots;
        let slot = self
            .index
            .remove(jti.0, |slot| slots[slot as usize].jti.0)?;
        let (parent, previous, next) = {
            let grant = &self.slots[slot as usize];
            (grant.parent, grant.previous, grant.next)
        };
        if previous == NONE {
            tree.node_mut(parent).first_grant = next;
        } else {
            self.slots[previous as usize].next = next;
        }
        if next != NONE {
            self.slots[next as usize].previous = previous;
        }
        self.vacant.push(slot);
        Some(&self.slots[slot as usize])
    }

    /// Takes a grant out and gives its parent back what it cost. Says whether there was one.
    pub(crate) fn withdraw(&mut self, tree: &mut Tree, jti: Jti) -> bool {
        let Some(grant) = self.remove(tree, jti) else {
            return false;
        };
        let price = cost(&grant.share.granted, grant.depth);
        tree.give_back(grant.parent, &price);
        true
    }

    /// The newest grant of one parent.
    pub(crate) fn newest_of(&self, tree: &Tree, parent: u32) -> Option<Jti> {
        let slot = tree.node(parent).first_grant;
        (slot != NONE).then(|| self.slots[slot as usize].jti)
    }

    /// All of them, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Grant> {
        self.index.slots().map(|slot| &self.slots[slot as usize])
    }
}
