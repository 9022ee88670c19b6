//! Workers that keep to the rules, whatever they want.

use belljar_replication::{Code, Denial};

use super::queue::Act;
use super::{World, wait_of};
use crate::desk::Desk;
use crate::scenario::Strategy;

impl<D: Desk> World<'_, D> {
    /// A worker takes a step.
    pub(super) fn step(&mut self, slot: u32) {
        let group = self.group(slot);
        let body = self.bodies.of(slot);
        // Whoever is dying or frozen takes no steps of its own.
        if !body.is_registered || !body.is_running || body.wants == 0 {
            return;
        }
        if body.is_frozen || self.is_cut_off(slot) {
            self.tally.unanswered += 1;
            return self.later(group.pace_ns, slot, Act::Step);
        }
        match group.strategy {
            Strategy::Random(p) => {
                if self.bodies.of_mut(slot).stream.uniform() < p {
                    let _ = self.ask(slot);
                }
                let request_ns = self.delay(&self.scenario.latency.request);
                self.later(group.pace_ns.saturating_add(request_ns), slot, Act::Step);
            }
            Strategy::Burst(_) => self.burst(slot),
            Strategy::Greedy | Strategy::Conservative | Strategy::Chain => {
                let asked = self.ask(slot);
                self.go_on_asking(slot, asked);
            }
            _ => self.attack(slot),
        }
    }

    /// Asks for a replica and has it registered at once.
    pub(super) fn ask(&mut self, slot: u32) -> Result<(), Denial> {
        let child = self.bodies.reserve();
        let wish = self.wish(slot, child);
        let now = self.now();
        let outcome = self.desk.grant_and_register(now, &wish);
        self.bodies.of_mut(child).group = self.bodies.of(slot).group;
        let body = self.bodies.of_mut(slot);
        if outcome.result.is_ok() {
            body.wants = body.wants.saturating_sub(1);
        }
        self.enter(child, slot, outcome)
    }

    fn go_on_asking(&mut self, slot: u32, asked: Result<(), Denial>) {
        let group = self.group(slot);
        let wait_ns = match &asked {
            Ok(()) if group.strategy == Strategy::Conservative => group.pace_ns.saturating_mul(4),
            Ok(()) => group.pace_ns,
            Err(_) if group.strategy == Strategy::Conservative => return,
            Err(denial) if is_final(denial.code) => return,
            Err(denial) => wait_of(denial).unwrap_or(group.pace_ns).max(1),
        };
        // A stop condition may have ended it by now.
        let body = self.bodies.of(slot);
        if body.is_registered && body.wants > 0 {
            let request_ns = self.delay(&self.scenario.latency.request);
            self.later(wait_ns.saturating_add(request_ns), slot, Act::Step);
        }
    }

    fn burst(&mut self, slot: u32) {
        let mut asked = Ok(());
        while asked.is_ok() && self.bodies.of(slot).is_registered && self.bodies.of(slot).wants > 0
        {
            asked = self.ask(slot);
        }
        self.go_on_asking(slot, asked);
    }
}

/// Whether asking again is of no use.
fn is_final(code: Code) -> bool {
    matches!(
        code,
        Code::DenyDepth | Code::DenyParentUnknown | Code::DenyKillSwitch | Code::DenyExpired
    )
}
