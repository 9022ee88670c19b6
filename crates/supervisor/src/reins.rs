//! Reins: what a thread other than the keeper's may do with a box.

use crate::error::RunError;
use crate::result::{KillCode, KilledBy};
use belljar_sandbox::native::{FreezeError, FreezeMethod, Grip, Motion};
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A hold on one box, from before its start until after its end. Clones hold the same box.
#[derive(Debug, Clone)]
pub struct Reins(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Wakes the keeper.
    bell: OwnedFd,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    phase: Phase,
    ended_by: Option<KilledBy>,
    wants: Wish,
    /// How it was frozen, if it ever was.
    frozen_by: Option<FreezeMethod>,
}

#[derive(Debug)]
enum Phase {
    /// No keeper has taken it up.
    Waiting,
    /// Its walls go up. Once there is a process, it can be killed.
    Starting(Option<Arc<Grip>>),
    /// Its program may run.
    Running(Arc<Grip>),
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Move,
    HoldStill,
}

/// What a box is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BoxState {
    /// No keeper has taken it up yet.
    Waiting,
    /// Its walls go up; its program has not run an instruction.
    Starting,
    /// It runs.
    Running,
    /// It was told to hold still.
    Freezing,
    /// It holds still.
    Frozen {
        /// By what.
        method: FreezeMethod,
    },
    /// It was killed; its processes are gone or about to be.
    Killed,
    /// Nothing is left of it.
    Ended,
}

impl Reins {
    /// For a box that is yet to start.
    pub fn new() -> Result<Self, RunError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell =
            rustix::event::eventfd(0, flags).map_err(RunError::system("making a box's reins"))?;
        Ok(Self(Arc::new(Inner {
            bell,
            held: Mutex::new(Held {
                phase: Phase::Waiting,
                ended_by: None,
                wants: Wish::Move,
                frozen_by: None,
            }),
        })))
    }

    /// Kills the whole box: running, frozen or starting. One that has not started never will. Waits for nothing. The
    /// first killer's code is the one in the result.
    pub fn kill(&self, by: KillCode) {
        self.end(KilledBy::Killed { by });
    }

    /// Makes every process of the box hold still, for as long as nobody thaws it. Its clock goes on and its limits
    /// hold. Returns when the order is given; [`Reins::state`] tells when it is carried out. A box that is still
    /// starting will not run its program before it is thawed.
    pub fn freeze(&self) -> Result<(), FreezeError> {
        let mut held = self.held();
        match &held.phase {
            _ if held.ended_by.is_some() => return Err(FreezeError::Killed),
            Phase::Ended => return Err(FreezeError::Killed),
            Phase::Waiting | Phase::Starting(_) => {}
            Phase::Running(grip) => held.frozen_by = Some(grip.freeze()?),
        }
        held.wants = Wish::HoldStill;
        drop(held);
        self.ring();
        Ok(())
    }

    /// Lets a frozen box go on.
    pub fn thaw(&self) -> Result<(), FreezeError> {
        let mut held = self.held();
        match &held.phase {
            _ if held.ended_by.is_some() => return Err(FreezeError::Killed),
            Phase::Ended => return Err(FreezeError::Killed),
            Phase::Waiting | Phase::Starting(_) => {}
            Phase::Running(grip) => grip.thaw()?,
        }
        held.wants = Wish::Move;
        Ok(())
    }

    /// What the box is doing now.
    pub fn state(&self) -> BoxState {
        let held = self.held();
        match (&held.phase, held.ended_by) {
            (Phase::Ended, _) => BoxState::Ended,
            (_, Some(_)) => BoxState::Killed,
            (Phase::Waiting, None) => BoxState::Waiting,
            (Phase::Starting(_), None) => BoxState::Starting,
            (Phase::Running(grip), None) => match grip.motion() {
                Motion::Running => BoxState::Running,
                Motion::Freezing(_) => BoxState::Freezing,
                Motion::Frozen(method) => BoxState::Frozen { method },
                Motion::Killed => BoxState::Killed,
            },
        }
    }

    /// Ends the box for a reason; a later one changes nothing.
    pub(crate) fn end(&self, by: KilledBy) {
        let mut held = self.held();
        if held.ended_by.is_some() || matches!(held.phase, Phase::Ended) {
            return;
        }
        held.ended_by = Some(by);
        if let Phase::Starting(Some(grip)) | Phase::Running(grip) = &held.phase {
            grip.kill();
        }
        drop(held);
        self.ring();
    }

    /// Takes the reins up for a start. They serve for one box.
    pub(crate) fn take_up(&self) -> Result<TakenUp<'_>, RunError> {
        let mut held = self.held();
        match (&held.phase, held.ended_by) {
            (Phase::Waiting, Some(by)) => {
                held.phase = Phase::Ended;
                return Err(RunError::KilledEarly { by });
            }
            (Phase::Waiting, None) => held.phase = Phase::Starting(None),
            _ => {
                return Err(RunError::Invalid {
                    what: "these reins hold another box already".into(),
                    hint: "make new reins for every box".into(),
                });
            }
        }
        Ok(TakenUp(self))
    }

    /// There is a process; from here on it can be killed.
    pub(crate) fn born(&self, grip: Arc<Grip>) {
        let mut held = self.held();
        if held.ended_by.is_some() {
            grip.kill();
        }
        held.phase = Phase::Starting(Some(grip));
    }

    /// The walls stand, and its program may start, if frozen then to hold still at once.
    pub(crate) fn stands(&self) -> Result<(), FreezeError> {
        let mut held = self.held();
        let Phase::Starting(Some(grip)) = &held.phase else {
            return Ok(());
        };
        let grip = Arc::clone(grip);
        if held.wants == Wish::HoldStill && held.ended_by.is_none() {
            held.frozen_by = Some(grip.freeze()?);
        }
        held.phase = Phase::Running(grip);
        Ok(())
    }

    /// Why the box was killed, if it was.
    pub(crate) fn ended_by(&self) -> Option<KilledBy> {
        self.held().ended_by
    }

    /// How the box was frozen, if it ever was.
    pub(crate) fn frozen_by(&self) -> Option<FreezeMethod> {
        self.held().frozen_by
    }

    /// Whether somebody wants the box to hold still.
    pub(crate) fn is_held(&self) -> bool {
        self.held().wants == Wish::HoldStill
    }

    /// Becomes readable when the keeper should look at the box.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }

    /// Takes note of the bell.
    pub(crate) fn answer_bell(&self) {
        let _ = rustix::io::read(&self.0.bell, &mut [0u8; 8]);
    }

    /// Stops again what may have been continued.
    pub(crate) fn hold_still(&self) {
        if let Phase::Running(grip) = &self.held().phase {
            grip.hold_still();
        }
    }

    fn ring(&self) {
        // It fails only when it has rung for ever and nobody looked.
        let _ = rustix::io::write(&self.0.bell, &1u64.to_ne_bytes());
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Every change is complete before anything can panic.
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reins in a keeper's hands; dropped when nothing is left of the box.
pub(crate) struct TakenUp<'a>(&'a Reins);

impl Drop for TakenUp<'_> {
    fn drop(&mut self) {
        self.0.held().phase = Phase::Ended;
    }
}
