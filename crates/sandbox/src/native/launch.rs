//! The keeper's side of a box that runs: hearing from it, ending it.

use super::grip::{FreezeMethod, Grip};
use super::idmap;
use super::init::Terminal;
use super::message::{Kind, LaunchError, Message, Stage};
use super::mounts::BoxMounts;
use super::script::Notes;
use super::sight::Sightings;
use super::stay::Source;
use super::ways::{self, BoxSockets, Ways};
use crate::cgroup::{Cgroup, Spending};
use crate::plan::Identity;
use crate::sample::{Accounting, Sampler};
use crate::sys::{self, SignalsBlocked, Usage};
use crate::tier::Inside;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;
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
    /// The kernel that the program had to itself ended before the program did.
    KernelEnded,
    /// The program was stopped.
    MainStopped,
    /// The last process of the box has ended; what is left is the kernel's clearing up, and [`Launched::accounts`] are
    /// to be had without waiting for that.
    Emptied,

    /// Every process holds still.
    Stilled,
    /// A signal was passed on.
    Signalled,
    /// Pid 1 can't do its part any more and ends, and all with it.
    Broken {
        /// What failed.
        what: &'static str,
        /// Why.
        errno: Errno,
    },
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
    pub(super) pid: i32,
    pub(super) grip: Arc<Grip>,
    pub(super) notes: Notes,
    pub(super) cgroup: Option<Cgroup>,
    pub(super) sampler: Option<Sampler>,
    pub(super) terminal: Terminal,
    /// How pid 1 ended, once that is known.
    pub(super) reaped: Option<i32>,
    /// What all processes used: from init's last words, or from the kernel.
    pub(super) used: Usage,
    /// Init said that it is the last.
    pub(super) emptied: bool,
    /// How often the program's own kernel refused a process.
    pub(super) forks_refused: u64,
    pub(super) ways: Option<Ways>,
    pub(super) answered: Option<OwnedFd>,
    pub(super) sockets: Option<BoxSockets>,
    pub(super) sightings: Option<Sightings>,
    pub(super) accounting: Accounting,
    pub(super) mounts: Option<BoxMounts>,
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

    /// Bytes in sockets' buffers, where no limit holds them together with the rest of the memory.
    pub fn socket_memory(&self) -> Option<u64> {
        self.cgroup.as_ref().and_then(Cgroup::socket_memory)
    }

    /// Pid 1 of the box, in the keeper's pid namespace.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// A hold on its mounts, once.
    pub fn take_mounts(&mut self) -> Option<BoxMounts> {
        self.mounts.take()
    }

    /// Whether the program holds the keeper's terminal.
    pub fn holds_terminal(&self) -> bool {
        self.terminal == Terminal::Foreground
    }

    /// The next event, if one waits.
    pub fn next_event(&mut self) -> Option<Event> {
        let message = Message::receive(self.grip.control(), RecvFlags::DONTWAIT).ok()??;
        match message.kind {
            Kind::MainEnded => Some(Event::MainEnded { status: message.a }),
            Kind::KernelEnded => Some(Event::KernelEnded),
            Kind::MainStopped => Some(Event::MainStopped),
            Kind::Used => {
                let seconds = u64::from(message.a.unsigned_abs());
                let micros = u64::from(message.b.unsigned_abs());
                self.used.cpu = Duration::from_secs(seconds) + Duration::from_micros(micros);
                self.next_event()
            }
            Kind::Emptied => {
                self.used.largest_process_bytes = u64::from(message.a.unsigned_abs()) << 10;
                self.emptied = true;
                Some(Event::Emptied)
            }
            Kind::ForksRefused => {
                let told = u64::from(message.a.unsigned_abs());
                self.forks_refused = self.forks_refused.max(told);
                self.next_event()
            }
            Kind::Violation => {
                let rule = usize::try_from(message.a)
                    .ok()
                    .and_then(|n| self.notes.rules.get(n))?;
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
            Kind::Signalled => Some(Event::Signalled),
            Kind::Broken => Some(Event::Broken {
                what: Source::name(message.a),
                errno: Errno::from_raw_os_error(message.b),
            }),
            Kind::Mapped
            | Kind::Ready
            | Kind::Applied
            | Kind::Signal
            | Kind::Stop
            | Kind::Continue
            | Kind::Ways
            | Kind::Answered
            | Kind::Socket
            | Kind::Written => None,
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

    /// Processes alive, where limits are held by looking, and the program's processes are the host's.
    pub fn process_count(&self) -> usize {
        match self.accounting {
            Accounting::OfTheProgram => self.sampler.as_ref().map_or(0, Sampler::count),
            Accounting::OfItsKernel => 0,
        }
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

    /// The names of the processes that there are beside pid 1, some of them where there are many. The agent chose them.
    pub fn process_names(&self) -> Vec<String> {
        const MOST: usize = 64;
        let mut names = Vec::new();
        // What a kernel of the program's own consists of is nobody's affair.
        if self.accounting == Accounting::OfItsKernel {
            return names;
        }
        let mut waiting = vec![self.pid];
        while let Some(parent) = waiting.pop() {
            let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", parent));
            for child in children.unwrap_or_default().split_whitespace() {
                let Ok(child) = child.parse::<i32>() else {
                    continue;
                };
                let name = std::fs::read(format!("/proc/{child}/comm")).unwrap_or_default();
                let name = String::from_utf8_lossy(name.trim_ascii_end()).into_owned();
                if !name.is_empty() {
                    names.push(name);
                }
                if names.len() >= MOST {
                    return names;
                }
                waiting.push(child);
            }
        }
        names
    }

    /// Kills every process of the box. Returns at once; [`Launched::handle`] tells when they are gone.
    pub fn kill(&self) {
        self.grip.kill();
    }

    /// What the box has used so far.
    pub fn spent(&mut self) -> Spending {
        let mut spent = match (&self.cgroup, &mut self.sampler) {
            (Some(group), _) => group.spent(),
            (None, Some(sampler)) => sampler.look(),
            (None, None) => Spending::default(),
        };
        if self.accounting == Accounting::OfItsKernel {
            // They are that kernel's threads, not the program's.
            (spent.processes, spent.peak_processes) = (None, None);
            spent.forks_refused = spent.forks_refused.max(self.forks_refused);
        }
        spent
    }

    /// What the box has used in all. Waits for its end only where init could not tell.
    pub fn accounts(&mut self) -> Result<Spending, Errno> {
        let mut spent = self.spent();
        if !self.emptied {
            self.wait()?;
            if self.cgroup.is_some() {
                spent = self.spent();
            }
        }
        if self.cgroup.is_none() {
            spent.cpu = spent.cpu.max(self.used.cpu);
        }
        // A kernel's resident set has pages of its program file, which nobody is charged for.
        if self.accounting == Accounting::OfTheProgram {
            spent.peak_memory = spent.peak_memory.max(self.used.largest_process_bytes);
        }
        Ok(spent)
    }

    /// Whether pid 1 ended before all others had, as far as is known after [`Launched::accounts`].
    pub fn is_cut_short(&self) -> bool {
        !self.emptied && self.reaped.is_some_and(|status| status != 0)
    }

    /// Until nothing of the box is left.
    pub fn wait(&mut self) -> Result<(), Errno> {
        if self.reaped.is_none() {
            let reaped = sys::reap(self.pid)?;
            self.reaped = Some(reaped.status);
            self.used = reaped.usage;
        }
        Ok(())
    }

    /// The same, and removes what was made for it. Dropped from here on, it gives the terminal back.
    pub fn finish(mut self) -> Result<(), Errno> {
        self.wait()?;
        if let Some(group) = self.cgroup.take() {
            group.remove();
        }
        Ok(())
    }

    pub(super) fn map_user(&self, identity: Identity, inside: Inside) -> Result<(), Errno> {
        idmap::write_map(self.pid, "uid_map", inside.uid, identity.uid)?;
        idmap::write_map(self.pid, "gid_map", inside.gid, identity.gid)?;
        Message::new(Kind::Mapped, 0, 0).send(self.grip.control())
    }

    /// Waits until the walls stand, or init says which does not.
    pub(super) fn await_start(&mut self) -> Result<(), LaunchError> {
        let message = loop {
            let (message, mut fds) = ways::receive(self.grip.control());
            if let Some(Message {
                kind: Kind::Ways, ..
            }) = message
            {
                self.ways = Ways::from_descriptors(fds);
                continue;
            }
            if let Some(Message {
                kind: Kind::Answered,
                ..
            }) = message
            {
                self.answered = fds.pop();
                continue;
            }
            fds = match BoxMounts::from_descriptors(fds) {
                Ok(mounts) => {
                    self.mounts = Some(mounts);
                    continue;
                }
                Err(others) => others,
            };
            match (fds.pop(), &mut self.sampler) {
                (Some(proc_directory), None) => {
                    self.sampler = Some(Sampler::new(proc_directory, self.accounting));
                }
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
                    Stage::View => self.notes.step_paths.get((a >> 8) as usize).cloned(),
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
                self.reaped = Some(status);
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
        if self.reaped.is_none() {
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
