//! What operators do. Each act is on record with its reason. One that holds somebody back does not wait for that, and is done
//! though it can't be recorded; one that lets somebody go is not.

use std::convert::Infallible;
use std::time::Instant;

use belljar_replication::{Code, Controller, NotAlive, Now, Outcome, Scope, WorkerId};

use super::desk::{Desk, Unrecorded};
use super::note::brief;
use super::{FleetGate, FleetNote};
use crate::actor::Actor;

/// An act, and whom it is about.
#[derive(Clone, Debug)]
pub struct Act {
    /// Why.
    pub reason: String,
    /// Who acts.
    pub by: Actor,
}

/// How many were told to end, since when, and whether that is on record.
#[derive(Debug)]
pub struct KillTally {
    /// How many.
    pub killed: u64,
    /// When the order was given.
    pub since: Instant,
    /// The entry that records the order; or why there is none.
    pub entry: Result<u64, Unrecorded>,
}

impl FleetGate {
    /// Freezes a worker. The result says whether it was free before.
    pub fn quarantine(
        &self,
        worker: WorkerId,
        act: Act,
    ) -> Result<Result<bool, NotAlive>, Unrecorded> {
        self.restrain("quarantine", Some(worker), act, move |controller, at| {
            controller.quarantine(at, worker, Code::QuarantinedOperator)
        })
    }

    /// Lets a frozen worker go on. The result says whether it was frozen.
    pub fn release(
        &self,
        worker: WorkerId,
        act: Act,
    ) -> Result<Result<bool, NotAlive>, Unrecorded> {
        self.act("release", Some(worker), act, move |controller, at| {
            controller.release(at, worker)
        })
    }

    /// Freezes a worker and everybody below it, each before its children. The result says how many were free before.
    pub fn quarantine_subtree(
        &self,
        worker: WorkerId,
        act: Act,
    ) -> Result<Result<usize, NotAlive>, Unrecorded> {
        let name = "quarantine_subtree";
        self.restrain(name, Some(worker), act, move |controller, at| {
            each_below(controller, worker, |controller, one| {
                controller.quarantine(at, one, Code::QuarantinedOperator)
            })
        })
    }

    /// Lets a worker and everybody below it go on. The result says how many were frozen.
    pub fn release_subtree(
        &self,
        worker: WorkerId,
        act: Act,
    ) -> Result<Result<usize, NotAlive>, Unrecorded> {
        let name = "release_subtree";
        self.act(name, Some(worker), act, move |controller, at| {
            each_below(controller, worker, |controller, one| {
                controller.release(at, one)
            })
        })
    }

    /// The stop conditions that would freeze a worker again at once, were it released.
    pub fn quarantined_by(&self, worker: WorkerId) -> Result<Vec<String>, Unrecorded> {
        self.desk
            .see(move |desk| desk.controller.quarantined_by(crate::clock::now(), worker))
    }

    /// Accepts the wall clock as it is. The result says whether it was suspect.
    pub fn acknowledge_clock(&self, act: Act) -> Result<bool, Unrecorded> {
        self.act(
            "acknowledge_clock",
            None,
            act,
            Controller::acknowledge_clock,
        )
    }

    /// Takes back a worker's manifest and those below it.
    pub fn revoke(
        &self,
        worker: WorkerId,
        act: Act,
    ) -> Result<Result<usize, belljar_replication::Fault>, Unrecorded> {
        self.restrain("revoke", Some(worker), act, move |controller, at| {
            controller.revoke(at, worker)
        })
    }

    /// Takes back every manifest there is. The result is the new epoch.
    pub fn bump_epoch(&self, act: Act) -> Result<u64, Unrecorded> {
        self.restrain("bump_epoch", None, act, Controller::bump_epoch)
    }

    /// Kills a worker, and with `Scope::Subtree` its descendants; with `Scope::Fleet` engages the kill switch.
    pub fn kill(&self, scope: Scope, act: Act) -> Result<KillTally, Unrecorded> {
        let worker = match scope {
            Scope::Fleet => None,
            Scope::Subtree(worker) | Scope::Worker(worker) => Some(worker),
        };
        let latch = self.latch.clone();
        let since = Instant::now();
        let ((killed, entry), recorded) = self.desk.ask_anyway(move |desk| {
            let at = crate::clock::now();
            let name = match scope {
                Scope::Fleet => "kill_switch_engage",
                Scope::Subtree(_) => "kill_subtree",
                Scope::Worker(_) => "kill",
            };
            let reason = act.reason.clone();
            let killed = desk.act(at, name, worker, act, |controller, at| match scope {
                Scope::Worker(worker) => end_one(controller, at, worker),
                _ => controller.engage_kill_switch(at, scope),
            });
            // Everyone is dead or dying; now it may take time.
            if scope == Scope::Fleet
                && let Err(error) = latch.engage(at.wall_ms, &reason)
            {
                desk.fail(&error);
            }
            (killed, desk.upcoming())
        })?;
        Ok(KillTally {
            killed: killed as u64,
            since,
            entry: recorded.map(|()| entry),
        })
    }

    /// Takes the kill switch off. The result says whether it was engaged.
    pub fn reset_kill_switch(&self, act: Act) -> Result<bool, Unrecorded> {
        let latch = self.latch.clone();
        let Ok(was_engaged) = self.desk.ask_for(move |desk| {
            let at = crate::clock::now();
            desk.begin_reset();
            let was_engaged = desk.act(
                at,
                "kill_switch_reset",
                None,
                act,
                Controller::reset_kill_switch,
            );
            Ok::<bool, Infallible>(was_engaged | latch.engaged().is_some())
        })?;
        // On record first: a latch that is gone with no word of it in the log would be an unexplained reset.
        self.desk.ask(Desk::finish_reset)?;
        Ok(was_engaged)
    }

    /// Puts on record how a kill went. The result is the number of the entry.
    pub fn report_kill(
        &self,
        tally: &KillTally,
        boxes: u64,
        survivors: u64,
    ) -> Result<u64, Unrecorded> {
        let note = FleetNote::KillReport {
            killed: tally.killed,
            boxes,
            survivors,
            elapsed_us: u64::try_from(tally.since.elapsed().as_micros()).unwrap_or(u64::MAX),
        };
        self.desk.ask(move |desk| {
            desk.note(crate::clock::now(), &note);
            desk.upcoming()
        })
    }

    /// Puts an act on record that the controller has no part in, such as asking an agent to end. It need not hold: where the log
    /// can't be written, agents must end all the same.
    pub fn note_act(
        &self,
        name: &'static str,
        worker: Option<WorkerId>,
        act: Act,
    ) -> Result<(), Unrecorded> {
        self.desk.see(move |desk| {
            let note = FleetNote::OperatorActed {
                act: name.to_owned(),
                worker,
                reason: brief(&act.reason),
                user: rustix::process::getuid().as_raw(),
                by: Some(act.by),
            };
            desk.note(crate::clock::now(), &note);
        })
    }

    /// An agent says that it ends. It has a moment to do so, and its exit code is its own then; after that its box is killed.
    pub fn leaving(&self, worker: WorkerId, reason: String) -> Result<bool, Unrecorded> {
        self.desk.see(move |desk| {
            let at = crate::clock::now();
            let act = "shutdown".to_owned();
            let reason = brief(&reason);
            desk.note(
                at,
                &FleetNote::AgentSaid {
                    worker,
                    act,
                    reason,
                },
            );
            desk.leave(at, worker)
        })
    }

    /// Ends a worker whose program has no more use for it; nobody said anything.
    pub fn let_go(&self, worker: WorkerId) -> Result<bool, Unrecorded> {
        self.desk.see(move |desk| {
            let at = crate::clock::now();
            desk.turn(|controller| end_with(controller, at, worker, Code::Shutdown)) > 0
        })
    }

    /// Ends a worker at once, by its own word.
    pub fn shutdown_of(&self, worker: WorkerId, reason: String) -> Result<bool, Unrecorded> {
        self.desk.see(move |desk| {
            let at = crate::clock::now();
            let act = "shutdown".to_owned();
            let reason = brief(&reason);
            desk.note(
                at,
                &FleetNote::AgentSaid {
                    worker,
                    act,
                    reason,
                },
            );
            desk.turn(|controller| end_with(controller, at, worker, Code::Shutdown)) > 0
        })
    }

    /// Ends everybody, because the controller is about to.
    pub fn end_all(&self) -> Result<usize, Unrecorded> {
        self.desk.see(|desk| {
            let at = crate::clock::now();
            desk.turn(|controller| controller.shutdown(at))
        })
    }

    fn restrain<T: Send + 'static>(
        &self,
        name: &'static str,
        worker: Option<WorkerId>,
        act: Act,
        carry_out: impl FnOnce(&mut Controller, Now) -> Outcome<T> + Send + 'static,
    ) -> Result<T, Unrecorded> {
        self.desk
            .see(move |desk| desk.act(crate::clock::now(), name, worker, act, carry_out))
    }

    fn act<T: Send + 'static>(
        &self,
        name: &'static str,
        worker: Option<WorkerId>,
        act: Act,
        carry_out: impl FnOnce(&mut Controller, Now) -> Outcome<T> + Send + 'static,
    ) -> Result<T, Unrecorded> {
        let asked = self.desk.ask_for(move |desk| {
            Ok::<T, Infallible>(desk.act(crate::clock::now(), name, worker, act, carry_out))
        });
        asked.map(|Ok(done)| done)
    }
}

impl Desk {
    /// The act is noted before what comes of it; both are carried out before either is stored.
    fn act<T>(
        &mut self,
        at: Now,
        name: &str,
        worker: Option<WorkerId>,
        act: Act,
        carry_out: impl FnOnce(&mut Controller, Now) -> Outcome<T>,
    ) -> T {
        let (reason, by) = (brief(&act.reason), Some(act.by));
        let user = rustix::process::getuid().as_raw();
        let act = name.to_owned();
        self.note(
            at,
            &FleetNote::OperatorActed {
                act,
                worker,
                reason,
                user,
                by,
            },
        );
        self.turn(|controller| carry_out(controller, at))
    }
}

/// Does something to a worker and to all below it, as one step. The result says to how many it made a difference.
fn each_below(
    controller: &mut Controller,
    worker: WorkerId,
    mut act: impl FnMut(&mut Controller, WorkerId) -> Outcome<Result<bool, NotAlive>>,
) -> Outcome<Result<usize, NotAlive>> {
    let below = controller.state().subtree(worker);
    let mut whole = Outcome {
        result: Err(NotAlive(worker)),
        events: Vec::new(),
        commands: Vec::new(),
    };
    for one in below {
        let done = act(controller, one.id);
        whole.events.extend(done.events);
        whole.commands.extend(done.commands);
        let changed = usize::from(matches!(done.result, Ok(true)));
        whole.result = Ok(whole.result.unwrap_or(0) + changed);
    }
    whole
}

/// Kills one worker, and its children as the contract says.
fn end_one(controller: &mut Controller, at: Now, worker: WorkerId) -> Outcome<usize> {
    end_with(controller, at, worker, Code::KilledOperator)
}

fn end_with(controller: &mut Controller, at: Now, worker: WorkerId, code: Code) -> Outcome<usize> {
    let before = controller.state().live();
    let outcome = controller.end(at, worker, code);
    Outcome {
        result: before - controller.state().live(),
        events: outcome.events,
        commands: outcome.commands,
    }
}
