//! What an operator may ask. Whoever may open the operator's socket is one: it is the owner's alone.

use std::sync::Arc;
use std::time::Duration;

use belljar_api::{
    ClockAcknowledged, ClockState, ClockView, ContractView, Counts, Engagement, EpochBumped,
    KillReport, KillSwitchView, LedgerView, OperatorCall, Problem, Revoked, Shown, Status,
    StatusView, WorkerList, WorkerState, WorkerView,
};
use belljar_gate::{Act, Actor, KillTally};
use belljar_replication::{NotAlive, Scope, WorkerId};

use super::agent_side::{Refused, answer, ended};
use super::convert;
use super::post::{Keeping, Post};

/// How long a kill is waited for. What lives on after that is reported as a survivor.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long whoever has a box frozen waits to be told that it is. Its keeper goes on for longer.
const STILLNESS: Duration = Duration::from_secs(5);

impl Post {
    /// Answers an operator, `by` that name; gives back what is not a controller's to answer.
    pub(crate) fn answer_operator(
        self: &Arc<Self>,
        by: &str,
        call: OperatorCall,
    ) -> Option<OperatorCall> {
        let act = |reason: &str| act_by(by, reason);
        match call {
            OperatorCall::ReadStatus(asked) => answer(asked, |_| self.status()),
            OperatorCall::ListWorkers(asked) => {
                answer(asked, |_| self.workers(Including::TheEnded))
            }
            OperatorCall::ReadTree(asked) => answer(asked, |_| self.workers(Including::TheLiving)),
            OperatorCall::ReadContract(asked) => answer(asked, |_| Ok(self.contract())),
            OperatorCall::ReadKillSwitch(asked) => answer(asked, |_| Ok(self.kill_switch())),
            OperatorCall::Quarantine(asked) => {
                let target = asked.target.clone();
                answer(asked, |because| {
                    let worker = known(&target)?;
                    let act = act(because.reason.as_str());
                    let done = match because.subtree {
                        true => self.gate.quarantine_subtree(worker, act)?.map(drop),
                        false => self.gate.quarantine(worker, act)?.map(drop),
                    };
                    // Mostly it is done in a moment, and whoever asked is told that it is.
                    self.crew.await_still(worker, STILLNESS);
                    self.after(worker, done)
                });
            }
            OperatorCall::Release(asked) => {
                let target = asked.target.clone();
                answer(asked, |because| {
                    let worker = known(&target)?;
                    let act = act(because.reason.as_str());
                    let done = match because.subtree {
                        true => self.gate.release_subtree(worker, act)?.map(drop),
                        false => self.gate.release(worker, act)?.map(drop),
                    };
                    self.after_release(worker, done)
                });
            }
            OperatorCall::Kill(asked) => {
                let target = asked.target.clone();
                answer(asked, |request| {
                    let worker = known(&target)?;
                    let scope = if request.subtree {
                        Scope::Subtree(worker)
                    } else {
                        Scope::Worker(worker)
                    };
                    self.kill(scope, act(request.reason.as_str()))
                });
            }
            OperatorCall::EngageKillSwitch(asked) => answer(asked, |request| {
                self.tell_switched(true, request.reason.as_str());
                self.kill(Scope::Fleet, act(request.reason.as_str()))
            }),
            OperatorCall::ResetKillSwitch(asked) => answer(asked, |request| {
                self.gate.reset_kill_switch(act(request.reason.as_str()))?;
                self.tell_switched(false, request.reason.as_str());
                Ok(self.kill_switch())
            }),
            OperatorCall::Revoke(asked) => answer(asked, |request| {
                let worker = known(&request.worker_id)?;
                let since = std::time::Instant::now();
                let done = self.gate.revoke(worker, act(request.reason.as_str()))?;
                let killed = done.map_err(|fault| {
                    Refused(
                        Status::CONFLICT,
                        Problem::new("conflict", fault.to_string()),
                    )
                })?;
                Ok(Revoked {
                    manifests: killed as u64,
                    report: self.report_kills(killed as u64, since)?,
                })
            }),
            OperatorCall::BumpEpoch(asked) => answer(asked, |because| {
                let since = std::time::Instant::now();
                let killed = self.crew.len() as u64;
                let epoch = self.gate.bump_epoch(act(because.reason.as_str()))?;
                Ok(EpochBumped {
                    epoch,
                    report: self.report_kills(killed, since)?,
                })
            }),
            OperatorCall::AcknowledgeClock(asked) => answer(asked, |because| {
                self.gate.acknowledge_clock(act(because.reason.as_str()))?;
                Ok(ClockAcknowledged {
                    clock: self.clock()?,
                })
            }),
            other => return Some(other),
        }
        None
    }

    /// Refuses what only a daemon has: agents with names, histories, alerts.
    pub(crate) fn refuse_operator(call: OperatorCall) {
        let problem = Problem::new(
            "no_daemon",
            "this controller lives in a `belljar run --contract`, which has no such thing",
        );
        let problem = problem.hint("start a daemon with `belljar supervisor start`");
        call.refuse(Status::NOT_FOUND, &problem);
    }

    fn tell_switched(&self, is_engaged: bool, reason: &str) {
        if let Keeping::Processes(apart) = &self.keeping {
            apart.watch.switched(is_engaged, reason);
        }
    }

    /// Kills, waits until it is done, and puts on record how it went.
    pub(crate) fn kill(&self, scope: Scope, act: Act) -> Result<KillReport, Refused> {
        let tally = self.gate.kill(scope, act)?;
        if tally.killed == 0 && scope != Scope::Fleet {
            return Err(ended());
        }
        let survivors = match scope {
            Scope::Fleet => self.crew.await_everybody(PATIENCE),
            Scope::Subtree(_) | Scope::Worker(_) => self.await_the_ended()?,
        };
        let boxes = tally.killed.saturating_sub(survivors);
        let elapsed = tally.since.elapsed();
        let recorded = self.gate.report_kill(&tally, boxes, survivors);
        let (entry, not_recorded) = match (tally.entry, recorded) {
            (Ok(_), Ok(entry)) => (Some(entry), None),
            (Err(error), _) | (_, Err(error)) => (None, Some(Shown::new(&error.to_string()))),
        };
        Ok(KillReport {
            killed: tally.killed,
            boxes,
            survivors,
            elapsed_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            entry,
            not_recorded,
            held_by: match scope {
                Scope::Fleet => self.held_by(),
                Scope::Subtree(_) | Scope::Worker(_) => None,
            },
        })
    }

    /// Waits until nothing is left of the boxes of workers that have ended, whoever ended them and whatever their keepers
    /// say; how many are left when patience ends.
    fn await_the_ended(&self) -> Result<u64, Refused> {
        // In this order: whoever has a box now and is not alive then is one of them.
        let kept = self.crew.kept();
        let doomed = self.gate.look(move |state, _| {
            let ended = kept
                .into_iter()
                .filter(|worker| state.worker(*worker).is_none());
            ended.collect::<Vec<_>>()
        })?;
        Ok(self.crew.await_end_of(&doomed, PATIENCE))
    }

    /// The same report for kills that came of something else.
    fn report_kills(&self, killed: u64, since: std::time::Instant) -> Result<KillReport, Refused> {
        let survivors = self.await_the_ended()?;
        let elapsed_us = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        let tally = KillTally {
            killed,
            since,
            entry: Ok(0),
        };
        let boxes = killed.saturating_sub(survivors);
        let recorded = self.gate.report_kill(&tally, boxes, survivors);
        Ok(KillReport {
            killed,
            boxes,
            survivors,
            elapsed_us,
            not_recorded: recorded
                .as_ref()
                .err()
                .map(|error| Shown::new(&error.to_string())),
            entry: recorded.ok(),
            held_by: None,
        })
    }

    pub(crate) fn status(&self) -> Result<StatusView, Refused> {
        let (entries, failed) = self.gate.log_state()?;
        let crew = Arc::clone(&self.crew);
        let (counts, epoch, now) = self.gate.look(move |state, now| {
            let mut counts = Counts::default();
            for worker in state.workers() {
                match worker.status {
                    belljar_replication::Status::Starting => counts.starting += 1,
                    belljar_replication::Status::Running => counts.running += 1,
                    belljar_replication::Status::Quarantined if crew.is_freezing(worker.id) => {
                        counts.freezing += 1;
                    }
                    belljar_replication::Status::Quarantined => counts.quarantined += 1,
                }
            }
            counts.ended = state.ended().count() as u64;
            (counts, state.epoch(), now)
        })?;
        Ok(StatusView {
            version: Shown::new(env!("CARGO_PKG_VERSION")),
            started_at_ms: self.started_at_ms,
            uptime_ms: now.wall_ms.saturating_sub(self.started_at_ms),
            workers: counts,
            kill_switch: self.kill_switch(),
            epoch,
            clock: self.clock()?,
            ledger: LedgerView {
                entries,
                failed: failed.map(|why| Shown::new(&why)),
            },
        })
    }

    fn clock(&self) -> Result<ClockView, Refused> {
        let (suspect, high_water_ms) = self
            .gate
            .look(|state, _| (state.is_clock_suspect(), state.wall_high_ms()))?;
        Ok(ClockView {
            state: if suspect {
                ClockState::WentBack
            } else {
                ClockState::Steady
            },
            high_water_ms,
        })
    }

    fn workers(&self, including: Including) -> Result<WorkerList, Refused> {
        let crew = Arc::clone(&self.crew);
        let workers = self.gate.look(move |state, now| {
            let mut workers = convert::everybody(state, now, &crew);
            if including == Including::TheEnded {
                workers.extend(state.ended().map(convert::obituary));
            }
            workers
        })?;
        Ok(WorkerList { workers })
    }

    fn kill_switch(&self) -> KillSwitchView {
        KillSwitchView {
            engaged: self.gate.engaged().map(|engaged| Engagement {
                reason: Shown::new(&engaged.reason),
                since_ms: engaged.at_ms,
                held_by: self.held_by(),
            }),
        }
    }

    /// What holds the kill switch.
    fn held_by(&self) -> Option<Shown> {
        let holder = self.gate.latch_holder();
        holder.map(|holder| Shown::new(&holder.to_string()))
    }

    fn contract(&self) -> ContractView {
        convert::contract(&self.contract)
    }

    /// How a worker is after it was released. One that a condition holds is in quarantine again, and the operator should know why.
    fn after_release<T>(
        &self,
        worker: WorkerId,
        done: Result<T, NotAlive>,
    ) -> Result<WorkerView, Refused> {
        let view = self.after(worker, done)?;
        // It may be seen before its processes are known to hold still once more.
        let is_held = matches!(view.state, WorkerState::Quarantined | WorkerState::Freezing);
        if !is_held {
            return Ok(view);
        }
        let names = self.gate.quarantined_by(worker)?;
        let message = match names.as_slice() {
            [] => "it is in quarantine again at once".to_owned(),
            names => format!(
                "it is in quarantine again at once: the stop condition {} still holds",
                names.join(", ")
            ),
        };
        let problem = Problem::new("still_quarantined", message)
            .hint("change what the condition measures or the contract, or kill the worker");
        Err(Refused(Status::CONFLICT, problem))
    }

    /// How a worker is after something was done to it.
    fn after<T>(&self, worker: WorkerId, done: Result<T, NotAlive>) -> Result<WorkerView, Refused> {
        done.map_err(|_| ended())?;
        let crew = Arc::clone(&self.crew);
        let view = self.gate.look(move |state, now| {
            state
                .worker(worker)
                .map(|view| convert::worker(&view, now, &crew))
        })?;
        view.ok_or_else(ended)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Including {
    TheLiving,
    TheEnded,
}

pub(crate) fn known(id: &belljar_api::WorkerId) -> Result<WorkerId, Refused> {
    id.as_str().parse().map_err(|_| ended())
}

/// Whoever may open the operator's socket.
pub(crate) const OWNER: &str = "owner";

/// An act of somebody who is known by a name: whoever may open the socket, or, as the web server names them, a token.
pub(crate) fn act_by(by: &str, reason: &str) -> Act {
    let mut act = act(reason);
    if by != OWNER {
        act.by = token(by).unwrap_or_else(|| Actor::Rule {
            name: by.to_owned(),
        });
    }
    act
}

/// `NAME (token ID)`.
fn token(by: &str) -> Option<Actor> {
    let (name, id) = by.strip_suffix(')')?.rsplit_once(" (token ")?;
    Some(Actor::Token {
        id: id.to_owned(),
        name: name.to_owned(),
    })
}

/// An act of whoever may open the socket: its owner.
pub(crate) fn act(reason: &str) -> Act {
    Act {
        reason: reason.to_owned(),
        by: Actor::this_user(),
    }
}
