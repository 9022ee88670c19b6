//! The keeper: one loop that waits on everything a box can tell, and holds it to its limits.

mod covers;
mod holds;

pub(crate) use covers::Covers;

use crate::attend::{Attendant, Usage};
use crate::capture::{Capture, Kept};
use crate::error::RunError;
use crate::lower::Lowered;
use crate::network::{ClosedNetwork, Gateway};
use crate::observation::Watcher;
use crate::reins::{BoxState, Reins};
use crate::result::{KillCode, KilledBy, ResourceUsage, RunResult, Violation};
use crate::stand_ins::BoxStandIns;
use crate::starting::cannot_execute;
use crate::urgency::{Addressee, Answer, Urgency};
use belljar_policy::{Capability, Tier};
use belljar_sandbox::Host;
use belljar_sandbox::microvm::{self, Meaning};
use belljar_sandbox::native::{Event, FreezeMethod, LONGEST_LOOK, Launched};
use belljar_sandbox::signals::{self, SignalWatch};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::time::{Duration, Instant};

pub(crate) struct Keeper<'a> {
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
    /// What those ask.
    urgency: Urgency,
    captures: Option<[Capture; 2]>,
    status: Option<i32>,
    /// When what the program left behind is worth a word.
    lingers_at: Option<Instant>,
    /// Its names.
    left_behind: Vec<String>,
    /// Why pid 1 can't go on.
    broken: Option<String>,
    reins: &'a Reins,
    attendant: &'a mut dyn Attendant,
    /// When the memory of sockets is looked at, where no limit holds it.
    next_sockets: Option<Instant>,
    /// When the attendant wants to know more.
    next_report: Option<Instant>,
    /// When what only the start needed is given back.
    rests_at: Option<Instant>,
    /// The box was killed, by us or by whoever else holds its reins.
    doomed: bool,
    violations: Vec<Violation>,
    not_started: Option<Errno>,
    /// The program's own kernel ended before it told how the program did.
    kernel_ended: bool,
    /// Held until no process is left that they keep out.
    pub(crate) stand_ins: Option<BoxStandIns<'a>>,
    /// Things the user should know at the end.
    notes: Vec<String>,
    /// The last process has ended.
    emptied: bool,
    /// The box's way out, if it has one.
    pub(crate) gateway: Option<Gateway>,
    /// What is mounted on names of the host's, in its sight.
    pub(crate) covers: Option<Covers>,
    /// When they are to be looked at, where nobody tells.
    covers_look: Option<Instant>,
    /// What the kernel says of a box whose network is closed.
    closed: ClosedNetwork,
    /// Listens to it, if it is watched.
    pub(crate) watcher: Option<Watcher>,
    /// No more events will come.
    deaf: bool,
    process_limit_seen: bool,
}

impl<'a> Keeper<'a> {
    pub(crate) fn new(
        launched: Launched,
        lowered: &Lowered,
        reins: &'a Reins,
        attendant: &'a mut dyn Attendant,
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
            memory_limit: lowered.memory_held,
            process_limit: limits.processes,
            cores,
            next_look: None,
            look_cost: Duration::ZERO,
            signals: None,
            urgency: Urgency::default(),
            captures: None,
            status: None,
            lingers_at: None,
            left_behind: Vec::new(),
            broken: None,
            reins,
            next_sockets: None,
            next_report: attendant.look_every().map(|wait| Instant::now() + wait),
            rests_at: started.checked_add(LONG_ENOUGH),
            attendant,
            doomed: false,
            violations: Vec::new(),
            not_started: None,
            kernel_ended: false,
            stand_ins: None,
            notes: Vec::new(),
            emptied: false,
            gateway: None,
            covers: None,
            covers_look: None,
            closed: ClosedNetwork::default(),
            watcher: None,
            deaf: false,
            process_limit_seen: false,
        };
        keeper.plan_look(Duration::ZERO);
        if keeper.memory_limit.is_some() && keeper.launched.socket_memory().is_some() {
            keeper.next_sockets = Some(Instant::now());
        }
        keeper
    }

    /// Whose signals to pass on, and which streams to empty.
    pub(crate) fn listen_to(
        &mut self,
        signals: Option<SignalWatch>,
        captures: Option<[Capture; 2]>,
    ) {
        self.signals = signals;
        self.captures = captures;
    }

    /// Until every process of the box is gone, or the last is about to be.
    pub(crate) fn watch(&mut self) -> Result<(), RunError> {
        // What was lost before anybody listened.
        self.look_after_covers();
        loop {
            let ready = self.wait()?;
            if ready.covers {
                self.look_after_covers();
            }
            if ready.events {
                self.hear();
            }
            if ready.memory {
                self.kill(KilledBy::Memory);
            }
            if ready.bell {
                self.reins.answer_bell();
                self.tell_refusals();
                for signal in self.reins.take_signals() {
                    self.launched.signal(signal);
                }
                self.doomed |= self.reins.ended_by().is_some();
                if self.reins.needs_holding() {
                    let soon = Instant::now() + LONGEST_LOOK;
                    self.next_look = Some(self.next_look.map_or(soon, |next| next.min(soon)));
                }
            }
            if ready.signals {
                self.pass_signals();
            }
            for capture in self.captures.iter_mut().flatten() {
                capture.take();
            }
            if ready.ended {
                self.hear();
            }
            if ready.ended || self.emptied {
                return Ok(());
            }
            self.keep_time();
        }
    }

    fn wait(&self) -> Result<Ready, RunError> {
        let nothing = self.launched.handle();
        let unless = |fd: Option<BorrowedFd<'_>>| fd.is_some();
        let memory = self.launched.memory_events().filter(|_| !self.doomed);
        let events = (!self.deaf).then(|| self.launched.events());
        let signals = self.signals.as_ref().map(AsFd::as_fd);
        let [out, err] = match &self.captures {
            Some([out, err]) => [out.source(), err.source()],
            None => [None, None],
        };
        let bell = Some(self.reins.bell());
        let covers = self
            .covers
            .as_ref()
            .filter(|_| !self.doomed && !self.emptied);
        let moves = covers.and_then(Covers::moves);
        // A table of mounts can always be read; that it changed is another matter.
        let sources = [
            (Some(nothing), PollFlags::IN),
            (events, PollFlags::IN),
            (memory, PollFlags::IN),
            (signals, PollFlags::IN),
            (bell, PollFlags::IN),
            (covers.map(Covers::changes), PollFlags::PRI),
            (moves, PollFlags::IN),
            (out, PollFlags::IN),
            (err, PollFlags::IN),
        ];
        // A source that is not there is waited for as the box's end, which is always waited for.
        let mut fds =
            sources.map(|(fd, flags)| PollFd::from_borrowed_fd(fd.unwrap_or(nothing), flags));
        let timeout = self.patience();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(RunError::system("waiting")(errno)),
        }
        let [ended, heard, starved, signalled, rung, uncovered, moved, ..] =
            fds.each_ref().map(|fd| !fd.revents().is_empty());
        let is_late = self.covers_look.is_some_and(|time| Instant::now() >= time);
        Ok(Ready {
            ended,
            events: unless(events) && heard,
            memory: unless(memory) && starved,
            signals: unless(signals) && signalled,
            bell: rung,
            covers: unless(covers.map(Covers::changes)) && uncovered
                || unless(moves) && moved
                || is_late,
        })
    }

    /// How long nothing needs doing.
    fn patience(&self) -> Option<Timespec> {
        let next = [
            self.deadline.filter(|_| !self.doomed),
            self.next_look,
            self.next_report.filter(|_| !self.doomed),
            self.rests_at,
            self.covers_look,
            self.urgency.deadline().filter(|_| !self.doomed),
            self.next_sockets.filter(|_| !self.doomed),
            self.lingers_at,
        ]
        .into_iter()
        .flatten()
        .min()?;
        let left = next.saturating_duration_since(Instant::now());
        Timespec::try_from(left).ok()
    }

    /// Passes on what the gateway refused.
    fn tell_refusals(&mut self) {
        for refusal in self.gateway.iter().flat_map(Gateway::take_news) {
            self.attendant.refused(&refusal);
        }
    }

    /// Passes on how often the same was refused again.
    fn tell_repeats(&mut self) {
        match &self.gateway {
            Some(gateway) => {
                for (refusal, count) in gateway.take_repeats() {
                    self.attendant.refused_again(&refusal, count);
                }
            }
            // Where the network is closed there is no gateway to ask; the kernel counts what found no way out.
            None => {
                let (is_first, count) = self.closed.look(self.launched.pid());
                let refusal = ClosedNetwork::refusal();
                if is_first {
                    self.attendant.refused(&refusal);
                }
                let more = count - u64::from(is_first);
                if more > 0 {
                    self.attendant.refused_again(&refusal, more);
                }
            }
        }
    }

    /// Takes in all that init has said.
    fn hear(&mut self) {
        loop {
            match self.launched.next_event() {
                Some(Event::MainEnded { status }) => self.note_main_ended(status),
                Some(Event::Signalled) => self.urgency.heard(),
                Some(Event::Broken { what, errno }) => {
                    let why = std::io::Error::from(errno);
                    self.broken = Some(format!("the box's pid 1 gave up: {what}: {why}"));
                }
                Some(Event::MainStopped) => {
                    let by_user = !self.reins.is_held();
                    if by_user && self.launched.holds_terminal() && self.signals.is_some() {
                        self.launched.yield_terminal();
                        signals::stop_self();
                    }
                }
                Some(Event::Violation { call, why, count }) => self.note(call, why, count),
                // While the kernel clears up, so do we.
                Some(Event::Emptied) => {
                    self.emptied = true;
                    self.clear_stand_ins();
                }
                Some(Event::KernelEnded) => self.kernel_ended = true,
                Some(Event::NotStarted { errno }) => self.not_started = Some(errno),
                Some(_) => {}
                None => {
                    self.deaf = self.launched.is_deaf();
                    return;
                }
            }
        }
    }

    fn clear_stand_ins(&mut self) {
        if let Some(mut stand_ins) = self.stand_ins.take() {
            self.notes.extend(stand_ins.take_away());
        }
    }

    fn note(&mut self, call: &str, why: &str, count: u32) {
        let count = u64::from(count);
        if let Some(known) = self
            .violations
            .iter_mut()
            .find(|known| known.name == call && known.why == why)
        {
            if count > known.count {
                known.count = count;
                self.attendant.violated(known);
            }
            return;
        }
        let hint = why
            .contains("spawn_subprocess")
            .then(|| "add to the capability: permissions: [spawn_subprocess]".to_owned());
        let violation = Violation {
            kind: "syscall",
            name: call.to_owned(),
            count,
            why: why.to_owned(),
            hint,
        };
        self.attendant.violated(&violation);
        self.violations.push(violation);
    }

    fn pass_signals(&mut self) {
        let next = |watch: &Option<SignalWatch>| watch.as_ref()?.next_with_sender();
        while let Some((signal, sender)) = next(&self.signals) {
            if signal == signals::CONTINUED {
                if self.status.is_none() {
                    self.launched.resume();
                }
                continue;
            }
            let whose = match self.status {
                None => Addressee::Program,
                Some(_) => Addressee::LeftBehind,
            };
            match self.urgency.ask(signal, sender, whose, Instant::now()) {
                Answer::PassOn => self.launched.signal(signal),
                Answer::Kill => self.kill(SIGNALLED),
            }
        }
    }

    /// The program's own end. Others of its box may go on, without it and without the terminal.
    fn note_main_ended(&mut self, status: i32) {
        self.status = Some(status);
        let now = Instant::now();
        self.urgency.program_ended(now);
        self.lingers_at = now.checked_add(A_MOMENT);
        self.launched.yield_terminal();
    }

    /// Ends the box if a limit is past; sets the time of the next look.
    fn keep_time(&mut self) {
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.kill(KilledBy::Timeout);
        }
        let is_due = |time: Option<Instant>| time.is_some_and(|time| now >= time);
        if !self.doomed && is_due(self.urgency.deadline()) {
            self.kill(SIGNALLED);
        }
        if is_due(self.lingers_at) {
            self.lingers_at = None;
            self.left_behind = self.launched.process_names();
            if !self.doomed && !self.left_behind.is_empty() {
                self.attendant.lingers(&self.left_behind);
            }
        }
        if is_due(self.rests_at) {
            self.rests_at = None;
            belljar_sandbox::give_back_code();
        }
        if is_due(self.next_sockets) {
            self.look_at_sockets(now);
        }
        let (look, report) = (is_due(self.next_look), is_due(self.next_report));
        if self.doomed || !(look || report) {
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
        if self.reins.is_overdue() {
            return self.kill(NOT_FROZEN);
        }
        // Signals can be undone from inside.
        if self.reins.needs_holding()
            && (self.reins.state() == BoxState::Freezing || !self.launched.is_seen_still())
        {
            self.reins.hold_still();
        }
        if report {
            let mut usage = Usage::from(&spent);
            if let Some(gateway) = &self.gateway {
                (usage.tokens, usage.micro_usd) = gateway.metered();
                (usage.sent_bytes, usage.received_bytes) = gateway.carried();
            }
            self.attendant.looked(&usage);
            self.tell_repeats();
            let next = self.attendant.look_every();
            self.next_report = next.map(|wait| Instant::now() + wait.max(SHORTEST_LOOK));
        }
        self.plan_look(spent.cpu);
    }

    /// Without any memory of its own a box can have the kernel hold as much in sockets as it likes.
    fn look_at_sockets(&mut self, now: Instant) {
        let held = self.launched.socket_memory();
        self.next_sockets = now.checked_add(SELDOMEST);
        if let (Some(held), Some(limit)) = (held, self.memory_limit)
            && held > limit
        {
            self.kill(KilledBy::Memory);
        }
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
        let for_cpu = self
            .cpu_limit
            .map(|limit| (limit.saturating_sub(cpu) / self.cores).max(SHORTEST_LOOK));
        // On a crowded host a look takes long; looking all the time would only crowd it more.
        let for_samples = self
            .launched
            .is_sampled()
            .then(|| LONGEST_LOOK.max(self.look_cost * 10).min(SELDOMEST));
        let for_stillness = self.reins.needs_holding().then_some(LONGEST_LOOK);
        let soonest = [for_cpu, for_samples, for_stillness];
        self.next_look = match soonest.into_iter().flatten().min() {
            Some(wait) if !self.doomed => Some(Instant::now() + wait),
            _ => None,
        };
    }

    fn kill(&mut self, by: KilledBy) {
        self.reins.end(by);
        self.doomed = true;
        self.next_look = None;
    }

    /// Takes the accounts when all is over.
    pub(crate) fn conclude(mut self, setting: Setting<'_>) -> Result<RunResult, RunError> {
        let Setting {
            lowered,
            capability,
            host,
        } = setting;
        if self.attendant.look_every().is_some() && self.gateway.is_some() {
            self.tell_repeats();
        }
        let (network, news) = self.gateway.take().map(Gateway::close).unzip();
        for refusal in news.iter().flatten() {
            self.attendant.refused(refusal);
        }
        let waiting = || RunError::system("waiting for the box to end");
        let spent = self.launched.accounts().map_err(waiting())?;
        let observed = self.watcher.take().map(Watcher::finish);
        if let Some(errno) = self.not_started {
            return Err(cannot_execute(lowered, errno));
        }
        let meaning = match capability.tier {
            Tier::Microvm | Tier::Firecracker => self.status.and_then(microvm::meaning),
            _ => None,
        };
        // The guest has said why on its error output.
        if meaning == Some(Meaning::Failed) && self.reins.ended_by().is_none() {
            return Err(RunError::system("running the box's guest")(Errno::IO));
        }
        // So has gVisor's kernel, if it could: a bug in it, or a call that the host's kernel ends it for.
        if self.kernel_ended && self.reins.ended_by().is_none() && spent.memory_kills == 0 {
            let what = "running the box's own kernel, which ended before its program did";
            return Err(RunError::system(what)(Errno::IO));
        }
        let guest_out_of_memory = meaning == Some(Meaning::OutOfMemory);
        if guest_out_of_memory {
            self.status = Some(KILLED);
        }
        let out_of_memory =
            (spent.memory_kills > 0 || guest_out_of_memory).then_some(KilledBy::Memory);
        // Nobody here ordered it: somebody on the host, the kernel, or pid 1 itself.
        let is_cut_short = self.status.is_none() || self.launched.is_cut_short();
        let by_itself = is_cut_short.then_some(KilledBy::Killed {
            by: KillCode::INIT_DIED,
        });
        let killed_by = self.reins.ended_by().or(out_of_memory).or(by_itself);
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
        if let Some(judged) = &lowered.judged {
            self.judge_repositories(judged);
        }
        let [stdout, stderr] = match self.captures.as_mut() {
            Some(both) => both.each_mut().map(Capture::finish),
            None => [Kept::default(), Kept::default()],
        };
        let changes_kept = match &lowered.overlay {
            Some(store) => {
                // As long as it is mounted, it is not ours to look through.
                self.launched.wait().map_err(waiting())?;
                crate::changes::settle(store)?
            }
            None => false,
        };
        let mut result = RunResult {
            sandbox_id: lowered.plan.id.clone(),
            exit_code: self.status.and_then(exit_code),
            signal: self.status.map_or(killed_by.map(|_| 9), signal_of),
            duration_ms: self.started.elapsed().as_secs_f64() * 1000.0,
            resource_usage: ResourceUsage {
                cpu_seconds: spent.cpu.as_secs_f64(),
                peak_memory_mb: spent.peak_memory as f64 / f64::from(1 << 20),
                peak_processes: spent.peak_processes,
            },
            killed_by,
            left_behind: self.left_behind,
            frozen_by: self.reins.frozen_by().map(FreezeMethod::as_str),
            violations: self.violations,
            network,
            observed,
            tier: capability.tier.as_str().to_owned(),
            image: lowered.image.as_ref().map(|image| image.used.clone()),
            degraded: degraded(host),
            limits_by: host.cgroups.name(),
            changes_kept,
            notes: [
                lowered.withheld.as_slice(),
                &lowered.notes,
                &self.notes,
                self.broken.as_slice(),
            ]
            .concat(),
            stdout: stdout.text,
            stderr: stderr.text,
            stdout_truncated: stdout.truncated,
            stderr_truncated: stderr.truncated,
        };
        self.attendant.ended(&mut result);
        self.launched.finish().map_err(waiting())?;
        Ok(result)
    }
}

/// What a box was put up from.
pub(crate) struct Setting<'a> {
    pub(crate) lowered: &'a Lowered,
    pub(crate) capability: &'a Capability,
    pub(crate) host: &'a Host,
}

/// What signals to its keeper end a box with.
const SIGNALLED: KilledBy = KilledBy::Killed {
    by: KillCode::SIGNALLED,
};
/// What becomes of a box that does not hold still when it is to.
const NOT_FROZEN: KilledBy = KilledBy::Killed {
    by: KillCode::NOT_FROZEN,
};
/// What a program leaves behind is mostly on its way out; after this it is worth a word.
const A_MOMENT: Duration = Duration::from_secs(1);
/// A box that lives so long will live on; its keeper has nothing to do but wait.
const LONG_ENOUGH: Duration = Duration::from_secs(1);
/// The wait status of a program that was killed.
const KILLED: i32 = 9;
/// What has to be looked at is looked at as often as this.
const SELDOMEST: Duration = Duration::from_millis(250);
/// Nothing is looked at more often.
const SHORTEST_LOOK: Duration = Duration::from_millis(2);

/// What is weaker on this host than it could be.
pub(crate) fn degraded(host: &Host) -> Vec<String> {
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
    bell: bool,
    covers: bool,
}

/// The exit code in a wait status, unless a signal ended the process.
fn exit_code(status: i32) -> Option<i32> {
    (status & 0x7f == 0).then_some((status >> 8) & 0xff)
}

/// The signal in a wait status, if one ended the process.
fn signal_of(status: i32) -> Option<i32> {
    Some(status & 0x7f).filter(|signal| *signal != 0)
}
