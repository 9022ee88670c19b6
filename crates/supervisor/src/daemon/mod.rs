//! The daemon: agents with names, each kept by a process of its own, started again as their policies say.
//!
//! ```text
//! operator ─► control.sock ─► Daemon::answer ─► Post (controller, log) ─► keeper processes ─► boxes
//!                                  │                                          │
//!                               Roster ◄── started, samples, refusals, ends ──┘ ─► Observer
//! ```

mod adoption;
mod calls;
mod ceiling;
mod clock;
mod declared;
mod desired;
mod evidence;
mod holds;
mod lock;
mod news;
mod past;
mod processes;
mod recall;
mod reload;
mod restart;
mod restarting;
mod roster;
mod shares;
mod starting;
mod tool_totals;
mod views;
mod watching;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use belljar_api::{AgentId, AgentView, NewEvent, OperatorCall, RestartPolicy, Shown};
use belljar_gate::keyring::KeySource;
use belljar_policy::{Budget, Contract};

use crate::apart::words::Order;
use crate::apart::{Keepers, Setup, Trace};
use crate::fleet::{Apart, Crew, Fleet, FleetError, FleetSetup, Keeping, Manning, Post, system};
use crate::state::StateDir;
use crate::tools::ServerFiles;
pub use crate::tools::ToolCalls;
pub use ceiling::{ApiCeiling, OperatorIdentity};
use clock::Clock;
use declared::Declared;
use desired::DesiredState;
use lock::HeldPlace;
pub use lock::{Place, await_predecessor, place_of};
pub(crate) use past::note_killed;
pub use reload::{DeclarationSource, Declarations};
pub use restart::RestartRules;
use roster::Roster;
pub use shares::{Overcommitted, shares};

/// How long agents that do not end by themselves are waited for after they were killed.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the last ends may take to be put on file.
const FILING: Duration = Duration::from_secs(2);

/// Somebody who wants to know what happens: called from many threads, so each call should be short.
pub trait Observer: Send + Sync {
    /// Something happened.
    fn happened(&self, event: NewEvent) {
        let _ = event;
    }

    /// What people call an agent that was let in: told before anything else about it.
    fn named(&self, agent: &AgentId, name: &Shown) {
        let _ = (agent, name);
    }

    /// What people call one that something is about to be told of although it was not let in: it has ended, or never started.
    fn called(&self, agent: &AgentId, name: &Shown) {
        let _ = (agent, name);
    }

    /// An agent was refused what it was refused before, so often since that was told. The first time is an event.
    fn refused_again(&self, agent: &AgentId, again: &RefusedAgain) {
        let _ = (agent, again);
    }

    /// How an agent is, once a second for each that lives.
    fn sampled(&self, view: &AgentView) {
        let _ = view;
    }

    /// Alerts about each agent that nobody has resolved.
    fn open_alerts(&self) -> HashMap<AgentId, u32> {
        HashMap::new()
    }

    /// Answers what the daemon has no answer to; gives back what it has none to either.
    fn answer(&self, by: &str, call: OperatorCall) -> Option<OperatorCall> {
        let _ = by;
        Some(call)
    }
}

/// Nobody in particular.
impl Observer for () {}

/// Something on the network that an agent was refused before, and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedAgain {
    /// The host and port, as it asked for them.
    pub what: Shown,
    /// The refusal's stable word.
    pub code: Shown,
    /// How often since it was told last.
    pub count: u64,
}

/// How a daemon is set up.
#[derive(Clone, Debug)]
pub struct DaemonSettings {
    /// What replication is held to; without it nobody replicates.
    pub contract: Option<Contract>,
    /// Where the secret of the signing key is.
    pub keys: KeySource,
    /// The most agents alive at once, replicas included.
    pub max_agents: usize,
    /// How long boxes go on without a daemon.
    pub orphan_grace: Duration,
    /// How long an agent that is asked to end may take.
    pub stop_grace: Duration,
    /// The most bytes of one file of output.
    pub log_bytes: u64,
    /// How many such files are kept of each stream.
    pub log_keep: usize,
    /// How agents are started again.
    pub restart: RestartRules,
    /// The program whose `keeper` command keeps boxes: our own.
    pub program: PathBuf,
    /// Agents that are to run as long as nobody says otherwise.
    pub agents: Vec<AgentSpec>,
    /// Where they are declared.
    pub source: Option<Arc<dyn DeclarationSource>>,
    /// What holders of tokens may start.
    pub api: ApiCeiling,
}

impl DaemonSettings {
    /// The usual ones, with this program's keepers.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self {
            contract: None,
            keys: KeySource::default(),
            max_agents: 10,
            orphan_grace: Duration::from_secs(60),
            stop_grace: Duration::from_secs(10),
            log_bytes: 10 << 20,
            log_keep: 3,
            restart: RestartRules::default(),
            program,
            agents: Vec::new(),
            source: None,
            api: ApiCeiling::default(),
        }
    }
}

/// An agent to start.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentSpec {
    /// What people call it.
    pub name: String,
    /// What it runs.
    pub command: Vec<String>,
    /// Where; our own working directory where absent.
    pub workdir: Option<PathBuf>,
    /// The text of a capability file.
    pub capability: Option<String>,
    /// A shipped profile, where no capability is given; `moderate` where neither is.
    pub profile: Option<String>,
    /// What happens when it ends by itself.
    pub restart: RestartPolicy,
    /// Whether it is started again when it ran out of memory; with `always` and not otherwise where absent.
    pub restart_on_oom: Option<bool>,
    /// The part of the contract's budget that it gets, where it is declared with one.
    pub share: Option<f64>,
    /// Amounts of that budget; what is unbounded here is not said.
    pub budget: Budget,
    /// Whether it works where a rollout put it last, and not where its declaration was read.
    pub follows_releases: bool,
    /// Files that it must not change although its capability may open them: the ones it is declared in.
    pub protected: Vec<PathBuf>,
    /// The capability files of its MCP servers.
    pub servers: ServerFiles,
}

impl AgentSpec {
    /// One with this name, and nothing to run yet.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            command: Vec::new(),
            workdir: None,
            capability: None,
            profile: None,
            restart: RestartPolicy::Never,
            restart_on_oom: None,
            share: None,
            budget: Budget::UNBOUNDED,
            follows_releases: false,
            protected: Vec::new(),
            servers: ServerFiles::default(),
        }
    }
}

/// A daemon. Dropped without [`Daemon::shut_down`], its agents go on for as long as they may without one.
pub struct Daemon {
    inner: Arc<Inner>,
    /// Dropped first: from then on nobody asks.
    _fleet: Fleet,
    /// Held until all of the above is gone.
    place: HeldPlace,
}

impl std::fmt::Debug for Daemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Daemon")
            .field("settings", &self.inner.settings)
            .finish_non_exhaustive()
    }
}

/// What the daemon's threads share.
pub(crate) struct Inner {
    pub(crate) settings: DaemonSettings,
    pub(crate) keepers: Keepers,
    pub(crate) roster: Arc<Roster>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) clock: Arc<Clock>,
    /// Set once the fleet is open.
    post: OnceLock<Arc<Post>>,
    closing: Closing,
}

/// Whether the daemon is to end, and with which grace.
#[derive(Default)]
struct Closing {
    asked: Mutex<Option<Duration>>,
    told: Condvar,
}

impl Inner {
    /// The controller and what belongs to it; nobody asks before it is there.
    pub(crate) fn post(&self) -> &Arc<Post> {
        self.post
            .get()
            .unwrap_or_else(|| unreachable!("the fleet is open before anybody asks"))
    }
}

impl Daemon {
    /// Takes over a state directory: whoever outlived the last daemon is adopted, everybody else is on record as lost. One
    /// daemon at a time may.
    pub fn open(
        state: &StateDir,
        settings: DaemonSettings,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, FleetError> {
        let keepers = Keepers::of(state)?;
        // Before anybody speaks to a keeper: each listens to one daemon only.
        let place = HeldPlace::take(state)?;
        let past = past::Past::of(state)?;
        let contract = settings.contract.clone().unwrap_or_else(|| {
            let most = u32::try_from(settings.max_agents).unwrap_or(u32::MAX);
            Contract::new(0, most, Duration::ZERO, None)
        });
        let desired = DesiredState::of(state)?;
        let declared = Declared::new(settings.agents.clone(), &contract.budget, desired);
        let clock = Arc::new(Clock::default());
        let roster = Arc::new(Roster::new(
            Arc::clone(&observer),
            Arc::clone(&clock),
            keepers.clone(),
            past,
            declared,
            settings.restart.clone(),
            state.path().join("fleet/output"),
        ));
        let inner = Arc::new(Inner {
            keepers: keepers.clone(),
            roster: Arc::clone(&roster),
            observer,
            clock,
            post: OnceLock::new(),
            closing: Closing::default(),
            settings,
        });
        let settings = &inner.settings;
        let crew = Arc::new(Crew::default());
        let found = adoption::find(&keepers, &crew, state);
        let manning = Manning {
            crew: Arc::clone(&crew),
            living: found.living(),
            keeping: Keeping::Processes(Box::new(Apart {
                setup: Setup {
                    program: settings.program.clone(),
                    orphan_grace: settings.orphan_grace,
                    log_bytes: settings.log_bytes,
                    log_keep: settings.log_keep,
                },
                keepers,
                most: settings.max_agents,
                watch: roster,
            })),
        };
        let setup = FleetSetup {
            keys: settings.keys.clone(),
            ..FleetSetup::default()
        };
        let asked = Arc::clone(&inner);
        let desk: crate::fleet::Desk = Box::new(move |post, call| {
            let _ = asked.post.set(Arc::clone(post));
            // A start takes as long as its box does; a kill must not wait behind it.
            if matches!(
                call,
                OperatorCall::StartAgent(_)
                    | OperatorCall::RestartAgent(_)
                    | OperatorCall::StartDeclared(_)
                    | OperatorCall::Reload(_)
            ) {
                let inner = Arc::clone(&asked);
                let thread = std::thread::Builder::new().name("belljar-start".to_owned());
                // Without a thread the call is dropped, which answers 500.
                let _ =
                    thread.spawn(move || inner.answer_or_refuse(&OperatorIdentity::Owner, call));
            } else {
                asked.answer_or_refuse(&OperatorIdentity::Owner, call);
            }
        });
        let (fleet, adopted) = Fleet::man(state, contract, setup, manning, desk)?;
        let _ = inner.post.set(Arc::clone(fleet.post()));
        state.sweep(&belljar_sandbox::Host::probe().cgroups);
        inner.adopt(found, adopted);
        inner.roster.recall(inner.post().gate.engaged().is_some());
        inner.roster.prune_outputs();
        Clock::start(&inner).map_err(system("starting the daemon's clock"))?;
        news::listen(&inner, state.path()).map_err(system("listening for news of tools"))?;
        inner.roster.daemon_event(&format!(
            "the daemon started, with {} agents that outlived the last one",
            inner.post().crew.len()
        ));
        Ok(Self {
            inner,
            _fleet: fleet,
            place,
        })
    }

    /// Whoever waits for this daemon to serve hears that it does.
    pub fn is_ready(&self) {
        self.place.is_ready();
    }

    /// Answers an operator; gives back what is not the daemon's to answer.
    pub fn answer(&self, by: &OperatorIdentity, call: OperatorCall) -> Option<OperatorCall> {
        self.inner.answer(by, call)
    }

    /// The same, with the observer's help; what nobody can answer is refused.
    pub fn answer_or_refuse(&self, by: &OperatorIdentity, call: OperatorCall) {
        self.inner.answer_or_refuse(by, call);
    }

    /// Starts an agent as the owner does, and waits until its first instruction may run.
    ///
    /// # Errors
    /// Why it was refused.
    pub fn start(&self, mut spec: AgentSpec) -> Result<(), belljar_api::Problem> {
        starting::settle(&mut spec);
        let started = self.inner.start(spec);
        started
            .map(drop)
            .map_err(|crate::fleet::Refused(_, problem)| problem)
    }

    /// Starts every declared agent that is wanted and does not live, each until its first instruction may run. Those that are refused
    /// are tried again by themselves; what refused them is said to `told`.
    pub fn start_declared(&self, mut told: impl FnMut(&str, &belljar_api::Problem)) {
        for spec in self.inner.roster.declared.specs() {
            let name = spec.name.clone();
            if let Err(problem) = self.inner.try_declared(spec) {
                told(&name, &problem);
            }
        }
    }

    /// Declared agents that don't run, and why.
    #[must_use]
    pub fn not_running(&self) -> Vec<belljar_api::DeclaredView> {
        self.inner.not_running()
    }

    /// Reads the file that agents are declared in again, because a signal said so.
    pub fn reload(&self) -> Result<belljar_api::ReloadReply, belljar_api::Problem> {
        let Some(reason) = reload::by_signal() else {
            return Ok(belljar_api::ReloadReply::default());
        };
        let request = belljar_api::ReloadRequest {
            reason,
            dry_run: false,
            no_restart: false,
        };
        let reloaded = self.inner.reload(&OperatorIdentity::Owner, &request);
        reloaded.map_err(|crate::fleet::Refused(_, problem)| problem)
    }

    /// How everybody is now, the ended too.
    #[must_use]
    pub fn agents(&self) -> Vec<AgentView> {
        self.inner.views(true).unwrap_or_default()
    }

    /// How the daemon does.
    #[must_use]
    pub fn status(&self) -> Option<belljar_api::StatusView> {
        self.inner.post().status().ok()
    }

    /// What agents called of MCP servers since the daemon started, as far as their keepers told.
    #[must_use]
    pub fn tool_calls(&self) -> Vec<ToolCalls> {
        self.inner.roster.tools.all()
    }

    /// Calls of MCP tools that wait for an operator, the oldest first.
    #[must_use]
    pub fn holds(&self) -> Vec<belljar_api::HoldView> {
        let listed = self.inner.holds();
        listed.map(|list| list.holds).unwrap_or_default()
    }

    /// The operator's socket.
    #[must_use]
    pub fn control_socket(&self) -> &std::path::Path {
        self._fleet.control_socket()
    }

    /// Where state lives.
    #[must_use]
    pub fn state(&self) -> &StateDir {
        &self.inner.post().state
    }

    /// Whether an operator has asked the daemon to end, waiting for that at most so long; with which grace.
    #[must_use]
    pub fn asked_to_end(&self, patience: Duration) -> Option<Duration> {
        let closing = &self.inner.closing;
        let asked = closing.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = closing
            .told
            .wait_timeout_while(asked, patience, |asked| asked.is_none());
        match waited {
            Ok((asked, _)) => *asked,
            Err(poisoned) => *poisoned.into_inner().0,
        }
    }

    /// Ends every agent, kindly for as long as the grace lasts, and then the daemon. The result is how many are left, which is
    /// none but on a machine that hangs.
    pub fn shut_down(&self, grace: Option<Duration>) -> u64 {
        let inner = &self.inner;
        let grace = grace.unwrap_or(inner.settings.stop_grace);
        inner.roster.close();
        inner.clock.stop();
        inner.roster.daemon_event("the daemon shuts down");
        // Whoever waits to be started again is at its end, too: the next daemon would take it up otherwise.
        inner.roster.end_waiting("the daemon shuts down");
        let post = inner.post();
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        for worker in post.crew.kept() {
            if let Some(line) = post.crew.line(worker) {
                inner.roster.stopping(worker, "the daemon shuts down");
                let _ = line.order(&Order::Stop { grace_ms });
            }
        }
        // Keepers kill at the end of the grace themselves; a little later it is our turn.
        let margin = Duration::from_secs(2);
        if post.crew.await_everybody(grace.saturating_add(margin)) > 0 {
            let _ = post.gate.end_all();
        }
        let left = post.crew.await_everybody(PATIENCE);
        // Whoever is gone is gone before its end is on file: the next daemon would be told of it again.
        let until = Instant::now() + FILING;
        let is_word = |trace: &Trace| matches!(trace, Trace::Legacy(_));
        while inner.keepers.traces().iter().any(is_word) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        left
    }
}
