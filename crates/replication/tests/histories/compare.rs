//! Compares the two after every step.

use std::collections::BTreeSet;

use belljar_policy::{Amount, Dimension};
use belljar_replication::{Event, State, Status};

use crate::play::Play;

impl Play {
    /// Both show the same, and the invariants hold.
    pub(crate) fn same(&self) -> Result<(), String> {
        let state = self.controller.state();
        let mut seen = 0;
        for view in state.workers() {
            let worker = self
                .reference
                .find(view.id)
                .ok_or(format!("{:?} should not live", view.id))?;
            let parent = self.reference.payer(worker);
            let used = [view.used.cpu_ms, view.used.tokens, view.used.micro_usd];
            let free = self.reference.free(Some(view.id));
            let pairs = [
                (
                    view.parent == parent && view.depth == worker.depth(),
                    "place",
                ),
                (view.status == worker.status, "status"),
                (
                    view.granted == worker.granted && view.own == worker.own,
                    "share",
                ),
                (used == worker.used, "use"),
                (view.free == free, "free"),
                (
                    view.expires_ns == worker.expires_ms.map(|ms| ms * 1_000_000),
                    "expiry",
                ),
            ];
            if let Some((_, what)) = pairs.iter().find(|(is_same, _)| !is_same) {
                return Err(format!(
                    "{what} differs: {view:?} and {worker:?}, free {free:?}"
                ));
            }
            let above = parent.and_then(|id| state.worker(id));
            if above.is_some_and(|above| {
                above
                    .expires_ns
                    .is_some_and(|at| view.expires_ns.is_none_or(|own| own > at))
            }) {
                return Err(format!("{:?} outlives its parent", view.id));
            }
            seen += 1;
        }
        let flags = (
            state.is_kill_switch_engaged(),
            state.is_clock_suspect(),
            state.epoch(),
        );
        let expected = (
            self.reference.latched,
            self.reference.suspect,
            self.reference.epoch,
        );
        let grants: BTreeSet<_> = state
            .grants()
            .map(|g| (g.jti, g.worker, g.parent))
            .collect();
        let promises: BTreeSet<_> = self
            .reference
            .promises
            .iter()
            .map(|p| (p.jti, p.worker, p.parent))
            .collect();
        let live: BTreeSet<_> = self
            .reference
            .workers
            .iter()
            .map(|worker| worker.id)
            .collect();
        let is_frozen = |worker: &&crate::reference::Worker| worker.status == Status::Quarantined;
        let frozen: BTreeSet<_> = self
            .reference
            .workers
            .iter()
            .filter(is_frozen)
            .map(|w| w.id)
            .collect();
        let checks = [
            (
                seen == live.len() && state.live() == seen,
                "the number of the living",
            ),
            (flags == expected, "a flag"),
            (grants == promises, "the grants outstanding"),
            (
                state.free() == self.reference.free(None),
                "the fleet's budget",
            ),
            (
                state.spent().tokens == self.reference.total_tokens,
                "what was spent",
            ),
            (self.boxes == live, "the boxes that run"),
            (self.frozen == frozen, "the boxes that are frozen"),
            (self.conserves(), "the sum of a budget"),
        ];
        match checks.iter().find(|(is_same, _)| !is_same) {
            Some((_, what)) => Err(format!("{what} differs")),
            None => Ok(()),
        }
    }

    /// All that is used up or held anywhere is within the contract's budget.
    fn conserves(&self) -> bool {
        let state = self.controller.state();
        let held = |d: Dimension| -> u64 {
            state
                .workers()
                .map(|worker| worker.own.of(d).number().unwrap_or(0))
                .sum()
        };
        let spent = state.spent().tokens - state.overdraft().tokens;
        let budget = &self.reference.rules.budget;
        let roots = state.workers().filter(|worker| worker.depth == 0).count() as u64;
        Amount::of(held(Dimension::MemoryMb)) <= budget.memory_mb
            && Amount::of(spent) <= budget.tokens
            && Amount::of(state.live() as u64 - roots) <= budget.replicas
    }

    /// The whole record folds to the state.
    pub(crate) fn finish(&self) -> Result<(), String> {
        let folded = State::default()
            .fold(&self.log)
            .map_err(|fault| fault.to_string())?;
        let text = serde_json::to_string(&self.log).map_err(|e| e.to_string())?;
        let read: Vec<Event> = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        if read != self.log {
            return Err("the record does not survive its encoding".to_owned());
        }
        match folded == *self.controller.state() {
            true => Ok(()),
            false => Err("the fold of the record is another state".to_owned()),
        }
    }
}
