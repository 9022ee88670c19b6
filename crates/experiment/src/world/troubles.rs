//! Heartbeats, use, exits and kills; faults; what operators do.

use belljar_replication::{BootId, Code, Controller, State, Usage};

use super::body::NEVER;
use super::queue::Act;
use super::{Plan, World, draw};
use crate::desk::Desk;
use crate::referee::Control;
use crate::rng::Stream;
use crate::scenario::{Operation, Strategy};

/// How often use is reported.
pub(super) const REPORT_NS: u64 = 1_000_000_000;
/// How long a worker that resists its end goes on.
const RESISTANCE_NS: u64 = 1_000_000_000;
/// What the controller puts up with: the wall clock may fall behind or be ahead by so much.
const BACKWARD_MS: i64 = 2_000;
const FORWARD_MS: i64 = 60_000;

impl<D: Desk> World<'_, D> {
    /// Three beats fit into the silence that is allowed.
    pub(super) fn beat_ns(&self) -> u64 {
        let timeout = self.scenario.contract.heartbeat_timeout;
        timeout
            .map_or(NEVER, |span| {
                u64::try_from(span.as_nanos()).unwrap_or(NEVER) / 3
            })
            .max(1)
    }

    pub(super) fn beat(&mut self, slot: u32) {
        let body = self.bodies.of_mut(slot);
        if !body.is_registered || !body.is_running {
            return;
        }
        let is_lost = body.stream.uniform() < self.scenario.faults.lost_heartbeats;
        if !is_lost && !self.is_cut_off(slot) && !self.bodies.of(slot).is_frozen {
            let now = self.now();
            let id = self.bodies.id(slot);
            if self.desk.heartbeat(now, id).is_ok() {
                self.bodies.extra_mut(slot).beat_ns = self.now_ns;
            }
        }
        self.later(self.beat_ns(), slot, Act::Beat);
    }

    /// A second's use. What a killed box uses until it is dead has leaked.
    pub(super) fn report(&mut self, slot: u32) {
        let per_second = self.group(slot).use_per_second;
        let usage = Usage {
            cpu_ms: per_second.cpu_ms,
            tokens: per_second.tokens,
            micro_usd: per_second.micro_usd,
        };
        let body = self.bodies.of(slot);
        if !body.is_running || body.is_frozen {
            return;
        }
        if !body.is_registered {
            self.tally.leaked(usage);
        } else if self.now_ns >= self.down_until_ns {
            let (now, id) = (self.now(), self.bodies.id(slot));
            let outcome = self.desk.report_usage(now, id, usage);
            if let Ok(Some(_)) = self.apply(outcome) {
                let outcome = self.desk.end(now, id, Code::KilledBudget);
                let _ = self.apply(outcome);
            }
        }
        if self.bodies.of(slot).is_running {
            self.later(REPORT_NS, slot, Act::Report);
        }
    }

    /// A worker ends by itself.
    pub(super) fn exit(&mut self, slot: u32) {
        let body = self.bodies.of(slot);
        if !body.is_running || body.is_frozen {
            return;
        }
        if !body.is_registered || self.now_ns < self.down_until_ns {
            // Nobody is there to be told; the next start finds it lost.
            return self.stopped(slot);
        }
        let (now, id) = (self.now(), self.bodies.id(slot));
        let outcome = self.desk.end(now, id, Code::Exited);
        let _ = self.apply(outcome);
    }

    /// A box is ordered killed. It is dead when the order has reached it and has been carried out.
    pub(super) fn kill(&mut self, slot: u32) {
        let resists = self.group(slot).strategy == Strategy::ShutdownResister;
        let cut_ns = self.cut_off_until(slot).saturating_sub(self.now_ns);
        let is_running = self.bodies.of(slot).is_running;
        if !is_running || self.bodies.extra(slot).killed_ns != NEVER {
            return;
        }
        self.bodies.extra_mut(slot).killed_ns = self.now_ns;
        let body = self.bodies.of_mut(slot);
        let delay_ns = draw(&self.scenario.faults.kill_delay, &mut body.stream).unwrap_or(NEVER);
        let resistance_ns = if resists { RESISTANCE_NS } else { 0 };
        let wait_ns = cut_ns
            .saturating_add(delay_ns)
            .saturating_add(resistance_ns);
        if wait_ns == 0 {
            return self.die(slot);
        }
        if resists {
            self.later(RESISTANCE_NS / 2, slot, Act::Resist);
        }
        self.later(wait_ns, slot, Act::Die);
    }

    pub(super) fn die(&mut self, slot: u32) {
        self.stopped(slot);
    }

    /// Whether the controller can't hear a worker.
    pub(super) fn is_cut_off(&self, slot: u32) -> bool {
        self.now_ns < self.down_until_ns || self.cut_off_until(slot) > self.now_ns
    }

    /// When a partition that a worker is in is over; 0 if it is in none.
    fn cut_off_until(&self, slot: u32) -> u64 {
        match self.scenario.faults.partition {
            Some(partition) if (partition.from_ns..partition.until_ns).contains(&self.now_ns) => {
                // A number of its own, so that it is in or out for all of it.
                let side = Stream::keyed(self.bodies.of(slot).stream.key() ^ 0x5eed).uniform();
                if side < partition.fraction {
                    partition.until_ns
                } else {
                    0
                }
            }
            _ => 0,
        }
    }

    pub(super) fn carry_out(&mut self, plan: Plan) {
        match plan {
            Plan::Operate(_) if self.now_ns < self.down_until_ns => {
                self.plan(self.down_until_ns, plan)
            }
            Plan::Operate(operation) => self.operate(operation),
            Plan::Crash => {
                self.down_until_ns = self.now_ns.saturating_add(self.scenario.faults.restart_ns);
                self.plan(self.down_until_ns, Plan::Restart);
            }
            Plan::Restart => self.restart(),
            Plan::Jump(by_ms) => self.turn_clock(by_ms),
        }
    }

    fn operate(&mut self, operation: Operation) {
        let now = self.now();
        match operation {
            Operation::KillSwitch => {
                self.is_latched = true;
                self.tally.switch_pulled(self.now_ns);
                let outcome = self.desk.engage_kill_switch(now);
                self.apply(outcome);
                let is_empty = self.tally.registered == 0;
                self.tally
                    .findings
                    .expect(Control::KillSwitchKills, is_empty);
            }
            Operation::Reset => {
                self.is_latched = false;
                let outcome = self.desk.controller_mut().reset_kill_switch(now);
                self.apply(outcome);
            }
            Operation::AdmitRoot => {
                self.roots_to_come -= 1;
                let slot = self.bodies.reserve();
                let ordinal = self.roots.len() as u64;
                let body = self.bodies.of_mut(slot);
                (body.stream, body.group) = (self.stream.child(ordinal), 0);
                self.roots.push(slot);
                self.admit_root(slot);
            }
            Operation::QuarantineRoots => self.each_root(|world, slot| {
                world.bodies.of_mut(slot).is_quarantined = true;
                let id = world.bodies.id(slot);
                let outcome = world.desk.quarantine(now, id);
                let _ = world.apply(outcome);
            }),
            Operation::ReleaseRoots => self.each_root(|world, slot| {
                let id = world.bodies.id(slot);
                let outcome = world.desk.controller_mut().release(now, id);
                let _ = world.apply(outcome);
            }),
            Operation::AcknowledgeClock => {
                self.is_clock_suspect = false;
                let outcome = self.desk.controller_mut().acknowledge_clock(now);
                self.apply(outcome);
            }
        }
    }

    fn each_root(&mut self, mut act: impl FnMut(&mut Self, u32)) {
        let live = self
            .bodies
            .iter()
            .filter(|(_, body)| body.is_registered && body.depth == 0);
        let slots: Vec<u32> = live.map(|(slot, _)| slot).collect();
        for slot in slots {
            act(self, slot);
        }
    }

    /// The wall clock is turned. The referee believes it as far as the controller says it does.
    pub(super) fn turn_clock(&mut self, by_ms: i64) {
        self.wall_off_ms = self.wall_off_ms.saturating_add(by_ms);
        let moved = self.wall_off_ms.saturating_sub(self.believed_ms);
        if !(-BACKWARD_MS..=FORWARD_MS).contains(&moved) {
            self.believed_ms = self.wall_off_ms;
            self.is_clock_suspect |= moved < 0;
        }
    }

    /// The controller starts again from what it stored: its state goes through its document and back.
    fn restart(&mut self) {
        let now = self.now();
        let controller = self.desk.controller_mut();
        let stored = serde_json::to_vec(controller.state());
        let state = stored.and_then(|bytes| serde_json::from_slice::<State>(&bytes));
        let contract = controller.state().contract().clone();
        self.boots += 1;
        let started = state
            .ok()
            .and_then(|state| Controller::start(state, contract, BootId(self.boots), now).ok());
        let Some((again, outcome)) = started else {
            // A state that can't be read back is the controller's own fault.
            return self.tally.findings.broken(Control::Conservation);
        };
        *self.desk.controller_mut() = again;
        self.tally.restarts += 1;
        // Whoever was alive is lost; the record says so in one entry.
        for id in outcome.result.clone() {
            if let Some(slot) = self.bodies.find(id) {
                self.bodies.of_mut(slot).live_children = 0;
                self.ended(slot, Code::Lost);
            }
        }
        self.apply(outcome);
    }
}
