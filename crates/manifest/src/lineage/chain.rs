//! From a root to a leaf: each manifest follows the one above it and has no more.

use std::collections::BTreeSet;
use std::fmt;

use belljar_policy::{Amount, Budget};

use super::capability_document::CapabilityDocument;
use super::envelope::{Envelope, Verified};
use super::ids::WorkerId;
use super::payload::{ParentLink, Payload};
use super::rejection::{RejectReason, Rejection};
use crate::contract_file::MAX_GENERATIONS;
use crate::keys::Keyset;

/// The most manifests a chain may have: a root and every generation below it.
pub const MAX_CHAIN: usize = MAX_GENERATIONS as usize + 1;

/// What was revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocations {
    workers: BTreeSet<WorkerId>,
    min_epoch: u64,
}

impl Revocations {
    /// Nothing is revoked.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Revokes a worker's manifest, and with it every manifest below.
    pub fn revoke(&mut self, worker: WorkerId) {
        self.workers.insert(worker);
    }

    /// Revokes every manifest of an epoch before this one. It can't be lowered again.
    pub fn revoke_before(&mut self, epoch: u64) {
        self.min_epoch = self.min_epoch.max(epoch);
    }

    /// Whether this worker itself was revoked. Its ancestors may have been.
    #[must_use]
    pub fn contains(&self, worker: WorkerId) -> bool {
        self.workers.contains(&worker)
    }

    /// The epoch before which everything is revoked.
    #[must_use]
    pub fn min_epoch(&self) -> u64 {
        self.min_epoch
    }
}

/// Where a chain breaks, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the manifest at depth {at} of the chain is refused")]
pub struct ChainFault {
    /// The index of the manifest, counted from the root.
    pub at: usize,
    /// Why it is refused.
    #[source]
    pub rejection: Rejection,
}

/// A chain that holds, from a root to a leaf. It comes from [`verify_chain`] and nowhere else.
#[derive(Clone, Debug)]
pub struct VerifiedChain {
    above: Vec<Verified>,
    leaf: Verified,
}

impl VerifiedChain {
    /// The manifest the chain is about.
    #[must_use]
    pub fn leaf(&self) -> &Verified {
        &self.leaf
    }

    /// Every manifest, the root first.
    pub fn iter(&self) -> impl Iterator<Item = &Verified> {
        self.above.iter().chain([&self.leaf])
    }
}

/// Verifies a whole chain, the root first: every signature, time, epoch and revocation, and every link.
///
/// # Errors
/// The first manifest that is refused. An empty chain is refused at 0.
pub fn verify_chain(
    chain: &[Envelope],
    keys: &Keyset,
    revocations: &Revocations,
    epoch: u64,
    now_ms: u64,
) -> Result<VerifiedChain, ChainFault> {
    if chain.len() > MAX_CHAIN {
        let rejection = refuse("the chain is longer than any family may be deep");
        return Err(ChainFault {
            at: MAX_CHAIN,
            rejection,
        });
    }
    let mut above: Vec<Verified> = Vec::with_capacity(chain.len());
    for (at, envelope) in chain.iter().enumerate() {
        let checked = envelope.open(keys).and_then(|manifest| {
            check_standing(&manifest, revocations, epoch, now_ms)?;
            check_place(&above, &manifest)?;
            Ok(manifest)
        });
        above.push(checked.map_err(|rejection| ChainFault { at, rejection })?);
    }
    match above.pop() {
        Some(leaf) => Ok(VerifiedChain { above, leaf }),
        None => Err(ChainFault {
            at: 0,
            rejection: refuse("the chain is empty"),
        }),
    }
}

fn check_standing(
    manifest: &Verified,
    revocations: &Revocations,
    epoch: u64,
    now_ms: u64,
) -> Result<(), Rejection> {
    if revocations.contains(manifest.worker()) {
        let detail = format!("the worker {} is revoked", manifest.worker());
        return Err(Rejection::new(RejectReason::Revoked, detail));
    }
    // Whichever of the two the caller heard of last counts.
    manifest.check_epoch(epoch.max(revocations.min_epoch()))?;
    manifest.check_time(now_ms)
}

fn check_place(above: &[Verified], manifest: &Verified) -> Result<(), Rejection> {
    let Some(parent) = above.last() else {
        return match manifest.payload().parent {
            None => Ok(()),
            Some(_) => Err(refuse("the chain does not start at a root")),
        };
    };
    let (worker, jti) = (manifest.worker(), manifest.payload().jti);
    if above
        .iter()
        .any(|own| own.worker() == worker || own.payload().jti == jti)
    {
        return Err(refuse("a worker or an issue is in the chain twice"));
    }
    check_link(parent, manifest)
}

/// Checks that `child` follows `parent` and has no more than it in any dimension.
///
/// That its siblings leave enough of the budget is not a matter of two manifests; the controller keeps that account.
///
/// # Errors
/// `reject_chain` or `reject_epoch` when it does not follow, `reject_attenuation` when it has more.
pub fn check_link(parent: &Verified, child: &Verified) -> Result<(), Rejection> {
    // Taken apart whole: a field that nobody compares must not compile.
    let Payload {
        parent: link,
        depth,
        depth_ceiling,
        seq,
        epoch,
        expires_ms,
        capability,
        budget,
        // Each manifest's own: they name it, or say what it is for.
        worker: _,
        jti: _,
        not_before_ms: _,
        program: _,
        state: _,
        policy: _,
        reason: _,
    } = child.payload();
    check_descent(parent, *link, (*depth, *seq, *epoch))?;
    check_numbers(parent.payload(), *depth_ceiling, *expires_ms, budget)?;
    check_capability(&parent.payload().capability, capability)
}

fn check_descent(
    parent: &Verified,
    link: Option<ParentLink>,
    (depth, seq, epoch): (u32, u64, u64),
) -> Result<(), Rejection> {
    let above = parent.payload();
    let Some(link) = link else {
        return Err(refuse("a root follows nobody"));
    };
    if link.worker != above.worker {
        return Err(refuse("the manifest names another parent"));
    }
    if link.envelope != parent.digest() {
        return Err(refuse("the manifest names another manifest of its parent"));
    }
    if above.depth.checked_add(1) != Some(depth) {
        return Err(refuse("the depth is not the parent's and one"));
    }
    if seq <= above.seq {
        return Err(refuse("the manifest was issued before its parent's"));
    }
    if epoch < above.epoch {
        let detail = "the manifest is of an older epoch than its parent's";
        return Err(Rejection::new(RejectReason::Epoch, detail));
    }
    Ok(())
}

fn check_numbers(
    above: &Payload,
    depth_ceiling: u32,
    expires_ms: Option<u64>,
    budget: &Budget,
) -> Result<(), Rejection> {
    if depth_ceiling > above.depth_ceiling {
        return Err(exceeds("depth ceiling"));
    }
    // A child that never ends outlives a parent that does.
    let end = |expires: Option<u64>| expires.unwrap_or(u64::MAX);
    if end(expires_ms) > end(above.expires_ms) {
        return Err(exceeds("time"));
    }
    if let Err(dimension) = budget.within(&above.budget) {
        return Err(exceeds(format!("budget of {}", dimension.as_str())));
    }
    // The child itself is one of its parent's replicas.
    let replicas = budget.replicas.plus(Amount::of(1));
    if replicas > above.budget.replicas {
        return Err(exceeds("budget of replicas"));
    }
    Ok(())
}

fn check_capability(
    above: &CapabilityDocument,
    below: &CapabilityDocument,
) -> Result<(), Rejection> {
    // Comparing costs more than a signature, and the same document is within itself.
    if above.digest() == below.digest() {
        return Ok(());
    }
    // Rules are compared as the paths they come to, which is only fair at the same places.
    if above.places() != below.places() {
        return Err(exceeds("set of places"));
    }
    let compared = above
        .capability()
        .attenuate(below.capability(), above.places());
    match compared {
        Ok(()) => Ok(()),
        Err(excesses) => {
            let first = excesses.first().map(ToString::to_string);
            let detail = first.unwrap_or_default();
            Err(Rejection::new(RejectReason::Attenuation, detail))
        }
    }
}

fn refuse(detail: &'static str) -> Rejection {
    Rejection::new(RejectReason::Chain, detail)
}

fn exceeds(what: impl fmt::Display) -> Rejection {
    let detail = format!("the manifest's {what} exceeds its parent's");
    Rejection::new(RejectReason::Attenuation, detail)
}
