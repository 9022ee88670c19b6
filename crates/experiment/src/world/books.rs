//! Births and ends, and the referee's books about them. Nothing here asks the controller.

use belljar_policy::OnParentExit;
use belljar_replication::{Admitted, Code};

use super::body::{Body, NEVER, NOBODY};
use super::queue::Act;
use super::{World, draw};
use crate::desk::Desk;
use crate::referee::Control;
use crate::scenario::Strategy;
use crate::tally::LifeSummary;

impl<D: Desk> World<'_, D> {
    /// A worker was let in: its box runs from now on.
    pub(super) fn born(&mut self, slot: u32, parent: u32, admitted: &Admitted) {
        let now_ns = self.now_ns;
        self.judge_birth(slot, parent, admitted);
        let (depth, ceiling_ns) = self.enrol_with_parent(slot, parent);
        let own_ns = now_ns.saturating_add(self.expiration_ns);
        let group = self.group(slot);
        let memory_mb = admitted.share.own.memory_mb.number().unwrap_or(0);
        self.bodies.forget_extra(slot);
        if memory_mb > 0 || self.scenario.contract.heartbeat_timeout.is_some() {
            let extra = self.bodies.extra_mut(slot);
            (extra.memory_mb, extra.beat_ns) = (memory_mb, now_ns);
        }
        let born_step = self.tally.step_at(now_ns);
        let body = self.bodies.of_mut(slot);
        body.depth = depth;
        body.children = 0;
        body.live_children = 0;
        body.is_registered = true;
        body.is_running = true;
        body.is_quarantined = false;
        body.is_frozen = false;
        body.born_step = born_step;
        body.born_ns = now_ns;
        body.expires_ns = own_ns.min(ceiling_ns);
        body.last_child_ns = NEVER;
        body.wants = group.offspring.draw(&mut body.stream);
        let wants = body.wants;
        let life = draw(&group.lifetime, &mut body.stream);
        self.tally.born(born_step, depth, memory_mb);
        self.judge_fleet();
        if let Some(trace) = &mut self.trace {
            let id = self.bodies.id(slot);
            let parent = (parent != NOBODY).then(|| self.bodies.id(parent));
            trace.born(id, parent, depth, now_ns);
        }
        self.schedule(slot, wants, life);
    }

    fn schedule(&mut self, slot: u32, wants: u32, life: Option<u64>) {
        let group = self.group(slot);
        let latency = &self.scenario.latency;
        let start_ns = self.delay(&latency.start);
        if wants > 0 {
            let steps = if group.strategy == Strategy::Conservative {
                4
            } else {
                1
            };
            let wait_ns = group.pace_ns.saturating_mul(steps);
            self.later(start_ns.saturating_add(wait_ns), slot, Act::Step);
        }
        if let Some(ns) = life {
            let exit_ns = self.delay(&latency.exit).saturating_add(start_ns);
            self.later(ns.saturating_add(exit_ns), slot, Act::Exit);
        }
        if self.scenario.contract.heartbeat_timeout.is_some() {
            self.later(self.beat_ns(), slot, Act::Beat);
        }
        if group.use_per_second != crate::scenario::Use::default() {
            self.later(super::troubles::REPORT_NS, slot, Act::Report);
        }
    }

    /// The child's depth, and when its parent's time is over.
    fn enrol_with_parent(&mut self, slot: u32, parent: u32) -> (u32, u64) {
        if parent == NOBODY {
            let body = self.bodies.of_mut(slot);
            body.parent = NOBODY;
            return (0, NEVER);
        }
        let above = self.bodies.of_mut(parent);
        let stream = above.stream.child(u64::from(above.children));
        above.children += 1;
        above.live_children += 1;
        above.last_child_ns = self.now_ns;
        let (depth, generation, group, expires_ns) = (
            above.depth + 1,
            above.generation,
            above.group,
            above.expires_ns,
        );
        let age_ns = self.now_ns.saturating_sub(above.born_ns);
        self.tally.child(self.now_ns, depth - 1, age_ns);
        let body = self.bodies.of_mut(slot);
        body.stream = stream;
        body.parent = parent;
        body.parent_generation = generation;
        body.group = group;
        (depth, expires_ns)
    }

    fn judge_birth(&mut self, _slot: u32, parent: u32, admitted: &Admitted) {
        let contract = &self.scenario.contract;
        let found = &mut self.tally.findings;
        found.expect(Control::KillSwitchLatch, !self.is_latched);
        found.expect(Control::Clock, !self.is_clock_suspect || parent == NOBODY);
        if parent == NOBODY {
            return;
        }
        let above = self.bodies.of(parent);
        found.expect(Control::ParentKnown, above.is_registered);
        found.expect(Control::Quarantine, !above.is_quarantined);
        found.expect(Control::Depth, above.depth < contract.max_depth);
        found.expect(Control::DepthSpoof, admitted.depth == above.depth + 1);
        found.expect(Control::Expiry, above.expires_ns > self.now_ns);
        let is_cool =
            above.last_child_ns == NEVER || self.now_ns - above.last_child_ns >= self.cooldown_ns;
        found.expect(Control::Cooldown, is_cool);
    }

    /// What holds for all together, after a birth.
    fn judge_fleet(&mut self) {
        let contract = &self.scenario.contract;
        let live = self.tally.registered;
        let held = self.tally.held_memory_mb;
        let found = &mut self.tally.findings;
        found.expect(Control::Quota, live <= u64::from(contract.max_replicas));
        let has_memory = contract
            .budget
            .memory_mb
            .number()
            .is_none_or(|most| held <= most);
        let has_replicas = contract
            .budget
            .replicas
            .number()
            .is_none_or(|most| live <= most.saturating_add(self.roots.len() as u64));
        found.expect(Control::Budget, has_memory && has_replicas);
        found.expect(
            Control::StopCondition,
            self.scenario.stop_peak.is_none_or(|most| live <= most),
        );
    }

    /// The controller no longer counts a worker.
    pub(super) fn ended(&mut self, slot: u32, code: Code) {
        self.judge_life(slot);
        let must_follow = self.scenario.contract.on_parent_exit == OnParentExit::Kill;
        let body = self.bodies.of_mut(slot);
        if !body.is_registered {
            return;
        }
        body.is_registered = false;
        let (parent, generation) = (body.parent, body.parent_generation);
        let left = body.live_children;
        let life = life(body, self.now_ns);
        let memory_mb = self.bodies.extra(slot).memory_mb;
        self.tally.ended(code, life, memory_mb);
        self.tally
            .findings
            .expect(Control::ParentExit, !must_follow || left == 0);
        if parent != NOBODY && self.bodies.is_same(parent, generation) {
            let above = self.bodies.of_mut(parent);
            above.live_children = above.live_children.saturating_sub(1);
        }
        if let Some(trace) = &mut self.trace {
            trace.ended(self.bodies.id(slot), code, self.now_ns);
        }
        if matches!(code, Code::Exited | Code::LaunchFailed) {
            self.stopped(slot);
        } else {
            self.vacate(slot);
        }
    }

    /// The box does not run any more.
    pub(super) fn stopped(&mut self, slot: u32) {
        let body = self.bodies.of_mut(slot);
        if body.is_running {
            body.is_running = false;
            let ordered_ns = self.bodies.extra(slot).killed_ns;
            self.tally.stopped(self.now_ns, ordered_ns);
        }
        self.vacate(slot);
    }

    fn vacate(&mut self, slot: u32) {
        let body = self.bodies.of(slot);
        if !body.is_registered && !body.is_running {
            // A grant that it kept is nobody's now.
            if self.bodies.extra(slot).kept.is_some()
                && let Some(kept) = self.bodies.extra_mut(slot).kept.take()
            {
                self.bodies.release(kept.0);
            }
            self.bodies.release(slot);
        }
    }

    /// Whether a worker was alive for longer than it may.
    fn judge_life(&mut self, slot: u32) {
        let body = self.bodies.of(slot);
        if !body.is_registered {
            return;
        }
        // While the controller is down nobody's time is up.
        let slack_ns = self.scenario.faults.restart_ns;
        let is_in_time = self.now_ns <= body.expires_ns.saturating_add(slack_ns);
        self.tally.findings.expect(Control::Expiry, is_in_time);
        if let Some(timeout) = self.scenario.contract.heartbeat_timeout
            && !body.is_quarantined
        {
            let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(NEVER);
            let silent_ns = self.now_ns - self.bodies.extra(slot).beat_ns;
            let is_heard = silent_ns <= timeout_ns.saturating_add(slack_ns);
            self.tally.findings.expect(Control::Heartbeat, is_heard);
        }
    }

    /// Looks at those who are left.
    pub(super) fn close_books(&mut self) {
        let left: Vec<u32> = self
            .bodies
            .iter()
            .filter(|(_, body)| body.is_registered)
            .map(|(slot, _)| slot)
            .collect();
        for slot in left {
            self.judge_life(slot);
            let life = life(self.bodies.of(slot), self.now_ns);
            self.tally.cohort(life, true);
        }
    }

    /// Whoever was let in and has not ended is alive, for the controller too.
    pub(super) fn check_conservation(&mut self) {
        let live = self.desk.controller().state().live() as u64;
        self.tally
            .findings
            .expect(Control::Conservation, live == self.tally.registered);
    }
}

/// What is counted of a life.
fn life(body: &Body, now_ns: u64) -> LifeSummary {
    LifeSummary {
        born_step: body.born_step,
        children: body.children,
        is_root: body.parent == NOBODY,
        depth: body.depth,
        age_ns: now_ns.saturating_sub(body.born_ns),
    }
}
