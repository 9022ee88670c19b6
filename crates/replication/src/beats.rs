//! When each worker last spoke. Whoever has not spoken yet counts as having done so when it registered, which is known.

use crate::tree::Tree;

#[derive(Clone, Debug, Default)]
pub(crate) struct Beats {
    /// By slot, as far as somebody spoke.
    spoken_ns: Vec<u64>,
    /// Everybody counts as having spoken then.
    since_ns: u64,
}

impl Beats {
    /// Everybody counts as having spoken at this moment.
    pub(crate) fn since(since_ns: u64) -> Self {
        Self {
            spoken_ns: Vec::new(),
            since_ns,
        }
    }

    /// Nobody has spoken; the memory stays.
    pub(crate) fn clear(&mut self) {
        self.spoken_ns.clear();
        self.since_ns = 0;
    }

    /// Another worker has the slot: what was heard from there does not count.
    pub(crate) fn begin(&mut self, slot: u32, now_ns: u64) {
        if let Some(spoken) = self.spoken_ns.get_mut(slot as usize) {
            *spoken = now_ns;
        }
    }

    /// A worker spoke.
    pub(crate) fn heard(&mut self, slot: u32, now_ns: u64) {
        let at = slot as usize;
        if self.spoken_ns.len() <= at {
            self.spoken_ns.resize(at + 1, 0);
        }
        self.spoken_ns[at] = self.spoken_ns[at].max(now_ns);
    }

    /// When a worker last spoke.
    pub(crate) fn last(&self, tree: &Tree, slot: u32) -> u64 {
        let spoken_ns = self.spoken_ns.get(slot as usize).copied().unwrap_or(0);
        let known_ns = tree.registered_ns(slot).max(self.since_ns);
        spoken_ns.max(known_ns)
    }
}
