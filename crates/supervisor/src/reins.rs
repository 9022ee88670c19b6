//! Reins: what a thread other than the keeper's may do with a box.

use crate::error::RunError;
use crate::result::{KillCode, KilledBy};
use belljar_sandbox::native::{FreezeError, FreezeMethod, Grip, Motion};
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What ends a box in tow: the one that it was for has ended.
const WITH_LEADER: KillCode = KillCode::new("agent_ended");

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
    /// Its keeper has to put something right, and holds it still meanwhile, whatever others want.
    paused: bool,
    /// For the program, from whoever holds the reins.
    signals: Vec<i32>,
    /// Boxes that hold still and end with this one.
    in_tow: Vec<Reins>,
}

impl Held {
    fn running(&self) -> Option<Arc<Grip>> {
        match &self.phase {
            Phase::Running(grip) => Some(Arc::clone(grip)),
            _ => None,
        }
    }
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
                paused: false,
                signals: Vec::new(),
                in_tow: Vec::new(),
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
        let (grip, in_tow) = self.wish(Wish::HoldStill)?;
        let frozen = grip.map_or(Ok(()), |grip| grip.freeze());
        // Whoever can't be made to hold still may not go on either.
        for other in in_tow {
            if other.freeze().is_err() {
                other.kill(WITH_LEADER);
            }
        }
        frozen?;
        self.ring();
        Ok(())
    }

    /// Lets a frozen box go on.
    pub fn thaw(&self) -> Result<(), FreezeError> {
        let (grip, in_tow) = self.wish(Wish::Move)?;
        for other in in_tow {
            // One that has ended meanwhile has nothing to go on with.
            let _ = other.thaw();
        }
        match self.held().paused {
            true => Ok(()),
            false => grip.map_or(Ok(()), |grip| grip.thaw()),
        }
    }

    /// Makes the box hold still for its keeper, until [`Reins::go_on`]; others may freeze and thaw it meanwhile, to no
    /// effect before that.
    pub(crate) fn pause(&self) -> Result<(), FreezeError> {
        self.held().paused = true;
        self.running().map_or(Ok(()), |grip| grip.freeze())
    }

    /// Ends a pause: the box goes on, unless somebody else wants it to hold still.
    pub(crate) fn go_on(&self) -> Result<(), FreezeError> {
        let (wants, grip) = {
            let mut held = self.held();
            held.paused = false;
            (held.wants, held.running())
        };
        match (wants, grip) {
            (Wish::Move, Some(grip)) => grip.thaw(),
            _ => Ok(()),
        }
    }

    /// Takes another box in tow, which is yet to start: from now on it holds still, goes on and ends with this one.
    pub(crate) fn tow(&self, other: &Reins) {
        let mut held = self.held();
        if held.ended_by.is_some() || matches!(held.phase, Phase::Ended) {
            return other.kill(WITH_LEADER);
        }
        if held.wants == Wish::HoldStill {
            // It has no process yet: this is only noted, and can't fail.
            let _ = other.freeze();
        }
        held.in_tow.retain(|known| known.state() != BoxState::Ended);
        held.in_tow.push(other.clone());
    }

    /// Asks the program to end, by SIGTERM. Whether it does is its own affair.
    pub fn ask_to_end(&self) {
        const SIGTERM: i32 = 15;
        self.held().signals.push(SIGTERM);
        self.ring();
    }

    /// Signals to pass on.
    pub(crate) fn take_signals(&self) -> Vec<i32> {
        std::mem::take(&mut self.held().signals)
    }

    /// What the box is doing now.
    pub fn state(&self) -> BoxState {
        let held = self.held();
        let grip = match (&held.phase, held.ended_by) {
            (Phase::Ended, _) => return BoxState::Ended,
            (_, Some(_)) => return BoxState::Killed,
            (Phase::Waiting, None) => return BoxState::Waiting,
            (Phase::Starting(_), None) => return BoxState::Starting,
            (Phase::Running(grip), None) => Arc::clone(grip),
        };
        drop(held);
        match grip.motion() {
            Motion::Running => BoxState::Running,
            Motion::Freezing => BoxState::Freezing,
            Motion::Frozen(method) => BoxState::Frozen { method },
            Motion::Killed => BoxState::Killed,
        }
    }

    /// Whether the box was told to hold still and some of it may still run. One whose program has not started is held.
    pub(crate) fn is_freezing(&self) -> bool {
        self.is_held() && matches!(self.state(), BoxState::Running | BoxState::Freezing)
    }

    /// Notes what is wanted of the box; its grip, if it runs, and what is in tow. Whatever is done with that may take a moment, and is not
    /// done here, so that a kill never waits for it.
    fn wish(&self, wish: Wish) -> Result<(Option<Arc<Grip>>, Vec<Reins>), FreezeError> {
        let mut held = self.held();
        if held.ended_by.is_some() || matches!(held.phase, Phase::Ended) {
            return Err(FreezeError::Killed);
        }
        held.wants = wish;
        Ok((held.running(), held.in_tow.clone()))
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
        let in_tow = std::mem::take(&mut held.in_tow);
        drop(held);
        in_tow.iter().for_each(|other| other.kill(WITH_LEADER));
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
            grip.freeze()?;
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
        self.running()?.frozen_by()
    }

    /// Whether somebody wants the box to hold still.
    pub(crate) fn is_held(&self) -> bool {
        let held = self.held();
        held.wants == Wish::HoldStill || held.paused
    }

    /// Whether that takes looking after.
    pub(crate) fn needs_holding(&self) -> bool {
        self.is_held() && self.running().is_some_and(|grip| grip.needs_holding())
    }

    /// The same, whatever its keeper wants.
    pub(crate) fn is_held_by_others(&self) -> bool {
        self.held().wants == Wish::HoldStill
    }

    /// Looks whether the box holds still, if it is to; whether that took too long.
    pub(crate) fn is_overdue(&self) -> bool {
        self.is_held()
            && self
                .running()
                .is_some_and(|grip| grip.is_overdue(Instant::now()))
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
        if let Some(grip) = self.running() {
            grip.hold_still();
        }
    }

    fn running(&self) -> Option<Arc<Grip>> {
        self.held().running()
    }

    /// Has the keeper look at the box.
    pub(crate) fn ring(&self) {
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
        let mut held = self.0.held();
        held.phase = Phase::Ended;
        let in_tow = std::mem::take(&mut held.in_tow);
        drop(held);
        in_tow.iter().for_each(|other| other.kill(WITH_LEADER));
    }
}
