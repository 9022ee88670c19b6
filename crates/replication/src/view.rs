//! The state as people and interfaces see it.

use belljar_policy::{Budget, Contract};
use serde::Serialize;

use crate::account::{Share, Usage};
use crate::state::{Obituary, State};
use crate::tree::{FLEET, NEVER, Status};
use crate::{Jti, WorkerId};

/// A live worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerView {
    /// Who.
    pub id: WorkerId,
    /// The live worker it is charged to; none for roots, and for those whose ancestors all ended.
    pub parent: Option<WorkerId>,
    /// Generations below its root.
    pub depth: u32,
    /// How it is.
    pub status: Status,
    /// How many live children it has.
    pub children: u32,
    /// What it and those below it may use together.
    pub granted: Budget,
    /// What its box holds.
    pub own: Budget,
    /// What it can still give or use.
    pub free: Budget,
    /// What it and those below it that ended have used up.
    pub used: Usage,
    /// When it was registered, on the boot clock.
    pub registered_ns: u64,
    /// When its time is over, on the boot clock.
    pub expires_ns: Option<u64>,
}

/// A grant that nobody has registered with yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GrantView {
    /// Its number.
    pub jti: Jti,
    /// The worker to be.
    pub worker: WorkerId,
    /// Its parent.
    pub parent: WorkerId,
    /// What it gets.
    pub share: Share,
    /// When it lapses, on the boot clock.
    pub lapses_ns: u64,
}

impl State {
    /// The contract that holds.
    #[must_use]
    pub fn contract(&self) -> &Contract {
        &self.contract
    }

    /// How many events were folded.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The epoch whose manifests are accepted.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Workers whose manifests of this epoch are revoked.
    pub fn revoked(&self) -> impl Iterator<Item = WorkerId> {
        self.revoked.iter().copied()
    }

    /// Whether the fleet's kill switch is engaged.
    #[must_use]
    pub fn is_kill_switch_engaged(&self) -> bool {
        self.is_latched
    }

    /// Whether the clock was turned back and nobody has acknowledged it.
    #[must_use]
    pub fn is_clock_suspect(&self) -> bool {
        self.is_clock_suspect
    }

    /// The latest time the wall clock has shown, in milliseconds since 1970.
    #[must_use]
    pub fn wall_high_ms(&self) -> u64 {
        self.wall_high_ms
    }

    /// How many workers are alive.
    #[must_use]
    pub fn live(&self) -> usize {
        self.tree.len()
    }

    /// How many workers were ever registered.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// How many workers are in quarantine.
    #[must_use]
    pub fn quarantined_count(&self) -> u64 {
        self.quarantined
    }

    /// How many grants are outstanding.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.grants.len()
    }

    /// What all workers have used up, ended ones included.
    #[must_use]
    pub fn spent(&self) -> Usage {
        self.spent
    }

    /// What workers used beyond what they had.
    #[must_use]
    pub fn overdraft(&self) -> Usage {
        self.overdraft
    }

    /// What is left of the contract's budget for another root.
    #[must_use]
    pub fn free(&self) -> Budget {
        self.tree.account(FLEET).free()
    }

    /// The last workers that ended, oldest first.
    pub fn ended(&self) -> impl Iterator<Item = &Obituary> {
        self.ended.iter()
    }

    /// A live worker.
    #[must_use]
    pub fn worker(&self, id: WorkerId) -> Option<WorkerView> {
        self.tree.find(id).map(|slot| self.view(slot))
    }

    /// What is left of the contract's budget for another root.
    #[must_use]
    pub fn free_of_fleet(&self) -> Budget {
        self.tree.account(crate::tree::FLEET).free()
    }

    /// The live workers, each before its children: with `parent` and `depth`, the family tree.
    pub fn workers(&self) -> impl Iterator<Item = WorkerView> {
        self.tree.in_order().into_iter().map(|slot| self.view(slot))
    }

    /// A live worker and everyone below it, each before its children. Empty if it is not alive.
    #[must_use]
    pub fn subtree(&self, id: WorkerId) -> Vec<WorkerView> {
        let slots = self.tree.find(id).map(|slot| self.tree.subtree(slot));
        slots
            .unwrap_or_default()
            .into_iter()
            .map(|slot| self.view(slot))
            .collect()
    }

    /// The children of a live worker, newest first.
    pub fn children(&self, id: WorkerId) -> impl Iterator<Item = WorkerView> {
        let slot = self.tree.find(id);
        slot.into_iter()
            .flat_map(|slot| self.tree.children(slot))
            .map(|slot| self.view(slot))
    }

    /// The grants outstanding, in no order.
    pub fn grants(&self) -> impl Iterator<Item = GrantView> {
        self.grants.iter().map(|grant| GrantView {
            jti: grant.jti,
            worker: grant.worker,
            parent: self.tree.id(grant.parent),
            share: grant.share,
            lapses_ns: grant.lapses_ns,
        })
    }

    fn view(&self, slot: u32) -> WorkerView {
        let node = self.tree.node(slot);
        let account = self.tree.account(slot);
        let parent = self.tree.parent(slot);
        WorkerView {
            id: self.tree.id(slot),
            parent: (parent != FLEET).then(|| self.tree.id(parent)),
            depth: node.depth,
            status: self.tree.status(slot).unwrap_or(Status::Starting),
            children: node.children,
            granted: account.granted,
            own: account.own,
            free: account.free(),
            used: account.used,
            registered_ns: self.tree.registered_ns(slot),
            expires_ns: (node.expires_ns != NEVER).then_some(node.expires_ns),
        }
    }
}
