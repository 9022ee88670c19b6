//! What a worker was granted and how much of it is taken. A budget is carved, never copied.

use belljar_policy::{Amount, Budget, Dimension};
use serde::{Deserialize, Serialize};

use crate::holes::enforced;

/// What was used up: the dimensions that do not come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// CPU time, in milliseconds.
    #[serde(default)]
    pub cpu_ms: u64,
    /// Model tokens.
    #[serde(default)]
    pub tokens: u64,
    /// Money, in millionths of a US dollar.
    #[serde(default)]
    pub micro_usd: u64,
}

impl Usage {
    /// The amount of one thing; what is merely held is never used up.
    #[must_use]
    pub fn of(&self, dimension: Dimension) -> u64 {
        match dimension {
            Dimension::CpuMs => self.cpu_ms,
            Dimension::Tokens => self.tokens,
            Dimension::MicroUsd => self.micro_usd,
            Dimension::Replicas | Dimension::MemoryMb | Dimension::Pids => 0,
        }
    }

    /// Whether nothing was used.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            cpu_ms: self.cpu_ms.saturating_add(other.cpu_ms),
            tokens: self.tokens.saturating_add(other.tokens),
            micro_usd: self.micro_usd.saturating_add(other.micro_usd),
        }
    }

    fn of_mut(&mut self, dimension: Dimension) -> Option<&mut u64> {
        match dimension {
            Dimension::CpuMs => Some(&mut self.cpu_ms),
            Dimension::Tokens => Some(&mut self.tokens),
            Dimension::MicroUsd => Some(&mut self.micro_usd),
            Dimension::Replicas | Dimension::MemoryMb | Dimension::Pids => None,
        }
    }
}

/// What a request asks for: an amount where it is given, else a share of what the parent has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Asked {
    /// Replicas below the child, alive at once.
    pub replicas: Option<Amount>,
    /// CPU time, in milliseconds.
    pub cpu_ms: Option<Amount>,
    /// Memory, in mebibytes.
    pub memory_mb: Option<Amount>,
    /// Processes and threads.
    pub pids: Option<Amount>,
    /// Model tokens.
    pub tokens: Option<Amount>,
    /// Money, in millionths of a US dollar.
    pub micro_usd: Option<Amount>,
}

impl Asked {
    /// The amount asked of one thing, if any.
    #[must_use]
    pub fn of(&self, dimension: Dimension) -> Option<Amount> {
        match dimension {
            Dimension::Replicas => self.replicas,
            Dimension::CpuMs => self.cpu_ms,
            Dimension::MemoryMb => self.memory_mb,
            Dimension::Pids => self.pids,
            Dimension::Tokens => self.tokens,
            Dimension::MicroUsd => self.micro_usd,
        }
    }
}

impl From<Budget> for Asked {
    fn from(budget: Budget) -> Self {
        Self {
            replicas: Some(budget.replicas),
            cpu_ms: Some(budget.cpu_ms),
            memory_mb: Some(budget.memory_mb),
            pids: Some(budget.pids),
            tokens: Some(budget.tokens),
            micro_usd: Some(budget.micro_usd),
        }
    }
}

/// What a child gets: for itself and everything below it, and of that what its own box holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// What the worker and its descendants may use together.
    pub granted: Budget,
    /// What its own box may hold.
    pub own: Budget,
}

/// One worker's account. `taken` is the only counter: own + children's cost + used up.
/// What a decision about a child reads comes first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Account {
    pub(crate) granted: Budget,
    taken: [u64; 6],
    pub(crate) own: Budget,
    pub(crate) used: Usage,
}

impl Account {
    /// An account that nothing was taken from.
    pub(crate) const fn untouched(granted: Budget) -> Self {
        Self {
            granted,
            taken: [0; 6],
            own: Budget::ZERO,
            used: Usage {
                cpu_ms: 0,
                tokens: 0,
                micro_usd: 0,
            },
        }
    }

    pub(crate) fn new(share: &Share) -> Self {
        let mut account = Self {
            granted: share.granted,
            own: share.own,
            used: Usage::default(),
            taken: [0; 6],
        };
        account.take(&share.own);
        account
    }

    pub(crate) fn free_of(&self, dimension: Dimension) -> Amount {
        self.granted
            .of(dimension)
            .number()
            .map_or(Amount::UNBOUNDED, |granted| {
                Amount::of(granted.saturating_sub(self.taken[dimension as usize]))
            })
    }

    #[inline]
    pub(crate) fn free(&self) -> Budget {
        if self.granted == Budget::UNBOUNDED {
            return Budget::UNBOUNDED;
        }
        Budget::from_fn(|d| self.free_of(d))
    }

    /// Takes `cost`. The caller has checked that it is there; an unbounded part leaves no trace, as it
    /// can only come out of an unbounded account.
    pub(crate) fn take(&mut self, cost: &Budget) {
        for d in Dimension::ALL {
            let taken = &mut self.taken[d as usize];
            *taken = taken.wrapping_add(cost.of(d).number().unwrap_or(0));
        }
    }

    /// Gives `cost` back.
    pub(crate) fn give_back(&mut self, cost: &Budget) {
        for d in Dimension::ALL {
            let taken = &mut self.taken[d as usize];
            *taken = taken.wrapping_sub(cost.of(d).number().unwrap_or(0));
        }
    }

    /// Takes over what an ended child used up.
    pub(crate) fn inherit(&mut self, used: &Usage) {
        if enforced!(BudgetSpent, true) {
            for d in Dimension::ALL {
                let taken = &mut self.taken[d as usize];
                *taken = taken.wrapping_add(used.of(d));
            }
            self.used = self.used.plus(used);
        }
    }

    /// Charges what was used: first to what the box holds, then to what is free. Returns what neither covers.
    pub(crate) fn charge(&mut self, usage: &Usage) -> Usage {
        let mut excess = Usage::default();
        for d in [Dimension::CpuMs, Dimension::Tokens, Dimension::MicroUsd] {
            let amount = usage.of(d);
            let from_own = self.own_part(d, amount);
            let rest = amount - from_own;
            let from_free = rest.min(self.free_of(d).number().unwrap_or(u64::MAX));
            self.taken[d as usize] = self.taken[d as usize].wrapping_add(from_free);
            if let Some(used) = self.used.of_mut(d) {
                *used = used.saturating_add(from_own + from_free);
            }
            if let Some(over) = excess.of_mut(d)
                && enforced!(BudgetOverdraft, true)
            {
                *over = rest - from_free;
            }
        }
        excess
    }

    /// All that can still be used up: what a charge of this leaves is nothing.
    pub(crate) fn rest(&self) -> Usage {
        let free = |d| self.free_of(d).number().unwrap_or(0);
        let own_cpu = self.own.cpu_ms.number().unwrap_or(0);
        Usage {
            cpu_ms: match self.granted.cpu_ms.number() {
                Some(_) => own_cpu.saturating_add(free(Dimension::CpuMs)),
                None => 0,
            },
            tokens: free(Dimension::Tokens),
            micro_usd: free(Dimension::MicroUsd),
        }
    }

    /// Moves up to `amount` of what the box holds to what is used up; `taken` counts it either way.
    fn own_part(&mut self, dimension: Dimension, amount: u64) -> u64 {
        if dimension != Dimension::CpuMs {
            return 0;
        }
        let Some(own) = self.own.cpu_ms.number() else {
            return 0;
        };
        let part = own.min(amount);
        self.own.cpu_ms = Amount::of(own - part);
        part
    }
}

/// What a child takes from its parent: what it was granted, and itself as one replica. A root is nobody's replica.
pub(crate) fn cost(granted: &Budget, depth: u32) -> Budget {
    let itself = Amount::of(u64::from(depth > 0));
    Budget {
        replicas: granted.replicas.plus(itself),
        ..*granted
    }
}

/// How much of what is left a request that names no amount gets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unnamed {
    /// Half, so that the next child finds something too.
    Half,
    /// All: there may be no second root.
    All,
}

/// What there is not enough of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Of what.
    pub dimension: Dimension,
    /// How much was asked for, where an amount was named.
    pub asked: Option<u64>,
    /// How much is left to give; nothing where there is no bound.
    pub left: Option<u64>,
}

impl Shortage {
    fn of(dimension: Dimension, asked: &Asked, free: &Budget) -> Self {
        Self {
            dimension,
            asked: asked.of(dimension).and_then(|amount| amount.number()),
            left: free.of(dimension).number(),
        }
    }
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.dimension.as_str())?;
        if let Some(asked) = self.asked {
            write!(f, ": {asked} asked,")?;
        } else {
            f.write_str(":")?;
        }
        match self.left {
            Some(left) => write!(f, " {left} left"),
            None => f.write_str(" no bound"),
        }
    }
}

/// The share of `free` that a request gets, or what it has not enough of.
pub(crate) fn carve(
    free: &Budget,
    asked: &Asked,
    need: &Budget,
    unnamed: Unnamed,
    depth: u32,
) -> Result<Share, Shortage> {
    if *free == Budget::UNBOUNDED && *asked == Asked::default() {
        let granted = Budget::UNBOUNDED;
        let own = own_part(&granted, need);
        return Ok(Share { granted, own });
    }
    let mut short = None;
    let granted = Budget::from_fn(|d| {
        // What is left for the child and those below it, once it counts as a replica itself.
        let itself = u64::from(d == Dimension::Replicas && depth > 0);
        let Some(left) = free.of(d).less(Amount::of(itself)) else {
            short = short.or(Some(Shortage::of(d, asked, free)));
            return Amount::ZERO;
        };
        match (asked.of(d), left.number()) {
            (Some(amount), _) => {
                if amount > left {
                    short = short.or(Some(Shortage::of(d, asked, free)));
                }
                amount
            }
            (None, None) => Amount::UNBOUNDED,
            (None, Some(left)) => Amount::of(match (unnamed, need.of(d).number()) {
                (Unnamed::All, _) => left,
                (Unnamed::Half, Some(need)) if need <= left => need.max(left / 2),
                (Unnamed::Half, _) => left / 2,
            }),
        }
    });
    let own = own_part(&granted, need);
    for d in [Dimension::CpuMs, Dimension::MemoryMb, Dimension::Pids] {
        // A box with none of it can't start, so it is refused here, where it can be explained.
        if granted.of(d).is_bounded() && own.of(d) == Amount::ZERO {
            short = short.or(Some(Shortage::of(d, asked, free)));
        }
    }
    match short {
        Some(shortage) if enforced!(BudgetOfRoots, depth == 0) => Err(shortage),
        Some(shortage) if enforced!(BudgetOfParent, depth > 0) => Err(shortage),
        _ => Ok(Share { granted, own }),
    }
}

fn own_part(granted: &Budget, need: &Budget) -> Budget {
    Budget {
        cpu_ms: granted.cpu_ms.min(need.cpu_ms),
        memory_mb: granted.memory_mb.min(need.memory_mb),
        pids: granted.pids.min(need.pids),
        ..Budget::ZERO
    }
}
