//! Stop conditions at work: at every grant, and whenever something they depend on has changed.

use belljar_policy::OnTrigger;

use super::{Controller, SWEEP_NS, Turn};
use crate::Code;
use crate::event::What;
use crate::holes::enforced;
use crate::outcome::{About, Denial};
use crate::stop::{Depends, Facts, WorkerFacts};
use crate::tree::{FLEET, NONE, Status};

/// How often what one condition brought about may set off others within one step. What is left waits for the next.
const MAX_ROUNDS: usize = 8;

impl Controller {
    /// Evaluates every condition for a grant by the worker in a slot, at a moment; or for a root, which has no parent.
    pub(super) fn check_conditions(&self, asker: Option<(u32, u64)>) -> Result<(), Denial> {
        if self.conditions.is_empty() {
            return Ok(());
        }
        let now_ns = asker.map_or(self.state.boot_ns, |(_, now_ns)| now_ns);
        let mut facts = self.fleet_facts(now_ns);
        if let Some((slot, now_ns)) = asker {
            facts.worker = self.worker_facts(slot, now_ns);
        }
        for condition in &self.conditions {
            // Before there is a root, nothing can be said about it.
            if asker.is_none() && condition.is_per_worker() && !condition.is_closure() {
                continue;
            }
            if let Some(why) = condition.forbids(&facts) {
                let name = condition.name.clone();
                let about = why.map_or(About::Condition(name.clone()), |why| {
                    About::Failed(name, why)
                });
                return Err(Denial::about(Code::DenyStopCondition, about));
            }
        }
        Ok(())
    }

    pub(super) fn note(&mut self, changed: Depends) {
        self.changed = self.changed.with(changed);
    }

    pub(super) fn touch(&mut self, slot: u32) {
        if slot != FLEET && !self.conditions.is_empty() {
            self.touched.push(slot);
        }
    }

    /// Evaluates what depends on anything that changed, and carries out what follows.
    pub(super) fn settle(&mut self, turn: &mut Turn) {
        if self.conditions.is_empty() {
            self.changed = Depends::NONE;
            return;
        }
        for _ in 0..MAX_ROUNDS {
            let changed = std::mem::take(&mut self.changed);
            let touched = std::mem::take(&mut self.touched);
            if changed == Depends::NONE && touched.is_empty() {
                return;
            }
            for at in 0..self.conditions.len() {
                if !self.conditions[at].is_per_worker() {
                    self.settle_fleet(turn, at, changed);
                } else if self.conditions[at].on_trigger != OnTrigger::Deny {
                    self.settle_workers(turn, at, &touched);
                    // What is about the fleet and about workers is looked at for all of them at the next tick.
                    if self.conditions[at].depends.is_about_fleet()
                        && self.conditions[at].depends.has_any(changed)
                    {
                        self.sweep_ns = self.sweep_ns.min(turn.now.boot_ns);
                    }
                }
            }
        }
    }

    /// Looks at every worker, if it is time to. Part of a tick.
    pub(super) fn sweep(&mut self, turn: &mut Turn) {
        if !self.needs_sweeps() || self.sweep_ns > turn.now.boot_ns {
            return;
        }
        self.sweep_ns = turn.now.boot_ns.saturating_add(SWEEP_NS);
        self.note(Depends::TIME);
        let everyone = self.state.tree.subtree(FLEET);
        for at in 0..self.conditions.len() {
            let condition = &self.conditions[at];
            if condition.is_per_worker() && condition.on_trigger != OnTrigger::Deny {
                self.settle_workers(turn, at, &everyone);
            }
        }
    }

    /// When every worker has to be looked at again.
    pub(super) fn next_sweep(&self) -> Option<u64> {
        (self.needs_sweeps() && self.state.tree.len() > 0).then_some(self.sweep_ns)
    }

    fn needs_sweeps(&self) -> bool {
        self.conditions.iter().any(|condition| {
            let about_both = condition.is_per_worker() && condition.depends.is_about_fleet();
            about_both || condition.depends.has_any(Depends::TIME)
        })
    }

    fn settle_fleet(&mut self, turn: &mut Turn, at: usize, changed: Depends) {
        let condition = &self.conditions[at];
        let is_constant = condition.depends == Depends::NONE;
        if !is_constant && !condition.depends.has_any(changed) {
            return;
        }
        let facts = self.fleet_facts(turn.now.boot_ns);
        // What can't be evaluated denies grants; it ends nobody.
        let holds = condition.holds(&facts) == Ok(true);
        let condition = &mut self.conditions[at];
        let is_new = holds && !condition.held;
        condition.held = holds;
        let (name, on_trigger) = (condition.name.clone(), condition.on_trigger);
        if is_new {
            let name = name.to_string();
            self.record(turn, What::StopConditionTriggered { name, worker: None });
        }
        match on_trigger {
            OnTrigger::Kill if enforced!(StopKills, holds) => {
                self.end_all(turn, Code::KilledStopCondition);
            }
            OnTrigger::Quarantine if enforced!(StopQuarantines, holds) => {
                for slot in self.state.tree.subtree(FLEET) {
                    self.freeze(turn, slot, Code::QuarantinedStopCondition);
                }
            }
            _ => {}
        }
    }

    /// Evaluates one condition for some workers, and kills or freezes those it holds for.
    fn settle_workers(&mut self, turn: &mut Turn, at: usize, slots: &[u32]) {
        let on_trigger = self.conditions[at].on_trigger;
        for slot in slots {
            let status = self.state.tree.status(*slot);
            // One that ended in the meantime, or is as frozen as it can be.
            let is_done =
                on_trigger == OnTrigger::Quarantine && status == Some(Status::Quarantined);
            if status.is_none() || is_done || *slot == NONE {
                continue;
            }
            let worker = self.state.tree.id(*slot);
            let mut facts = self.fleet_facts(turn.now.boot_ns);
            facts.worker = self.worker_facts(*slot, turn.now.boot_ns);
            if self.conditions[at].holds(&facts) != Ok(true) {
                continue;
            }
            let name = self.conditions[at].name.to_string();
            let worker = Some(worker);
            self.record(turn, What::StopConditionTriggered { name, worker });
            if enforced!(StopKills, on_trigger == OnTrigger::Kill) {
                self.end_one(turn, *slot, Code::KilledStopCondition);
            } else if enforced!(StopQuarantines, on_trigger == OnTrigger::Quarantine) {
                self.freeze(turn, *slot, Code::QuarantinedStopCondition);
            }
        }
    }

    /// The conditions that hold a worker in quarantine now: released, it would be frozen again at once.
    #[must_use]
    pub fn quarantined_by(&self, now: crate::Now, worker: crate::WorkerId) -> Vec<String> {
        let Some(slot) = self.state.tree.find(worker) else {
            return Vec::new();
        };
        let mut facts = self.fleet_facts(now.boot_ns);
        facts.worker = self.worker_facts(slot, now.boot_ns);
        self.conditions
            .iter()
            .filter(|condition| condition.on_trigger == OnTrigger::Quarantine)
            .filter(|condition| condition.holds(&facts) == Ok(true))
            .map(|condition| condition.name.to_string())
            .collect()
    }

    fn fleet_facts(&self, now_ns: u64) -> Facts {
        let state = &self.state;
        Facts {
            workers_active: state.tree.len() as u64,
            workers_total: state.total,
            workers_quarantined: state.quarantined,
            spent_micro_usd: state.spent.micro_usd,
            spent_tokens: state.spent.tokens,
            spent_cpu_ms: state.spent.cpu_ms,
            held_memory_mb: state.held_memory_mb,
            spawns_per_min: state.spawns.per_minute(now_ns),
            denials_per_min: state.denials.per_minute(now_ns),
            worker: WorkerFacts::default(),
        }
    }

    fn worker_facts(&self, slot: u32, now_ns: u64) -> WorkerFacts {
        let node = self.state.tree.node(slot);
        let account = self.state.tree.account(slot);
        WorkerFacts {
            depth: u64::from(node.depth),
            children: u64::from(node.children),
            age_ns: now_ns.saturating_sub(self.state.tree.registered_ns(slot)),
            idle_ns: now_ns.saturating_sub(self.beats.last(&self.state.tree, slot)),
            micro_usd: account.used.micro_usd,
            tokens: account.used.tokens,
            cpu_ms: account.used.cpu_ms,
        }
    }

    /// Evaluates all conditions now, whatever has changed: for an owner that wants to be sure.
    pub fn evaluate(&mut self, now: crate::Now) -> crate::Outcome<()> {
        let mut turn = self.begin(now);
        self.changed = Depends::ALL;
        self.sweep_ns = 0;
        self.sweep(&mut turn);
        self.settle(&mut turn);
        turn.finish(())
    }
}
