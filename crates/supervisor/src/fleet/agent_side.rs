//! What an agent may ask at its door. The door it came through says who it is; nothing it writes does.

use std::num::NonZeroU64;
use std::sync::Arc;

use belljar_api::{
    AgentCall, Asked, Budget as AskedBudget, Child, ChildUsage, Done, HeartbeatReply,
    ManifestReply, Narrowing, Problem, ProposalView, ProposalsReply, ProposeRequest, Proposed,
    ReplicasReply, ReplicateRequest, Replicated, Route, Status, Tag, TierName, UsageReply,
    UsageReport,
};
use belljar_egress::PicoUsd;
use belljar_policy::{Amount, Capability, OnBudget, Tier};
use belljar_replication::{Code, Usage};

use super::convert;
use super::crew::Employed;
use super::post::{Candidate, HireError, Keeping, Post};
use crate::apart::words::Card;
use crate::attend::Output;
use crate::command::Command;
use crate::home::HomeRequest;
use crate::inbox::{Inbox, InboxError};

impl Post {
    /// Answers an agent. It may take as long as the disk does.
    pub(crate) fn answer_agent(self: &Arc<Self>, tag: Tag, call: AgentCall) {
        let Some(asker) = self.crew.at_door(tag) else {
            let problem = Problem::new(Code::DenyParentUnknown.code(), "this worker has ended");
            return call.refuse(Status::FORBIDDEN, &problem);
        };
        match call {
            AgentCall::Replicate(asked) => answer(asked, |request| self.replicate(&asker, request)),
            AgentCall::Heartbeat(asked) => answer(asked, |_| self.heartbeat(&asker)),
            AgentCall::Manifest(asked) => answer(asked, |_| manifest(&asker)),
            AgentCall::Usage(asked) => answer(asked, |_| self.usage(&asker)),
            AgentCall::ReportUsage(asked) => {
                answer(asked, |report| self.charge_reported(&asker, &report))
            }
            AgentCall::Replicas(asked) => answer(asked, |_| self.replicas(&asker)),
            AgentCall::Propose(asked) => answer(asked, |request| self.propose(&asker, &request)),
            AgentCall::Proposals(asked) => answer(asked, |_| self.proposals(&asker)),
            AgentCall::Shutdown(asked) => {
                let reason = asked.request.reason.as_str().to_owned();
                // Nobody is answered whose word does not count yet.
                let _ = self.gate.leaving(asker.worker, reason);
                asked.responder.reply(&Done::DONE);
            }
        }
    }

    fn replicate(
        self: &Arc<Self>,
        parent: &Arc<Employed>,
        request: ReplicateRequest,
    ) -> Result<Replicated, Refused> {
        let mut capability = parent.capability.clone();
        if let Some(narrowing) = request.capability {
            narrow(&mut capability, &narrowing);
        }
        let command = match request.command {
            Some(command) => Command {
                argv: command.into_words().into_iter().map(Into::into).collect(),
                ..parent.command.clone()
            },
            None => parent.command.clone(),
        }
        .home(HomeRequest::OfItsOwn);
        let candidate = Candidate {
            capability,
            command,
            places: parent.papers.payload().capability.places().clone(),
            state: request.state.map(|state| state.into_string().into_bytes()),
            asked: request.budget.as_ref().map(asked).unwrap_or_default(),
            reason: request.reason.as_str().to_owned(),
            backstage: Arc::clone(&parent.backstage),
        };
        let hired = self.hire(Some(parent), candidate).inspect_err(|error| {
            if let Keeping::Processes(apart) = &self.keeping {
                let Refused(_, problem) = Refused::from(error);
                let hint = problem.hint.unwrap_or_default();
                let (code, why) = (&problem.code, &problem.message);
                apart.watch.denied(parent.worker, code, why, &hint);
            }
        })?;
        let worker = hired.worker();
        let kept = match &self.keeping {
            // Its output goes where its root's goes, its input comes from nowhere.
            Keeping::Threads => {
                keeper_thread(worker).spawn(move || drop(hired.keep(Output::Shared)))
            }
            Keeping::Processes(_) => {
                let card = Card {
                    name: format!("{:.8}", worker.to_string()),
                    ..Card::default()
                };
                keeper_thread(worker).spawn(move || hired.keep_apart(card, None))
            }
        };
        if let Err(error) = kept {
            let problem = Problem::new("unavailable", format!("no thread for its keeper: {error}"));
            return Err(Refused(Status::UNAVAILABLE, problem));
        }
        Ok(Replicated {
            worker_id: convert::id(worker),
        })
    }

    /// Keeps what an agent proposes. That is all: who has it judged, and for which project, is an operator's to say.
    fn propose(&self, asker: &Employed, request: &ProposeRequest) -> Result<Proposed, Refused> {
        let inbox = Inbox::of(self.state.path());
        let put = inbox.put(&asker.worker.to_string(), request.request.as_str());
        let name = put.map_err(|error| {
            let (status, code) = match error {
                InboxError::Full => (Status::FORBIDDEN, "deny_inbox_full"),
                InboxError::Io(_) => (Status::UNAVAILABLE, "unavailable"),
            };
            Refused(
                status,
                Problem::new(code, error.to_string()).hint("wait until an operator has looked"),
            )
        })?;
        Ok(Proposed { name })
    }

    fn proposals(&self, asker: &Employed) -> Result<ProposalsReply, Refused> {
        let all = Inbox::of(self.state.path()).of_worker(&asker.worker.to_string());
        let view = |letter: crate::inbox::Letter| ProposalView {
            name: letter.name,
            answer: letter.answer,
        };
        Ok(ProposalsReply {
            proposals: all.into_iter().map(view).collect(),
        })
    }

    fn heartbeat(&self, asker: &Employed) -> Result<HeartbeatReply, Refused> {
        let ok = self.gate.heartbeat(asker.worker)?;
        let within = self.contract.heartbeat_timeout;
        Ok(HeartbeatReply {
            ok,
            next_within_ms: within.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        })
    }

    fn usage(&self, asker: &Employed) -> Result<UsageReply, Refused> {
        let worker = asker.worker;
        let seen = self.gate.look(move |state, _| {
            let children = state.children(worker).map(|child| ChildUsage {
                id: convert::id(child.id),
                granted: convert::budget(&child.granted),
            });
            let view = state.worker(worker)?;
            Some(UsageReply {
                budget: convert::budget_view(&view),
                children: children.collect(),
            })
        })?;
        seen.ok_or_else(ended)
    }

    fn charge_reported(&self, asker: &Employed, report: &UsageReport) -> Result<Done, Refused> {
        let tokens = [report.tokens_in, report.tokens_out].into_iter().flatten();
        let usage = Usage {
            tokens: tokens.fold(0, u64::saturating_add),
            micro_usd: report.micro_usd.unwrap_or(0),
            ..Usage::default()
        };
        // What is reported and what the gateway meters come from one budget.
        let cost = PicoUsd::from_micro_usd(usage.micro_usd);
        let is_covered = asker.models.charge(usage.tokens, cost);
        self.crew
            .charge_models(asker.worker, usage.tokens, usage.micro_usd);
        let is_granted = self.gate.report_usage(asker.worker, usage)?;
        let may_go_on = is_covered || asker.capability.llm.on_budget == OnBudget::Refuse;
        if is_granted && !may_go_on {
            self.gate.overspent(asker.worker)?;
        }
        match is_granted && may_go_on {
            true => Ok(Done::DONE),
            false => Err(Refused(
                Status::FORBIDDEN,
                Problem::new(
                    Code::KilledBudget.code(),
                    "that is more than was granted: the worker ends",
                ),
            )),
        }
    }

    fn replicas(&self, asker: &Employed) -> Result<ReplicasReply, Refused> {
        let worker = asker.worker;
        let children = self.gate.look(move |state, now| {
            let since = |registered: u64| {
                now.wall_ms
                    .saturating_sub(now.boot_ns.saturating_sub(registered) / 1_000_000)
            };
            let live = state.children(worker).map(|child| Child {
                id: convert::id(child.id),
                state: convert::status(child.status),
                since_ms: since(child.registered_ns),
            });
            let ended = state
                .ended()
                .filter(|ended| ended.parent == Some(worker))
                .map(|ended| Child {
                    id: convert::id(ended.worker),
                    state: belljar_api::WorkerState::Ended,
                    since_ms: ended.at.wall_ms,
                });
            live.chain(ended).collect()
        })?;
        Ok(ReplicasReply { replicas: children })
    }
}

/// A refusal, in the protocol's words.
pub(crate) struct Refused(pub(crate) Status, pub(crate) Problem);

impl From<belljar_gate::Unrecorded> for Refused {
    fn from(unrecorded: belljar_gate::Unrecorded) -> Self {
        let problem = Problem::new("deny_unrecorded", &*unrecorded.0)
            .hint("an operator must see to the log and its disk (`belljar audit verify --log fleet`), then start the controller anew");
        Self(Status::UNAVAILABLE, problem)
    }
}

impl From<HireError> for Refused {
    fn from(error: HireError) -> Self {
        Self::from(&error)
    }
}

impl From<&HireError> for Refused {
    fn from(error: &HireError) -> Self {
        match error {
            HireError::Full(most) => Self(
                Status::FORBIDDEN,
                Problem::new(
                    "deny_max_agents",
                    format!("{most} agents live already, which is the most"),
                )
                .hint("wait for one to end, or raise supervisor.max_agents"),
            ),
            HireError::Refused(refusal) => {
                let mut problem =
                    Problem::new(refusal.code(), refusal.detail()).hint(refusal.hint());
                if let Some(wait) = refusal.retry_after_ms() {
                    problem = problem.retry_after_ms(wait);
                }
                Self(Status::FORBIDDEN, problem)
            }
            HireError::Run(error) => {
                let problem = Problem::new(error.code(), error.to_string());
                Self(
                    Status::UNAVAILABLE,
                    problem.hint(error.hint().unwrap_or_default()),
                )
            }
        }
    }
}

/// Answers a question with what comes of it.
pub(crate) fn answer<R: Route>(
    asked: Asked<R>,
    work: impl FnOnce(R::Request) -> Result<R::Response, Refused>,
) {
    match work(asked.request) {
        Ok(response) => asked.responder.reply(&response),
        Err(Refused(status, problem)) => asked.responder.refuse(status, &problem),
    }
}

/// A thread for a worker's keeper, or for following it.
pub(crate) fn keeper_thread(worker: belljar_replication::WorkerId) -> std::thread::Builder {
    std::thread::Builder::new().name(format!("belljar-{:.8}", worker.to_string()))
}

pub(crate) fn ended() -> Refused {
    Refused(
        Status::NOT_FOUND,
        Problem::new("not_alive", "no such worker is alive")
            .hint("`belljar replication workers --all` lists them"),
    )
}

fn manifest(asker: &Employed) -> Result<ManifestReply, Refused> {
    let malformed = |what: String| Refused(Status::INTERNAL_ERROR, Problem::new("internal", what));
    let envelope = asker.papers.envelope();
    let text =
        std::str::from_utf8(envelope.as_bytes()).map_err(|error| malformed(error.to_string()))?;
    let payload = serde_json::from_slice(envelope.unverified_payload())
        .map_err(|error| malformed(error.to_string()))?;
    Ok(ManifestReply {
        envelope: text.to_owned(),
        payload,
    })
}

/// Lowers limits to what was asked for, and changes the wall. What is more than the parent's, or weaker, stays as it is here, and
/// is refused by the gate.
fn narrow(capability: &mut Capability, narrowing: &Narrowing) {
    let number = |wanted: Option<NonZeroU64>| wanted.map(NonZeroU64::get);
    let limits = &mut capability.limits;
    if let Some(mb) = number(narrowing.max_memory_mb) {
        limits.memory_bytes = Some(mb.saturating_mul(1 << 20));
    }
    if let Some(seconds) = number(narrowing.max_cpu_seconds) {
        limits.cpu_time = Some(std::time::Duration::from_secs(seconds));
    }
    if let Some(seconds) = number(narrowing.timeout_seconds) {
        limits.wall_time = Some(std::time::Duration::from_secs(seconds));
    }
    if let Some(processes) = number(narrowing.max_processes) {
        limits.processes = Some(u32::try_from(processes).unwrap_or(u32::MAX));
    }
    if let Some(tier) = narrowing.sandbox_tier {
        capability.tier = match tier {
            TierName::Seccomp => Tier::Native,
            TierName::Container => Tier::Container,
            TierName::Gvisor => Tier::Gvisor,
            TierName::Microvm => Tier::Microvm,
            TierName::Firecracker => Tier::Firecracker,
        };
    }
}

fn asked(budget: &AskedBudget) -> belljar_replication::Asked {
    let amount = |number: Option<u64>| number.map(Amount::of);
    belljar_replication::Asked {
        replicas: amount(budget.replicas),
        cpu_ms: amount(budget.cpu_ms),
        memory_mb: amount(budget.memory_mb),
        pids: amount(budget.pids),
        tokens: amount(budget.tokens),
        micro_usd: amount(budget.micro_usd),
    }
}
