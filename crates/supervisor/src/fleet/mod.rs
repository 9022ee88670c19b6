//! A family of agents under one contract: every replica has a box, a door and a keeper of its own.
//!
//! ```text
//! agent ─► its door ─► api server ─► clerks ─► gate (controller + log) ─► keeper thread ─► box
//! operator ─► control.sock ─┘                      └── reins: kill, freeze, thaw ──┘
//! ```

mod agent_side;
mod clerks;
mod convert;
mod crew;
mod following;
mod offline;
mod operator_side;
mod post;
mod programs;
mod shown;
mod watch;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_api::{Call, Limits, OperatorCall, Running, Server, Side, Tag};
use belljar_gate::keyring::KeySource;
use belljar_gate::{Adopted, FleetGate, FleetOptions, Living, OpenFleetError};
use belljar_policy::{Capability, Contract, OnTrigger};
use belljar_replication::{Asked, Predicate};

pub use offline::{
    LoneEngagement, LoneKills, Operator, engage_alone, kill_lone_runs, kill_switch, reset_alone,
};
pub use post::HireError;
pub use worker::{Manifest, ReplicationController, SandboxOrchestrator, Worker, WorkerError};

use crate::attend::Output;
use crate::command::Command;
use crate::door::bind_below;
use crate::error::RunError;
use crate::places::find_places;
use crate::result::RunResult;
use crate::state::StateDir;
use crate::tools::{Backstage, ServerFiles};
pub(crate) use agent_side::{Refused, answer, keeper_thread};
use clerks::{Clerks, PendingAnswers};
pub(crate) use convert::{budget_view, id as worker_id};
use crew::Grasp;
pub(crate) use crew::{Crew, Employed, Hold};
pub(crate) use following::{Following, tell_legacy};
pub(crate) use operator_side::{OWNER, act_by, known};

pub(crate) use post::{Apart, Candidate, Keeping, Post, random, system};
pub(crate) use shown::Shown;
pub(crate) use watch::{Over, Watch};

/// How long the end of a fleet waits for its boxes.
const PATIENCE: Duration = Duration::from_secs(20);
/// The operator's socket, below the state directory.
const CONTROL: &str = "fleet/control.sock";
/// The tag of the operator's socket; agents' are counted from 1.
const OPERATOR: Tag = Tag(0);

/// How to set up a fleet.
#[derive(Default)]
pub struct FleetSetup {
    /// Stop conditions written in Rust, besides the contract's.
    pub predicates: Vec<(String, OnTrigger, Predicate)>,
    /// Where the secret of the signing key is.
    pub keys: KeySource,
}

impl std::fmt::Debug for FleetSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FleetSetup")
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

/// A fleet could not be set up, or its first agent not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FleetError {
    /// The controller did not start.
    #[error(transparent)]
    Open(#[from] OpenFleetError),
    /// The agent was not let in.
    #[error(transparent)]
    Hire(#[from] HireError),
    /// Its box did not run.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// A fleet: controller, log, doors and boxes. Dropped, it ends everybody in it, unless processes of their own keep them.
#[derive(Debug)]
pub struct Fleet {
    post: Arc<Post>,
    pending: Arc<PendingAnswers>,
    /// Dropped before the socket's file is gone.
    _server: Running,
    control: PathBuf,
}

/// How boxes are kept, and who is there already.
pub(crate) struct Manning {
    pub(crate) crew: Arc<Crew>,
    pub(crate) keeping: Keeping,
    pub(crate) living: Vec<Living>,
}

/// Answers what an operator asks.
pub(crate) type Desk = Box<dyn Fn(&Arc<Post>, OperatorCall) + Send + Sync>;

impl Fleet {
    /// Takes over the fleet of a state directory, under this contract. One process at a time may.
    pub fn open(
        state: &StateDir,
        contract: Contract,
        setup: FleetSetup,
    ) -> Result<Self, FleetError> {
        state.sweep(&belljar_sandbox::Host::probe().cgroups);
        let manning = Manning {
            crew: Arc::new(Crew::default()),
            keeping: Keeping::Threads,
            living: Vec::new(),
        };
        let desk: Desk = Box::new(|post, call| {
            if let Some(call) = post.answer_operator(OWNER, call) {
                Post::refuse_operator(call);
            }
        });
        let (fleet, _) = Self::man(state, contract, setup, manning, desk)?;
        Ok(fleet)
    }

    /// The same with boxes kept as the manning says, and operators answered by this desk. The result says who was adopted.
    pub(crate) fn man(
        state: &StateDir,
        contract: Contract,
        setup: FleetSetup,
        manning: Manning,
        desk: Desk,
    ) -> Result<(Self, Vec<Adopted>), FleetError> {
        let _ = crate::raise_descriptor_limit();
        let Manning {
            crew,
            keeping,
            living,
        } = manning;
        let watch = match &keeping {
            Keeping::Threads => None,
            Keeping::Processes(apart) => Some(Arc::clone(&apart.watch)),
        };
        let (gate, adopted) = FleetGate::take_over(
            state.path(),
            FleetOptions {
                contract: contract.clone(),
                predicates: setup.predicates,
                keys: setup.keys,
                hands: Box::new(Grasp {
                    crew: Arc::clone(&crew),
                    watch,
                }),
            },
            living,
        )?;
        // A log that can't be anchored is as good as before; the next start tries again.
        let _ = gate.anchor();
        let (server, doors) =
            Server::new(Limits::default()).map_err(system("making the fleet's doors"))?;
        let control = state.path().join(CONTROL);
        let listener = listen(&control)?;
        let _ = doors.add_listener(listener, OPERATOR, Side::Operator);
        let post = Arc::new(Post {
            gate,
            crew,
            doors,
            state: state.clone(),
            contract,
            programs: programs::Programs::default(),
            started_at_ms: belljar_gate::clock::now().wall_ms,
            keeping,
        });
        let clerks = Clerks::employ().map_err(system("starting the fleet's clerks"))?;
        let pending = clerks.pending();
        let at_desk = Arc::clone(&post);
        let desk = Arc::new(desk);
        let server = server
            .spawn(move |request| {
                let post = Arc::clone(&at_desk);
                match request.call {
                    Call::Agent(call) => {
                        clerks.for_agents(move || post.answer_agent(request.tag, call))
                    }
                    Call::Operator(call) => {
                        let desk = Arc::clone(&desk);
                        clerks.for_operators(move || desk(&post, call));
                    }
                }
            })
            .map_err(system("starting the fleet's doors"))?;
        let fleet = Self {
            post,
            pending,
            _server: server,
            control,
        };
        Ok((fleet, adopted))
    }

    /// Runs the first of a family in this thread until nothing is left of its box. Its replicas go on if the
    /// contract keeps them; see [`Fleet::finish`].
    pub fn run_root(
        &self,
        capability: Capability,
        command: Command,
        state: Option<Vec<u8>>,
        output: Output,
    ) -> Result<RunResult, FleetError> {
        self.run_root_with(ServerFiles::default(), capability, command, state, output)
    }

    /// The same for a capability whose MCP servers have capability files of their own.
    pub fn run_root_with(
        &self,
        servers: ServerFiles,
        capability: Capability,
        command: Command,
        state: Option<Vec<u8>>,
        output: Output,
    ) -> Result<RunResult, FleetError> {
        let work = command
            .workdir
            .clone()
            .map_or_else(std::env::current_dir, Ok);
        let (_, places) = find_places(&work.map_err(system("finding the working directory"))?)?;
        let mut capability = self.post.narrowed(&capability);
        let backstage = Backstage::behind(&mut capability, servers)?;
        let candidate = Candidate {
            capability,
            backstage: Arc::new(backstage),
            command: command.settled_in(places.work.clone()),
            places,
            state,
            asked: Asked::default(),
            reason: "root".to_owned(),
        };
        Ok(self.post.hire(None, candidate)?.keep(output)?)
    }

    /// Boxes there are now.
    #[must_use]
    pub fn boxes(&self) -> usize {
        self.post.crew.len()
    }

    /// Waits until the last box is gone; says how many are left when patience ends.
    pub fn wait(&self, patience: Duration) -> u64 {
        self.post.crew.await_everybody(patience)
    }

    /// The operator's socket.
    #[must_use]
    pub fn control_socket(&self) -> &Path {
        &self.control
    }

    pub(crate) fn post(&self) -> &Arc<Post> {
        &self.post
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // Whoever is kept by a process of its own outlives us; a daemon ends them by itself, if that is meant.
        if matches!(self.post.keeping, Keeping::Threads) {
            let _ = self.post.gate.end_all();
            self.post.crew.await_everybody(PATIENCE);
        }
        // Who killed the last of a family is told so before the socket it asked through is closed.
        self.pending.wait(PATIENCE);
        let _ = self.post.gate.anchor();
        let _ = std::fs::remove_file(&self.control);
    }
}

/// Where the operator's socket of a state directory is.
#[must_use]
pub fn control_socket(state: &StateDir) -> PathBuf {
    state.path().join(CONTROL)
}

/// The operator's socket: its owner's alone.
fn listen(control: &Path) -> Result<std::os::unix::net::UnixListener, RunError> {
    let fail = |source| RunError::State {
        path: control.to_owned(),
        source,
    };
    let directory = control.parent().unwrap_or(Path::new("."));
    // The controller's lock is ours, so whoever made the old one is gone.
    let _ = std::fs::remove_file(control);
    let listener = bind_below(directory, "control.sock").map_err(fail)?;
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(control, std::fs::Permissions::from_mode(0o600)).map_err(fail)?;
    Ok(listener)
}
