//! Workers that try to break the contract. Each attempt that must fail and does not is a finding.

use belljar_replication::{Code, Grant, ManifestFacts, WorkerId};

use super::body::{NEVER, NOBODY};
use super::queue::Act;
use super::{World, wait_of};
use crate::desk::Desk;
use crate::referee::Control;
use crate::scenario::Strategy;

/// How many grants are collected before any is used.
const HOARD: usize = 8;
/// How far the clock is turned back.
const HOUR_MS: i64 = 3_600_000;

impl<D: Desk> World<'_, D> {
    pub(super) fn attack(&mut self, slot: u32) {
        let group = self.group(slot);
        let mut wait_ns = group.pace_ns;
        match group.strategy {
            Strategy::QuotaRacer => drop(self.hoard(slot)),
            // A nanosecond too early: it must be refused again.
            Strategy::CooldownDodger => {
                wait_ns = self.hoard(slot).map_or(wait_ns, |left| (left - 1).max(1))
            }
            Strategy::Forger => self.forge(slot),
            Strategy::Replayer => self.replay(slot),
            Strategy::OrphanMaker => return self.abandon(slot),
            Strategy::ShutdownResister => self.keep_one(slot),
            Strategy::ClockRoller => self.roll_clock(slot),
            _ => {}
        }
        if self.bodies.of(slot).is_registered {
            self.later(wait_ns, slot, Act::Step);
        }
    }

    /// A grant, and the slot of the child it is for; else how long to wait, if the refusal says so.
    fn grant(&mut self, slot: u32) -> Result<(u32, Grant), Option<u64>> {
        let child = self.bodies.reserve();
        self.bodies.of_mut(child).group = self.bodies.of(slot).group;
        let wish = self.wish(slot, child);
        let now = self.now();
        let outcome = self.desk.request(now, &wish);
        self.apply(outcome)
            .map(|grant| (child, grant))
            .map_err(|denial| {
                self.bodies.release(child);
                wait_of(&denial)
            })
    }

    fn register(&mut self, child: u32, parent: u32, manifest: &ManifestFacts) -> bool {
        let now = self.now();
        let outcome = self.desk.register(now, manifest);
        self.enter(child, parent, outcome).is_ok()
    }

    /// Presents a manifest that must be refused.
    fn present(&mut self, control: Control, child: u32, parent: u32, manifest: &ManifestFacts) {
        let now = self.now();
        let outcome = self.desk.register(now, manifest);
        if let Ok(admitted) = &outcome.result {
            self.tally.findings.broken(control);
            // Whoever got in lives, whatever it took.
            let own = if admitted.worker == self.bodies.id(child) {
                child
            } else {
                self.bodies.reserve()
            };
            self.born(own, parent, admitted);
        }
        let _ = self.apply(outcome);
    }

    /// Collects grants while nothing counts against them, then registers them all at once. Returns how long to wait, if it must.
    fn hoard(&mut self, slot: u32) -> Option<u64> {
        let mut wait_ns = None;
        let mut grants = Vec::new();
        for _ in 0..HOARD {
            match self.grant(slot) {
                Ok(grant) => grants.push(grant),
                Err(wait) => wait_ns = wait,
            }
        }
        for (child, grant) in grants {
            if self.bodies.of(slot).is_registered {
                self.register(child, slot, &grant.manifest());
            } else {
                self.bodies.release(child);
            }
        }
        wait_ns
    }

    /// Alters a manifest in every way there is, then uses it as it was issued.
    fn forge(&mut self, slot: u32) {
        self.spoof_depth(slot);
        let Ok((child, grant)) = self.grant(slot) else {
            return;
        };
        let honest = grant.manifest();
        let mut forged = honest.clone();
        forged.depth = 0;
        self.present(Control::DepthSpoof, child, slot, &forged);
        if self.bodies.of(child).is_registered {
            return;
        }
        for (control, alter) in ALTERATIONS {
            let mut forged = honest.clone();
            alter(&mut forged);
            self.present(*control, child, slot, &forged);
            if self.bodies.of(child).is_registered {
                return;
            }
        }
        self.register(child, slot, &honest);
    }

    /// Claims another depth than it has.
    fn spoof_depth(&mut self, slot: u32) {
        let child = self.bodies.reserve();
        let mut wish = self.wish(slot, child);
        wish.claimed_depth = Some(0);
        let now = self.now();
        let outcome = self.desk.request(now, &wish);
        match self.apply(outcome) {
            Err(_) => self.bodies.release(child),
            Ok(grant) => {
                self.tally.findings.broken(Control::DepthSpoof);
                let now = self.now();
                let outcome = self.desk.controller_mut().withdraw(now, grant.jti);
                self.apply(outcome);
                self.bodies.release(child);
            }
        }
    }

    /// Uses a manifest, lets the child end, and uses it again.
    fn replay(&mut self, slot: u32) {
        let Ok((child, grant)) = self.grant(slot) else {
            return;
        };
        let manifest = grant.manifest();
        if !self.register(child, slot, &manifest) || !self.bodies.of(child).is_registered {
            return;
        }
        let (now, id) = (self.now(), manifest.worker);
        let outcome = self.desk.end(now, id, Code::Exited);
        let _ = self.apply(outcome);
        // The same id, in a slot of its own in case it works.
        let again = self.bodies.reserve();
        self.bodies.of_mut(again).group = self.bodies.of(slot).group;
        let before = self.tally.findings.clone();
        self.present(Control::SingleUse, again, slot, &manifest);
        if before == self.tally.findings {
            self.bodies.release(again);
            // And have a child to live with.
            let _ = self.ask(slot);
        }
    }

    /// Has a child and a grant, and exits: the child must end, the grant must be void.
    fn abandon(&mut self, slot: u32) {
        if self.bodies.of(slot).children == 0 {
            let _ = self.ask(slot);
            return self.later(self.group(slot).pace_ns, slot, Act::Step);
        }
        let kept = self.grant(slot).ok();
        let (now, id) = (self.now(), self.bodies.id(slot));
        // The slot is kept for a moment: the referee must know who the parent was.
        let generation = self.bodies.of(slot).generation;
        let outcome = self.desk.end(now, id, Code::Exited);
        let _ = self.apply_then(outcome, |world| {
            if let Some((child, grant)) = &kept {
                let manifest = grant.manifest();
                let now = world.now();
                let outcome = world.desk.register(now, &manifest);
                if outcome.result.is_ok() {
                    world.tally.findings.broken(Control::ParentKnown);
                }
                if let Ok(admitted) = &outcome.result {
                    let parent = if world.bodies.is_same(slot, generation) {
                        slot
                    } else {
                        NOBODY
                    };
                    world.born(*child, parent, admitted);
                } else {
                    world.bodies.release(*child);
                }
                let _ = world.apply(outcome);
            }
        });
    }

    /// Keeps a grant for the time after its end.
    fn keep_one(&mut self, slot: u32) {
        let _ = self.ask(slot);
        if !self.bodies.of(slot).is_registered || self.bodies.extra(slot).kept.is_some() {
            return;
        }
        if let Ok((child, grant)) = self.grant(slot) {
            self.bodies.extra_mut(slot).kept = Some(Box::new((child, grant.manifest())));
        }
    }

    /// It was killed and its box is not dead yet: it asks, and uses what it kept.
    pub(super) fn resist(&mut self, slot: u32) {
        if !self.bodies.of(slot).is_running || self.bodies.of(slot).is_registered {
            return;
        }
        let control = if self.is_latched {
            Control::KillSwitchLatch
        } else {
            Control::ParentKnown
        };
        if let Some(kept) = self.bodies.extra_mut(slot).kept.take() {
            let (child, manifest) = *kept;
            let before = self.tally.findings.clone();
            self.present(control, child, slot, &manifest);
            if before == self.tally.findings {
                self.bodies.release(child);
            }
        }
        if self.bodies.of(slot).is_running && self.ask(slot).is_ok() {
            self.tally.findings.broken(control);
        }
    }

    /// Turns the clock back, asks, and turns it forward again.
    fn roll_clock(&mut self, slot: u32) {
        if self.bodies.of(slot).last_child_ns == NEVER {
            let _ = self.ask(slot);
            return;
        }
        self.turn_clock(-HOUR_MS);
        let _ = self.ask(slot);
        self.turn_clock(HOUR_MS);
    }

    /// Takes an outcome in, with something that happens before anybody's box is dead.
    fn apply_then<T>(
        &mut self,
        outcome: belljar_replication::Outcome<T>,
        then: impl FnOnce(&mut Self),
    ) -> T {
        then(self);
        self.apply(outcome)
    }
}

/// A way to alter a manifest, and the control that must notice.
type Alteration = (Control, fn(&mut ManifestFacts));

const ALTERATIONS: &[Alteration] = &[
    (Control::Manifest, |manifest| {
        manifest.worker = WorkerId(manifest.worker.0 ^ (1 << 100))
    }),
    (Control::Manifest, |manifest| {
        manifest.granted = belljar_policy::Budget::filled(belljar_policy::Amount::of(77))
    }),
    (Control::SingleUse, |manifest| {
        manifest.jti = belljar_replication::Jti(manifest.jti.0 ^ (1 << 100))
    }),
    (Control::Manifest, |manifest| manifest.epoch += 1),
];
