//! The living, as a tree in one slab. Slot 0 is the fleet itself: the account that roots are carved from.

use belljar_policy::Budget;

use crate::account::{Account, Share, Usage};
use crate::accounts::{Accounts, Number};
use crate::index::Index;
use crate::{WorkerId, account};

/// "No slot" in the links below; also "never" for moments.
pub(crate) const NONE: u32 = u32::MAX;
/// "Never", for moments on the boot clock.
pub(crate) const NEVER: u64 = u64::MAX;
/// The slot of the fleet's own node.
pub(crate) const FLEET: u32 = 0;

/// How a live worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Registered; its box is not yet confirmed.
    Starting,
    /// Its box runs.
    Running,
    /// Frozen: it counts, it gets no grants, it need not speak.
    Quarantined,
}

/// A worker: who it is, where it is in the tree, and what a decision about its child reads. As long as a cache line, no longer: with
/// a million workers each line is a wait for memory. It is not aligned to one, as lists of what is can't grow in place.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Node {
    id: WorkerId,
    parent: u32,
    first_child: u32,
    next: u32,
    previous: u32,
    pub(crate) depth: u32,
    pub(crate) children: u32,
    pub(crate) first_grant: u32,
    account: Number,
    pub(crate) expires_ns: u64,
    /// When it last had a child; [`NEVER`] if it had none.
    pub(crate) last_child_ns: u64,
}

/// What is known of a worker when it is put into the tree.
pub(crate) struct Birth<'a> {
    pub(crate) depth: u32,
    pub(crate) share: &'a Share,
    pub(crate) registered_ns: u64,
    pub(crate) expires_ns: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
    /// By slot, as the nodes: how whoever lives there is; nothing if nobody does.
    statuses: Vec<Option<Status>>,
    /// By slot: when it was registered.
    registered_ns: Vec<u64>,
    accounts: Accounts,
    vacant: Vec<u32>,
    index: Index,
    newest: u32,
}

impl Tree {
    pub(crate) fn new(fleet: &Share) -> Self {
        let mut tree = Self {
            nodes: Vec::new(),
            statuses: Vec::new(),
            registered_ns: Vec::new(),
            accounts: Accounts::default(),
            vacant: Vec::new(),
            index: Index::default(),
            newest: FLEET,
        };
        tree.clear(fleet);
        tree
    }

    /// Nobody lives any more; the memory stays.
    pub(crate) fn clear(&mut self, fleet: &Share) {
        self.nodes.clear();
        self.statuses.clear();
        self.registered_ns.clear();
        self.accounts.clear();
        self.vacant.clear();
        self.index.clear();
        let account = self.accounts.write(Account::new(fleet));
        self.nodes.push(Node {
            id: WorkerId(0),
            parent: FLEET,
            first_child: NONE,
            next: NONE,
            previous: NONE,
            depth: 0,
            children: 0,
            first_grant: NONE,
            account,
            expires_ns: NEVER,
            last_child_ns: NEVER,
        });
        self.statuses.push(Some(Status::Starting));
        self.registered_ns.push(0);
    }

    /// How many are alive.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// How many slots there are, the fleet's and vacant ones included.
    pub(crate) fn slots(&self) -> usize {
        self.nodes.len()
    }

    #[inline]
    pub(crate) fn find(&self, id: WorkerId) -> Option<u32> {
        self.index.find(id.0, |slot| self.id(slot).0)
    }

    /// The slot of the one that was put in last.
    pub(crate) fn newest(&self) -> u32 {
        self.newest
    }

    /// Who is, or was, in this slot.
    pub(crate) fn id(&self, slot: u32) -> WorkerId {
        self.nodes[slot as usize].id
    }

    pub(crate) fn node(&self, slot: u32) -> &Node {
        &self.nodes[slot as usize]
    }

    pub(crate) fn node_mut(&mut self, slot: u32) -> &mut Node {
        &mut self.nodes[slot as usize]
    }

    /// The slot of a worker's parent; the fleet's for a root.
    pub(crate) fn parent(&self, slot: u32) -> u32 {
        self.nodes[slot as usize].parent
    }

    /// How whoever lives in this slot is; nothing if nobody does.
    pub(crate) fn status(&self, slot: u32) -> Option<Status> {
        self.statuses.get(slot as usize).copied().flatten()
    }

    pub(crate) fn set_status(&mut self, slot: u32, status: Status) {
        self.statuses[slot as usize] = Some(status);
    }

    /// When whoever is in this slot was registered.
    pub(crate) fn registered_ns(&self, slot: u32) -> u64 {
        self.registered_ns[slot as usize]
    }

    /// Everybody's slots, in their own order.
    pub(crate) fn live_slots(&self) -> impl Iterator<Item = u32> + '_ {
        let statuses = (FLEET..).zip(&self.statuses).skip(1);
        statuses.filter_map(|(slot, status)| status.map(|_| slot))
    }

    /// The account of whoever is in this slot.
    pub(crate) fn account(&self, slot: u32) -> &Account {
        self.accounts.of(self.nodes[slot as usize].account)
    }

    /// The account, to be changed.
    pub(crate) fn account_mut(&mut self, slot: u32) -> &mut Account {
        self.accounts.of_mut(&mut self.nodes[slot as usize].account)
    }

    /// Takes `cost` from an account; see [`Account::take`].
    pub(crate) fn take(&mut self, slot: u32, cost: &Budget) {
        let number = self.nodes[slot as usize].account;
        if let Some(account) = self.accounts.written_mut(number) {
            account.take(cost);
        }
    }

    /// Gives `cost` back to an account.
    pub(crate) fn give_back(&mut self, slot: u32, cost: &Budget) {
        let number = self.nodes[slot as usize].account;
        if let Some(account) = self.accounts.written_mut(number) {
            account.give_back(cost);
        }
    }

    /// Charges an account with what an ended child used up.
    pub(crate) fn inherit(&mut self, slot: u32, used: &Usage) {
        if !used.is_zero() {
            self.account_mut(slot).inherit(used);
        }
    }

    /// What a worker takes from its parent.
    pub(crate) fn cost(&self, slot: u32) -> Budget {
        account::cost(&self.account(slot).granted, self.node(slot).depth)
    }

    /// Puts a worker below `parent`, as its newest child. The caller has checked that the id is new.
    pub(crate) fn insert(&mut self, id: WorkerId, birth: &Birth<'_>, parent: u32) -> u32 {
        let node = Node {
            id,
            parent,
            first_child: NONE,
            next: NONE,
            previous: NONE,
            depth: birth.depth,
            children: 0,
            first_grant: NONE,
            account: self.accounts.open(birth.share),
            expires_ns: birth.expires_ns,
            last_child_ns: NEVER,
        };
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.nodes[slot as usize] = node;
                self.statuses[slot as usize] = Some(Status::Starting);
                self.registered_ns[slot as usize] = birth.registered_ns;
                slot
            }
            None => {
                self.nodes.push(node);
                self.statuses.push(Some(Status::Starting));
                self.registered_ns.push(birth.registered_ns);
                (self.nodes.len() - 1) as u32
            }
        };
        self.index.insert(id.0, slot);
        self.link(slot, parent);
        self.newest = slot;
        slot
    }

    /// Takes a worker without children out of the tree.
    pub(crate) fn remove(&mut self, slot: u32) {
        self.unlink(slot);
        self.statuses[slot as usize] = None;
        self.accounts.close(self.nodes[slot as usize].account);
        let nodes = &self.nodes;
        let id_of = |slot: u32| nodes[slot as usize].id.0;
        self.index.remove(id_of(slot), id_of);
        self.vacant.push(slot);
    }

    pub(crate) fn link(&mut self, slot: u32, parent: u32) {
        let above = &mut self.nodes[parent as usize];
        above.children += 1;
        let sibling = std::mem::replace(&mut above.first_child, slot);
        let node = &mut self.nodes[slot as usize];
        node.parent = parent;
        node.next = sibling;
        node.previous = NONE;
        if sibling != NONE {
            self.nodes[sibling as usize].previous = slot;
        }
    }

    pub(crate) fn unlink(&mut self, slot: u32) {
        let Node {
            parent,
            previous,
            next,
            ..
        } = self.nodes[slot as usize];
        if previous == NONE {
            self.nodes[parent as usize].first_child = next;
        } else {
            self.nodes[previous as usize].next = next;
        }
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        self.nodes[parent as usize].children -= 1;
    }

    /// The children of a node, newest first.
    pub(crate) fn children(&self, slot: u32) -> impl Iterator<Item = u32> + '_ {
        let first = self.nodes[slot as usize].first_child;
        std::iter::successors((first != NONE).then_some(first), |slot| {
            let next = self.nodes[*slot as usize].next;
            (next != NONE).then_some(next)
        })
    }

    /// Everyone below `slot`, itself included unless it is the fleet; parents before their children.
    pub(crate) fn subtree(&self, slot: u32) -> Vec<u32> {
        let mut found = Vec::with_capacity(if slot == FLEET { self.len() } else { 8 });
        if slot == FLEET {
            found.extend(self.children(FLEET));
        } else {
            found.push(slot);
        }
        let mut at = 0;
        while at < found.len() {
            let node = found[at];
            found.extend(self.children(node));
            at += 1;
        }
        found
    }

    /// Everyone, each before its own children, siblings newest first, a branch at a time.
    pub(crate) fn in_order(&self) -> Vec<u32> {
        let mut found = Vec::with_capacity(self.len());
        let place = |slot: u32| &self.nodes[slot as usize];
        let mut at = place(FLEET).first_child;
        while at != NONE {
            found.push(at);
            let below = place(at).first_child;
            if below != NONE {
                at = below;
                continue;
            }
            while at != FLEET && place(at).next == NONE {
                at = place(at).parent;
            }
            at = if at == FLEET { NONE } else { place(at).next };
        }
        found
    }
}
