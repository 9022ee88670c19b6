//! From a wish to a box: grant, papers, door, keeper.

use std::sync::Arc;
use std::time::Duration;

use belljar_api::{Handle, Side};
use belljar_egress::{LlmBudget, PicoUsd};
use belljar_gate::{FleetGate, FleetRefusal, Launch, Papers, Permit, Replicate, Standing, Wish};
use belljar_manifest::lineage::{CapabilityDocument, Digest};
use belljar_policy::{Budget, Capability, Contract, Places};
use belljar_replication::{Asked, Code, Jti, Usage, WorkerId};

use super::crew::{Crew, Employed};
use super::programs::Programs;
use crate::attend::{self, Assignment, Attendant, Facts, Leave, Output, attend};
use crate::door::Door;
use crate::error::RunError;
use crate::lower::Command;
use crate::manager::SandboxId;
use crate::network::metered;
use crate::reins::Reins;
use crate::result::{KilledBy, RunResult};
use crate::state::StateDir;
use belljar_sandbox::show::{Show, ShowName};

/// How often a worker's CPU time is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// CPU time that is worth an entry in the log before the worker's end.
const WORTH_TELLING_MS: u64 = 100;

/// What keepers and doors of one fleet share.
#[derive(Debug)]
pub(crate) struct Post {
    pub(crate) gate: FleetGate,
    pub(crate) crew: Arc<Crew>,
    pub(crate) doors: Handle,
    pub(crate) state: StateDir,
    pub(crate) contract: Contract,
    pub(crate) programs: Programs,
    pub(crate) started_at_ms: u64,
}

/// Somebody who is to have a box.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// Within the contract already; the gate sees to it that it is within the parent's.
    pub(crate) capability: Capability,
    pub(crate) command: Command,
    pub(crate) places: Places,
    pub(crate) state: Option<Vec<u8>>,
    pub(crate) asked: Asked,
    pub(crate) reason: String,
}

/// A worker that was let in and has no box yet. Dropped, it never will.
#[derive(Debug)]
pub(crate) struct Hired {
    post: Arc<Post>,
    employed: Arc<Employed>,
    launch: Option<Permit<Launch>>,
    reins: Reins,
    door: Door,
    tag: belljar_api::Tag,
    state: Option<Vec<u8>>,
    /// What its box may hold.
    own: Budget,
    /// What was charged while it ran.
    told: Usage,
}

/// Why somebody was not hired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HireError {
    /// The gate said no.
    #[error(transparent)]
    Refused(#[from] FleetRefusal),
    /// This host does not let us.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Post {
    /// Asks the gate for a worker: a replica of `parent`, or the first of a family.
    pub(crate) fn hire(
        self: &Arc<Self>,
        parent: Option<&Employed>,
        candidate: Candidate,
    ) -> Result<Hired, HireError> {
        let worker = WorkerId(random()?);
        let reins = Reins::new()?;
        let tag = self.crew.enlist(worker, reins.clone());
        // Until it is seated, whatever goes wrong ends its membership.
        let hired = self.hire_enlisted(parent, candidate, worker, reins, tag);
        if hired.is_err() {
            self.crew.dismiss(worker);
        }
        hired
    }

    fn hire_enlisted(
        self: &Arc<Self>,
        parent: Option<&Employed>,
        candidate: Candidate,
        worker: WorkerId,
        reins: Reins,
        tag: belljar_api::Tag,
    ) -> Result<Hired, HireError> {
        let wish = self.wish(parent, worker, &candidate)?;
        let jti = Jti(random()?);
        let permit = match parent {
            None => self.gate.admit_root(wish, jti),
            Some(parent) => self.gate.replicate(&parent.papers, wish, jti),
        }?;
        self.seat(permit, parent, candidate, reins, tag)
    }

    /// What a candidate wants, in the gate's words.
    pub(crate) fn wish(
        &self,
        parent: Option<&Employed>,
        worker: WorkerId,
        candidate: &Candidate,
    ) -> Result<Wish, RunError> {
        let capability = &candidate.capability;
        Ok(Wish {
            worker,
            asked: candidate.asked,
            need: self.contract.box_need(&capability.own_need()),
            standing: Standing {
                capability: self.document(parent, capability, &candidate.places)?,
                program: self
                    .programs
                    .digest(&candidate.command, &candidate.places.work),
                state: candidate.state.as_deref().map(Digest::of),
            },
            reason: candidate.reason.clone(),
        })
    }

    /// The capability of one box under the contract: where a family begins. A replica starts from its parent's, and
    /// one that asks for more is refused, not lowered in silence.
    pub(crate) fn narrowed(&self, capability: &Capability) -> Capability {
        let mut capability = capability.clone();
        self.contract.resources.narrow(&mut capability.limits);
        capability
    }

    /// Registers a worker by the manifest it was issued.
    pub(crate) fn register(
        self: &Arc<Self>,
        papers: &Papers,
        parent: Option<&Employed>,
        candidate: Candidate,
    ) -> Result<Hired, HireError> {
        let worker = papers.worker();
        let reins = Reins::new()?;
        let tag = self.crew.enlist(worker, reins.clone());
        let registered = self
            .gate
            .register(papers.envelope().as_bytes())
            .map_err(HireError::from);
        let hired = registered.and_then(|permit| self.seat(permit, parent, candidate, reins, tag));
        if hired.is_err() {
            self.crew.dismiss(worker);
        }
        hired
    }

    /// Gives somebody who was let in a place at work.
    fn seat(
        self: &Arc<Self>,
        permit: Permit<Replicate>,
        parent: Option<&Employed>,
        candidate: Candidate,
        reins: Reins,
        tag: belljar_api::Tag,
    ) -> Result<Hired, HireError> {
        let Candidate {
            capability,
            command,
            state,
            ..
        } = candidate;
        let (Replicate { admitted, papers }, launch) = permit.into_launch();
        let worker = admitted.worker;
        let models = models(parent, &capability, &admitted.share.granted);
        let employed = Arc::new(Employed {
            worker,
            models,
            chain: chain(parent, papers.envelope().as_bytes()),
            papers,
            capability,
            command,
            started_at_ms: belljar_gate::clock::now().wall_ms,
        });
        let opened = SandboxId::new(worker.to_string()).and_then(|id| Door::open(&self.state, &id));
        let door = match opened {
            Ok(door) => door,
            Err(error) => {
                self.gate.failed(worker, error.to_string());
                return Err(error.into());
            }
        };
        self.crew.employ(Arc::clone(&employed));
        Ok(Hired {
            post: Arc::clone(self),
            employed,
            launch: Some(launch),
            reins,
            door,
            tag,
            state,
            own: admitted.share.own,
            told: Usage::default(),
        })
    }

    /// The capability as a document; the parent's own where nothing was narrowed.
    fn document(
        &self,
        parent: Option<&Employed>,
        capability: &Capability,
        places: &Places,
    ) -> Result<CapabilityDocument, RunError> {
        if let Some(parent) = parent
            && parent.capability == *capability
        {
            return Ok(parent.papers.payload().capability.clone());
        }
        CapabilityDocument::new(capability, places).map_err(|error| RunError::Refused {
            what: format!("the capability can't stand in a manifest: {error}"),
            hint: "use paths that are valid UTF-8 and rules that a capability file can hold".into(),
        })
    }
}

impl Hired {
    /// Who it is.
    pub(crate) fn worker(&self) -> WorkerId {
        self.employed.worker
    }

    /// One task of a worker that has several.
    pub(crate) fn for_task(
        post: &Arc<Post>,
        employed: Arc<Employed>,
        launch: Permit<Launch>,
        reins: Reins,
        own: Budget,
        state: Option<Vec<u8>>,
        tag: belljar_api::Tag,
    ) -> Result<Self, RunError> {
        let id = SandboxId::new(employed.worker.to_string())?;
        Ok(Self {
            post: Arc::clone(post),
            door: Door::open(&post.state, &id)?,
            employed,
            launch: Some(launch),
            reins,
            tag,
            state,
            own,
            told: Usage::default(),
        })
    }

    /// Gives up the box that was to be: its worker will have others.
    pub(crate) fn into_parts(
        mut self,
    ) -> (
        Arc<Post>,
        Arc<Employed>,
        Budget,
        Option<Vec<u8>>,
        belljar_api::Tag,
    ) {
        self.launch = None;
        (
            Arc::clone(&self.post),
            Arc::clone(&self.employed),
            self.own,
            self.state.take(),
            self.tag,
        )
    }

    /// Runs a task: its box ends, its worker does not.
    pub(crate) fn perform(mut self, output: Output) -> Result<RunResult, RunError> {
        let result = self.attend(output)?;
        let usage = less(used(&result), self.told);
        self.post.gate.charge(self.worker(), usage);
        Ok(result)
    }

    /// Keeps the worker's box, in this thread, until nothing is left of it.
    pub(crate) fn keep(mut self, output: Output) -> Result<RunResult, RunError> {
        let worker = self.worker();
        let kept = self.attend(output);
        // Taken by the attempt, whatever came of it.
        self.launch = None;
        // Its box is gone before its end is told, so that "killed" means dead.
        self.post.crew.dismiss(worker);
        match &kept {
            Ok(result) => self.tell_end(result),
            Err(RunError::KilledEarly { .. }) => {
                self.post.gate.ended(worker, Code::Exited, Usage::default())
            }
            Err(error) => self.post.gate.failed(worker, error.to_string()),
        }
        kept
    }

    fn attend(&mut self, output: Output) -> Result<RunResult, RunError> {
        let worker = self.worker();
        let id = SandboxId::new(worker.to_string())?;
        let listener = self
            .door
            .listener()
            .try_clone()
            .map_err(system("opening the box's door"))?;
        let _ = self
            .post
            .doors
            .add_listener(listener, self.tag, Side::Agent);
        let mut capability = self.employed.capability.clone();
        capability.confine_to(&self.own);
        let command = self.shown()?;
        let assignment = Assignment::new(&id, &capability, &command, &self.post.state)
            .output(output)
            .reins(self.reins.clone())
            .budget(Arc::clone(&self.employed.models));
        let mut attendant = WorkerAttendant {
            worker,
            gate: &self.post.gate,
            told: Usage::default(),
        };
        let leave = self
            .launch
            .take()
            .map(Leave::Given)
            .ok_or(RunError::NotAdmitted {
                code: "deny_permit",
                what: "its permit is spent".to_owned(),
                hint: "ask for another replica".to_owned(),
            })?;
        let result = attend(assignment, leave, &mut attendant);
        self.told = attendant.told;
        let _ = self.post.doors.remove(self.tag);
        result
    }

    /// The command, with everything the box is shown.
    fn shown(&self) -> Result<Command, RunError> {
        let name = |name: &str| {
            ShowName::new(name).map_err(|error| RunError::Invalid {
                what: error.to_string(),
                hint: String::new(),
            })
        };
        let own = std::env::current_exe().map_err(system("finding our own program"))?;
        let text = |at: &str, bytes: &[u8]| {
            Ok::<_, RunError>(Show::Text {
                name: name(at)?,
                bytes: Arc::from(bytes),
            })
        };
        let mut command = self
            .employed
            .command
            .clone()
            .env(crate::environment::AGENT_SOCKET, "/belljar/agent.sock")
            .show(self.door.show(name("agent.sock")?))
            .show(Show::Program {
                name: name("bin/belljar")?,
                source: own,
            })
            .show(text(
                "manifest.json",
                self.employed.papers.envelope().as_bytes(),
            )?)
            .show(text("chain.jsonl", &self.employed.chain)?);
        if let Some(state) = &self.state {
            command = command.show(text("state", state)?);
        }
        Ok(command)
    }

    fn tell_end(&self, result: &RunResult) {
        let usage = less(used(result), self.told);
        let gate = &self.post.gate;
        if let Some(by @ (KilledBy::Memory | KilledBy::Cpu | KilledBy::Timeout)) = result.killed_by
        {
            gate.note_box(
                self.worker(),
                format!("killed by its limit: {}", by.as_str()),
            );
        }
        gate.ended(self.worker(), Code::Exited, usage);
    }
}

/// Whoever is dropped without a box gives its place back.
impl Drop for Hired {
    fn drop(&mut self) {
        if self.launch.take().is_some() {
            self.post.crew.dismiss(self.worker());
            self.post
                .gate
                .failed(self.worker(), "it was never started".to_owned());
        }
    }
}

struct WorkerAttendant<'a> {
    worker: WorkerId,
    gate: &'a FleetGate,
    told: Usage,
}

impl Attendant for WorkerAttendant<'_> {
    fn started(&mut self, _: &Facts<'_>) {
        self.gate.started(self.worker);
    }

    fn look_every(&self) -> Option<Duration> {
        Some(LOOK)
    }

    fn looked(&mut self, usage: &attend::Usage) {
        let now = Usage {
            cpu_ms: usage.cpu_ms,
            tokens: usage.tokens,
            micro_usd: usage.micro_usd,
        };
        let news = less(now, self.told);
        // Calls to models are rare and dear: each is told.
        if news.cpu_ms >= WORTH_TELLING_MS || news.tokens > 0 || news.micro_usd > 0 {
            self.told = now;
            self.gate.charge(self.worker, news);
        }
    }

    fn refused(&mut self, refusal: &belljar_egress::Refusal) {
        let port = refusal.port.map(|port| format!(":{port}"));
        self.gate.note_box(
            self.worker,
            format!(
                "{} {}{}",
                refusal.code.code(),
                refusal.host,
                port.unwrap_or_default()
            ),
        );
    }
}

fn used(result: &RunResult) -> Usage {
    let models = result.network.as_ref().map(|network| &network.llm);
    let (tokens, micro_usd) = models.map_or((0, 0), metered);
    Usage {
        cpu_ms: (result.resource_usage.cpu_seconds * 1000.0).ceil() as u64,
        tokens,
        micro_usd,
    }
}

/// What was used since `told`.
fn less(now: Usage, told: Usage) -> Usage {
    Usage {
        cpu_ms: now.cpu_ms.saturating_sub(told.cpu_ms),
        tokens: now.tokens.saturating_sub(told.tokens),
        micro_usd: now.micro_usd.saturating_sub(told.micro_usd),
    }
}

/// What a worker may spend on models: a part of its parent's, so that a family never spends more than its first was given,
/// however many calls are under way while replicas are made.
fn models(parent: Option<&Employed>, capability: &Capability, granted: &Budget) -> Arc<LlmBudget> {
    let tokens = granted.tokens.number();
    let cost = granted.micro_usd.number().map(PicoUsd::from_micro_usd);
    let budget = match parent {
        Some(parent) => parent.models.carve(tokens, cost),
        None => LlmBudget::new(tokens, cost),
    };
    // Its own box's limits are its own.
    let limits = &capability.limits;
    budget.cap(limits.tokens, limits.cost_usd.map(PicoUsd::from_usd));
    budget
}

fn chain(parent: Option<&Employed>, own: &[u8]) -> Arc<[u8]> {
    let mut chain = parent
        .map(|parent| parent.chain.to_vec())
        .unwrap_or_default();
    chain.extend_from_slice(own);
    chain.push(b'\n');
    Arc::from(chain)
}

/// 128 bits that nobody can guess.
pub(crate) fn random() -> Result<u128, RunError> {
    let mut bytes = [0u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        let part = bytes.get_mut(filled..).unwrap_or_default();
        filled += rustix::rand::getrandom(part, rustix::rand::GetRandomFlags::empty())
            .map_err(RunError::system("drawing a random id"))?;
    }
    Ok(u128::from_ne_bytes(bytes))
}

pub(crate) fn system(doing: &'static str) -> impl Fn(std::io::Error) -> RunError {
    move |source| RunError::System { doing, source }
}
