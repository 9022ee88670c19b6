//! How workers end: by themselves, by the kill switch, by revocation.

use belljar_policy::OnParentExit;

use super::{Controller, Turn};
use crate::event::{Scope, What, WithdrawnWhy};
use crate::holes::enforced;
use crate::outcome::{Command, NotAlive, Outcome};
use crate::state::Fault;
use crate::stop::Depends;
use crate::tree::FLEET;
use crate::{Code, Jti, Now, Usage, WorkerId};

impl Controller {
    /// A worker ends: its box exited, could not be started, or an operator wants it gone. Those below it follow
    /// the contract. A code that is no end counts as `killed_operator`.
    pub fn end(&mut self, now: Now, worker: WorkerId, code: Code) -> Outcome<Result<(), NotAlive>> {
        let mut turn = self.begin(now);
        let code = if code.is_end() {
            code
        } else {
            Code::KilledOperator
        };
        let result = match self.state.tree.find(worker) {
            Some(slot) => {
                self.end_one(&mut turn, slot, code);
                Ok(())
            }
            None => Err(NotAlive(worker)),
        };
        self.settle(&mut turn);
        turn.finish(result)
    }

    /// Takes a worker out whose keeper is gone: nobody knows what it used, so all counts as used that it could, its replicas'
    /// parts aside. Strict, not generous: whoever can end its keeper must not be paid for it.
    pub fn lose(&mut self, now: Now, worker: WorkerId) -> Outcome<Result<(), NotAlive>> {
        let Some(slot) = self.state.tree.find(worker) else {
            return self.begin(now).finish(Err(NotAlive(worker)));
        };
        let rest = match enforced!(LostIsSpent, true) {
            true => self.state.tree.account(slot).rest(),
            false => Usage::default(),
        };
        let charged = self.report_usage(now, worker, rest);
        let mut ended = self.end(now, worker, Code::Lost);
        ended.events.splice(0..0, charged.events);
        ended.commands.splice(0..0, charged.commands);
        ended
    }

    /// Ends everyone because the controller is about to stop.
    pub fn shutdown(&mut self, now: Now) -> Outcome<usize> {
        let mut turn = self.begin(now);
        let ended = self.end_all(&mut turn, Code::Shutdown);
        turn.finish(ended)
    }

    /// Pulls the kill switch. For the fleet it stays engaged, through restarts too, until an operator resets it. The
    /// result says how many ended.
    pub fn engage_kill_switch(&mut self, now: Now, scope: Scope) -> Outcome<usize> {
        let mut turn = self.begin(now);
        self.record(&mut turn, What::KillSwitchEngaged { scope });
        let code = Code::KilledKillSwitch;
        let ended = match scope {
            Scope::Fleet if enforced!(LatchKills, true) => self.end_all(&mut turn, code),
            Scope::Subtree(id) if enforced!(SubtreeKill, true) => {
                self.withdraw_of(&mut turn, id, WithdrawnWhy::KillSwitch);
                self.end_lineage(&mut turn, id, code)
            }
            Scope::Worker(id) => {
                self.withdraw_of(&mut turn, id, WithdrawnWhy::KillSwitch);
                let slot = self.state.tree.find(id);
                slot.map_or(0, |slot| self.end_one(&mut turn, slot, code))
            }
            _ => 0,
        };
        self.settle(&mut turn);
        turn.finish(ended)
    }

    /// Revokes a worker's manifest, and with it those below: whoever lives under them ends. The result says how many ended.
    pub fn revoke(&mut self, now: Now, worker: WorkerId) -> Outcome<Result<usize, Fault>> {
        let mut turn = self.begin(now);
        // Asked before it is recorded: a full list is no contradiction in the record.
        let is_full = self.state.revoked.len() >= crate::MAX_REVOKED;
        if is_full && !self.state.revoked.contains(&worker) {
            return turn.finish(Err(Fault::TooManyRevoked));
        }
        self.record(&mut turn, What::Revoked { worker });
        let mut ended = 0;
        if enforced!(RevokeEnds, true) {
            self.withdraw_of(&mut turn, worker, WithdrawnWhy::Revoked);
            ended = self.end_lineage(&mut turn, worker, Code::Revoked);
        }
        self.settle(&mut turn);
        turn.finish(Ok(ended))
    }

    /// Voids every manifest there is and ends everyone. The result is the new epoch.
    pub fn bump_epoch(&mut self, now: Now) -> Outcome<u64> {
        let mut turn = self.begin(now);
        let epoch = self.state.epoch.saturating_add(1);
        self.record(&mut turn, What::EpochBumped { epoch });
        if enforced!(EpochEnds, true) {
            self.end_all(&mut turn, Code::Revoked);
        }
        self.settle(&mut turn);
        turn.finish(epoch)
    }

    /// Takes an unused grant back. The result says whether there was one.
    pub fn withdraw(&mut self, now: Now, jti: Jti) -> Outcome<bool> {
        let mut turn = self.begin(now);
        let is_there = self.state.grants.find(jti).is_some();
        if is_there {
            let why = WithdrawnWhy::TakenBack;
            self.record(&mut turn, What::Withdrawn { jti, why });
        }
        turn.finish(is_there)
    }

    /// Ends one worker, and its children as the contract says. Returns how many ended.
    pub(super) fn end_one(&mut self, turn: &mut Turn, slot: u32, code: Code) -> usize {
        let follow = self.state.contract.on_parent_exit == OnParentExit::Kill;
        let slots = if enforced!(ParentExitKills, follow) {
            self.state.tree.subtree(slot)
        } else {
            vec![slot]
        };
        self.end_slots(turn, &slots, code, Code::ParentExit)
    }

    /// Ends everyone. Returns how many there were.
    pub(super) fn end_all(&mut self, turn: &mut Turn, code: Code) -> usize {
        let slots = self.state.tree.subtree(FLEET);
        self.end_slots(turn, &slots, code, code)
    }

    /// Ends a worker and everyone who descends from it, whatever the contract says about orphans. The
    /// worker itself may have ended before.
    fn end_lineage(&mut self, turn: &mut Turn, id: WorkerId, code: Code) -> usize {
        let heads: Vec<u32> = match self.state.tree.find(id) {
            Some(slot) => vec![slot],
            None => self.orphans_of(id),
        };
        let mut ended = 0;
        for head in heads {
            let slots = self.state.tree.subtree(head);
            ended += self.end_slots(turn, &slots, code, code);
        }
        ended
    }

    fn orphans_of(&self, id: WorkerId) -> Vec<u32> {
        let orphans = self
            .state
            .orphans
            .iter()
            .filter(|(_, above)| above.contains(&id));
        orphans
            .filter_map(|(orphan, _)| self.state.tree.find(*orphan))
            .collect()
    }

    /// Ends these workers. They come with parents first, so that commands do too; the record has children first.
    fn end_slots(&mut self, turn: &mut Turn, slots: &[u32], first: Code, rest: Code) -> usize {
        turn.commands.reserve(slots.len());
        turn.events.reserve(slots.len());
        for (at, slot) in slots.iter().enumerate() {
            let code = if at == 0 { first } else { rest };
            if !matches!(code, Code::Exited | Code::LaunchFailed) {
                let id = self.state.tree.id(*slot);
                turn.commands.push(Command::Kill(id, code));
            }
        }
        let above = slots.first().map(|slot| self.state.tree.parent(*slot));
        for (at, slot) in slots.iter().enumerate().rev() {
            let code = if at == 0 { first } else { rest };
            let worker = self.state.tree.id(*slot);
            self.record(turn, What::Ended { worker, code });
        }
        if let Some(slot) = above {
            self.touch(slot);
        }
        self.note(Depends::POPULATION);
        slots.len()
    }

    /// Takes back the grants made out to a worker that has not registered yet.
    fn withdraw_of(&mut self, turn: &mut Turn, worker: WorkerId, why: WithdrawnWhy) {
        let grants = self
            .state
            .grants
            .iter()
            .filter(|grant| grant.worker == worker);
        let jtis: Vec<Jti> = grants.map(|grant| grant.jti).collect();
        for jti in jtis {
            self.record(turn, What::Withdrawn { jti, why });
        }
    }
}
