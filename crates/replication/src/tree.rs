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

/// A worker's standing and its account. What a decision about its child reads comes first and fills two cache lines, no
/// more: with a million workers each line is a wait for memory.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Node {
    pub(crate) depth: u32,
    pub(crate) children: u32,
    pub(crate) first_grant: u32,
    pub(crate) status: Status,
    pub(crate) expires_ns: u64,
    /// When it last had a child; [`NEVER`] if it had none.
    pub(crate) last_child_ns: u64,
    pub(crate) account: Account,
    pub(crate) registered_ns: u64,
    /// Told apart from others that had this slot before.
    generation: u32,
    is_live: bool,
}

/// Who a node is and where it is in the tree. Apart from the nodes, so that to find one, to go from one to the next, and
/// to put a child beside its siblings, touches little memory.
#[derive(Clone, Copy, Debug)]
struct Place {
    id: WorkerId,
    parent: u32,
    first_child: u32,
    next: u32,
    previous: u32,
}

impl Node {
    pub(crate) fn new(depth: u32, share: &Share, registered_ns: u64, expires_ns: u64) -> Self {
        Self {
            depth,
            children: 0,
            first_grant: NONE,
            status: Status::Starting,
            expires_ns,
            last_child_ns: NEVER,
            account: Account::new(share),
            registered_ns,
            generation: 0,
            is_live: true,
        }
    }

    /// What this worker takes from its parent.
    pub(crate) fn cost(&self) -> belljar_policy::Budget {
        account::cost(&self.account.granted, self.depth)
    }
}

impl Place {
    fn new(id: WorkerId) -> Self {
        Self {
            id,
            parent: FLEET,
            first_child: NONE,
            next: NONE,
            previous: NONE,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
    /// By slot, as the nodes.
    places: Vec<Place>,
    vacant: Vec<u32>,
    index: Index,
}

impl Tree {
    pub(crate) fn new(fleet: &Share) -> Self {
        Self {
            nodes: vec![Node::new(0, fleet, 0, NEVER)],
            places: vec![Place::new(WorkerId(0))],
            vacant: Vec::new(),
            index: Index::default(),
        }
    }

    /// Nobody lives any more; the memory stays.
    pub(crate) fn clear(&mut self, fleet: &Share) {
        self.nodes.clear();
        self.nodes.push(Node::new(0, fleet, 0, NEVER));
        self.places.clear();
        self.places.push(Place::new(WorkerId(0)));
        self.vacant.clear();
        self.index.clear();
    }

    /// How many are alive.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// How many slots there are, the fleet's and vacant ones included.
    pub(crate) fn slots(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn find(&self, id: WorkerId) -> Option<u32> {
        self.index.find(id.0, |slot| self.id(slot).0)
    }

    /// Who is, or was, in this slot.
    pub(crate) fn id(&self, slot: u32) -> WorkerId {
        self.places[slot as usize].id
    }

    pub(crate) fn node(&self, slot: u32) -> &Node {
        &self.nodes[slot as usize]
    }

    pub(crate) fn node_mut(&mut self, slot: u32) -> &mut Node {
        &mut self.nodes[slot as usize]
    }

    /// The slot of a worker's parent; the fleet's for a root.
    pub(crate) fn parent(&self, slot: u32) -> u32 {
        self.places[slot as usize].parent
    }

    /// Tells a worker apart from others that had its slot before.
    pub(crate) fn generation(&self, slot: u32) -> u32 {
        self.nodes[slot as usize].generation
    }

    /// Whether somebody lives in this slot.
    pub(crate) fn is_live(&self, slot: u32) -> bool {
        self.nodes[slot as usize].is_live
    }

    /// Whether the worker of that generation still lives in this slot.
    pub(crate) fn still_lives(&self, slot: u32, generation: u32) -> bool {
        let node = self.nodes.get(slot as usize);
        node.is_some_and(|node| node.is_live && node.generation == generation && slot != FLEET)
    }

    /// Puts a worker below `parent`, as its newest child. The caller has checked that the id is new.
    pub(crate) fn insert(&mut self, id: WorkerId, mut node: Node, parent: u32) -> u32 {
        let slot = match self.vacant.pop() {
            Some(slot) => {
                let vacated = &mut self.nodes[slot as usize];
                node.generation = vacated.generation.wrapping_add(1);
                *vacated = node;
                self.places[slot as usize] = Place::new(id);
                slot
            }
            None => {
                self.nodes.push(node);
                self.places.push(Place::new(id));
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
        self.nodes[slot as usize].is_live = false;
        let places = &self.places;
        let id_of = |slot: u32| places[slot as usize].id.0;
        self.index.remove(id_of(slot), id_of);
        self.vacant.push(slot);
    }

    pub(crate) fn link(&mut self, slot: u32, parent: u32) {
        self.nodes[parent as usize].children += 1;
        let above = &mut self.places[parent as usize];
        let sibling = std::mem::replace(&mut above.first_child, slot);
        let place = &mut self.places[slot as usize];
        place.parent = parent;
        place.next = sibling;
        place.previous = NONE;
        if sibling != NONE {
            self.places[sibling as usize].previous = slot;
        }
    }

    pub(crate) fn unlink(&mut self, slot: u32) {
        let Place {
            parent,
            previous,
            next,
            ..
        } = self.places[slot as usize];
        if previous == NONE {
            self.places[parent as usize].first_child = next;
        } else {
            self.places[previous as usize].next = next;
        }
        if next != NONE {
            self.places[next as usize].previous = previous;
        }
        self.nodes[parent as usize].children -= 1;
    }

    /// The children of a node, newest first.
    pub(crate) fn children(&self, slot: u32) -> impl Iterator<Item = u32> + '_ {
        let first = self.places[slot as usize].first_child;
        std::iter::successors((first != NONE).then_some(first), |slot| {
            let next = self.places[*slot as usize].next;
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
        let place = |slot: u32| &self.places[slot as usize];
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
