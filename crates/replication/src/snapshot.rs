//! A state as plain data, to be stored. What comes back in is checked as events are.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use belljar_policy::{Amount, Budget, Contract, Dimension};
use serde::{Deserialize, Serialize};

use crate::account::{Account, Share, Usage, cost};
use crate::grants::{Grant, Grants};
use crate::rate::Rate;
use crate::state::{MAX_OBITUARIES, MAX_REVOKED, Obituary, State, check_share, fleet_share};
use crate::tree::{Birth, FLEET, NEVER, NONE, Status, Tree};
use crate::{BootId, Fault, Jti, WorkerId};

/// Every field of [`State`], without links and counters that follow from the rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Snapshot {
    v: crate::event::Version,
    contract: Contract,
    boot: Option<BootId>,
    boot_ns: u64,
    wall_high_ms: u64,
    seq: u64,
    total: u64,
    epoch: u64,
    is_latched: bool,
    is_clock_suspect: bool,
    revoked: BTreeSet<WorkerId>,
    spent: Usage,
    overdraft: Usage,
    /// What ended roots used up of the contract's budget.
    fleet_used: Usage,
    spawns: Rate,
    denials: Rate,
    ended: VecDeque<Obituary>,
    orphans: BTreeMap<WorkerId, Vec<WorkerId>>,
    /// Each before its own children, siblings newest first.
    workers: Vec<WorkerRecord>,
    /// By number.
    grants: Vec<GrantRecord>,
}

/// A worker. There may be a million of them, so names are left out where they are written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "WorkerRow", into = "WorkerRow")]
struct WorkerRecord {
    id: WorkerId,
    /// The parent's place in the list; roots have none.
    parent: Option<u32>,
    depth: u32,
    status: Status,
    share: Share,
    used: Usage,
    registered_ns: u64,
    expires_ns: Option<u64>,
    last_child_ns: Option<u64>,
}

/// The fields of a [`WorkerRecord`] in their order; budgets and usage by dimension.
type WorkerRow = (
    WorkerId,
    Option<u32>,
    u32,
    Status,
    [Amount; 6],
    [Amount; 6],
    [u64; 3],
    u64,
    Option<u64>,
    Option<u64>,
);

impl From<WorkerRecord> for WorkerRow {
    fn from(record: WorkerRecord) -> Self {
        (
            record.id,
            record.parent,
            record.depth,
            record.status,
            Dimension::ALL.map(|d| record.share.granted.of(d)),
            Dimension::ALL.map(|d| record.share.own.of(d)),
            [
                record.used.cpu_ms,
                record.used.tokens,
                record.used.micro_usd,
            ],
            record.registered_ns,
            record.expires_ns,
            record.last_child_ns,
        )
    }
}

impl From<WorkerRow> for WorkerRecord {
    fn from(row: WorkerRow) -> Self {
        let (id, parent, depth, status, granted, own, used, registered_ns, expires_ns, last) = row;
        let [cpu_ms, tokens, micro_usd] = used;
        Self {
            id,
            parent,
            depth,
            status,
            share: Share {
                granted: Budget::from_fn(|d| granted[d as usize]),
                own: Budget::from_fn(|d| own[d as usize]),
            },
            used: Usage {
                cpu_ms,
                tokens,
                micro_usd,
            },
            registered_ns,
            expires_ns,
            last_child_ns: last,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantRecord {
    jti: Jti,
    worker: WorkerId,
    parent: WorkerId,
    share: Share,
    lapses_ns: u64,
}

impl From<&State> for Snapshot {
    fn from(state: &State) -> Self {
        let order = state.tree.in_order();
        let mut places = vec![NONE; state.tree.slots()];
        for (place, slot) in (0..).zip(&order) {
            places[*slot as usize] = place;
        }
        let workers = order
            .into_iter()
            .map(|slot| {
                let parent = state.tree.parent(slot);
                let parent = (parent != FLEET).then(|| places[parent as usize]);
                record(&state.tree, slot, parent)
            })
            .collect();
        let mut grants: Vec<_> = state
            .grants
            .iter()
            .map(|grant| GrantRecord {
                jti: grant.jti,
                worker: grant.worker,
                parent: state.tree.id(grant.parent),
                share: grant.share,
                lapses_ns: grant.lapses_ns,
            })
            .collect();
        grants.sort_by_key(|grant| grant.jti);
        Self {
            v: crate::event::Version,
            fleet_used: state.tree.account(FLEET).used,
            contract: state.contract.clone(),
            boot: state.boot,
            boot_ns: state.boot_ns,
            wall_high_ms: state.wall_high_ms,
            seq: state.seq,
            total: state.total,
            epoch: state.epoch,
            is_latched: state.is_latched,
            is_clock_suspect: state.is_clock_suspect,
            revoked: state.revoked.clone(),
            spent: state.spent,
            overdraft: state.overdraft,
            spawns: state.spawns.clone(),
            denials: state.denials.clone(),
            ended: state.ended.clone(),
            orphans: state.orphans.clone(),
            workers,
            grants,
        }
    }
}

fn record(tree: &Tree, slot: u32, parent: Option<u32>) -> WorkerRecord {
    let (node, account) = (tree.node(slot), tree.account(slot));
    WorkerRecord {
        id: tree.id(slot),
        parent,
        depth: node.depth,
        status: tree.status(slot).unwrap_or(Status::Starting),
        share: Share {
            granted: account.granted,
            own: account.own,
        },
        used: account.used,
        registered_ns: tree.registered_ns(slot),
        expires_ns: (node.expires_ns != NEVER).then_some(node.expires_ns),
        last_child_ns: (node.last_child_ns != NEVER).then_some(node.last_child_ns),
    }
}

impl TryFrom<Snapshot> for State {
    type Error = Fault;

    fn try_from(snapshot: Snapshot) -> Result<Self, Fault> {
        let sizes = snapshot.revoked.len() <= MAX_REVOKED && snapshot.ended.len() <= MAX_OBITUARIES;
        if !sizes || !snapshot.spawns.is_sound() || !snapshot.denials.is_sound() {
            return Err(Fault::WrongState);
        }
        let mut tree = Tree::new(&fleet_share(&snapshot.contract.budget));
        tree.inherit(FLEET, &snapshot.fleet_used);
        let mut quarantined = 0;
        let mut held_memory_mb = 0u64;
        let mut slots = Vec::with_capacity(snapshot.workers.len());
        for record in &snapshot.workers {
            slots.push(restore(&mut tree, &slots, record)?);
            quarantined += u64::from(record.status == Status::Quarantined);
            held_memory_mb =
                held_memory_mb.wrapping_add(record.share.own.memory_mb.number().unwrap_or(0));
        }
        // Each went in front of the ones before it; the order of a snapshot is the other way round.
        for slot in tree.in_order().into_iter().chain([FLEET]) {
            let children: Vec<u32> = tree.children(slot).collect();
            for child in children {
                tree.unlink(child);
                tree.link(child, slot);
            }
        }
        let mut grants = Grants::default();
        for record in &snapshot.grants {
            restore_grant(&mut tree, &mut grants, record)?;
        }
        Ok(Self {
            contract: snapshot.contract,
            boot: snapshot.boot,
            boot_ns: snapshot.boot_ns,
            wall_high_ms: snapshot.wall_high_ms,
            seq: snapshot.seq,
            total: snapshot.total,
            epoch: snapshot.epoch,
            is_latched: snapshot.is_latched,
            is_clock_suspect: snapshot.is_clock_suspect,
            revoked: snapshot.revoked,
            tree,
            grants,
            quarantined,
            spent: snapshot.spent,
            overdraft: snapshot.overdraft,
            held_memory_mb,
            spawns: snapshot.spawns,
            denials: snapshot.denials,
            ended: snapshot.ended,
            orphans: snapshot.orphans,
        })
    }
}

/// Puts a worker in; those before it in the list are in these slots.
fn restore(tree: &mut Tree, slots: &[u32], record: &WorkerRecord) -> Result<u32, Fault> {
    if tree.find(record.id).is_some() {
        return Err(Fault::DuplicateWorker(record.id));
    }
    let parent = match record.parent {
        Some(place) => *slots.get(place as usize).ok_or(Fault::WrongState)?,
        None => FLEET,
    };
    let above = tree.node(parent);
    let expires_ns = record.expires_ns.unwrap_or(NEVER);
    if parent != FLEET && record.depth <= above.depth {
        return Err(Fault::WrongState);
    }
    if parent != FLEET && expires_ns > above.expires_ns {
        return Err(Fault::OutlivesParent(record.id));
    }
    let price = cost(&record.share.granted, record.depth);
    // A contract that was narrowed does not take back what roots hold already.
    if parent != FLEET {
        check_share(&record.share, record.depth, &tree.account(parent).free())?;
    }
    check_used(record)?;
    tree.take(parent, &price);
    let birth = Birth {
        depth: record.depth,
        share: &record.share,
        registered_ns: record.registered_ns,
        expires_ns,
    };
    let slot = tree.insert(record.id, &birth, parent);
    tree.set_status(slot, record.status);
    tree.node_mut(slot).last_child_ns = record.last_child_ns.unwrap_or(NEVER);
    tree.inherit(slot, &record.used);
    Ok(slot)
}

/// What is used up was there, besides what the box holds.
fn check_used(record: &WorkerRecord) -> Result<(), Fault> {
    let account = Account::new(&record.share);
    for d in Dimension::ALL {
        if Amount::of(record.used.of(d)) > account.free_of(d) {
            return Err(Fault::Overdrawn(d));
        }
    }
    Ok(())
}

fn restore_grant(tree: &mut Tree, grants: &mut Grants, record: &GrantRecord) -> Result<(), Fault> {
    if grants.find(record.jti).is_some() {
        return Err(Fault::DuplicateGrant(record.jti));
    }
    let parent = tree
        .find(record.parent)
        .ok_or(Fault::UnknownWorker(record.parent))?;
    let depth = tree.node(parent).depth.saturating_add(1);
    check_share(&record.share, depth, &tree.account(parent).free())?;
    grants.insert(
        tree,
        Grant::new(
            record.jti,
            record.worker,
            parent,
            depth,
            record.share,
            record.lapses_ns,
        ),
    );
    Ok(())
}
