//! A simulated box and the one who lives in it.

use belljar_replication::{ManifestFacts, WorkerId};

use crate::rng::Stream;

/// "Nobody" among slots, and "never" among moments.
pub(crate) const NOBODY: u32 = u32::MAX;
pub(crate) const NEVER: u64 = u64::MAX;

/// One worker. Slots are used again when both the box and the registration have ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body {
    pub(crate) stream: Stream,
    pub(crate) generation: u32,
    pub(crate) parent: u32,
    pub(crate) parent_generation: u32,
    pub(crate) depth: u32,
    /// Children it still wants.
    pub(crate) wants: u32,
    /// Children it had.
    pub(crate) children: u32,
    /// Children that are registered now.
    pub(crate) live_children: u32,
    pub(crate) expires_ns: u64,
    pub(crate) last_child_ns: u64,
    pub(crate) born_ns: u64,
    pub(crate) group: u16,
    /// In which step of the run it was born.
    pub(crate) born_step: u8,
    /// Whether the controller counts it.
    pub(crate) is_registered: bool,
    /// Whether its box runs.
    pub(crate) is_running: bool,
    /// Whether an operator or a condition wants it in quarantine.
    pub(crate) is_quarantined: bool,
    /// Whether its box is frozen.
    pub(crate) is_frozen: bool,
}

/// What is known of a worker that few have: those that speak, hold memory, are being killed or keep a grant.
#[derive(Clone, Debug)]
pub(crate) struct Extra {
    /// When it last spoke.
    pub(crate) beat_ns: u64,
    /// When it was ordered killed.
    pub(crate) killed_ns: u64,
    pub(crate) memory_mb: u64,
    /// A manifest that it keeps for later, with the slot its child would have.
    pub(crate) kept: Option<Box<(u32, ManifestFacts)>>,
}

static NOTHING: Extra = Extra {
    beat_ns: 0,
    killed_ns: NEVER,
    memory_mb: 0,
    kept: None,
};

impl Body {
    fn vacant() -> Self {
        Self {
            stream: Stream::keyed(0),
            generation: 0,
            parent: NOBODY,
            parent_generation: 0,
            depth: 0,
            wants: 0,
            children: 0,
            live_children: 0,
            expires_ns: NEVER,
            last_child_ns: NEVER,
            born_ns: 0,
            group: 0,
            born_step: 0,
            is_registered: false,
            is_running: false,
            is_quarantined: false,
            is_frozen: false,
        }
    }
}

/// All of them, by slot.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
    slots: Vec<Body>,
    /// By slot, as far as anybody has some.
    extras: Vec<Extra>,
    vacant: Vec<u32>,
}

impl Bodies {
    /// Nobody; the memory stays.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.extras.clear();
        self.vacant.clear();
    }

    /// A slot for a worker to be.
    pub(crate) fn reserve(&mut self) -> u32 {
        self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Body::vacant());
            u32::try_from(self.slots.len() - 1).unwrap_or(NOBODY)
        })
    }

    /// The slot is free again; whoever still names it means somebody else.
    pub(crate) fn release(&mut self, slot: u32) {
        let body = self.of_mut(slot);
        body.generation = body.generation.wrapping_add(1);
        self.forget_extra(slot);
        self.vacant.push(slot);
    }

    pub(crate) fn extra(&self, slot: u32) -> &Extra {
        self.extras.get(slot as usize).unwrap_or(&NOTHING)
    }

    pub(crate) fn extra_mut(&mut self, slot: u32) -> &mut Extra {
        let at = slot as usize;
        if self.extras.len() <= at {
            self.extras.resize(at + 1, NOTHING.clone());
        }
        &mut self.extras[at]
    }

    /// Whoever has the slot next has nothing of it.
    pub(crate) fn forget_extra(&mut self, slot: u32) {
        if let Some(extra) = self.extras.get_mut(slot as usize) {
            *extra = NOTHING.clone();
        }
    }

    pub(crate) fn of(&self, slot: u32) -> &Body {
        &self.slots[slot as usize]
    }

    pub(crate) fn of_mut(&mut self, slot: u32) -> &mut Body {
        &mut self.slots[slot as usize]
    }

    /// The id of whoever has the slot: it names the slot and the generation, so that it is found without a table. Generations
    /// count down from the highest bit, so that ids are as far apart as slots are.
    pub(crate) fn id(&self, slot: u32) -> WorkerId {
        let generation = u128::from(self.of(slot).generation.reverse_bits());
        WorkerId((1 << 64) | (generation << 32) | u128::from(slot))
    }

    /// The slot of a worker, unless it is somebody else's by now.
    pub(crate) fn find(&self, id: WorkerId) -> Option<u32> {
        let (slot, generation) = (id.0 as u32, ((id.0 >> 32) as u32).reverse_bits());
        let body = self.slots.get(slot as usize)?;
        (body.generation == generation).then_some(slot)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Body)> {
        (0u32..).zip(&self.slots)
    }

    /// Whether a slot is still had by whoever had it at that generation.
    pub(crate) fn is_same(&self, slot: u32, generation: u32) -> bool {
        self.slots
            .get(slot as usize)
            .is_some_and(|body| body.generation == generation)
    }
}
