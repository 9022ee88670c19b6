//! The daemon's side of one keeper, from its start or adoption to its end.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::line::Line;
use super::place::Keepers;
use super::wire::{Manner, Wire};
use super::words::{Order, Standing, Started, Task, VERSION, Word};
use crate::error::RunError;
use crate::fleet::system;

/// How often a keeper that says nothing is looked at.
const LOOK: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// How long a keeper that was told to go may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How keepers are started.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Our own program.
    pub(crate) program: PathBuf,
    /// How long a box may go on without us.
    pub(crate) orphan_grace: Duration,
    /// The most bytes of a file of output.
    pub(crate) log_bytes: u64,
    /// How many such files are kept.
    pub(crate) log_keep: usize,
}

/// A keeper at work.
#[derive(Debug)]
pub(crate) struct Session {
    wire: Wire,
    line: Line,
    process: Arc<OwnedFd>,
    pid: u32,
    /// Ours to wait for, unless we adopted it.
    child: Option<Child>,
    /// The box's first process.
    init: Option<OwnedFd>,
}

/// What there is to hear.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A word, and the door if it came along.
    Word(Word, Option<UnixListener>),
    /// The keeper is gone, and its box with it.
    Lost,
}

/// A keeper that outlived its daemon.
#[derive(Debug)]
pub(crate) struct Adoptee {
    pub(crate) session: Session,
    pub(crate) standing: Standing,
    pub(crate) door: UnixListener,
}

impl Session {
    /// Starts a keeper and tells it what to keep.
    pub(crate) fn start(setup: &Setup, task: &Task, line: &Line) -> Result<Self, RunError> {
        let starting = || system("starting a keeper");
        let (ours, theirs) = UnixStream::pair().map_err(starting())?;
        let child = std::process::Command::new(&setup.program)
            .arg("keeper")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(starting())?;
        let pid = child.id();
        // Ours until it is waited for, so the number is its own.
        let process = Arc::new(handle(pid).map_err(starting())?);
        let mut session = Self {
            wire: Wire::new(ours).map_err(starting())?,
            line: line.clone(),
            process,
            pid,
            child: Some(child),
            init: None,
        };
        let order = Order::Keep(Box::new(task.clone()));
        let told = session.wire.send(&order, None, Manner::Patient);
        if let Err(error) = told.and_then(|()| session.connect(true)) {
            session.end_keeper();
            return Err(starting()(error));
        }
        Ok(session)
    }

    /// Adopts the keeper of a worker.
    pub(crate) fn adopt(keepers: &Keepers, worker: &str, line: &Line) -> io::Result<Adoptee> {
        let wire = Wire::new(keepers.connect(worker)?)?;
        let peer = wire.peer()?;
        let own = rustix::process::geteuid();
        if peer.uid != own {
            return Err(io::Error::other("its keeper is another user's"));
        }
        let received = wire.receive::<Word>()?;
        let Some((Word::Here(standing), Some(door))) = received else {
            return Err(io::Error::other("it does not answer like a keeper"));
        };
        let pid = u32::try_from(peer.pid.as_raw_pid()).unwrap_or_default();
        let is_it =
            standing.task.v == VERSION && standing.task.worker == worker && standing.pid == pid;
        if !is_it {
            return Err(io::Error::other("it is another keeper than it should be"));
        }
        let process = Arc::new(handle(pid)?);
        let mut session = Self {
            wire,
            line: line.clone(),
            process,
            pid,
            child: None,
            init: None,
        };
        if let Some(started) = &standing.started {
            session.note_started(started);
        }
        session.connect(standing.tells_stillness)?;
        Ok(Adoptee {
            session,
            standing: *standing,
            door: UnixListener::from(door),
        })
    }

    /// From here on it can be held by its line.
    fn connect(&self, tells_stillness: bool) -> io::Result<()> {
        let wire = self.wire.try_clone()?;
        let connected = self
            .line
            .connect(wire, Arc::clone(&self.process), tells_stillness);
        connected.map_err(|_| io::Error::other("it was killed before it started"))
    }

    /// The keeper's process.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn line(&self) -> &Line {
        &self.line
    }

    /// Tells it something.
    pub(crate) fn tell(&self, order: &Order) {
        let _ = self.line.order(order);
    }

    /// Waits for the next word.
    pub(crate) fn next(&mut self) -> Heard {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(self.wire.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.process.as_fd(), PollFlags::IN),
            ];
            // An interrupted wait is looked at like any other.
            let _ = poll(&mut fds, Some(&LOOK));
            let [speaks, ended] = fds.each_ref().map(|fd| !fd.revents().is_empty());
            if speaks {
                match self.wire.receive::<Word>() {
                    Ok(Some((word, along))) => {
                        if let Word::Started(started) = &word {
                            self.note_started(started);
                        }
                        return Heard::Word(word, along.map(UnixListener::from));
                    }
                    // Gone, or beside itself.
                    _ => return Heard::Lost,
                }
            }
            if ended {
                return Heard::Lost;
            }
            if self.line.is_overdue() {
                self.kill_keeper();
            }
        }
    }

    fn note_started(&mut self, started: &Started) {
        self.init = u32::try_from(started.pid)
            .ok()
            .and_then(|pid| handle(pid).ok());
    }

    /// Sees to it that nothing is left: neither of the keeper nor of the box.
    pub(crate) fn finish(mut self) {
        self.tell(&Order::Done);
        if !ends_within(&self.process, PATIENCE) {
            self.kill_keeper();
        }
        self.end_keeper();
    }

    fn end_keeper(&mut self) {
        self.line.disconnect();
        if !ends_within(&self.process, Duration::ZERO) {
            self.kill_keeper();
            ends_within(&self.process, PATIENCE);
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
        // The kernel ends the box's first process with its keeper, and all others with the first.
        if let Some(init) = self.init.take()
            && !ends_within(&init, PATIENCE)
        {
            let _ = pidfd_send_signal(&init, Signal::KILL);
            ends_within(&init, PATIENCE);
        }
    }

    fn kill_keeper(&self) {
        let _ = pidfd_send_signal(&*self.process, Signal::KILL);
    }
}

fn handle(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("no process has this number"))?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Waits for a process to end.
fn ends_within(process: &OwnedFd, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or(LOOK);
        let mut fds = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(1..) => return true,
            Ok(_) if left.is_zero() => return false,
            _ => {}
        }
    }
}
