//! What is due: expiries, silences, grants that lapse, conditions that time alone makes true.

use super::{Controller, Turn, due_ns, silent_ns};
use crate::event::{What, WithdrawnWhy};
use crate::holes::enforced;
use crate::outcome::Outcome;
use crate::tree::NEVER;
use crate::{Code, Now};

impl Controller {
    /// When [`Controller::tick`] should be called next, on the boot clock. It may be a little early, never late.
    #[must_use]
    pub fn next_timer(&self) -> Option<u64> {
        let grants_ns = self.grant_timers.first().unwrap_or(NEVER);
        let sweep_ns = self.next_sweep().unwrap_or(NEVER);
        let first_ns = self.worker_timers.first().min(grants_ns).min(sweep_ns);
        (first_ns != NEVER).then_some(first_ns)
    }

    /// Ends whom it is time for, voids grants that lapsed, evaluates conditions. The result says how many workers ended.
    pub fn tick(&mut self, now: Now) -> Outcome<usize> {
        let mut turn = self.begin(now);
        let before = self.state.tree.len();
        self.end_due(&mut turn);
        self.lapse_due(&mut turn);
        self.sweep(&mut turn);
        self.settle(&mut turn);
        turn.finish(before - self.state.tree.len())
    }

    fn end_due(&mut self, turn: &mut Turn) {
        let now_ns = turn.now.boot_ns;
        let mut later = Vec::new();
        while let Some(slot) = self.pop_due(now_ns) {
            let is_over = self.state.tree.node(slot).expires_ns <= now_ns;
            if enforced!(ExpiryTimer, is_over) {
                self.end_one(turn, slot, Code::Expired);
            } else if enforced!(
                HeartbeatTimer,
                silent_ns(&self.state, &self.beats, slot) <= now_ns
            ) {
                self.end_one(turn, slot, Code::ReapStale);
            } else {
                later.push(slot);
            }
        }
        // Those that are let off. Some may have ended since, with a parent.
        later.dedup();
        for slot in later {
            self.set_timer(slot);
        }
    }

    fn pop_due(&mut self, now_ns: u64) -> Option<u32> {
        let (state, beats) = (&self.state, &self.beats);
        self.worker_timers
            .pop_due(now_ns, |slot| due_ns(state, beats, slot))
    }

    fn lapse_due(&mut self, turn: &mut Turn) {
        while let Some(jti) = self
            .grant_timers
            .pop_due(&self.state.grants, turn.now.boot_ns)
        {
            if enforced!(GrantTimer, true) {
                let why = WithdrawnWhy::Lapsed;
                self.record(turn, What::Withdrawn { jti, why });
            }
        }
    }
}
