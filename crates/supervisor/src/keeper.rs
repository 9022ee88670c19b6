//! The keeper: one loop that waits on everything a box can tell, and holds it to its limits.

use crate::capture::Capture;
use crate::error::RunError;
use crate::lower::{Command, Lowered, lower, not_executable};
use crate::result::{KilledBy, ResourceUsage, RunResult, Violation};
use crate::stand_in::{Pool, StandIn};
use crate::state::{RunRecord, StateDir};
use belljar_policy::Capability;
use belljar_sandbox::Host;
use belljar_sandbox::native::{Event, LONGEST_LOOK, LaunchError, Launched, Stage, Stdio, launch};
use belljar_sandbox::signals::{self, SignalWatch};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where the program's output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// To the caller's own descriptors, and signals to the caller are passed on: for a process that is the keeper.
    Inherit,
    /// Into the result, the first MiB of each stream.
    Capture,
    /// The same, with the caller's standard input and signals: for a process that is the keeper.
    CaptureForeground,
}

/// Ends a run from another thread.
#[derive(Debug)]
pub struct StopHandle(rustix::fd::OwnedFd);

impl StopHandle {
    /// A handle for runs that are yet to start.
    pub fn new() -> Result<Self, RunError> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        rustix::event::eventfd(0, flags)
            .map(Self)
            .map_err(RunError::system("making a stop handle"))
    }

    /// Kills every box that runs under it, now and from now on.
    pub fn stop(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// Runs a command under a capability, from start to end, or until `stop` says so.
pub fn run(
    id: &str,
    capability: &Capability,
    command: &Command,
    output: Output,
    state: &StateDir,
    stop: Option<&StopHandle>,
) -> Result<RunResult, RunError> {
    let host = Host::probe();
    state.sweep(&host.cgroups);
    let started = Instant::now();
    let lowered = lower(id, capability, command, &host, state)?;
    let discard = DiscardOnFailure(lowered.overlay.clone());
    let record = record_of(&lowered, capability, command, &host);
    let _held = state.hold(&record)?;
    let (stdio, captures) = stdio_for(output).map_err(RunError::system("opening pipes"))?;
    // Before the start, so that no signal falls between.
    let signals = match output {
        Output::Inherit | Output::CaptureForeground => {
            Some(SignalWatch::new().map_err(RunError::system("watching signals"))?)
        }
        Output::Capture => None,
    };
    let mut stand_ins = Vec::new();
    let launched = launch(&lowered.plan, &host, &stdio, || -> Result<(), RunError> {
        stand_ins = put_stand_ins(&lowered, state)?;
        Ok(())
    })
    .map_err(|error| explain(error, &lowered))?;
    drop(stdio);
    let mut keeper = Keeper::new(launched, &lowered, signals, captures, started);
    keeper.stand_ins = stand_ins;
    keeper.stop = stop.map(|stop| stop.0.as_fd());
    keeper.watch()?;
    let result = keeper.conclude(&lowered, capability, &host)?;
    discard.keep();
    Ok(result)
}

/// An overlay of a run that never was is nobody's to apply.
struct DiscardOnFailure(Option<std::path::PathBuf>);

impl DiscardOnFailure {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for DiscardOnFailure {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = crate::changes::remove_store(path);
        }
    }
}

fn record_of(
    lowered: &Lowered,
    capability: &Capability,
    command: &Command,
    host: &Host,
) -> RunRecord {
    RunRecord {
        sandbox_id: lowered.plan.id.clone(),
        keeper_pid: std::process::id(),
        started_at: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_secs()),
        command: command
            .argv
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        workdir: lowered.plan.workdir.clone(),
        capability: capability.name.to_string(),
        tier: capability.tier.as_str().to_owned(),
        limits_by: host.cgroups.name().to_owned(),
        policy: serde_json::to_value(capability).unwrap_or_default(),
        stand_ins: lowered
            .stand_ins
            .iter()
            .map(|(path, _)| path.clone())
            .collect(),
    }
}

fn stdio_for(output: Output) -> Result<(Stdio, Option<[Capture; 2]>), Errno> {
    let nothing = || {
        use rustix::fs::{Mode, OFlags};
        rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
    };
    if output == Output::Inherit {
        return Ok((Stdio::inherit()?, None));
    }
    let stdin = if output == Output::CaptureForeground {
        Stdio::inherit()?.stdin
    } else {
        nothing()?
    };
    let (out, stdout) = Capture::new()?;
    let (err, stderr) = Capture::new()?;
    Ok((
        Stdio {
            stdin,
            stdout,
            stderr,
        },
        Some([out, err]),
    ))
}

/// Puts an empty entry wherever the box must not make one.
fn put_stand_ins(lowered: &Lowered, state: &StateDir) -> Result<Vec<StandIn>, RunError> {
    let mut pool = Pool::at(state.stand_ins());
    let mut put = Vec::with_capacity(lowered.stand_ins.len());
    for (path, kind) in &lowered.stand_ins {
        // Nothing is put where something has come into being meanwhile; it is covered all the same.
        let stand_in = StandIn::put(path, *kind, &mut pool).map_err(|errno| RunError::Refused {
            what: format!(
                "{} is protected and can't be held: {}",
                path.display(),
                std::io::Error::from(errno)
            ),
            hint: "use workspace: overlay, or list the path in writable_paths".into(),
        })?;
        put.extend(stand_in);
    }
    Ok(put)
}

/// A launch that failed at the program itself is the program's fault, or its name's.
fn explain(error: RunError, lowered: &Lowered) -> RunError {
    let error = match error {
        RunError::Launch { source } => source,
        other => return other,
    };
    match error {
        LaunchError::Step { stage: Stage::Execute, errno, .. } => cannot_execute(lowered, errno),
        LaunchError::Step { stage: Stage::Namespaces, errno, .. } => RunError::Refused {
            what: format!("this host does not let this user create namespaces ({})", std::io::Error::from(errno)),
            hint: "`belljar doctor` says what to change (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)".into(),
        },
        LaunchError::Step {
            stage: Stage::View,
            errno: Errno::INVAL,
            path: Some(path),
        } if lowered.plan.identity.uid != lowered.plan.identity.owner_uid => RunError::Refused {
            what: format!(
                "{} can't be shown as its box's own: its file system has no id-mapped mounts",
                path.display()
            ),
            hint: "run as the owner of the directory instead of root, or use another file system (tmpfs \
                   needs Linux 6.3)"
                .into(),
        },
        other => RunError::Launch { source: other },
    }
}

fn cannot_execute(lowered: &Lowered, errno: Errno) -> RunError {
    let program = lowered.plan.program.clone();
    match errno {
        Errno::NOENT => RunError::NotFound {
            program: program.display().to_string(),
            hint: "its interpreter or loader (#! line, ld.so) is not visible in the box".into(),
        },
        Errno::ACCESS | Errno::NOEXEC => not_executable(program),
        other => RunError::System {
            doing: "starting the program",
            source: other.into(),
        },
    }
}

struct Keeper<'a> {
    launched: Launched,
    started: Instant,
    deadline: Option<Instant>,
    cpu_limit: Option<Duration>,
    memory_limit: Option<u64>,
    process_limit: Option<u32>,
    cores: u32,
    next_look: Option<Instant>,
    look_cost: Duration,
    signals: Option<SignalWatch>,
    captures: Option<[Capture; 2]>,
    status: Option<i32>,
    killed_by: Option<KilledBy>,
    violations: Vec<Violation>,
    not_started: Option<Errno>,
    stop: Option<BorrowedFd<'a>>,
    /// Held until no process is left that they keep out.
    stand_ins: Vec<StandIn>,
    /// No more events will come.
    deaf: bool,
    process_limit_seen: bool,
}

impl Keeper<'_> {
    fn new(
        launched: Launched,
        lowered: &Lowered,
        signals: Option<SignalWatch>,
        captures: Option<[Capture; 2]>,
        started: Instant,
    ) -> Self {
        let limits = &lowered.plan.limits;
        // Asked only where it matters: the answer takes reading several files.
        let cores = limits.cpu_time.map_or(1, |_| {
            std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
        });
        let mut keeper = Self {
            launched,
            started,
            deadline: lowered.wall_time.and_then(|time| started.checked_add(time)),
            cpu_limit: limits.cpu_time,
            memory_limit: limits.memory_bytes,
            process_limit: limits.processes,
            cores,
            next_look: None,
            look_cost: Duration::ZERO,
            signals,
            captures,
            status: None,
            killed_by: None,
            violations: Vec::new(),
            not_started: None,
            stop: None,
            stand_ins: Vec::new(),
            deaf: false,
            process_limit_seen: false,
        };
        keeper.plan_look(Duration::ZERO);
        keeper
    }

    /// Until every process of the box is gone.
    fn watch(&mut self) -> Result<(), RunError> {
        loop {
            let ready = self.wait()?;
            if ready.events {
                self.hear();
            }
            if ready.memory {
                self.kill(KilledBy::Memory);
            }
            if ready.stop {
                self.kill(KilledBy::Operator);
            }
            if ready.signals {
                self.pass_signals();
            }
            for capture in self.captures.iter_mut().flatten() {
                capture.take();
            }
            if ready.ended {
                self.hear();
                return Ok(());
            }
            self.keep_time();
        }
    }

    fn wait(&self) -> Result<Ready, RunError> {
        let nothing = self.launched.handle();
        let unless = |fd: Option<BorrowedFd<'_>>| fd.is_some();
        let memory = self
            .launched
            .memory_events()
            .filter(|_| self.killed_by.is_none());
        let events = (!self.deaf).then(|| self.launched.events());
        let signals = self.signals.as_ref().map(AsFd::as_fd);
        let [out, err] = match &self.captures {
            Some([out, err]) => [out.source(), err.source()],
            None => [None, None],
        };
        let stop = self.stop.filter(|_| self.killed_by.is_none());
        let sources = [Some(nothing), events, memory, signals, stop, out, err];
        // A source that is not there is waited for as the box's end, which is always waited for.
        let mut fds =
            sources.map(|fd| PollFd::from_borrowed_fd(fd.unwrap_or(nothing), PollFlags::IN));
        let timeout = self.patience();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(RunError::system("waiting")(errno)),
        }
        let [ended, heard, starved, signalled, stopped, ..] =
            fds.each_ref().map(|fd| !fd.revents().is_empty());
        Ok(Ready {
            ended,
            events: unless(events) && heard,
            memory: unless(memory) && starved,
            signals: unless(signals) && signalled,
            stop: unless(stop) && stopped,
        })
    }

    /// How long nothing needs doing.
    fn patience(&self) -> Option<Timespec> {
        let next = [
            self.deadline.filter(|_| self.killed_by.is_none()),
            self.next_look,
        ]
        .into_iter()
        .flatten()
        .min()?;
        let left = next.saturating_duration_since(Instant::now());
        Timespec::try_from(left).ok()
    }

    /// Takes in all that init has said.
    fn hear(&mut self) {
        loop {
            match self.launched.next_event() {
                Some(Event::MainEnded { status }) => self.status = Some(status),
                Some(Event::MainStopped) => {
                    if self.launched.holds_terminal() && self.signals.is_some() {
                        self.launched.yield_terminal();
                        signals::stop_self();
                    }
                }
                Some(Event::Violation { call, why, count }) => self.note(call, why, count),
                // While the kernel clears up, so do we.
                Some(Event::Emptied) => self.stand_ins.clear(),
                Some(Event::NotStarted { errno }) => self.not_started = Some(errno),
                Some(_) => {}
                None => {
                    self.deaf = self.launched.is_deaf();
                    return;
                }
            }
        }
    }

    fn note(&mut self, call: &str, why: &str, count: u32) {
        let count = u64::from(count);
        if let Some(known) = self
            .violations
            .iter_mut()
            .find(|known| known.name == call && known.why == why)
        {
            known.count = known.count.max(count);
            return;
        }
        let hint = why
            .contains("spawn_subprocess")
            .then(|| "add to the capability: permissions: [spawn_subprocess]".to_owned());
        self.violations.push(Violation {
            kind: "syscall",
            name: call.to_owned(),
            count,
            why: why.to_owned(),
            hint,
        });
    }

    fn pass_signals(&mut self) {
        while let Some(signal) = self.signals.as_ref().and_then(SignalWatch::next) {
            if signal == signals::CONTINUED {
                self.launched.resume();
            } else {
                self.launched.signal(signal);
            }
        }
    }

    /// Ends the box if a limit is past; sets the time of the next look.
    fn keep_time(&mut self) {
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.kill(KilledBy::Timeout);
        }
        if self.next_look.is_none_or(|next| now < next) {
            return;
        }
        let spent = self.launched.spent();
        self.look_cost = now.elapsed();
        if self.cpu_limit.is_some_and(|limit| spent.cpu >= limit) {
            self.kill(KilledBy::Cpu);
        }
        if self.launched.is_sampled() {
            self.look_closer(spent.memory);
        }
        self.plan_look(spent.cpu);
    }

    /// What control groups would do, done by looking.
    fn look_closer(&mut self, resident: u64) {
        if self
            .memory_limit
            .is_some_and(|limit| resident > limit && self.launched.proportional_memory() > limit)
        {
            self.kill(KilledBy::Memory);
        }
        if let Some(limit) = self.process_limit {
            self.process_limit_seen |= self.launched.process_count() >= limit as usize;
        }
    }

    /// No limit can be passed before all cores have worked on it until then.
    fn plan_look(&mut self, cpu: Duration) {
        const SHORTEST: Duration = Duration::from_millis(2);
        const SELDOMEST: Duration = Duration::from_millis(250);
        let for_cpu = self
            .cpu_limit
            .map(|limit| (limit.saturating_sub(cpu) / self.cores).max(SHORTEST));
        // On a crowded host a look takes long; looking all the time would only crowd it more.
        let for_samples = self
            .launched
            .is_sampled()
            .then(|| LONGEST_LOOK.max(self.look_cost * 10).min(SELDOMEST));
        self.next_look = match (
            self.killed_by,
            [for_cpu, for_samples].into_iter().flatten().min(),
        ) {
            (None, Some(wait)) => Some(Instant::now() + wait),
            _ => None,
        };
    }

    fn kill(&mut self, by: KilledBy) {
        if self.killed_by.is_none() {
            self.killed_by = Some(by);
            self.next_look = None;
            self.launched.kill();
        }
    }

    fn conclude(
        mut self,
        lowered: &Lowered,
        capability: &Capability,
        host: &Host,
    ) -> Result<RunResult, RunError> {
        let ended = self
            .launched
            .finish()
            .map_err(RunError::system("waiting for the box to end"))?;
        if let Some(errno) = self.not_started {
            return Err(cannot_execute(lowered, errno));
        }
        let spent = ended.spent;
        if spent.memory_kills > 0 && self.killed_by.is_none() {
            self.killed_by = Some(KilledBy::Memory);
        }
        if self.status.is_none() && self.killed_by.is_none() {
            self.killed_by = Some(KilledBy::Operator);
        }
        if let Some(limit) = self.process_limit
            && (spent.forks_refused > 0 || self.process_limit_seen)
        {
            self.violations.push(Violation {
                kind: "limit",
                name: "processes".into(),
                count: spent.forks_refused.max(1),
                why: format!("max_processes is {limit}: further processes were refused"),
                hint: Some(format!("raise resource_limits.max_processes above {limit}")),
            });
        }
        let [stdout, stderr] = match self.captures.as_mut() {
            Some([out, err]) => [
                Some((out.finish(), out.truncated)),
                Some((err.finish(), err.truncated)),
            ],
            None => [None, None],
        };
        let (stdout, stdout_truncated) =
            stdout.map_or((None, false), |(text, cut)| (Some(text), cut));
        let (stderr, stderr_truncated) =
            stderr.map_or((None, false), |(text, cut)| (Some(text), cut));
        let changes_kept = match &lowered.overlay {
            Some(store) => crate::changes::settle(store)?,
            None => false,
        };
        Ok(RunResult {
            sandbox_id: lowered.plan.id.clone(),
            exit_code: self.status.and_then(exit_code),
            signal: self.status.map_or(self.killed_by.map(|_| 9), signal_of),
            duration_ms: self.started.elapsed().as_secs_f64() * 1000.0,
            resource_usage: ResourceUsage {
                cpu_seconds: spent.cpu.as_secs_f64(),
                peak_memory_mb: spent.peak_memory as f64 / f64::from(1 << 20),
            },
            killed_by: self.killed_by,
            violations: self.violations,
            tier: capability.tier.as_str().to_owned(),
            degraded: degraded(host),
            limits_by: host.cgroups.name(),
            changes_kept,
            notes: lowered.notes.clone(),
            stdout,
            stderr,
            stdout_truncated,
            stderr_truncated,
        })
    }
}

/// What is weaker on this host than it could be.
fn degraded(host: &Host) -> Vec<String> {
    let mut weaker = Vec::new();
    if matches!(host.cgroups, belljar_sandbox::cgroup::Cgroups::None { .. }) {
        weaker.push(
            "limits: memory and cpu are looked at every 25 ms, not held by the kernel; \
             reaching max_processes for a shorter time is not reported"
                .to_owned(),
        );
    }
    if host.landlock_abi.is_some_and(|abi| abi < 3) {
        weaker.push("landlock: an old version; other walls hold what it can't".to_owned());
    }
    weaker
}

struct Ready {
    ended: bool,
    events: bool,
    memory: bool,
    signals: bool,
    stop: bool,
}

/// The exit code in a wait status, unless a signal ended the process.
fn exit_code(status: i32) -> Option<i32> {
    (status & 0x7f == 0).then_some((status >> 8) & 0xff)
}

/// The signal in a wait status, if one ended the process.
fn signal_of(status: i32) -> Option<i32> {
    Some(status & 0x7f).filter(|signal| *signal != 0)
}
