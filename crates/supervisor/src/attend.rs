//! Attending a box from start to end: what `belljar run` does in the foreground, and what a fleet does in as many
//! threads as it has boxes.
//!
//! Nothing here depends on what a process has only one of: the working directory, the umask, signal handlers. Only a
//! foreground run (see [`Output`]) takes the process's signals and terminal.

use crate::command::Command;
use crate::error::RunError;
use crate::keeper::{self, Covers, Keeper};
use crate::lower::{Sketch, lower};
use crate::manager::SandboxId;
use crate::network::{Gateway, Prepared};
use crate::observation::Watcher;
use crate::reins::Reins;
use crate::result::{RunResult, Violation};
use crate::rotation::Rotated;
use crate::stand_ins::BoxStandIns;
use crate::starting::{DiscardOnFailure, Streams, explain, record_of};
use crate::state::StateDir;
use belljar_egress::{LlmBudget, Refusal as NetworkRefusal};
use belljar_gate::record::{ProgramRecord, UsedImage, words_sha256};
use belljar_gate::{Launch, Permit};
use belljar_policy::{Capability, PublishedPort};
use belljar_sandbox::Host;
use belljar_sandbox::cgroup::Spending;
use belljar_sandbox::native::{Standing, Starting, begin};
use belljar_sandbox::plan::{Freezer, Plan};
use belljar_sandbox::signals::SignalWatch;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where the program's output goes.
#[derive(Debug)]
pub enum Output {
    /// To the caller's own descriptors, and signals to the caller are passed on: for a process that is the keeper.
    Inherit,
    /// The same, but all of it to the caller's error output: for a caller whose standard output is for something else.
    InheritAsError,
    /// To the caller's own, with no input and no signals: for one box of several in a process.
    Shared,
    /// To and from pipes of the caller's, with the caller's error output: for whoever stands between the program and others.
    Piped {
        /// What the program reads.
        stdin: OwnedFd,
        /// Where it writes.
        stdout: OwnedFd,
        /// Whose signals are the box's.
        signals: Signals,
    },
    /// Into the result, the first MiB of each stream.
    Capture,
    /// The same, and this is what the program reads.
    CaptureFed(Arc<[u8]>),
    /// The same, with the caller's standard input and signals: for a process that is the keeper.
    CaptureForeground,
    /// To files that are begun anew when they are full, of which the last ones are kept. No standard input.
    Rotated {
        /// Standard output.
        stdout: Rotated,
        /// Error output.
        stderr: Rotated,
    },
    /// To files of the caller's, through the keeper, which drops what goes beyond the limit. No standard input.
    Files {
        /// Standard output.
        stdout: File,
        /// Error output.
        stderr: File,
        /// The most bytes written to each.
        limit: u64,
    },
}

/// What becomes of signals to the keeper's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signals {
    /// They are passed on to the box: for a process that keeps this one only.
    PassedOn,
    /// They are not its business.
    NotTaken,
}

/// A box to attend.
#[derive(Debug)]
pub struct Assignment<'a> {
    id: &'a SandboxId,
    capability: &'a Capability,
    command: &'a Command,
    state: &'a StateDir,
    output: Output,
    reins: Option<Reins>,
    held: Held,
    budget: Option<Arc<LlmBudget>>,
}

/// Who may hold a box by its reins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    /// Others: it is prepared to be frozen, and starts only when told to.
    ByOthers,
    /// Nobody, but to kill it.
    ByNobody,
}

impl<'a> Assignment<'a> {
    /// One box of several: its output is captured, and it waits at the gate for [`Attendant::admit`].
    ///
    /// What killed keepers left behind is not cleared away here: call [`StateDir::sweep`] once, before the first box.
    pub fn new(
        id: &'a SandboxId,
        capability: &'a Capability,
        command: &'a Command,
        state: &'a StateDir,
    ) -> Self {
        Self {
            id,
            capability,
            command,
            state,
            output: match &command.input {
                Some(bytes) => Output::CaptureFed(Arc::clone(bytes)),
                None => Output::Capture,
            },
            reins: None,
            held: Held::ByOthers,
            budget: None,
        }
    }

    /// Has calls to models paid from this budget, instead of one of the box's own as large as its limits say.
    #[must_use]
    pub fn budget(mut self, budget: Arc<LlmBudget>) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Sends the program's output elsewhere.
    #[must_use]
    pub fn output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// Puts the box under these reins, which may be pulled from now on.
    #[must_use]
    pub fn reins(mut self, reins: Reins) -> Self {
        self.reins = Some(reins);
        self
    }

    /// For a box that nobody means to freeze, or to refuse when its walls stand: it starts sooner. It can be frozen all
    /// the same once it runs.
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.held = Held::ByNobody;
        self
    }
}

/// Somebody who wants to know how a box fares. All is called from the attending thread, and while a call lasts nobody
/// watches the box's limits by looking, so each should be short.
pub trait Attendant {
    /// The walls stand, the gate gave leave, and the program has not run an instruction. A refusal ends the box there.
    fn admit(&mut self, facts: &Facts<'_>) -> Result<(), Refusal> {
        let _ = facts;
        Ok(())
    }

    /// The program starts.
    fn started(&mut self, facts: &Facts<'_>) {
        let _ = facts;
    }

    /// The program has ended, and processes that it left behind are waited for. These are their names, chosen by the agent.
    fn lingers(&mut self, names: &[String]) {
        let _ = names;
    }

    /// How often to look at what the box uses, if at all. Asked after every look.
    fn look_every(&self) -> Option<Duration> {
        None
    }

    /// What the box uses.
    fn looked(&mut self, usage: &Usage) {
        let _ = usage;
    }

    /// The last process has ended, and this is the result. What is done here takes no time: the kernel is still clearing
    /// up behind that process, and that will be waited for.
    fn ended(&mut self, result: &mut RunResult) {
        let _ = result;
    }

    /// The box tried something that a wall stopped; it is told again as the count grows.
    fn violated(&mut self, violation: &Violation) {
        let _ = violation;
    }

    /// The box was refused something on the network that it was not refused before.
    fn refused(&mut self, refusal: &NetworkRefusal) {
        let _ = refusal;
    }

    /// It was refused the same again, so often since it was told last. Told to whoever wants to look every so often.
    fn refused_again(&mut self, refusal: &NetworkRefusal, count: u64) {
        let _ = (refusal, count);
    }
}

/// Nobody in particular.
impl Attendant for () {}

/// The gate's leave to let a box run. Without it no program of an agent's runs an instruction.
pub enum Leave<'a> {
    /// Given beforehand.
    Given(Permit<Launch>),
    /// To be asked for while the walls go up.
    Asked(&'a mut dyn FnMut(&Asking<'_>) -> Result<Permit<Launch>, Refusal>),
}

/// What leave is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    /// Everything that the box will be.
    pub plan: &'a Plan,
    /// The image whose files it will have, if not the host's.
    pub image: Option<&'a UsedImage>,
}

impl Asking<'_> {
    /// What the record says of the program.
    pub(crate) fn program(&self) -> ProgramRecord {
        let words = self.plan.argv.iter().map(|word| word.as_bytes());
        ProgramRecord {
            program: self.plan.program.display().to_string(),
            command_sha256: words_sha256(words),
            image: self.image.cloned(),
        }
    }
}

impl Leave<'_> {
    fn obtain(self, asking: &Asking<'_>) -> Result<Permit<Launch>, RunError> {
        let asked = match self {
            Leave::Given(permit) => return Ok(permit),
            Leave::Asked(ask) => ask(asking),
        };
        asked.map_err(|Refusal { code, what, hint }| RunError::NotAdmitted { code, what, hint })
    }
}

impl std::fmt::Debug for Leave<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Leave::Given(_) => "Leave::Given",
            Leave::Asked(_) => "Leave::Asked",
        })
    }
}

/// What there is to know of a box before it runs.
#[derive(Debug)]
pub struct Facts<'a> {
    /// Everything it is.
    pub plan: &'a Plan,
    /// Its pid 1, in our pid namespace.
    pub pid: i32,
    /// The image whose files it has, if not the host's.
    pub image: Option<&'a UsedImage>,
    /// What holds its limits.
    pub limits_by: &'static str,
    /// A hold on it.
    pub reins: &'a Reins,
    /// Its ports that the host can connect to, and where.
    pub published: &'a [(PublishedPort, SocketAddr)],
    /// What it does not get of variables and files, because keys are in them. The result's notes have it too.
    pub withheld: &'a [String],
}

/// Why a box may not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// A stable word.
    pub code: &'static str,
    /// What, and why.
    pub what: String,
    /// What to change.
    pub hint: String,
}

/// What a box uses, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// CPU time of all its processes so far, in milliseconds.
    pub cpu_ms: u64,
    /// Bytes of memory now.
    pub memory_bytes: u64,
    /// The most bytes of memory so far.
    pub peak_memory_bytes: u64,
    /// Processes and threads now, where they are counted.
    pub processes: Option<u64>,
    /// Tokens of models so far, as the gateway counted them.
    pub tokens: u64,
    /// What they cost so far, in millionths of a US dollar.
    pub micro_usd: u64,
    /// Bytes sent through the gateway so far.
    pub sent_bytes: u64,
    /// Bytes received through it so far.
    pub received_bytes: u64,
}

impl From<&Spending> for Usage {
    fn from(spent: &Spending) -> Self {
        Self {
            cpu_ms: u64::try_from(spent.cpu.as_millis()).unwrap_or(u64::MAX),
            memory_bytes: spent.memory,
            peak_memory_bytes: spent.peak_memory,
            processes: spent.processes,
            tokens: 0,
            micro_usd: 0,
            sent_bytes: 0,
            received_bytes: 0,
        }
    }
}

/// Attends a box from start to end, in this thread; the box ends with it. Any number may be attended at once (see
/// [`crate::raise_descriptor_limit`]).
pub fn attend(
    assignment: Assignment<'_>,
    leave: Leave<'_>,
    attendant: &mut dyn Attendant,
) -> Result<RunResult, RunError> {
    attend_on(&Host::probe(), assignment, leave, attendant)
}

pub(crate) fn attend_on(
    host: &Host,
    assignment: Assignment<'_>,
    leave: Leave<'_>,
    attendant: &mut dyn Attendant,
) -> Result<RunResult, RunError> {
    let Assignment {
        id,
        capability,
        command,
        state,
        output,
        reins,
        held,
        budget,
    } = assignment;
    let reins = match reins {
        Some(reins) => reins,
        None => Reins::new()?,
    };
    let _taken_up = reins.take_up()?;
    let freezer = match held {
        Held::ByOthers => Freezer::Prepared,
        Held::ByNobody => Freezer::AsItComes,
    };
    let sketch = Sketch::of(id.as_str(), capability, command, freezer, host, state)?;
    // A guest that had to be made ready for this tier first is not this box's time.
    let started = Instant::now();
    let record = record_of(&sketch, capability, host);
    let held_record = state.hold(&record)?;
    let Streams {
        stdio,
        captures,
        foreground,
    } = Streams::open(output)
        .and_then(|streams| streams.suit(&sketch.tier))
        .map_err(RunError::system("opening pipes"))?;
    // Before the start, so that no signal falls between.
    let signals = match foreground {
        true => Some(SignalWatch::new().map_err(RunError::system("watching signals"))?),
        false => None,
    };
    // Its namespaces are made while we look at what it will show. Should they fail, whatever is wrong with the command
    // is told first.
    let begun = begin(sketch.outline.clone(), sketch.tier.clone(), host, &stdio);
    if let Ok(begun) = &begun {
        reins.born(begun.grip());
    }
    let mut lowered = lower(sketch, capability, command, host, state)?;
    // Held until the box has ended: no other may write to it.
    let home_copy = lowered.home_copy.take();
    let discard = DiscardOnFailure::new(lowered.overlay.clone());
    let outlook = lowered.outlook.take();
    let early = |error: RunError| match reins.ended_by() {
        Some(by) => RunError::KilledEarly { by },
        None => explain(error, &lowered),
    };
    let starting = begun
        .and_then(|begun| begun.furnish(&lowered.plan, host))
        .map_err(|error| early(error.into()))?;
    // While the box's first walls go up.
    let mut stand_ins = BoxStandIns::new(state, &held_record, record);
    stand_ins.put(&lowered.stand_ins)?;
    starting.go_on().map_err(|error| early(error.into()))?;
    // And while the others do.
    let gateway = outlook.map(|outlook| Gateway::prepare(outlook, capability, budget));
    let gateway = gateway.transpose()?;
    let image = lowered.image.as_ref().map(|image| &image.used);
    let permit = leave.obtain(&Asking {
        plan: &lowered.plan,
        image,
    })?;
    let go = match held {
        Held::ByOthers => Go::WhenTold(permit),
        Held::ByNobody => Go::early(&starting, permit)?,
    };
    let mut standing = starting.stand().map_err(|error| early(error.into()))?;
    drop(stdio);
    let published = gateway.as_ref().map(published_ports).unwrap_or_default();
    let gateway = gateway.map(|prepared| prepared.open(&mut standing, &reins));
    let gateway = gateway.transpose()?;
    if let (Some(answered), Some(listener)) = (&command.answered, standing.take_answered()) {
        answered.begin(listener);
    }
    let watcher = standing.take_sightings();
    let watcher = watcher.map(|seen| Watcher::start(seen, &lowered.plan.program));
    let watcher = watcher.transpose();
    let watcher = watcher.map_err(|source| RunError::System {
        doing: "listening to the box",
        source,
    })?;
    let facts = Facts {
        plan: &lowered.plan,
        pid: standing.pid(),
        image,
        limits_by: host.cgroups.name(),
        reins: &reins,
        published: &published,
        withheld: &lowered.withheld,
    };
    // A program that was let go early may have run: whoever killed it then killed a running box.
    if matches!(go, Go::WhenTold(_)) {
        admit(&reins, &facts, attendant)?;
    }
    let mut launched = let_go(standing, &reins, go)?;
    let mounts = launched.take_mounts();
    attendant.started(&facts);
    // What was shown is in the box now; a fleet's worth of copies would be a waste.
    lowered.plan.shows = Vec::new();
    let mut keeper = Keeper::new(launched, &lowered, &reins, attendant, started);
    keeper.gateway = gateway;
    keeper.watcher = watcher;
    keeper.listen_to(signals, captures);
    keeper.stand_ins = Some(stand_ins);
    let mounts = mounts.ok_or(rustix::io::Errno::BADF);
    let mounts = mounts.map_err(RunError::system("watching the box's mounts"))?;
    // Another kernel may have looked at what was uncovered, and remember it.
    let mendable = lowered.is_native;
    keeper.covers = Some(Covers::of(&lowered.plan, &lowered.home, mounts, mendable));
    keeper.watch()?;
    let result = keeper.conclude(keeper::Setting {
        lowered: &lowered,
        capability,
        host,
    })?;
    drop(home_copy);
    discard.keep();
    Ok(result)
}

fn published_ports(prepared: &Prepared) -> Vec<(PublishedPort, SocketAddr)> {
    let ports = prepared.ports().iter();
    ports.map(|open| (open.port, open.at)).collect()
}

/// The last word before the program's first instruction. A box that is dead already asks nobody.
fn admit(reins: &Reins, facts: &Facts<'_>, attendant: &mut dyn Attendant) -> Result<(), RunError> {
    if let Some(by) = reins.ended_by() {
        return Err(RunError::KilledEarly { by });
    }
    attendant
        .admit(facts)
        .map_err(|Refusal { code, what, hint }| RunError::NotAdmitted { code, what, hint })
}

/// Leave to run the first instruction. There are two ways to use it, and both take a permit.
enum Go {
    /// When the walls stand and nobody objects.
    WhenTold(Permit<Launch>),
    /// It was given: the program starts the moment its walls stand.
    Given,
}

impl Go {
    fn early(starting: &Starting, permit: Permit<Launch>) -> Result<Self, RunError> {
        permit.spend();
        starting.let_go_early()?;
        Ok(Self::Given)
    }
}

fn let_go(
    mut standing: Standing,
    reins: &Reins,
    go: Go,
) -> Result<belljar_sandbox::native::Launched, RunError> {
    // Killed while somebody thought about admission: it has not run an instruction, and will not.
    if let (Some(by), Go::WhenTold(_)) = (reins.ended_by(), &go) {
        return Err(RunError::KilledEarly { by });
    }
    reins.stands().map_err(|error| RunError::System {
        doing: "freezing the box",
        source: std::io::Error::other(error),
    })?;
    match go {
        Go::WhenTold(permit) => {
            standing.await_still()?;
            permit.spend();
            Ok(standing.go()?)
        }
        Go::Given => Ok(standing.gone()),
    }
}
