//! What operators ask of a daemon.

use std::time::Duration;

use belljar_api::{
    AgentDetail, AgentList, AgentPhase, AgentView, AlertKind, Done, ImageView, KillReport, Name,
    OperatorCall, OutputQuery, OutputReply, OutputStream, Problem, ProcessList,
    ResolveAlertsRequest, Shown, SilenceRequest, Status, StopRequest,
};
use belljar_replication::WorkerId;
use std::sync::PoisonError;

use super::processes;
use super::roster::{Stopping, is_over};
use super::{Inner, OperatorIdentity};
use crate::apart::words::Order;
use crate::fleet::{Refused, act_by, answer, known};
use crate::rotation::read_part;

/// The mark of an agent that is held still.
const QUARANTINED: &str = "quarantined";
/// The most of an agent's output in one answer.
const MOST_OUTPUT: u64 = 256 << 10;

impl Inner {
    /// Answers, with the observer's help, or says that nobody can.
    pub(super) fn answer_or_refuse(&self, by: &OperatorIdentity, call: OperatorCall) {
        let left = self.answer(by, call);
        let left = left.and_then(|call| match self.note_watching(by.name(), &call) {
            Ok(()) => self.observer.answer(by.name(), call),
            Err(Refused(status, problem)) => {
                call.refuse(status, &problem);
                None
            }
        });
        if let Some(call) = left {
            let problem = Problem::new("not_watched", "this supervisor keeps no such thing");
            call.refuse(Status::NOT_FOUND, &problem);
        }
    }

    /// Answers what is the daemon's own to answer.
    pub(super) fn answer(&self, by: &OperatorIdentity, call: OperatorCall) -> Option<OperatorCall> {
        match call {
            OperatorCall::ListAgents(asked) => answer(asked, |query| {
                Ok(AgentList {
                    agents: self.views(query.ended.unwrap_or(false))?,
                    not_running: self.not_running(),
                    max_agents: self.settings.max_agents as u64,
                    at_ms: belljar_gate::clock::now().wall_ms,
                })
            }),
            OperatorCall::StartAgent(asked) => answer(asked, |request| {
                let mut spec: super::AgentSpec = request.into();
                if self.roster.declared.knows(&spec.name) {
                    return Err(is_declared(&spec.name));
                }
                self.check_ceiling(by, &mut spec)?;
                let worker = self.start(spec)?;
                self.view(worker)
            }),
            OperatorCall::ReadAgent(asked) => {
                let target = asked.target.clone();
                answer(asked, |_| self.detail(known(&target)?));
            }
            OperatorCall::ListProcesses(asked) => {
                let target = asked.target.clone();
                answer(asked, |_| self.processes(known(&target)?));
            }
            OperatorCall::ReadOutput(asked) => {
                let target = asked.target.clone();
                answer(asked, |query| self.output(known(&target)?, &query));
            }
            OperatorCall::StopAgent(asked) => {
                let target = asked.target.clone();
                answer(asked, |request| self.stop(by, known(&target)?, &request));
            }
            OperatorCall::RestartAgent(asked) => {
                let target = asked.target.clone();
                answer(asked, |request| self.restart(by, known(&target)?, &request));
            }
            OperatorCall::StartDeclared(asked) => {
                answer(asked, |request| self.start_declared(by, &request));
            }
            OperatorCall::Reload(asked) => answer(asked, |request| self.reload(by, &request)),
            OperatorCall::ListHolds(asked) => answer(asked, |_| self.holds()),
            OperatorCall::AnswerHold(asked) => {
                let target = asked.target.clone();
                answer(asked, |request| {
                    self.answer_hold(by.name(), &target, &request)
                });
            }
            // Between two lives there is no worker to kill; that there will be no next is all there is to do.
            OperatorCall::Kill(asked)
                if self.is_given_up(&asked.target) || self.is_refused(&asked.target) =>
            {
                let target = asked.target.clone();
                answer(asked, |request| {
                    let worker = known(&target)?;
                    self.unwant(worker, by, "killed", request.reason.as_str());
                    let act = act_by(by.name(), request.reason.as_str());
                    self.post().gate.note_act("give_up", None, act)?;
                    Ok(KillReport {
                        killed: 0,
                        boxes: 0,
                        survivors: 0,
                        elapsed_us: 0,
                        entry: None,
                        not_recorded: None,
                        held_by: None,
                    })
                });
            }
            OperatorCall::ShutDown(asked) => {
                let mut grace = None;
                answer(asked, |request| {
                    let act = act_by(by.name(), request.reason.as_str());
                    self.post().gate.note_act("shut_down", None, act)?;
                    let asked = request.grace_ms.map(Duration::from_millis);
                    grace = Some(asked.unwrap_or(self.settings.stop_grace));
                    Ok(Done::DONE)
                });
                // Whoever asked has the answer before the socket it goes through is closed.
                if let Some(grace) = grace {
                    let mut asked = self
                        .closing
                        .asked
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner);
                    asked.get_or_insert(grace);
                    drop(asked);
                    self.closing.told.notify_all();
                }
            }
            other => {
                self.note_reason(by, &other);
                return self.post().answer_operator(by.name(), other);
            }
        }
        None
    }

    /// What people say about alerts is on record before it holds.
    fn note_watching(&self, by: &str, call: &OperatorCall) -> Result<(), Refused> {
        let (name, reason) = match call {
            OperatorCall::AcknowledgeAlert(asked) => (
                "acknowledge_alert",
                asked.request.reason.as_str().to_owned(),
            ),
            OperatorCall::ResolveAlert(asked) => {
                ("resolve_alert", asked.request.reason.as_str().to_owned())
            }
            OperatorCall::ResolveAlerts(asked) => {
                let ResolveAlertsRequest {
                    agent,
                    kind,
                    reason,
                    ..
                } = &asked.request;
                (
                    "resolve_alerts",
                    matched(agent.as_ref(), *kind, "", reason.as_str()),
                )
            }
            OperatorCall::CreateSilence(asked) => {
                let SilenceRequest {
                    agent,
                    kind,
                    for_ms,
                    reason,
                } = &asked.request;
                let lasts = format!(" for {} s", for_ms / 1000);
                (
                    "silence_alerts",
                    matched(agent.as_ref(), *kind, &lasts, reason.as_str()),
                )
            }
            OperatorCall::EndSilence(asked) => {
                ("end_silence", asked.request.reason.as_str().to_owned())
            }
            _ => return Ok(()),
        };
        Ok(self.post().gate.note_act(name, None, act_by(by, &reason))?)
    }

    /// Whether an agent is declared, could not be started, and is tried again: what it ended as is not the end of it.
    fn is_refused(&self, target: &belljar_api::WorkerId) -> bool {
        known(target).is_ok_and(|worker| self.is_tried_again(worker))
    }

    fn is_tried_again(&self, worker: WorkerId) -> bool {
        let name = self.roster.name_of(worker);
        !self.roster.is_live(&name) && self.roster.declared.is_refused(&name)
    }

    fn is_given_up(&self, target: &belljar_api::WorkerId) -> bool {
        known(target).is_ok_and(|worker| self.roster.give_up(worker))
    }

    /// What somebody does to an agent is told with what they said.
    fn note_reason(&self, by: &OperatorIdentity, call: &OperatorCall) {
        let (target, reason, mark) = match call {
            OperatorCall::Quarantine(asked) => {
                (&asked.target, &asked.request.reason, Some(QUARANTINED))
            }
            OperatorCall::Release(asked) => (&asked.target, &asked.request.reason, None),
            OperatorCall::Kill(asked) => (&asked.target, &asked.request.reason, Some("killed")),
            _ => return,
        };
        let Ok(worker) = known(target) else { return };
        self.roster.because(worker, reason.as_str());
        match mark {
            Some(mark) => self.unwant(worker, by, mark, reason.as_str()),
            None => self.end_quarantine(worker),
        }
    }

    /// A declared agent is not to run from now on, over restarts of the daemon and of the machine: on disk before anybody is answered.
    fn unwant(&self, worker: WorkerId, by: &OperatorIdentity, code: &str, reason: &str) {
        let is_refused = code != QUARANTINED && self.is_tried_again(worker);
        let found = self.roster.with(worker, |agent| {
            // One that waits has nothing that could be held still.
            let is_there = agent.view.phase != AgentPhase::Waiting || code != QUARANTINED;
            let is_over = is_over(agent.view.phase) && !is_refused;
            let is_it = agent.view.parent.is_none() && !is_over && is_there;
            is_it.then(|| agent.card.name.clone())
        });
        let Some(name) = found.flatten() else { return };
        let by = Some(by.name());
        if let Some(why) = self.roster.declared.mark(&name, by, code, reason) {
            self.roster.mark_not_kept(worker, &name, &why);
        }
    }

    /// It is let go on: whoever quarantined it no longer keeps it from running.
    fn end_quarantine(&self, worker: WorkerId) {
        let desired = &self.roster.declared.desired;
        let name = self.roster.name_of(worker);
        let is_by_quarantine = |name: &str| {
            let mark = desired.get(name);
            mark.is_some_and(|mark| mark.code == QUARANTINED)
        };
        if is_by_quarantine(&name)
            && let Err(error) = desired.clear(&name)
        {
            self.roster.mark_not_kept(worker, &name, &error.to_string());
        }
    }

    /// Everybody, by start.
    pub(super) fn views(&self, with_ended: bool) -> Result<Vec<AgentView>, Refused> {
        self.look_at_budgets();
        let mut views = self.roster.views();
        views.retain(|view| with_ended || view.phase != belljar_api::AgentPhase::Ended);
        let alerts = self.observer.open_alerts();
        for view in &mut views {
            view.open_alerts = alerts.get(&view.id).copied().unwrap_or(0);
        }
        Ok(views)
    }

    pub(super) fn view(&self, worker: WorkerId) -> Result<AgentView, Refused> {
        let view = self.roster.with(worker, |agent| agent.view.clone());
        view.ok_or_else(unknown)
    }

    fn detail(&self, worker: WorkerId) -> Result<AgentDetail, Refused> {
        self.look_at_budgets();
        let children = self.roster.children(worker);
        let host = belljar_sandbox::Host::probe();
        let detail = self.roster.with(worker, |agent| {
            let card = &agent.card;
            let profile = card.profile.as_deref().unwrap_or("moderate");
            let shipped = belljar_manifest::profile_source(profile).unwrap_or_default();
            AgentDetail {
                agent: agent.view.clone(),
                keeper_pid: agent.keeper_pid,
                children,
                workdir: workdir_of(agent),
                tier: Shown::new(&agent.origin.tier),
                image: agent
                    .started
                    .as_ref()
                    .and_then(|started| started.image.as_ref())
                    .map(|image| ImageView {
                        name: Shown::new(&image.name),
                        digest: Shown::new(&image.digest),
                    }),
                limits_by: Shown::new(
                    agent
                        .started
                        .as_ref()
                        .map_or(host.cgroups.name(), |started| &started.limits_by),
                ),
                degraded: crate::keeper::degraded(&host)
                    .iter()
                    .map(|weaker| Shown::new(weaker))
                    .collect(),
                policy: card.capability.as_deref().map_or_else(
                    || shipped.to_owned(),
                    |text| agent.origin.backstage.redacted(text),
                ),
                denials: agent.denials.clone(),
            }
        });
        detail.ok_or_else(unknown)
    }

    fn processes(&self, worker: WorkerId) -> Result<ProcessList, Refused> {
        let first = self.roster.with(worker, |agent| {
            let lives = agent.keeper_pid.is_some();
            agent
                .started
                .as_ref()
                .filter(|_| lives)
                .map(|started| started.pid)
        });
        let first = first.ok_or_else(unknown)?;
        let first = first.and_then(|pid| u32::try_from(pid).ok());
        Ok(ProcessList {
            processes: first.map(processes::below).unwrap_or_default(),
        })
    }

    fn output(&self, worker: WorkerId, query: &OutputQuery) -> Result<OutputReply, Refused> {
        // Asked first: whatever was written before the end is in the files by then.
        let is_over = self
            .roster
            .with(worker, |agent| {
                agent.keeper_pid.is_none() && agent.view.end.is_some()
            })
            .ok_or_else(unknown)?;
        let stem = match query.stream.unwrap_or_default() {
            OutputStream::Stdout => "stdout",
            OutputStream::Stderr => "stderr",
        };
        let most = query.most.unwrap_or(MOST_OUTPUT).clamp(4, MOST_OUTPUT) as usize;
        let directory = self.post().output_of(&worker.to_string());
        let part = read_part(&directory, stem, query.from, most).map_err(|error| {
            let problem = Problem::new("internal", format!("its output can't be read: {error}"));
            Refused(Status::INTERNAL_ERROR, problem)
        })?;
        let is_full = part.bytes.len() >= most;
        let mut bytes = part.bytes;
        // A character that is cut in two is told with the next part, where there is one.
        if is_full || !is_over {
            bytes.truncate(whole(&bytes));
        }
        Ok(OutputReply {
            from: part.from,
            next: part.from + bytes.len() as u64,
            is_end: is_over && !is_full,
            dropped: part.dropped,
            text: String::from_utf8_lossy(&bytes).into_owned(),
        })
    }

    pub(super) fn stop(
        &self,
        by: &OperatorIdentity,
        worker: WorkerId,
        request: &StopRequest,
    ) -> Result<AgentView, Refused> {
        let reason = request.reason.as_str();
        let is_refused = self.is_tried_again(worker);
        self.unwant(worker, by, "stopped", reason);
        if is_refused {
            let act = act_by(by.name(), reason);
            self.post().gate.note_act("stop", Some(worker), act)?;
            return self.view(worker);
        }
        self.stop_now(by, worker, request, reason)
    }

    /// The same for an agent that is to come back, or is not declared any more.
    pub(super) fn stop_unmarked(
        &self,
        by: &OperatorIdentity,
        worker: WorkerId,
        request: &StopRequest,
    ) -> Result<AgentView, Refused> {
        let reason = request.reason.as_str();
        self.roster.change(worker, |agent| agent.returns = true);
        self.stop_now(by, worker, request, reason)
    }

    fn stop_now(
        &self,
        by: &OperatorIdentity,
        worker: WorkerId,
        request: &StopRequest,
        reason: &str,
    ) -> Result<AgentView, Refused> {
        let act = act_by(by.name(), reason);
        self.post().gate.note_act("stop", Some(worker), act)?;
        match self.roster.stopping(worker, reason) {
            None => {
                return Err(Refused(
                    Status::CONFLICT,
                    Problem::new("not_alive", "it has ended already"),
                ));
            }
            Some(Stopping::WasWaiting) => {}
            Some(Stopping::Lives) => {
                let own = u64::try_from(self.settings.stop_grace.as_millis()).unwrap_or(u64::MAX);
                let grace_ms = request.grace_ms.unwrap_or(own);
                if let Some(line) = self.post().crew.line(worker) {
                    let _ = line.order(&Order::Stop { grace_ms });
                }
            }
        }
        self.view(worker)
    }
}

/// Which alerts an act is about, and why.
fn matched(agent: Option<&Name>, kind: Option<AlertKind>, more: &str, reason: &str) -> String {
    let who = agent.map_or("everybody", Name::as_str);
    let what = kind.map_or("any kind".to_owned(), |kind| format!("{kind:?}"));
    format!("{what} about {who}{more}: {reason}")
}

fn workdir_of(agent: &super::roster::Agent) -> String {
    let work = agent.origin.workdir.as_deref();
    work.unwrap_or(std::path::Path::new(""))
        .to_string_lossy()
        .into_owned()
}

/// Its name means what the file says.
fn is_declared(name: &str) -> Refused {
    let message = format!("the supervisor's file declares an agent {name}");
    let problem = Problem::new("name_taken", message);
    let hint = "choose another name, or `belljar supervisor agent start` that one";
    Refused(Status::CONFLICT, problem.hint(hint))
}

pub(super) fn unknown() -> Refused {
    Refused(
        Status::NOT_FOUND,
        Problem::new("not_found", "no such agent is known")
            .hint("`belljar supervisor status --all` lists them"),
    )
}

/// How many bytes are whole characters, or can't become one.
fn whole(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Ok(_) => bytes.len(),
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Err(_) => {
            let tail = bytes.len().saturating_sub(3);
            let end = bytes.get(tail..).unwrap_or_default();
            match std::str::from_utf8(end) {
                Err(error) if error.error_len().is_none() => tail + error.valid_up_to(),
                _ => bytes.len(),
            }
        }
    }
}
