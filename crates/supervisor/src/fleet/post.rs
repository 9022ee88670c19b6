//! From a wish to a box: grant, papers, door, keeper.

use std::sync::Arc;
use std::time::Duration;

use belljar_api::{Handle, Side};
use belljar_egress::{LlmBudget, PicoUsd};
use belljar_gate::{FleetGate, FleetRefusal, Launch, Papers, Permit, Replicate, Standing, Wish};
use belljar_manifest::lineage::{CapabilityDocument, Digest};
use belljar_policy::{Budget, Capability, Contract, Places};
use belljar_replication::{Asked, Code, Jti, Usage, WorkerId};

use super::crew::{Crew, Employed, Full, Hold};
use super::programs::Programs;
use super::shown::Shown;
use super::watch::Watch;
use crate::apart::words::Ending;
use crate::apart::{Keepers, Line, Setup};
use crate::attend::{self, Asking, Assignment, Attendant, Facts, Leave, Output, Refusal, attend};
use crate::command::Command;
use crate::door::Door;
use crate::error::RunError;
use crate::image::BoxImage;
use crate::manager::SandboxId;
use crate::reins::Reins;
use crate::result::{KillCode, KilledBy, RunResult};
use crate::state::StateDir;
use crate::tools::{Backstage, Way, Whose};

/// How often a worker's CPU time is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// CPU time that is worth an entry in the log before the worker's end.
const WORTH_TELLING_MS: u64 = 100;
/// Nor is less than one part in so many of what was told already: what idles for months would fill the log with it. A box's own limit
/// of CPU time does not wait for this.
const WORTH_TELLING_PART: u64 = 100;

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
    pub(crate) keeping: Keeping,
}

/// Where boxes are kept.
#[derive(Debug)]
pub(crate) enum Keeping {
    /// By threads of this process: they end with it.
    Threads,
    /// By processes of their own, which outlive this one.
    Processes(Box<Apart>),
}

/// What it takes to have boxes kept by processes.
#[derive(Debug)]
pub(crate) struct Apart {
    pub(crate) setup: Setup,
    pub(crate) keepers: Keepers,
    /// The most boxes there may be.
    pub(crate) most: usize,
    pub(crate) watch: Arc<dyn Watch>,
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
    /// What its MCP servers are given and it is not shown.
    pub(crate) backstage: Arc<Backstage>,
}

/// A worker that was let in and has no box yet. Dropped, it never will.
#[derive(Debug)]
pub(crate) struct Hired {
    pub(super) post: Arc<Post>,
    pub(super) employed: Arc<Employed>,
    pub(super) launch: Option<Permit<Launch>>,
    pub(super) hold: Hold,
    pub(super) tag: belljar_api::Tag,
    pub(super) state: Option<Vec<u8>>,
    /// What its box may hold.
    pub(super) own: Budget,
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
    /// As many agents live as may.
    #[error("deny_max_agents: {0} agents live already, which is the most")]
    Full(usize),
}

impl From<Full> for HireError {
    fn from(full: Full) -> Self {
        Self::Full(full.0)
    }
}

impl Post {
    /// Asks the gate for a worker: a replica of `parent`, or the first of a family.
    pub(crate) fn hire(
        self: &Arc<Self>,
        parent: Option<&Employed>,
        candidate: Candidate,
    ) -> Result<Hired, HireError> {
        let worker = WorkerId(random()?);
        let (hold, tag) = self.enlist(worker)?;
        // Until it is seated, whatever goes wrong ends its membership.
        let hired = self.hire_enlisted(parent, candidate, worker, hold, tag);
        if hired.is_err() {
            self.crew.dismiss(worker);
        }
        hired
    }

    /// Makes a place for somebody who is about to ask for leave to start.
    fn enlist(&self, worker: WorkerId) -> Result<(Hold, belljar_api::Tag), HireError> {
        let (hold, most) = match &self.keeping {
            Keeping::Threads => (Hold::Here(Reins::new()?), usize::MAX),
            Keeping::Processes(apart) => (Hold::Apart(Line::default()), apart.most),
        };
        match self.crew.enlist(worker, hold.clone(), most) {
            Ok(tag) => Ok((hold, tag)),
            Err(full) => {
                let refused = HireError::from(full);
                self.gate.note_box(worker, refused.to_string());
                Err(refused)
            }
        }
    }

    fn hire_enlisted(
        self: &Arc<Self>,
        parent: Option<&Employed>,
        candidate: Candidate,
        worker: WorkerId,
        hold: Hold,
        tag: belljar_api::Tag,
    ) -> Result<Hired, HireError> {
        let wish = self.wish(parent, worker, &candidate)?;
        let jti = Jti(random()?);
        let permit = match parent {
            None => self.gate.admit_root(wish, jti),
            Some(parent) => self.gate.replicate(&parent.papers, wish, jti),
        }?;
        Ok(self.seat(permit, parent, candidate, hold, tag))
    }

    /// What a candidate wants, in the gate's words.
    pub(crate) fn wish(
        &self,
        parent: Option<&Employed>,
        worker: WorkerId,
        candidate: &Candidate,
    ) -> Result<Wish, RunError> {
        let capability = &candidate.capability;
        let image = BoxImage::digest(capability, &self.state);
        Ok(Wish {
            worker,
            asked: candidate.asked,
            need: self.contract.box_need(&capability.own_need()),
            standing: Standing {
                capability: self.document(parent, capability, &candidate.places)?,
                program: self.programs.digest(
                    &candidate.command,
                    &candidate.places.work,
                    image.as_deref(),
                ),
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
        let (hold, tag) = self.enlist(worker)?;
        let registered = self
            .gate
            .register(papers.envelope().as_bytes())
            .map_err(HireError::from);
        let hired = registered.map(|permit| self.seat(permit, parent, candidate, hold, tag));
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
        hold: Hold,
        tag: belljar_api::Tag,
    ) -> Hired {
        let Candidate {
            capability,
            command,
            state,
            backstage,
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
            backstage,
        });
        self.crew.employ(Arc::clone(&employed));
        Hired {
            post: Arc::clone(self),
            employed,
            launch: Some(launch),
            hold,
            tag,
            state,
            own: admitted.share.own,
            told: Usage::default(),
        }
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
        Ok(Self {
            post: Arc::clone(post),
            employed,
            launch: Some(launch),
            hold: Hold::Here(reins),
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
        let ending = Ending::from(&result);
        self.post.gate.box_ended(self.worker(), (&ending).into());
        let usage = less(used(&ending), self.told);
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
            Ok(result) => tell_end(&self.post.gate, worker, &Ending::from(result), self.told),
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
        let Hold::Here(reins) = self.hold.clone() else {
            return Err(RunError::Invalid {
                what: "its box is another process's to keep".into(),
                hint: String::new(),
            });
        };
        let door = Door::open(&self.post.state, &id)?;
        let listener = door.listener().try_clone();
        let listener = listener.map_err(system("opening the box's door"))?;
        let _ = self
            .post
            .doors
            .add_listener(listener, self.tag, Side::Agent);
        let mut capability = self.employed.capability.clone();
        capability.confine_to(&self.own);
        let shown = Shown {
            door: &door,
            envelope: self.employed.papers.envelope().as_bytes(),
            chain: &self.employed.chain,
            state: self.state.as_deref(),
        };
        let command = shown.to(self.employed.command.clone())?;
        let places = self.employed.papers.payload().capability.places();
        let whose = Whose {
            id: &id,
            work: &places.work,
            reins: &reins,
        };
        let backstage = &self.employed.backstage;
        let (command, way) = Way::open(&capability, backstage, &self.post.state, &whose, command)?;
        let assignment = Assignment::new(&id, &capability, &command, &self.post.state)
            .output(output)
            .reins(reins)
            .budget(Arc::clone(&self.employed.models));
        let mut attendant = WorkerAttendant {
            worker,
            gate: &self.post.gate,
            told: Usage::default(),
        };
        let (gate, papers) = (&self.post.gate, &self.employed.papers);
        let mut launch = self.launch.take();
        let mut ask = |asking: &Asking<'_>| {
            let recorded = gate.box_launched(papers, &asking.program());
            recorded
                .map_err(FleetRefusal::from)
                .map_err(|refused| Refusal {
                    code: refused.code(),
                    what: refused.to_string(),
                    hint: refused.hint().to_owned(),
                })?;
            launch.take().ok_or_else(|| Refusal {
                code: "deny_permit",
                what: "its permit is spent".to_owned(),
                hint: "ask for another replica".to_owned(),
            })
        };
        let result = attend(assignment, Leave::Asked(&mut ask), &mut attendant);
        // Its servers' boxes are gone before its end is told.
        drop(way);
        self.told = attendant.told;
        let _ = self.post.doors.remove(self.tag);
        result
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
        tell_usage(self.gate, self.worker, now, &mut self.told);
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

/// Charges a worker for what its box used since that was told, where it is worth an entry.
pub(super) fn tell_usage(gate: &FleetGate, worker: WorkerId, now: Usage, told: &mut Usage) {
    let news = less(now, *told);
    if is_worth_telling(&news, told) {
        *told = now;
        gate.charge_to(worker, news, now);
    }
}

fn is_worth_telling(news: &Usage, told: &Usage) -> bool {
    let worth = WORTH_TELLING_MS.max(told.cpu_ms / WORTH_TELLING_PART);
    // Calls to models are rare and dear: each is told.
    news.cpu_ms >= worth || news.tokens > 0 || news.micro_usd > 0
}

/// Puts a box's end on record, with what it used since that was told.
pub(super) fn tell_end(gate: &FleetGate, worker: WorkerId, ending: &Ending, told: Usage) {
    const LIMITS: [KilledBy; 3] = [KilledBy::Memory, KilledBy::Cpu, KilledBy::Timeout];
    if let Some(by) = &ending.killed_by
        && LIMITS.iter().any(|limit| limit.as_str() == by)
    {
        gate.note_box(worker, format!("killed by its limit: {by}"));
    }
    // What no order of the controller's ended. The log says that itself of the others.
    const BY_ITSELF: [KillCode; 3] = [
        KillCode::INIT_DIED,
        KillCode::NOT_FROZEN,
        KillCode::SIGNALLED,
    ];
    if let Some(by) = &ending.killed_by
        && BY_ITSELF.iter().any(|code| code.as_str() == by)
    {
        gate.note_box(worker, format!("its box was ended: {by}"));
    }
    gate.box_ended(worker, ending.into());
    gate.ended(worker, Code::Exited, less(used(ending), told));
}

fn used(ending: &Ending) -> Usage {
    Usage {
        cpu_ms: ending.cpu_ms,
        tokens: ending.tokens,
        micro_usd: ending.micro_usd,
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

pub(super) fn chain(parent: Option<&Employed>, own: &[u8]) -> Arc<[u8]> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_idles_for_a_year_takes_few_entries() {
        let of = |cpu_ms| Usage {
            cpu_ms,
            ..Usage::default()
        };
        let (mut told, mut entries) = (0_u64, 0);
        // One part in a hundred of a processor, looked at every second.
        for now in (0..365 * 86_400 * 10).step_by(10) {
            if is_worth_telling(&of(now - told), &of(told)) {
                (told, entries) = (now, entries + 1);
            }
        }
        assert!(entries < 1_500, "{entries}");
        // What it used is known to a hundredth all the same, and what costs money to the last token.
        assert!(365 * 86_400 * 10 - told <= told / 99);
        let token = Usage {
            tokens: 1,
            ..Usage::default()
        };
        assert!(is_worth_telling(&token, &of(1 << 40)));
    }
}
