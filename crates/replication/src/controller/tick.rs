//! What is due: expiries, silences, grants that lapse, conditions that time alone makes true.

use super::{Controller, Turn};
use crate::event::{What, WithdrawnWhy};
use crate::holes::enforced;
use crate::outcome::Outcome;
use crate::{Code, Now};

impl Controller {
    /// When [`Controller::tick`] should be called next, on the boot clock. It may be a little early, never late.
    #[must_use]
    pub fn next_timer(&self) -> Option<u64> {
        let timers = [
            self.worker_timers.first(),
            self.grant_timers.first(),
            self.next_sweep(),
        ];
        timers.into_iter().flatten().min()
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
        while let Some(slot) = self.worker_timers.pop_due(&self.state.tree, now_ns) {
            let is_over = self.state.tree.node(slot).expires_ns <= now_ns;
            if enforced!(ExpiryTimer, is_over) {
                self.end_one(turn, slot, Code::Expired);
            } else if enforced!(HeartbeatTimer, self.silent_ns(slot) <= now_ns) {
                self.end_one(turn, slot, Code::ReapStale);
            } else {
                later.push(slot);
            }
        }
        // Those that spoke in the meantime. Some may have ended since, with a parent.
        for slot in later {
            if self.state.tree.is_live(slot) {
                self.set_timer(slot);
            }
        }
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
