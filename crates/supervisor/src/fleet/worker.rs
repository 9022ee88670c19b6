//! Replication from Rust: contract, controller, orchestrator, worker.
//!
//! ```no_run
//! use std::time::Duration;
//! use belljar_policy::Contract;
//! use belljar_supervisor::fleet::{ReplicationController, SandboxOrchestrator, Worker};
//! use belljar_supervisor::{Command, StateDir};
//!
//! // The policy of replication: depth 3, ten alive at once, a second between two children, a minute to live.
//! let contract = Contract::new(3, 10, Duration::from_secs(1), Some(Duration::from_secs(60)));
//! let controller = ReplicationController::open(&StateDir::find()?, contract)?;
//! let capability = belljar_manifest::profile("strict").expect("a shipped profile");
//! let orchestrator = SandboxOrchestrator::new(&controller, capability);
//!
//! // The first of the family.
//! let manifest = controller.issue_manifest(None, &orchestrator, Some(b"analyze_data"))?;
//! let root = Worker::register(manifest, &orchestrator)?;
//! root.perform_task(&Command::new(["cat", "/belljar/state"]))?;
//!
//! // A copy of itself, if the contract lets it.
//! if let Some(child) = root.maybe_replicate("subtask_delegation", Some(b"process_subset"))? {
//!     child.perform_task(&Command::new(["cat", "/belljar/state"]))?;
//!     child.shutdown("completed")?;
//! }
//! root.shutdown("completed")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::path::PathBuf;
use std::sync::Arc;

use belljar_api::KillReport;
use belljar_gate::{FleetRefusal, Papers, Unrecorded};
use belljar_policy::{Budget, Capability, Contract};
use belljar_replication::{Asked, Jti, Scope, WorkerId};

use super::crew::{AtWork, Employed};
use super::operator_side::act;
use super::post::{Candidate, HireError, Post, random};
use super::{Fleet, FleetError, FleetSetup};
use crate::attend::Output;
use crate::command::Command;
use crate::error::RunError;
use crate::places::find_places;
use crate::reins::Reins;
use crate::result::RunResult;
use crate::state::StateDir;
use crate::tools::{Backstage, ServerFiles};

/// Decides who may have replicas, and keeps the record. Dropped, it ends everybody.
#[derive(Debug)]
pub struct ReplicationController {
    fleet: Fleet,
}

/// Gives every worker boxes of its own, all under one capability.
#[derive(Debug)]
pub struct SandboxOrchestrator {
    post: Arc<Post>,
    capability: Capability,
    work: Option<PathBuf>,
    servers: ServerFiles,
}

/// Leave for one worker to exist, not yet used.
#[derive(Debug)]
pub struct Manifest {
    candidate: Candidate,
    /// What was issued; a root is admitted when it registers.
    issued: Option<Papers>,
    parent: Option<Arc<Employed>>,
}

/// A worker: it runs its tasks in boxes, one after the other, for as long as the controller lets it live.
#[derive(Debug)]
pub struct Worker {
    post: Arc<Post>,
    employed: Arc<Employed>,
    own: Budget,
    state: Option<Vec<u8>>,
    tag: belljar_api::Tag,
}

/// What was asked for did not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The gate said no.
    #[error(transparent)]
    Refused(#[from] FleetRefusal),
    /// A box did not run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The record can't be kept.
    #[error(transparent)]
    Unrecorded(#[from] Unrecorded),
}

impl From<HireError> for WorkerError {
    fn from(error: HireError) -> Self {
        match error {
            HireError::Refused(refusal) => Self::Refused(refusal),
            HireError::Run(error) => Self::Run(error),
            full @ HireError::Full(_) => Self::Run(RunError::Refused {
                what: full.to_string(),
                hint: "wait for a worker to end".into(),
            }),
        }
    }
}

impl ReplicationController {
    /// Takes over the fleet of a state directory, under this contract.
    pub fn open(state: &StateDir, contract: Contract) -> Result<Self, FleetError> {
        Self::open_with(state, contract, FleetSetup::default())
    }

    /// The same, with stop conditions written in Rust or a key kept elsewhere.
    pub fn open_with(
        state: &StateDir,
        contract: Contract,
        setup: FleetSetup,
    ) -> Result<Self, FleetError> {
        Fleet::open(state, contract, setup).map(|fleet| Self { fleet })
    }

    /// Issues a manifest for a child of `parent`, or for the first of a family. It is used once, by
    /// [`Worker::register`], where everything is checked again.
    pub fn issue_manifest(
        &self,
        parent: Option<&Worker>,
        orchestrator: &SandboxOrchestrator,
        state: Option<&[u8]>,
    ) -> Result<Manifest, WorkerError> {
        let candidate = orchestrator.candidate("issued", state)?;
        let parent = parent.map(|worker| Arc::clone(&worker.employed));
        let issued = match &parent {
            None => None,
            Some(parent) => {
                let wish = orchestrator
                    .post
                    .wish(Some(parent), WorkerId(random()?), &candidate)?;
                Some(
                    orchestrator
                        .post
                        .gate
                        .issue(&parent.papers, wish, Jti(random()?))?,
                )
            }
        };
        Ok(Manifest {
            candidate,
            issued,
            parent,
        })
    }

    /// Kills everybody, and refuses everything until [`ReplicationController::reset_kill_switch`].
    pub fn kill_switch(&self, reason: &str) -> Result<KillReport, WorkerError> {
        let report = self.fleet.post().kill(Scope::Fleet, act(reason));
        report.map_err(|refused| WorkerError::Unrecorded(Unrecorded(Arc::from(refused.1.message))))
    }

    /// Takes the kill switch off; says whether it was engaged.
    pub fn reset_kill_switch(&self, reason: &str) -> Result<bool, WorkerError> {
        Ok(self.fleet.post().gate.reset_kill_switch(act(reason))?)
    }

    /// Workers alive.
    pub fn live(&self) -> Result<usize, WorkerError> {
        Ok(self.fleet.post().gate.look(|state, _| state.live())?)
    }

    /// The fleet itself.
    #[must_use]
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }
}

impl SandboxOrchestrator {
    /// Boxes under this capability, narrowed by the contract's resources.
    #[must_use]
    pub fn new(controller: &ReplicationController, capability: Capability) -> Self {
        Self {
            post: Arc::clone(controller.fleet.post()),
            capability,
            work: None,
            servers: ServerFiles::default(),
        }
    }

    /// The capability files of its MCP servers, where it names some.
    #[must_use]
    pub fn servers(mut self, files: ServerFiles) -> Self {
        self.servers = files;
        self
    }

    /// Has its boxes work in this directory; otherwise it is the one we work in.
    #[must_use]
    pub fn workdir(mut self, work: impl Into<PathBuf>) -> Self {
        self.work = Some(work.into());
        self
    }

    fn candidate(&self, reason: &str, state: Option<&[u8]>) -> Result<Candidate, RunError> {
        let work = self.work.clone().map_or_else(std::env::current_dir, Ok);
        let work = work.map_err(|source| RunError::System {
            doing: "finding the working directory",
            source,
        })?;
        let (_, places) = find_places(&work)?;
        let mut capability = self.post.narrowed(&self.capability);
        let backstage = Backstage::behind(&mut capability, self.servers.clone())?;
        Ok(Candidate {
            capability,
            backstage: Arc::new(backstage),
            command: Command::new(Vec::<String>::new()).settled_in(places.work.clone()),
            places,
            state: state.map(<[u8]>::to_vec),
            asked: Asked::default(),
            reason: reason.to_owned(),
        })
    }
}

impl Manifest {
    /// The signed bytes, where it was issued by a parent's leave.
    #[must_use]
    pub fn envelope(&self) -> Option<&[u8]> {
        self.issued
            .as_ref()
            .map(|papers| papers.envelope().as_bytes())
    }
}

impl Worker {
    /// Registers with a manifest: signature, single use and the whole contract are checked, now.
    pub fn register(
        manifest: Manifest,
        orchestrator: &SandboxOrchestrator,
    ) -> Result<Self, WorkerError> {
        let Manifest {
            candidate,
            issued,
            parent,
        } = manifest;
        let hired = match issued {
            None => orchestrator.post.hire(None, candidate)?,
            Some(papers) => orchestrator
                .post
                .register(&papers, parent.as_deref(), candidate)?,
        };
        Ok(Self::of(hired))
    }

    fn of(hired: super::post::Hired) -> Self {
        let (post, employed, own, state, tag) = hired.into_parts();
        post.crew.stand_by(employed.worker);
        Self {
            post,
            employed,
            own,
            state,
            tag,
        }
    }

    /// Who it is.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.employed.worker
    }

    /// Its manifest.
    #[must_use]
    pub fn papers(&self) -> &Papers {
        &self.employed.papers
    }

    /// Runs a command in a box of this worker's, one at a time. Refused when it is ended, expired or in quarantine;
    /// ended when it becomes so meanwhile.
    pub fn perform_task(&self, command: &Command) -> Result<RunResult, WorkerError> {
        let reins = Reins::new()?;
        let _task = Task::begin(self, &reins)?;
        let launch = self.post.gate.task(self.id())?;
        let task = Employed {
            command: Command {
                workdir: command
                    .workdir
                    .clone()
                    .or_else(|| self.employed.command.workdir.clone()),
                ..command.clone()
            },
            worker: self.employed.worker,
            papers: self.employed.papers.clone(),
            chain: Arc::clone(&self.employed.chain),
            capability: self.employed.capability.clone(),
            started_at_ms: self.employed.started_at_ms,
            models: Arc::clone(&self.employed.models),
            backstage: Arc::clone(&self.employed.backstage),
        };
        let tasked = super::post::Hired::for_task(
            &self.post,
            Arc::new(task),
            launch,
            reins,
            self.own,
            self.state.clone(),
            self.tag,
        )?;
        Ok(tasked.perform(Output::Capture)?)
    }

    /// A copy of itself, or none if the contract says no. Why not is on record.
    pub fn maybe_replicate(
        &self,
        reason: &str,
        state: Option<&[u8]>,
    ) -> Result<Option<Worker>, WorkerError> {
        match self.replicate(reason, state) {
            Ok(child) => Ok(Some(child)),
            Err(WorkerError::Refused(FleetRefusal::Denied(_) | FleetRefusal::Exceeds { .. })) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A copy of itself, or why not.
    pub fn replicate(&self, reason: &str, state: Option<&[u8]>) -> Result<Worker, WorkerError> {
        let candidate = Candidate {
            capability: self.employed.capability.clone(),
            command: self.employed.command.clone(),
            places: self.employed.papers.payload().capability.places().clone(),
            state: state.map(<[u8]>::to_vec),
            asked: Asked::default(),
            reason: reason.to_owned(),
            backstage: Arc::clone(&self.employed.backstage),
        };
        Ok(Self::of(self.post.hire(Some(&self.employed), candidate)?))
    }

    /// Says that it is well.
    pub fn heartbeat(&self) -> Result<bool, WorkerError> {
        Ok(self.post.gate.heartbeat(self.id())?)
    }

    /// Ends it, and with it its replicas unless the contract keeps them. Says whether it was alive.
    pub fn shutdown(&self, reason: &str) -> Result<bool, WorkerError> {
        let ended = self.post.gate.shutdown_of(self.id(), reason.to_owned())?;
        self.post.crew.dismiss(self.id());
        Ok(ended)
    }
}

/// A worker's time at one task. When it is over the worker stands by, whatever came of it.
struct Task<'a>(&'a Worker);

impl<'a> Task<'a> {
    fn begin(worker: &'a Worker, reins: &Reins) -> Result<Self, RunError> {
        let begun = worker.post.crew.rearm(worker.id(), reins.clone());
        begun.map_err(|AtWork| RunError::Invalid {
            what: "the worker is at another task".into(),
            hint: "wait for it to end, or have a replica do this one".into(),
        })?;
        Ok(Self(worker))
    }
}

impl Drop for Task<'_> {
    fn drop(&mut self) {
        self.0.post.crew.stand_by(self.0.id());
    }
}

/// A worker that nobody holds any more has no one to run tasks for it.
impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.post.gate.let_go(self.id());
        self.post.crew.dismiss(self.id());
    }
}
