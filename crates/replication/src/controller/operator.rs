//! What operators and boxes report or decide besides grants and ends.

use belljar_policy::Contract;

use super::{Controller, Turn};
use crate::account::Usage;
use crate::event::What;
use crate::holes::enforced;
use crate::outcome::{Command, NotAlive, Outcome, OverBudget};
use crate::stop::{Depends, InvalidCondition, compile_all};
use crate::tree::{FLEET, Status};
use crate::{Code, Now, WorkerId};

impl Controller {
    /// Puts another contract in force. What is granted stays granted; everything from now on, registrations
    /// with earlier grants included, goes by the new one.
    pub fn set_contract(
        &mut self,
        now: Now,
        contract: Contract,
    ) -> Outcome<Result<(), InvalidCondition>> {
        let mut turn = self.begin(now);
        let mut conditions = match compile_all(&contract.stop_conditions) {
            Ok(conditions) => conditions,
            Err(error) => return turn.finish(Err(error)),
        };
        let contract = Box::new(contract);
        self.record(&mut turn, What::ContractSet { contract });
        let closures = self
            .conditions
            .drain(..)
            .filter(|condition| condition.is_closure());
        conditions.extend(closures);
        self.conditions = conditions;
        self.changed = Depends::ALL;
        // The heartbeat timeout may be another one, and so may what holds for each worker.
        for slot in self.state.tree.subtree(FLEET) {
            self.set_timer(slot);
            self.touch(slot);
        }
        self.settle(&mut turn);
        turn.finish(Ok(()))
    }

    /// A worker's box runs. The result says whether it was waiting for that.
    pub fn started(&mut self, now: Now, worker: WorkerId) -> Outcome<bool> {
        let mut turn = self.begin(now);
        // Whoever is frozen stays so, whatever its box reports.
        let is_other = self.status(worker) != Some(Status::Starting);
        let is_new = !enforced!(ThawOnlyByOperator, is_other);
        if is_new {
            self.record(&mut turn, What::Started { worker });
        }
        turn.finish(is_new)
    }

    /// Freezes a worker: it counts and its time runs on, but it gets no grants and need not speak. The result says
    /// whether it was free before. A code that is no quarantine counts as the operator's.
    pub fn quarantine(
        &mut self,
        now: Now,
        worker: WorkerId,
        code: Code,
    ) -> Outcome<Result<bool, NotAlive>> {
        let mut turn = self.begin(now);
        let code = if code.is_quarantine() {
            code
        } else {
            Code::QuarantinedOperator
        };
        let result = match self.state.tree.find(worker) {
            Some(slot) => Ok(self.freeze(&mut turn, slot, code)),
            None => Err(NotAlive(worker)),
        };
        self.settle(&mut turn);
        turn.finish(result)
    }

    /// Releases a worker: an operator's act. If a condition that quarantines still holds for it, it is frozen again
    /// at once. The result says whether it was in quarantine.
    pub fn release(&mut self, now: Now, worker: WorkerId) -> Outcome<Result<bool, NotAlive>> {
        let mut turn = self.begin(now);
        let Some(slot) = self.state.tree.find(worker) else {
            return turn.finish(Err(NotAlive(worker)));
        };
        let is_frozen = self.status(worker) == Some(Status::Quarantined);
        if is_frozen {
            self.record(&mut turn, What::Released { worker });
            turn.commands.push(Command::Thaw(worker));
            // It could not speak while it was frozen.
            self.beats.heard(slot, turn.now.boot_ns);
            self.set_timer(slot);
            self.touch(slot);
            self.changed = Depends::ALL;
        }
        self.settle(&mut turn);
        turn.finish(Ok(is_frozen))
    }

    /// Resets the fleet's kill switch: an operator's act. The result says whether it was engaged.
    pub fn reset_kill_switch(&mut self, now: Now) -> Outcome<bool> {
        let mut turn = self.begin(now);
        let is_engaged = self.state.is_latched;
        if is_engaged {
            self.record(&mut turn, What::KillSwitchReset {});
        }
        turn.finish(is_engaged)
    }

    /// Accepts the wall clock as it is: an operator's act. The result says whether it was suspect.
    pub fn acknowledge_clock(&mut self, now: Now) -> Outcome<bool> {
        let mut turn = self.begin(now);
        let is_suspect = self.state.is_clock_suspect;
        if is_suspect {
            self.record(&mut turn, What::ClockAcknowledged {});
        }
        turn.finish(is_suspect)
    }

    /// A worker used something up since the last report. If that was more than it has, the result says by how much, and
    /// the caller ends it.
    pub fn report_usage(
        &mut self,
        now: Now,
        worker: WorkerId,
        usage: Usage,
    ) -> Outcome<Result<Option<OverBudget>, NotAlive>> {
        self.report_reading(now, worker, usage, None)
    }

    /// The same, with how the worker's meter stands: what is charged and that it was charged are one entry of the record.
    pub fn report_reading(
        &mut self,
        now: Now,
        worker: WorkerId,
        usage: Usage,
        reading: Option<Usage>,
    ) -> Outcome<Result<Option<OverBudget>, NotAlive>> {
        let mut turn = self.begin(now);
        let Some(slot) = self.state.tree.find(worker) else {
            return turn.finish(Err(NotAlive(worker)));
        };
        if usage.is_zero() {
            return turn.finish(Ok(None));
        }
        // Tried on a copy: the record holds what was used, the excess follows from it.
        let mut account = *self.state.tree.account(slot);
        let excess = account.charge(&usage);
        let what = What::UsageReported {
            worker,
            usage,
            reading,
        };
        self.record(&mut turn, what);
        self.note(Depends::SPENT);
        self.touch(slot);
        self.settle(&mut turn);
        turn.finish(Ok(
            (!excess.is_zero()).then_some(OverBudget { worker, excess })
        ))
    }

    /// Freezes a worker unless it is frozen.
    pub(super) fn freeze(&mut self, turn: &mut Turn, slot: u32, code: Code) -> bool {
        if self.state.tree.status(slot) == Some(Status::Quarantined) {
            return false;
        }
        let worker = self.state.tree.id(slot);
        turn.commands.push(Command::Freeze(worker));
        self.record(turn, What::Quarantined { worker, code });
        self.note(Depends::POPULATION);
        true
    }

    fn status(&self, worker: WorkerId) -> Option<Status> {
        let slot = self.state.tree.find(worker)?;
        self.state.tree.status(slot)
    }
}
