//! Pid 1 of a box on gVisor's kernel, this very executable: what [`crate::native`]'s init is on the host's.
//!
//! It makes the program's process and takes from it all that the program is not to have, gives it the plan's user, passes
//! signals on, answers the filter's questions ([`super::followed`]), and stays until the last process is gone. What it was started from is unmounted before the program's first
//! instruction, so that the program finds neither it nor its orders, nor the file where its end is told.

use super::WORD;
use super::followed::Followed;
use crate::native::{Rule, compile};
use crate::order::Order;
use crate::sys::{self, ChildState, SockFilter};
use crate::tier::rules_traced;
use crate::told::{ProgramEnd, Report};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Where gVisor's kernel shows it what is in the bundle's directory, for as long as it needs it.
pub(super) const PLACE: &str = "/dev/belljar";

/// Nobody in particular: the program is user 0 to gVisor's kernel, by whatever name, and has no power over another's
/// processes.
const NOBODY: u32 = 65534;

/// Becomes pid 1 of a box where the command line says so; the number is the exit code.
pub fn take_over(words: &[OsString]) -> Option<u8> {
    let is_meant = words.get(1).is_some_and(|word| word == OsStr::new(WORD));
    if !is_meant || !rustix::process::getpid().is_init() {
        return None;
    }
    // It is told to the box's own init, or the box ends without a word.
    Some(live().unwrap_or(1))
}

fn live() -> Option<u8> {
    let place = Path::new(PLACE);
    let order = Order::decode(&std::fs::read(place.join("order")).ok()?)?;
    let mut report = Report::open(&place.join("told")).ok()?;
    match start(&order, rules_traced(order.spawn())) {
        Ok(started) => started.attend(&mut report),
        Err(errno) => report.ended(ProgramEnd::NotStarted(errno)).ok()?,
    }
    let _ = report.over();
    Some(0)
}

/// The program's process, and what is heard of it.
struct Started {
    main: i32,
    signals: OwnedFd,
    /// Where it is told that the program could not be executed. It ends without a word when the program begins.
    failure: Option<File>,
    followed: Followed,
}

/// What is passed on: all that the program could handle, and what ends a child.
fn heard_signals() -> Vec<i32> {
    (1..=64)
        .filter(|number| ![libc::SIGKILL, libc::SIGSTOP].contains(number))
        .filter(|number| {
            // The C library's own, and what only our own faults would send.
            ![
                32,
                33,
                libc::SIGSEGV,
                libc::SIGBUS,
                libc::SIGILL,
                libc::SIGFPE,
            ]
            .contains(number)
        })
        .collect()
}

fn start(order: &Order, rules: Vec<Rule>) -> Result<Started, Errno> {
    let filter = compile(&rules);
    rustix::mount::unmount(PLACE, rustix::mount::UnmountFlags::DETACH)?;
    let _ = std::fs::remove_dir(PLACE);
    let signals = sys::watch_signals(&heard_signals())?;
    let (wait, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let (failure, failed) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let main = sys::fork()?;
    if main == 0 {
        drop((go, failure));
        // Until pid 1 is out of its reach.
        let _ = File::from(wait).read(&mut [0]);
        let Err(errno) = become_program(order, &filter);
        let _ = File::from(failed).write_all(&errno.raw_os_error().to_le_bytes());
        sys::exit_now(127)
    }
    drop((wait, failed));
    // While it may: it is the same user still.
    let followed = Followed::begin(main, rules)?;
    let (own, nobody) = (
        rustix::process::Uid::ROOT,
        rustix::process::Uid::from_raw(NOBODY),
    );
    // Who it may signal is decided by the one, who may signal it and look at it by the other.
    rustix::thread::set_thread_res_uid(nobody, own, nobody)?;
    sys::drop_capabilities(0)?;
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    drop(go);
    Ok(Started {
        main,
        signals,
        failure: Some(File::from(failure)),
        followed,
    })
}

/// From a copy of pid 1 to the program.
fn become_program(order: &Order, filter: &[SockFilter]) -> Result<Infallible, Errno> {
    take_terminal();
    sys::reset_own_signals();
    // The only user there is, by the plan's name for it.
    sys::enter_user_namespace()?;
    let put = |file: &str, inside: u32| std::fs::write(file, format!("{inside} 0 1"));
    put("/proc/self/uid_map", order.uid).map_err(errno_of)?;
    put("/proc/self/gid_map", order.gid).map_err(errno_of)?;
    rustix::process::chdir(order.workdir.as_os_str())?;
    sys::bound_capabilities(0)?;
    rustix::thread::set_no_new_privs(true)?;
    sys::drop_capabilities(0)?;
    let mut command = Command::new(&order.program);
    if let Some((name, arguments)) = order.argv.split_first() {
        command.arg0(name).args(arguments);
    }
    command.env_clear().envs(order.env.iter().cloned());
    sys::install_silent_filter(filter)?;
    Err(errno_of(command.exec()))
}

fn errno_of(error: std::io::Error) -> Errno {
    error
        .raw_os_error()
        .map_or(Errno::IO, Errno::from_raw_os_error)
}

/// A group of its own at the terminal, if there is one; else a session. All signals are still blocked.
fn take_terminal() {
    let streams = [
        rustix::stdio::stdin(),
        rustix::stdio::stdout(),
        rustix::stdio::stderr(),
    ];
    let Some(terminal) = streams.into_iter().find(|fd| rustix::termios::isatty(fd)) else {
        sys::begin_session();
        return;
    };
    let own = rustix::process::getpgrp();
    let _ = rustix::process::setpgid(None, None);
    if rustix::termios::tcgetpgrp(terminal) == Ok(own) {
        sys::set_foreground(terminal, rustix::process::getpid().as_raw_nonzero().get());
    }
}

impl Started {
    /// Until the last process is gone.
    fn attend(mut self, report: &mut Report) {
        loop {
            let failure = self
                .failure
                .as_ref()
                .map_or(self.signals.as_fd(), File::as_fd);
            let mut heard = [
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::from_borrowed_fd(failure, PollFlags::IN),
            ];
            let _ = poll(&mut heard, None);
            let [_, failure] = heard.each_ref().map(PollFd::revents);
            if let Some(mut said) = self.failure.take_if(|_| !failure.is_empty()) {
                let mut errno = [0; 4];
                if said.read_exact(&mut errno).is_ok() {
                    let errno = Errno::from_raw_os_error(i32::from_le_bytes(errno));
                    let _ = report.ended(ProgramEnd::NotStarted(errno));
                    return;
                }
                release_stdio();
            }
            while let Some(signal) = sys::next_signal(self.signals.as_fd()) {
                if signal != libc::SIGCHLD {
                    self.pass_on(signal);
                }
            }
            loop {
                match sys::next_child_state() {
                    ChildState::Ended { pid, status } if pid == self.main => {
                        let _ = report.ended(ProgramEnd::Ended(status));
                    }
                    ChildState::Ended { .. } => {}
                    ChildState::Stopped { pid, signal, event } => {
                        self.followed.attend(pid, signal, event, report);
                    }
                    ChildState::NoneWaiting => break,
                    ChildState::NoChildren => {
                        self.followed.sum_up(report);
                        return;
                    }
                }
            }
        }
    }

    fn pass_on(&self, signal: i32) {
        let signal = Signal::from_named_raw(signal);
        if let (Some(pid), Some(signal)) = (Pid::from_raw(self.main), signal) {
            let _ = kill_process(pid, signal);
        }
    }
}

/// Keeps no pipe of the program's open: a reader waits for the last writer.
fn release_stdio() {
    sys::close_range(0, 2);
}
