//! The files that a guest knows, by the numbers it knows them by, and those it has open.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Arc;

/// The number of the tree's root.
const ROOT: u64 = 1;
/// Files open at once in the guest.
const MOST_HANDLES: usize = 8192;
/// File systems that are told apart.
const MOST_DEVICES: usize = 1 << 12;

/// A file that the guest knows.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) number: u64,
    pub(super) place: Arc<OwnedFd>,
    pub(super) kind: FileType,
    pub(super) standing: Standing,
}

/// Whether a node leads anywhere.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// As the host has it.
    Shown,
    /// The guest has its own there, and mounts it on an empty directory.
    Sealed,
}

impl Node {
    pub(super) fn stat(&self) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.place, c"", AtFlags::EMPTY_PATH)
    }
}

struct Known {
    node: Node,
    identity: Identity,
    lookups: u64,
}

type Identity = (u64, u64);

/// All of them.
pub(super) struct Nodes {
    known: HashMap<u64, Known>,
    numbers: HashMap<Identity, u64>,
    devices: Vec<u64>,
    handles: HashMap<u64, Arc<OwnedFd>>,
    next: u64,
    most: usize,
}

impl Nodes {
    /// Begins with the root; `most` nodes are held at once.
    pub(super) fn new(root: OwnedFd, most: usize) -> Result<Self, Errno> {
        let mut nodes = Self {
            known: HashMap::new(),
            numbers: HashMap::new(),
            devices: Vec::new(),
            handles: HashMap::new(),
            next: ROOT,
            most,
        };
        nodes.know(root, Standing::Shown)?;
        Ok(nodes)
    }

    /// One more lookup of the file behind `place`.
    pub(super) fn know(
        &mut self,
        place: OwnedFd,
        standing: Standing,
    ) -> Result<(Node, Stat), Errno> {
        let stat = rustix::fs::statat(&place, c"", AtFlags::EMPTY_PATH)?;
        let identity = (stat.st_dev, stat.st_ino);
        if let Some(known) = self
            .numbers
            .get(&identity)
            .and_then(|n| self.known.get_mut(n))
        {
            known.lookups = known.lookups.saturating_add(1);
            return Ok((known.node.clone(), stat));
        }
        if self.known.len() >= self.most {
            return Err(Errno::NFILE);
        }
        let node = Node {
            number: self.take_number(),
            place: Arc::new(place),
            kind: FileType::from_raw_mode(stat.st_mode),
            standing,
        };
        self.numbers.insert(identity, node.number);
        let known = Known {
            node: node.clone(),
            identity,
            lookups: 1,
        };
        self.known.insert(node.number, known);
        Ok((node, stat))
    }

    pub(super) fn node(&self, number: u64) -> Result<Node, Errno> {
        let known = self.known.get(&number).ok_or(Errno::STALE)?;
        Ok(known.node.clone())
    }

    /// The guest has forgotten so many lookups.
    pub(super) fn forget(&mut self, number: u64, lookups: u64) {
        let Some(known) = self.known.get_mut(&number).filter(|_| number != ROOT) else {
            return;
        };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups == 0 {
            self.numbers.remove(&known.identity);
            self.known.remove(&number);
        }
    }

    /// Whether three quarters of all room is taken.
    pub(super) fn is_crowded(&self) -> bool {
        self.known.len() > self.most / 4 * 3
    }

    /// A number for a file that is the same for as long as the file is there, and no other's: many of the host's file
    /// systems are one to the guest.
    pub(super) fn inode(&mut self, stat: &Stat) -> u64 {
        let known = self
            .devices
            .iter()
            .position(|device| *device == stat.st_dev);
        let index = known.unwrap_or_else(|| {
            if self.devices.len() < MOST_DEVICES {
                self.devices.push(stat.st_dev);
            }
            self.devices.len() - 1
        });
        stat.st_ino ^ (index as u64) << 48
    }

    pub(super) fn keep_open(&mut self, file: OwnedFd) -> Result<u64, Errno> {
        if self.handles.len() >= MOST_HANDLES {
            return Err(Errno::NFILE);
        }
        let number = self.take_number();
        self.handles.insert(number, Arc::new(file));
        Ok(number)
    }

    pub(super) fn handle(&self, number: u64) -> Result<Arc<OwnedFd>, Errno> {
        self.handles.get(&number).cloned().ok_or(Errno::BADF)
    }

    pub(super) fn close(&mut self, number: u64) {
        self.handles.remove(&number);
    }

    fn take_number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }
}

/// How many descriptors are left to files that the guest only knows.
pub(super) fn most_nodes(descriptors: u64) -> usize {
    const OTHERS: usize = 64;
    let all = usize::try_from(descriptors)
        .unwrap_or(usize::MAX)
        .min(1 << 20);
    all.saturating_sub(MOST_HANDLES + OTHERS).max(512)
}

/// A file below a directory, without opening it: links are not followed.
pub(super) fn find(directory: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}
