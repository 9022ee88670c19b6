//! The keeper's side: starting a box, hearing from it, ending it.

use super::grip::{FreezeMethod, Grip};
use super::idmap::{self, OwnerMap};
use super::init::{self, Start, Terminal, UserMap};
use super::message::{Kind, LaunchError, Message, Stage};
use super::script::{KeeperTree, Script};
use super::ways::{self, BoxSockets, Ways};
use crate::cgroup::{Cgroup, Spending};
use crate::host::Host;
use crate::plan::{Entry, Ownership, Plan, Shows};
use crate::sample::Sampler;
use crate::sys::{self, Fork, SignalsBlocked};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The three descriptors a program starts with.
#[derive(Debug)]
pub struct Stdio {
    /// Its input.
    pub stdin: OwnedFd,
    /// Its output.
    pub stdout: OwnedFd,
    /// Its error output.
    pub stderr: OwnedFd,
}

impl Stdio {
    /// The keeper's own.
    pub fn inherit() -> Result<Self, Errno> {
        Ok(Self {
            stdin: rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?,
            stdout: rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?,
            stderr: rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3)?,
        })
    }
}

/// Something a running box tells.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The program ended; `status` is its wait status. Others may still run.
    MainEnded {
        /// As `wait` gives it.
        status: i32,
    },
    /// The program was stopped.
    MainStopped,
    /// The last process of the box has ended; what is left is the kernel's clearing up.
    Emptied,
    /// Every process holds still.
    Stilled,
    /// A wall was hit.
    Violation {
        /// The system call.
        call: &'static str,
        /// Why it is refused.
        why: &'static str,
        /// How often so far.
        count: u32,
    },
    /// The program could not be started after all (only as the first event).
    NotStarted {
        /// Why.
        errno: Errno,
    },
}

/// A box whose walls stand and whose program runs. Dropping it kills the box.
#[derive(Debug)]
pub struct Launched {
    pid: i32,
    grip: Arc<Grip>,
    script: Script,
    cgroup: Option<Cgroup>,
    sampler: Option<Sampler>,
    terminal: Terminal,
    reaped: bool,
    ways: Option<Ways>,
    sockets: Option<BoxSockets>,
}

/// What is left of a box when all its processes are gone.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// What it used.
    pub spent: Spending,
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Script")
            .field("steps", &self.steps.len())
            .finish_non_exhaustive()
    }
}

/// A box whose walls go up. Dropping it kills the box.
#[derive(Debug)]
pub struct Starting {
    launched: Launched,
    gate: OwnedFd,
}

/// A box whose walls stand. Dropping it kills the box.
#[derive(Debug)]
pub struct Standing {
    launched: Launched,
    gate: OwnedFd,
}

impl Starting {
    /// A hold on it for other threads.
    pub fn grip(&self) -> Arc<Grip> {
        Arc::clone(&self.launched.grip)
    }

    /// Lets the program start the moment its walls stand: nobody has to say so then.
    pub fn let_go_early(&self) -> Result<(), LaunchError> {
        open(&self.gate)
    }

    /// Goes on, now that the plan's stand-ins are in place.
    pub fn go_on(&self) -> Result<(), LaunchError> {
        if !self.launched.script.awaits {
            return Ok(());
        }
        Message::new(Kind::Ready, 0, 0)
            .send(self.launched.grip.control())
            .map_err(LaunchError::at(Stage::View))
    }

    /// Waits until all walls stand, or one does not. Call [`Starting::go_on`] before.
    pub fn stand(mut self) -> Result<Standing, LaunchError> {
        self.launched.await_start()?;
        // What the walls were made from may be large, and is not needed any more.
        self.launched.script.steps = Vec::new();
        self.launched.script.step_paths = Vec::new();
        self.launched.script.wiring = None;
        Ok(Standing {
            launched: self.launched,
            gate: self.gate,
        })
    }
}

impl Standing {
    /// Pid 1 of the box, in the keeper's pid namespace.
    pub fn pid(&self) -> i32 {
        self.launched.pid
    }

    /// The sockets that the box's network leads to, if it is not closed. Whoever takes them answers for it.
    pub fn take_ways(&mut self) -> Option<Ways> {
        self.launched.ways.take()
    }

    /// A way to make sockets inside the box, if the plan has one.
    pub fn take_sockets(&mut self) -> Option<BoxSockets> {
        self.launched.sockets.take()
    }

    /// The program was let start before.
    pub fn gone(self) -> Launched {
        self.launched
    }

    /// Lets the program start.
    pub fn go(self) -> Result<Launched, LaunchError> {
        open(&self.gate)?;
        Ok(self.launched)
    }
}

fn open(gate: &OwnedFd) -> Result<(), LaunchError> {
    rustix::io::write(gate, &1u64.to_ne_bytes())
        .map(drop)
        .map_err(LaunchError::at(Stage::Admission))
}

/// Starts to put up a box for `plan`: as far as it goes without the plan's stand-ins.
pub fn start(plan: &Plan, host: &Host, stdio: &Stdio) -> Result<Starting, LaunchError> {
    let mut cgroup = Cgroup::create(&host.cgroups, &plan.id, &plan.limits, plan.freezer)?;
    match clone_init(plan, host, stdio, &mut cgroup) {
        Ok(starting) => Ok(starting),
        Err(error) => {
            // No process has entered it.
            if let Some(group) = cgroup {
                group.remove();
            }
            Err(error)
        }
    }
}

/// Makes the box's first process. The control group goes with it, once there is one.
fn clone_init(
    plan: &Plan,
    host: &Host,
    stdio: &Stdio,
    cgroup: &mut Option<Cgroup>,
) -> Result<Starting, LaunchError> {
    let sampled = cgroup.is_none();
    let mut script = Script::new(plan, host, sampled)?;
    if let Some(group) = cgroup {
        script.cgroup_tasks = group.take_entrances();
    }
    let terminal = terminal_for(stdio);
    let trees = clone_trees(plan, &script)?;
    let gate = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
        .map_err(LaunchError::at(Stage::Admission))?;
    let keeper = init::own_handle().map_err(LaunchError::at(Stage::Processes))?;
    let (control, theirs) = channel()?;
    let (sockets, makers) = match plan.entry {
        Entry::Closed => (None, None),
        Entry::ForKeeper => {
            let (ours, theirs) = channel()?;
            (Some(BoxSockets::new(ours)), Some(theirs))
        }
    };
    let own_map =
        (plan.identity.uid == rustix::process::geteuid().as_raw()).then(|| own_maps(plan));
    let start = Start {
        script: &script,
        control: theirs.as_fd(),
        trees: &trees,
        stdio: [
            stdio.stdin.as_fd(),
            stdio.stdout.as_fd(),
            stdio.stderr.as_fd(),
        ],
        user_map: own_map
            .as_ref()
            .map_or(UserMap::Keeper, |(uid, gid)| UserMap::Own { uid, gid }),
        terminal,
        send_proc: sampled,
        gate: gate.as_fd(),
        keeper: keeper.as_fd(),
        sockets: makers.as_ref().map(AsFd::as_fd),
    };
    // A handler of the host program's must not run in the copy.
    let quiet = SignalsBlocked::new();
    let into = cgroup.as_ref().and_then(Cgroup::directory);
    let (pid, handle) = match sys::clone_into(sys::BOX_NAMESPACES, into) {
        Ok(Fork::Child) => init::run(&start),
        Ok(Fork::Parent { pid, handle }) => (pid, handle),
        Err(errno) => return Err(LaunchError::at(Stage::Namespaces)(errno)),
    };
    drop(quiet);
    let map_by_keeper = matches!(start.user_map, UserMap::Keeper);
    drop(theirs);
    script.cgroup_tasks.clear();
    let group = cgroup.as_ref().and_then(Cgroup::version_2);
    let launched = Launched {
        pid,
        grip: Arc::new(Grip::new(handle, control, group.map(Path::to_owned))),
        script,
        cgroup: cgroup.take(),
        sampler: None,
        terminal,
        reaped: false,
        ways: None,
        sockets,
    };
    if map_by_keeper {
        launched
            .map_user(plan)
            .map_err(LaunchError::at(Stage::UserMap))?;
    }
    Ok(Starting { launched, gate })
}

fn channel() -> Result<(OwnedFd, OwnedFd), LaunchError> {
    rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .map_err(LaunchError::at(Stage::Namespaces))
}

fn own_maps(plan: &Plan) -> (CString, CString) {
    let line = |id: u32| CString::new(format!("{id} {id} 1")).unwrap_or_default();
    (line(plan.identity.uid), line(plan.identity.gid))
}

/// Trees that only the keeper may clone: those whose owner is mapped, and files that the box's user can't reach.
fn clone_trees(plan: &Plan, script: &Script) -> Result<Vec<OwnedFd>, LaunchError> {
    let is_mapped = |tree: &KeeperTree| tree.ownership == Ownership::Mapped;
    let map = if script.trees.iter().any(is_mapped) {
        Some(OwnerMap::new(plan.identity).map_err(LaunchError::at(Stage::UserMap))?)
    } else {
        None
    };
    let clone = |tree: &KeeperTree| match &map {
        Some(map) if is_mapped(tree) => map.clone_tree(&tree.source, tree.flags),
        _ => idmap::clone_only(&tree.source, tree.flags, tree.only),
    };
    let fail = |tree: &KeeperTree, errno| LaunchError::Step {
        stage: Stage::View,
        errno,
        path: Some(tree.source.clone()),
    };
    let trees = script.trees.iter();
    trees
        .map(|tree| clone(tree).map_err(|errno| fail(tree, errno)))
        .collect()
}

/// Whether the plan needs what only root can do.
pub(crate) fn needs_mapped_owner(plan: &Plan) -> bool {
    plan.view.iter().any(|entry| {
        matches!(
            entry.shows,
            Shows::Host {
                ownership: Ownership::Mapped,
                ..
            } | Shows::Overlay {
                ownership: Ownership::Mapped,
                ..
            }
        )
    })
}

fn terminal_for(stdio: &Stdio) -> Terminal {
    let Some(terminal) = [&stdio.stdin, &stdio.stdout, &stdio.stderr]
        .into_iter()
        .find(|fd| rustix::termios::isatty(fd))
    else {
        return Terminal::Detached;
    };
    match rustix::termios::tcgetpgrp(terminal) {
        Ok(group) if group == rustix::process::getpgrp() => Terminal::Foreground,
        Ok(_) => Terminal::Background,
        // A terminal, but not ours to control.
        Err(_) => Terminal::Detached,
    }
}

impl Launched {
    /// Becomes readable when the whole box is gone.
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.grip.handle()
    }

    /// Becomes readable when there is an event.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.grip.control()
    }

    /// Becomes readable when the kernel ran the box out of memory, where it can tell.
    pub fn memory_events(&self) -> Option<BorrowedFd<'_>> {
        self.cgroup.as_ref().and_then(Cgroup::memory_events)
    }

    /// Pid 1 of the box, in the keeper's pid namespace.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether the program holds the keeper's terminal.
    pub fn holds_terminal(&self) -> bool {
        self.terminal == Terminal::Foreground
    }

    /// The next event, if one waits.
    pub fn next_event(&self) -> Option<Event> {
        let message = Message::receive(self.grip.control(), RecvFlags::DONTWAIT).ok()??;
        match message.kind {
            Kind::MainEnded => Some(Event::MainEnded { status: message.a }),
            Kind::MainStopped => Some(Event::MainStopped),
            Kind::Emptied => Some(Event::Emptied),
            Kind::Violation => {
                let rule = usize::try_from(message.a)
                    .ok()
                    .and_then(|n| self.script.rules.get(n))?;
                Some(Event::Violation {
                    call: rule.name,
                    why: rule.why,
                    count: message.b.unsigned_abs(),
                })
            }
            Kind::Failed => Some(Event::NotStarted {
                errno: Errno::from_raw_os_error(message.b),
            }),
            Kind::Stopped => {
                let method = match message.b {
                    1 => FreezeMethod::Tracing,
                    _ => FreezeMethod::Signals,
                };
                self.grip.note_stopped(message.a, method);
                Some(Event::Stilled)
            }
            Kind::Mapped
            | Kind::Ready
            | Kind::Applied
            | Kind::Signal
            | Kind::Stop
            | Kind::Continue
            | Kind::Ways
            | Kind::Socket => None,
        }
    }

    /// Whether init is gone, so that no event can come any more.
    pub fn is_deaf(&self) -> bool {
        let mut nothing = [0u8; 1];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        matches!(
            rustix::net::recv(self.grip.control(), &mut nothing, flags),
            Ok((0, _))
        )
    }

    /// Whether limits are held by looking, for want of a control group.
    pub fn is_sampled(&self) -> bool {
        self.cgroup.is_none()
    }

    /// Bytes of memory with shared pages counted once, where limits are held by looking.
    pub fn proportional_memory(&self) -> u64 {
        self.sampler.as_ref().map_or(0, Sampler::proportional)
    }

    /// Processes alive, where limits are held by looking.
    pub fn process_count(&self) -> usize {
        self.sampler.as_ref().map_or(0, Sampler::count)
    }

    /// Whether the last look saw every process stopped, where limits are held by looking.
    pub fn is_seen_still(&self) -> bool {
        self.sampler.as_ref().is_some_and(Sampler::is_still)
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: i32) {
        let _ = Message::new(Kind::Signal, signal, 0).send(self.grip.control());
    }

    /// The program was stopped at the terminal: hands the terminal to the keeper's own group, so that the keeper can
    /// stop as well and the user's shell goes on.
    pub fn yield_terminal(&self) {
        if self.holds_terminal() {
            take_terminal_back();
        }
    }

    /// The keeper was continued: gives the terminal to the program again and continues it.
    pub fn resume(&self) {
        if self.holds_terminal()
            && let Some(group) = self.program_group()
        {
            give_terminal(group);
        }
        self.signal(libc::SIGCONT);
    }

    /// The program's process group, in the keeper's pid namespace: init's only direct child at the start.
    fn program_group(&self) -> Option<i32> {
        let path = format!("/proc/{0}/task/{0}/children", self.pid);
        std::fs::read_to_string(path)
            .ok()?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    }

    /// Kills every process of the box. Returns at once; [`Launched::handle`] tells when they are gone.
    pub fn kill(&self) {
        self.grip.kill();
    }

    /// What the box has used so far.
    pub fn spent(&mut self) -> Spending {
        match (&self.cgroup, &mut self.sampler) {
            (Some(group), _) => group.spent(),
            (None, Some(sampler)) => sampler.look(),
            (None, None) => Spending::default(),
        }
    }

    /// Waits for the last process to go and removes what is left.
    pub fn finish(mut self) -> Result<Ended, Errno> {
        let looked = self.cgroup.is_none().then(|| self.spent());
        let reaped = sys::reap(self.pid)?;
        self.reaped = true;
        let mut spent = looked.unwrap_or_default();
        if let Some(group) = self.cgroup.take() {
            spent = group.spent();
            group.remove();
        } else {
            spent.cpu = spent.cpu.max(reaped.cpu);
        }
        spent.peak_memory = spent.peak_memory.max(reaped.largest_process_bytes);
        // Dropped from here on, it gives the terminal back.
        Ok(Ended { spent })
    }

    fn map_user(&self, plan: &Plan) -> Result<(), Errno> {
        idmap::write_map(self.pid, "uid_map", plan.identity.uid, plan.identity.uid)?;
        idmap::write_map(self.pid, "gid_map", plan.identity.gid, plan.identity.gid)?;
        Message::new(Kind::Mapped, 0, 0).send(self.grip.control())
    }

    /// Waits until the walls stand, or init says which does not.
    fn await_start(&mut self) -> Result<(), LaunchError> {
        let message = loop {
            let (message, mut fds) = ways::receive(self.grip.control());
            if let Some(Message {
                kind: Kind::Ways, ..
            }) = message
            {
                self.ways = Ways::from_descriptors(fds);
                continue;
            }
            match (fds.pop(), &mut self.sampler) {
                (Some(proc_directory), None) => self.sampler = Some(Sampler::new(proc_directory)),
                (Some(counter), Some(sampler)) => sampler.count_with(counter),
                (None, _) => break message,
            }
        };
        match message {
            Some(Message {
                kind: Kind::Applied,
                ..
            }) => Ok(()),
            Some(Message {
                kind: Kind::Failed,
                a,
                b,
            }) => {
                let stage = Stage::from_number(a & 0xff).unwrap_or(Stage::Namespaces);
                let path = match stage {
                    Stage::View => self.script.step_paths.get((a >> 8) as usize).cloned(),
                    _ => None,
                };
                Err(LaunchError::Step {
                    stage,
                    errno: Errno::from_raw_os_error(b),
                    path,
                })
            }
            _ => {
                let status = sys::reap(self.pid).map(|reaped| reaped.status).unwrap_or(0);
                self.reaped = true;
                Err(LaunchError::Vanished(status))
            }
        }
    }
}

/// Takes the terminal's foreground back from a program that is gone or stopped.
fn take_terminal_back() {
    give_terminal(rustix::process::getpgrp().as_raw_nonzero().get());
}

fn give_terminal(group: i32) {
    let _quiet = SignalsBlocked::new();
    for fd in [
        rustix::stdio::stdin(),
        rustix::stdio::stdout(),
        rustix::stdio::stderr(),
    ] {
        if rustix::termios::isatty(fd) {
            sys::set_foreground(fd, group);
            return;
        }
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
            let _ = sys::reap(self.pid);
        }
        // Init may have died by itself while the walls went up; its group is still there then.
        if let Some(group) = self.cgroup.take() {
            group.remove();
        }
        if self.holds_terminal() {
            take_terminal_back();
        }
    }
}

/// How long a look at the box's usage stays good enough.
pub const LONGEST_LOOK: Duration = Duration::from_millis(25);
