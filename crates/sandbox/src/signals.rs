//! Signals as something to wait for, instead of handlers.

use crate::sys;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// A descriptor that reports signals, which no longer have any other effect on this thread.
#[derive(Debug)]
pub struct SignalWatch(OwnedFd);

/// SIGTERM.
pub const TERMINATE: i32 = libc::SIGTERM;
/// SIGINT.
pub const INTERRUPT: i32 = libc::SIGINT;
/// SIGHUP.
pub const HANG_UP: i32 = libc::SIGHUP;
/// SIGQUIT.
pub const QUIT: i32 = libc::SIGQUIT;
/// SIGUSR1.
pub const USER_1: i32 = libc::SIGUSR1;
/// SIGUSR2.
pub const USER_2: i32 = libc::SIGUSR2;

/// What a keeper passes on to its box.
pub const FORWARDED: &[i32] = &[TERMINATE, INTERRUPT, HANG_UP, QUIT, USER_1, USER_2];

/// What tells a keeper that it was continued after a stop.
pub const CONTINUED: i32 = libc::SIGCONT;

/// Who sent a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// A terminal, for a key or because it closed.
    Terminal,
    /// A process, which meant us.
    Process,
}

impl SignalWatch {
    /// Watches the forwarded signals and SIGCONT. To be called while there is one thread.
    pub fn new() -> Result<Self, Errno> {
        let mut all = FORWARDED.to_vec();
        all.push(CONTINUED);
        sys::watch_signals(&all).map(Self)
    }

    /// The next signal, if one came.
    pub fn next(&self) -> Option<i32> {
        self.next_with_sender().map(|(signal, _)| signal)
    }

    /// The same, with who sent it.
    pub fn next_with_sender(&self) -> Option<(i32, Sender)> {
        let came = sys::next_signal_that_came(self.0.as_fd())?;
        let sender = match came.by_kernel {
            true => Sender::Terminal,
            false => Sender::Process,
        };
        Some((came.signal, sender))
    }
}

impl AsFd for SignalWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Stops this process, as the terminal's stop key would.
pub fn stop_self() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
}
