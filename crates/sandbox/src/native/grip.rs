//! A hold on a running box that any thread may use, while its keeper attends it.

use super::message::{Kind, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How a box is frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreezeMethod {
    /// By its control group: the kernel runs none of its processes, whatever signals come.
    ControlGroup,
    /// By the box's pid 1, which traces every thread: none goes on before it is let go, whatever signals come.
    Tracing,
    /// By stopping every process, at once and again at every look: one that has armed a timer to continue itself
    /// may run from that moment until the next look. Only where the host allows no tracing.
    Signals,
}

impl FreezeMethod {
    /// A stable word for results.
    pub fn as_str(self) -> &'static str {
        match self {
            FreezeMethod::ControlGroup => "cgroup",
            FreezeMethod::Tracing => "tracing",
            FreezeMethod::Signals => "signals",
        }
    }
}

/// Whether a box moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Motion {
    /// It runs.
    Running,
    /// It was told to hold still; some of it may still run.
    Freezing,
    /// It holds still.
    Frozen(FreezeMethod),
    /// It was killed.
    Killed,
}

/// A box could not be frozen or thawed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FreezeError {
    /// It is dead, or about to be.
    #[error("the box was killed")]
    Killed,
    /// Its control group does not take the order.
    #[error("control group {}", group.display())]
    Group {
        /// Which.
        group: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Its pid 1 does not take the order.
    #[error("the box's pid 1 does not hear")]
    Deaf {
        /// Why.
        source: std::io::Error,
    },
}

/// A hold on one box.
#[derive(Debug)]
pub struct Grip {
    handle: OwnedFd,
    control: OwnedFd,
    /// Its version 2 control group, where it has one.
    group: Option<PathBuf>,
    pace: Mutex<Pace>,
}

#[derive(Debug)]
struct Pace {
    motion: Motion,
    /// The number of the latest order to stop, so that a late answer to an earlier one is known as such.
    order: i32,
    frozen_by: Option<FreezeMethod>,
    /// How often init could stop all, but not hold all.
    doubts: u32,
    /// Since when it is waited for stillness.
    since: Instant,
    /// How often it was looked for since.
    looks: u32,
}

/// How long an order waits for a pid 1 that takes none.
const PATIENCE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// How long a box may take to hold still. A process may be in the middle of a call that nothing interrupts, on a slow disk,
/// and hosts are crowded.
const FREEZE_PATIENCE: Duration = Duration::from_secs(20);
/// It was looked for as often before that counts: a keeper that did not get to look, because the host was busy or asleep, has
/// not seen it fail.
const FREEZE_LOOKS: u32 = 100;

/// After so many tries a box that can't be traced counts as frozen by signals alone. One try may fail by chance: a
/// process can't be traced while it executes a new program.
const DOUBTS: u32 = 8;

impl Pace {
    fn freeze_by(&mut self, method: FreezeMethod) {
        self.motion = Motion::Frozen(method);
        self.frozen_by = Some(method);
    }
}

impl Grip {
    pub(super) fn new(handle: OwnedFd, control: OwnedFd, group: Option<PathBuf>) -> Self {
        Self {
            handle,
            control,
            group,
            pace: Mutex::new(Pace {
                motion: Motion::Running,
                order: 0,
                frozen_by: None,
                doubts: 0,
                since: Instant::now(),
                looks: 0,
            }),
        }
    }

    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    pub(super) fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Kills every process of the box, frozen or not. Waits for nothing; may be called again.
    pub fn kill(&self) {
        // Pid 1's death is the death of all, however they hide: the kernel sees to it. First of all, so that no lock
        // is in the way.
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
        self.pace().motion = Motion::Killed;
        if let Some(group) = &self.group {
            // Should pid 1 be held up in the kernel, the others go already.
            let _ = std::fs::write(group.join("cgroup.kill"), "1");
        }
    }

    /// Makes every process hold still, pid 1 too where a control group does it. Returns when the order is given;
    /// [`Grip::motion`] tells when it is carried out.
    pub fn freeze(&self) -> Result<(), FreezeError> {
        let mut pace = self.pace();
        match pace.motion {
            Motion::Killed => return Err(FreezeError::Killed),
            Motion::Freezing | Motion::Frozen(_) => return Ok(()),
            Motion::Running => {}
        }
        pace.order = pace.order.wrapping_add(1);
        pace.doubts = 0;
        match &self.group {
            Some(group) => put_freeze(group, "1")?,
            None => self.tell(Message::new(Kind::Stop, pace.order, 0))?,
        }
        pace.motion = Motion::Freezing;
        (pace.since, pace.looks) = (Instant::now(), 0);
        Ok(())
    }

    /// Lets every process go on.
    pub fn thaw(&self) -> Result<(), FreezeError> {
        let mut pace = self.pace();
        match pace.motion {
            Motion::Killed => return Err(FreezeError::Killed),
            Motion::Running => return Ok(()),
            Motion::Freezing | Motion::Frozen(_) => {}
        }
        match &self.group {
            Some(group) => put_freeze(group, "0")?,
            None => self.tell(Message::new(Kind::Continue, 0, 0))?,
        }
        pace.motion = Motion::Running;
        Ok(())
    }

    /// Whether it moves, asking the kernel where it can tell.
    pub fn motion(&self) -> Motion {
        let mut pace = self.pace();
        if let (Motion::Freezing, Some(group)) = (pace.motion, &self.group) {
            let events = std::fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
            if events.lines().any(|line| line == "frozen 1") {
                pace.freeze_by(FreezeMethod::ControlGroup);
            }
        }
        pace.motion
    }

    /// How it was held still the last time, if it ever was.
    pub fn frozen_by(&self) -> Option<FreezeMethod> {
        self.pace().frozen_by
    }

    /// Whether freezing it takes looking after: always until it holds still.
    pub fn needs_holding(&self) -> bool {
        self.group.is_none() || self.motion() == Motion::Freezing
    }

    /// Looks once more whether it holds still. Whether that was waited for long enough: what can't be made to hold still must
    /// not go on.
    pub fn is_overdue(&self, now: Instant) -> bool {
        let motion = self.motion();
        let mut pace = self.pace();
        pace.looks = pace.looks.saturating_add(1);
        motion == Motion::Freezing
            && pace.looks >= FREEZE_LOOKS
            && now.saturating_duration_since(pace.since) >= FREEZE_PATIENCE
    }

    /// Stops again what may have been continued, or was not stopped yet, where no control group does it.
    pub fn hold_still(&self) {
        let pace = self.pace();
        let is_to_hold = matches!(pace.motion, Motion::Freezing | Motion::Frozen(_));
        if is_to_hold && self.group.is_none() {
            let _ = Message::new(Kind::Stop, pace.order, 0).send(self.control.as_fd());
        }
    }

    /// Init says that it has stopped them all, as order number `order` says.
    pub(super) fn note_stopped(&self, order: i32, method: FreezeMethod) {
        let mut pace = self.pace();
        if pace.order == order && matches!(pace.motion, Motion::Freezing | Motion::Frozen(_)) {
            if method == FreezeMethod::Signals && pace.doubts < DOUBTS {
                pace.doubts += 1;
            } else {
                pace.freeze_by(method);
            }
        }
    }

    /// Gives init an order, waiting for room if need be: orders may come faster than they are carried out.
    fn tell(&self, message: Message) -> Result<(), FreezeError> {
        let deaf = |errno: Errno| FreezeError::Deaf {
            source: errno.into(),
        };
        loop {
            match message.send(self.control.as_fd()) {
                Err(Errno::AGAIN) => {}
                other => return other.map_err(deaf),
            }
            let mut room = [PollFd::new(&self.control, PollFlags::OUT)];
            match poll(&mut room, Some(&PATIENCE)) {
                Ok(0) => return Err(deaf(Errno::TIMEDOUT)),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(deaf(errno)),
            }
        }
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        // Every change is a single assignment, so a panic elsewhere leaves nothing half done.
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn put_freeze(group: &Path, value: &str) -> Result<(), FreezeError> {
    std::fs::write(group.join("cgroup.freeze"), value).map_err(|source| FreezeError::Group {
        group: group.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// A hold on a process of our own, whose pid 1 is us.
    fn grip() -> (Grip, OwnedFd) {
        let own = crate::native::init::own_handle().unwrap();
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, theirs) = socketpair(kind.0, kind.1, SocketFlags::CLOEXEC, None).unwrap();
        (Grip::new(own, ours, None), theirs)
    }

    #[test]
    fn what_does_not_hold_still_in_time_is_overdue_and_never_called_frozen() {
        let (grip, _init) = grip();
        let late = || Instant::now() + FREEZE_PATIENCE;
        // Nobody wants it to.
        assert!((0..=FREEZE_LOOKS).all(|_| !grip.is_overdue(late())));
        grip.freeze().unwrap();
        // A keeper that was away for a minute has seen nothing yet.
        assert!((1..FREEZE_LOOKS).all(|_| !grip.is_overdue(late())));
        assert!(!grip.is_overdue(Instant::now()));
        assert!(grip.is_overdue(late()));
        assert_eq!(grip.motion(), Motion::Freezing);
        // A word about an earlier order is none about this one.
        grip.note_stopped(0, FreezeMethod::Tracing);
        assert_eq!(grip.motion(), Motion::Freezing);
        grip.note_stopped(1, FreezeMethod::Tracing);
        assert!(matches!(grip.motion(), Motion::Frozen(_)));
        assert!(!grip.is_overdue(late()));
        // The next order has its own time.
        grip.thaw().unwrap();
        grip.freeze().unwrap();
        assert!(!grip.is_overdue(late()));
    }
}
