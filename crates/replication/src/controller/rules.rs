//! Every rule of the contract, in one order: at the grant, and again at the registration.

use std::time::Duration;

use super::{Controller, nanoseconds};
use crate::account::{Share, Unnamed, carve};
use crate::holes::enforced;
use crate::outcome::{About, Denial, ManifestFacts, Request, RootRequest};
use crate::tree::{FLEET, NEVER, Node, Status};
use crate::{Code, Now, WorkerId};

impl Controller {
    pub(super) fn may_admit(&self, request: &RootRequest) -> Result<Share, Denial> {
        let state = &self.state;
        if enforced!(LatchAtRoot, state.is_latched) {
            return Err(Code::DenyKillSwitch.into());
        }
        self.check_fence()?;
        if state.is_clock_suspect {
            return Err(Code::DenyClock.into());
        }
        if enforced!(RevokedAtRegister, state.revoked.contains(&request.worker)) {
            return Err(Code::RejectRevoked.into());
        }
        if enforced!(Duplicate, state.tree.find(request.worker).is_some()) {
            return Err(Code::DenyDuplicate.into());
        }
        let promised = state.tree.len() + state.grants.len();
        if enforced!(
            QuotaAtRoot,
            promised >= state.contract.max_replicas as usize
        ) {
            return Err(Code::DenyQuota.into());
        }
        self.check_conditions(None)?;
        let free = state.tree.account(FLEET).free();
        carve(&free, &request.asked, &request.need, Unnamed::All, 0)
            .map_err(|short| Denial::about(Code::DenyBudget, About::Short(short)))
    }

    pub(super) fn may_issue(
        &self,
        now: Now,
        request: &Request,
    ) -> Result<(Share, u32, u64), Denial> {
        let state = &self.state;
        if enforced!(LatchAtIssue, state.is_latched) {
            return Err(Code::DenyKillSwitch.into());
        }
        self.check_fence()?;
        if enforced!(ClockAtIssue, state.is_clock_suspect) {
            return Err(Code::DenyClock.into());
        }
        let slot = match state.tree.find(request.parent) {
            Some(slot) => slot,
            None if enforced!(ParentUnknownAtIssue, true) => {
                return Err(Code::DenyParentUnknown.into());
            }
            None => FLEET,
        };
        if state.grants.find(request.jti).is_some()
            || enforced!(Duplicate, state.tree.find(request.worker).is_some())
        {
            return Err(Code::DenyDuplicate.into());
        }
        let parent = state.tree.node(slot);
        if enforced!(
            QuarantineAtIssue,
            state.tree.status(slot) == Some(Status::Quarantined)
        ) {
            return Err(Code::DenyQuarantined.into());
        }
        if enforced!(ExpiryAtIssue, parent.expires_ns <= now.boot_ns) {
            return Err(Code::DenyExpired.into());
        }
        let depth = parent.depth.saturating_add(1);
        if enforced!(
            DepthSpoofAtIssue,
            request
                .claimed_depth
                .is_some_and(|claimed| claimed != depth)
        ) {
            return Err(Code::DenyDepthSpoof.into());
        }
        if enforced!(DepthAtIssue, depth > state.contract.max_depth) {
            return Err(Code::DenyDepth.into());
        }
        let promised = state.tree.len() + state.grants.len();
        if enforced!(
            QuotaAtIssue,
            promised >= state.contract.max_replicas as usize
        ) {
            return Err(Code::DenyQuota.into());
        }
        if let Some(wait) = self.cooldown_left(parent, now.boot_ns)
            && enforced!(CooldownAtIssue, true)
        {
            return Err(Denial::about(Code::DenyCooldown, About::Wait(wait)));
        }
        if enforced!(StopAtIssue, true) {
            self.check_conditions(Some((slot, now.boot_ns)))?;
        }
        let share = carve(
            &state.tree.account(slot).free(),
            &request.asked,
            &request.need,
            Unnamed::Half,
            depth,
        )
        .map_err(|short| Denial::about(Code::DenyBudget, About::Short(short)))?;
        Ok((share, depth, self.expiry(now.boot_ns, parent.expires_ns)))
    }

    pub(super) fn may_register(
        &self,
        now: Now,
        manifest: &ManifestFacts,
    ) -> Result<(Share, u32, u64), Denial> {
        let state = &self.state;
        if enforced!(LatchAtRegister, state.is_latched) {
            return Err(Code::DenyKillSwitch.into());
        }
        self.check_fence()?;
        if enforced!(ClockAtRegister, state.is_clock_suspect) {
            return Err(Code::DenyClock.into());
        }
        if enforced!(Epoch, manifest.epoch != state.epoch) {
            return Err(Code::RejectEpoch.into());
        }
        let is_revoked = |id| !state.revoked.is_empty() && state.revoked.contains(&id);
        if enforced!(
            RevokedAtRegister,
            is_revoked(manifest.worker) || is_revoked(manifest.parent)
        ) {
            return Err(Code::RejectRevoked.into());
        }
        if enforced!(
            ParentUnknownAtRegister,
            state.tree.find(manifest.parent).is_none()
        ) {
            return Err(Code::DenyParentUnknown.into());
        }
        let grant = state.grants.find(manifest.jti).ok_or(Code::RejectReplay)?;
        let parent = state.tree.node(grant.parent);
        let is_same = manifest.worker == grant.worker
            && manifest.parent == state.tree.id(grant.parent)
            && manifest.granted == grant.share.granted;
        if enforced!(Mismatch, !is_same) {
            return Err(Code::RejectMismatch.into());
        }
        if enforced!(DepthSpoofAtRegister, manifest.depth != grant.depth) {
            return Err(Code::DenyDepthSpoof.into());
        }
        if enforced!(GrantLapseAtRegister, grant.lapses_ns <= now.boot_ns) {
            return Err(Code::DenyExpired.into());
        }
        self.check_entry(now, manifest.worker, grant.parent, grant.depth)?;
        if enforced!(StopAtRegister, true) {
            self.check_conditions(Some((grant.parent, now.boot_ns)))?;
        }
        Ok((
            grant.share,
            grant.depth,
            self.expiry(now.boot_ns, parent.expires_ns),
        ))
    }

    /// What may have changed between the grant and the registration.
    fn check_entry(
        &self,
        now: Now,
        worker: WorkerId,
        above: u32,
        depth: u32,
    ) -> Result<(), Denial> {
        let state = &self.state;
        let parent = state.tree.node(above);
        if enforced!(Duplicate, state.tree.find(worker).is_some()) {
            return Err(Code::DenyDuplicate.into());
        }
        if enforced!(
            QuarantineAtRegister,
            state.tree.status(above) == Some(Status::Quarantined)
        ) {
            return Err(Code::DenyQuarantined.into());
        }
        if enforced!(ExpiryAtRegister, parent.expires_ns <= now.boot_ns) {
            return Err(Code::DenyExpired.into());
        }
        if enforced!(DepthAtRegister, depth > state.contract.max_depth) {
            return Err(Code::DenyDepth.into());
        }
        if enforced!(
            QuotaAtRegister,
            state.tree.len() >= state.contract.max_replicas as usize
        ) {
            return Err(Code::DenyQuota.into());
        }
        match self.cooldown_left(parent, now.boot_ns) {
            Some(wait) if enforced!(CooldownAtRegister, true) => {
                Err(Denial::about(Code::DenyCooldown, About::Wait(wait)))
            }
            _ => Ok(()),
        }
    }

    /// How long a parent must still wait. A wait of exactly the cooldown is enough.
    fn cooldown_left(&self, parent: &Node, now_ns: u64) -> Option<u64> {
        let last_ns = Some(parent.last_child_ns).filter(|ns| *ns != NEVER)?;
        let over_ns = last_ns.saturating_add(nanoseconds(self.state.contract.cooldown));
        (now_ns < over_ns).then(|| over_ns - now_ns)
    }

    /// When a worker's time is over that registers now: never after its parent's.
    pub(super) fn expiry(&self, now_ns: u64, parent_ns: u64) -> u64 {
        let own_ns = after(now_ns, self.state.contract.expiration);
        if enforced!(ExpiryOfParent, true) {
            own_ns.min(parent_ns)
        } else {
            own_ns
        }
    }

    fn check_fence(&self) -> Result<(), Denial> {
        match self.is_fenced {
            true => Err(Code::DenyInconsistent.into()),
            false => Ok(()),
        }
    }
}

pub(super) fn after(now_ns: u64, duration: Option<Duration>) -> u64 {
    duration.map_or(NEVER, |duration| {
        now_ns.saturating_add(nanoseconds(duration))
    })
}
