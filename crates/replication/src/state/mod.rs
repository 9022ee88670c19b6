//! The state of the family: the fold of its events.

mod ends;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use belljar_policy::{Budget, Contract};
use serde::{Deserialize, Serialize, Serializer};

use crate::account::{Share, Usage, cost};
use crate::event::{Event, Issued, RootAdmitted, Scope, What};
use crate::grants::{Grant, Grants};
use crate::holes::enforced;
use crate::rate::Rate;
use crate::snapshot::Snapshot;
use crate::tree::{Birth, FLEET, NEVER, Status, Tree};
use crate::{BootId, Code, Jti, Now, WorkerId};

/// How many revocations are kept until an operator must bump the epoch instead.
pub const MAX_REVOKED: usize = 65_536;
/// How many of the last ended workers are remembered, for people to look at.
pub const MAX_OBITUARIES: usize = 256;

/// A worker that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Obituary {
    /// Who.
    pub worker: WorkerId,
    /// Whose child it was when it ended.
    pub parent: Option<WorkerId>,
    /// Generations below its root.
    pub depth: u32,
    /// How it ended.
    pub code: Code,
    /// When.
    pub at: Now,
}

/// An event that can't follow the ones before it. The state is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It names a worker that is not alive.
    #[error("worker {0} is not alive")]
    UnknownWorker(WorkerId),
    /// It brings to life a worker that is alive.
    #[error("worker {0} is alive already")]
    DuplicateWorker(WorkerId),
    /// It names a grant that is not outstanding, or is another worker's.
    #[error("grant {0} is not outstanding for this worker")]
    UnknownGrant(Jti),
    /// It issues a grant that is outstanding.
    #[error("grant {0} is outstanding already")]
    DuplicateGrant(Jti),
    /// It gives more than there is.
    #[error("more {} is given than there is", .0.as_str())]
    Overdrawn(belljar_policy::Dimension),
    /// It lets a worker live longer than its parent.
    #[error("worker {0} would outlive its parent")]
    OutlivesParent(WorkerId),
    /// It ends a parent whose children must end first.
    #[error("worker {0} has children that end with it")]
    HasChildren(WorkerId),
    /// Its code says something else than the event.
    #[error("{} does not fit this event", .0.code())]
    WrongCode(Code),
    /// What it changes is so already, or can't become so.
    #[error("the event changes nothing or can't follow")]
    WrongState,
    /// Its time is before the last event's.
    #[error("its boot clock is behind the last event's")]
    BackwardTime,
    /// There is no room for it.
    #[error("more than {MAX_REVOKED} revocations: bump the epoch instead")]
    TooManyRevoked,
}

/// Everything that is known about the family. Only events change it.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Snapshot")]
pub struct State {
    pub(crate) contract: Contract,
    pub(crate) boot: Option<BootId>,
    pub(crate) boot_ns: u64,
    pub(crate) wall_high_ms: u64,
    pub(crate) seq: u64,
    pub(crate) total: u64,
    pub(crate) epoch: u64,
    pub(crate) is_latched: bool,
    pub(crate) is_clock_suspect: bool,
    pub(crate) revoked: BTreeSet<WorkerId>,
    pub(crate) tree: Tree,
    pub(crate) grants: Grants,
    pub(crate) quarantined: u64,
    pub(crate) spent: Usage,
    pub(crate) overdraft: Usage,
    pub(crate) held_memory_mb: u64,
    pub(crate) spawns: Rate,
    pub(crate) denials: Rate,
    pub(crate) ended: VecDeque<Obituary>,
    /// Ended ancestors of workers that outlived their parents, nearest first: so that a kill or a
    /// revocation of the ended one still finds its descendants.
    pub(crate) orphans: BTreeMap<WorkerId, Vec<WorkerId>>,
}

impl Default for State {
    /// Nobody, and a contract that allows nobody.
    fn default() -> Self {
        let contract = Contract::new(0, 0, Duration::ZERO, None);
        Self {
            tree: Tree::new(&fleet_share(&contract.budget)),
            contract,
            boot: None,
            boot_ns: 0,
            wall_high_ms: 0,
            seq: 0,
            total: 0,
            epoch: 0,
            is_latched: false,
            is_clock_suspect: false,
            revoked: BTreeSet::new(),
            grants: Grants::default(),
            quarantined: 0,
            spent: Usage::default(),
            overdraft: Usage::default(),
            held_memory_mb: 0,
            spawns: Rate::default(),
            denials: Rate::default(),
            ended: VecDeque::new(),
            orphans: BTreeMap::new(),
        }
    }
}

impl PartialEq for State {
    /// Equal if their snapshots are: slots and other traces of how it came about do not count.
    fn eq(&self, other: &Self) -> bool {
        Snapshot::from(self) == Snapshot::from(other)
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Snapshot::from(self).serialize(serializer)
    }
}

impl State {
    /// What [`State::default`] is, in the memory that this one has.
    pub(crate) fn emptied(self) -> Self {
        let mut empty = Self::default();
        let Self {
            mut tree,
            mut grants,
            ..
        } = self;
        tree.clear(&fleet_share(&empty.contract.budget));
        grants.clear();
        (empty.tree, empty.grants) = (tree, grants);
        empty
    }

    /// The state after `events`, from a snapshot or from [`State::default`].
    pub fn fold<'a>(mut self, events: impl IntoIterator<Item = &'a Event>) -> Result<Self, Fault> {
        for event in events {
            self.apply(event)?;
        }
        Ok(self)
    }

    /// Takes one event in. Any sequence of events is safe to offer: one that can't follow is an error
    /// and changes nothing.
    pub fn apply(&mut self, event: &Event) -> Result<(), Fault> {
        let at = event.at;
        let is_start = matches!(event.what, What::ControllerStarted { .. });
        if at.boot_ns < self.boot_ns && !is_start {
            return Err(Fault::BackwardTime);
        }
        self.apply_what(at, &event.what)?;
        self.boot_ns = at.boot_ns;
        self.wall_high_ms = self.wall_high_ms.max(at.wall_ms);
        self.seq = self.seq.saturating_add(1);
        Ok(())
    }

    fn apply_what(&mut self, at: Now, what: &What) -> Result<(), Fault> {
        match what {
            What::Issued(issued) => self.issued(issued),
            What::Registered {
                jti,
                worker,
                expires_ns,
            } => self.registered(at, *jti, *worker, expires_ns.unwrap_or(NEVER)),
            What::RootAdmitted(root) => self.root_admitted(at, root),
            What::Refused(refused) if refused.code.is_refusal() => {
                self.denials.add(at.boot_ns);
                Ok(())
            }
            What::Refused(refused) => Err(Fault::WrongCode(refused.code)),
            What::Withdrawn { jti, .. } => match self.grants.withdraw(&mut self.tree, *jti) {
                true => Ok(()),
                false => Err(Fault::UnknownGrant(*jti)),
            },
            What::Started { worker } => self.change(*worker, Status::Starting, Status::Running),
            What::Ended { worker, code } => self.worker_ended(at, *worker, *code),
            What::Quarantined { worker, code } => self.quarantined(*worker, *code),
            What::Released { worker } => {
                self.change(*worker, Status::Quarantined, Status::Running)?;
                self.quarantined -= 1;
                Ok(())
            }
            What::UsageReported { worker, usage, .. } => self.used(*worker, usage),
            What::StopConditionTriggered { .. } => Ok(()),
            _ => self.apply_operator(at, what),
        }
    }

    /// What an operator, the clock or a restart brings about.
    fn apply_operator(&mut self, at: Now, what: &What) -> Result<(), Fault> {
        match what {
            What::ControllerStarted { boot } => self.controller_started(at, *boot),
            What::ContractSet { contract } => {
                self.tree.account_mut(FLEET).granted = contract.budget;
                self.contract = (**contract).clone();
            }
            What::KillSwitchEngaged { scope } => {
                self.is_latched |= *scope == Scope::Fleet;
            }
            What::KillSwitchReset {} if self.is_latched => self.is_latched = false,
            What::Revoked { worker } => {
                if self.revoked.len() >= MAX_REVOKED && !self.revoked.contains(worker) {
                    return Err(Fault::TooManyRevoked);
                }
                self.revoked.insert(*worker);
            }
            What::EpochBumped { epoch } if *epoch > self.epoch => {
                self.epoch = *epoch;
                // Whatever was revoked is of an older epoch now.
                self.revoked.clear();
                self.drop_grants();
            }
            What::ClockJumped { by_ms } => self.is_clock_suspect |= *by_ms < 0,
            What::ClockAcknowledged {} if self.is_clock_suspect => {
                self.is_clock_suspect = false;
                self.wall_high_ms = at.wall_ms;
            }
            _ => return Err(Fault::WrongState),
        }
        Ok(())
    }

    fn issued(&mut self, issued: &Issued) -> Result<(), Fault> {
        let parent = self
            .tree
            .find(issued.parent)
            .ok_or(Fault::UnknownWorker(issued.parent))?;
        if self.grants.find(issued.jti).is_some() {
            return Err(Fault::DuplicateGrant(issued.jti));
        }
        let depth = self.tree.node(parent).depth.saturating_add(1);
        check_share(&issued.share, depth, &self.tree.account(parent).free())?;
        let grant = Grant::new(
            issued.jti,
            issued.worker,
            parent,
            depth,
            issued.share,
            issued.lapses_ns,
        );
        self.grants.insert(&mut self.tree, grant);
        Ok(())
    }

    fn registered(
        &mut self,
        at: Now,
        jti: Jti,
        worker: WorkerId,
        expires_ns: u64,
    ) -> Result<(), Fault> {
        let grant = self.grants.find(jti).filter(|grant| grant.worker == worker);
        let grant = grant.ok_or(Fault::UnknownGrant(jti))?;
        if enforced!(Duplicate, self.tree.find(worker).is_some()) {
            return Err(Fault::DuplicateWorker(worker));
        }
        let above = grant.parent;
        let parent = self.tree.node_mut(above);
        if enforced!(ExpiryOfParent, expires_ns > parent.expires_ns) {
            return Err(Fault::OutlivesParent(worker));
        }
        parent.last_child_ns = at.boot_ns.min(NEVER - 1);
        let (depth, share) = (grant.depth, grant.share);
        if enforced!(SingleUse, true) {
            self.grants.remove(&mut self.tree, jti);
        }
        let birth = Birth {
            depth,
            share: &share,
            registered_ns: at.boot_ns,
            expires_ns,
        };
        self.born(worker, &birth, above);
        Ok(())
    }

    fn root_admitted(&mut self, at: Now, root: &RootAdmitted) -> Result<(), Fault> {
        if enforced!(Duplicate, self.tree.find(root.worker).is_some()) {
            return Err(Fault::DuplicateWorker(root.worker));
        }
        let fleet = self.tree.account_mut(FLEET);
        check_share(&root.share, 0, &fleet.free())?;
        fleet.take(&cost(&root.share.granted, 0));
        let birth = Birth {
            depth: 0,
            share: &root.share,
            registered_ns: at.boot_ns,
            expires_ns: root.expires_ns.unwrap_or(NEVER),
        };
        self.born(root.worker, &birth, FLEET);
        Ok(())
    }

    fn born(&mut self, worker: WorkerId, birth: &Birth<'_>, parent: u32) {
        let memory = birth.share.own.memory_mb.number().unwrap_or(0);
        self.held_memory_mb = self.held_memory_mb.wrapping_add(memory);
        self.tree.insert(worker, birth, parent);
        self.total = self.total.saturating_add(1);
        self.spawns.add(birth.registered_ns);
    }

    fn change(&mut self, worker: WorkerId, from: Status, to: Status) -> Result<(), Fault> {
        let slot = self.tree.find(worker).ok_or(Fault::UnknownWorker(worker))?;
        if enforced!(ThawOnlyByOperator, self.tree.status(slot) != Some(from)) {
            return Err(Fault::WrongState);
        }
        self.tree.set_status(slot, to);
        Ok(())
    }

    fn quarantined(&mut self, worker: WorkerId, code: Code) -> Result<(), Fault> {
        if !code.is_quarantine() {
            return Err(Fault::WrongCode(code));
        }
        let slot = self.tree.find(worker).ok_or(Fault::UnknownWorker(worker))?;
        if self.tree.status(slot) == Some(Status::Quarantined) {
            return Err(Fault::WrongState);
        }
        self.tree.set_status(slot, Status::Quarantined);
        self.quarantined += 1;
        Ok(())
    }

    fn used(&mut self, worker: WorkerId, usage: &Usage) -> Result<(), Fault> {
        let slot = self.tree.find(worker).ok_or(Fault::UnknownWorker(worker))?;
        let excess = self.tree.account_mut(slot).charge(usage);
        self.spent = self.spent.plus(usage);
        self.overdraft = self.overdraft.plus(&excess);
        Ok(())
    }
}

/// The account that roots are carved from.
pub(crate) fn fleet_share(budget: &Budget) -> Share {
    Share {
        granted: *budget,
        own: Budget::ZERO,
    }
}

/// A share must be there, and the box's own part within it.
pub(crate) fn check_share(share: &Share, depth: u32, free: &Budget) -> Result<(), Fault> {
    let is_checked = match depth {
        0 => enforced!(BudgetOfRoots, true),
        _ => enforced!(BudgetOfParent, true),
    };
    if is_checked {
        if *free != Budget::UNBOUNDED {
            let price = cost(&share.granted, depth);
            price.within(free).map_err(Fault::Overdrawn)?;
        }
        share.own.within(&share.granted).map_err(Fault::Overdrawn)?;
    }
    Ok(())
}
