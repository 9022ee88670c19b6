//! The living, as a tree in one slab. Slot 0 is the fleet itself: the account that roots are carved from.

use crate::account::{Account, Share};
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

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: WorkerId,
    pub(crate) parent: u32,
    pub(crate) first_child: u32,
    pub(crate) next: u32,
    pub(crate) previous: u32,
    pub(crate) first_grant: u32,
    pub(crate) depth: u32,
    pub(crate) children: u32,
    /// Told apart from others that had this slot before.
    pub(crate) generation: u32,
    pub(crate) status: Status,
    pub(crate) is_live: bool,
    pub(crate) registered_ns: u64,
    pub(crate) expires_ns: u64,
    pub(crate) last_child_ns: Option<u64>,
    pub(crate) account: Account,
}

impl Node {
    pub(crate) fn new(
        id: WorkerId,
        depth: u32,
        share: &Share,
        registered_ns: u64,
        expires_ns: u64,
    ) -> Self {
        Self {
            id,
            parent: FLEET,
            first_child: NONE,
            next: NONE,
            previous: NONE,
            first_grant: NONE,
            depth,
            children: 0,
            generation: 0,
            status: Status::Starting,
            is_live: true,
            registered_ns,
            expires_ns,
            last_child_ns: None,
            account: Account::new(share),
        }
    }

    /// What this worker takes from its parent.
    pub(crate) fn cost(&self) -> belljar_policy::Budget {
        account::cost(&self.account.granted, self.depth)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
    vacant: Vec<u32>,
    index: Index,
}

impl Tree {
    pub(crate) fn new(fleet: &Share) -> Self {
        Self {
            nodes: vec![Node::new(WorkerId(0), 0, fleet, 0, NEVER)],
            vacant: Vec::new(),
            index: Index::default(),
        }
    }

    /// How many are alive.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn find(&self, id: WorkerId) -> Option<u32> {
        self.index.find(id.0)
    }

    pub(crate) fn node(&self, slot: u32) -> &Node {
        &self.nodes[slot as usize]
    }

    pub(crate) fn node_mut(&mut self, slot: u32) -> &mut Node {
        &mut self.nodes[slot as usize]
    }

    /// The live worker in this slot, if it is still the one of that generation.
    pub(crate) fn live(&self, slot: u32, generation: u32) -> Option<&Node> {
        self.nodes
            .get(slot as usize)
            .filter(|node| node.is_live && node.generation == generation && slot != FLEET)
    }

    /// Puts a worker below `parent`, as its newest child. The caller has checked that the id is new.
    pub(crate) fn insert(&mut self, mut node: Node, parent: u32) -> u32 {
        let id = node.id;
        let slot = match self.vacant.pop() {
            Some(slot) => {
                let place = &mut self.nodes[slot as usize];
                node.generation = place.generation.wrapping_add(1);
                *place = node;
                slot
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.index.insert(id.0, slot);
        self.link(slot, parent);
        slot
    }

    /// Takes a worker without children out of the tree.
    pub(crate) fn remove(&mut self, slot: u32) {
        self.unlink(slot);
        let node = &mut self.nodes[slot as usize];
        node.is_live = false;
        self.index.remove(node.id.0);
        self.vacant.push(slot);
    }

    pub(crate) fn link(&mut self, slot: u32, parent: u32) {
        let above = &mut self.nodes[parent as usize];
        let sibling = std::mem::replace(&mut above.first_child, slot);
        above.children += 1;
        let node = &mut self.nodes[slot as usize];
        node.parent = parent;
        node.next = sibling;
        node.previous = NONE;
        if sibling != NONE {
            self.nodes[sibling as usize].previous = slot;
        }
    }

    pub(crate) fn unlink(&mut self, slot: u32) {
        let (parent, previous, next) = {
            let node = &self.nodes[slot as usize];
            (node.parent, node.previous, node.next)
        };
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
        let first = self.node(slot).first_child;
        std::iter::successors((first != NONE).then_some(first), |slot| {
            let next = self.node(*slot).next;
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
        let mut at = self.node(FLEET).first_child;
        while at != NONE {
            found.push(at);
            let below = self.node(at).first_child;
            if below != NONE {
                at = below;
                continue;
            }
            while at != FLEET && self.node(at).next == NONE {
                at = self.node(at).parent;
            }
            at = if at == FLEET {
                NONE
            } else {
                self.node(at).next
            };
        }
        found
    }
}
