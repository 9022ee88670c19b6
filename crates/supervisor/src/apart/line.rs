//! A hold on a box that another process keeps: what reins are to one that a thread keeps.

use std::collections::HashMap;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::process::{Signal, pidfd_send_signal};

use super::wire::{Manner, Wire};
use super::words::{Order, Purse};
use crate::result::KillCode;

/// How long a keeper may take to kill its box before it is killed itself, and its box with it.
const PATIENCE: Duration = Duration::from_secs(3);

/// A hold on one box, from before its keeper exists until after its end. Clones hold the same one. Nothing here waits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    keeper: Option<Reached>,
    killed: Option<(KillCode, Instant)>,
    /// Whether it is to hold still.
    is_still: bool,
    /// How often this keeper was told so.
    freezes: u64,
    /// Whether it said that its box does.
    is_seen_still: bool,
    /// Who waits to hear what was set aside, by replica.
    asking: HashMap<String, SyncSender<Purse>>,
}

/// A keeper that can be spoken to.
#[derive(Debug)]
struct Reached {
    /// Whether it says when its box holds still.
    tells_stillness: bool,
    wire: Wire,
    process: Arc<OwnedFd>,
}

/// The keeper could not be told; it was killed instead, and its box with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unheard;

impl Line {
    /// There is a keeper. One that was killed before it existed has no box to put up.
    pub(super) fn connect(
        &self,
        wire: Wire,
        process: Arc<OwnedFd>,
        tells_stillness: bool,
    ) -> Result<(), KillCode> {
        let mut held = self.held();
        if let Some((code, _)) = held.killed {
            return Err(code);
        }
        let is_still = held.is_still;
        held.keeper = Some(Reached {
            tells_stillness,
            wire,
            process,
        });
        held.freezes = 0;
        drop(held);
        if is_still {
            let _ = self.freeze();
        }
        Ok(())
    }

    /// Nothing is left to hold.
    pub(super) fn disconnect(&self) {
        self.held().keeper = None;
    }

    /// Kills the box, or has it never start.
    pub(crate) fn kill(&self, code: KillCode) {
        let mut held = self.held();
        held.killed.get_or_insert((code, Instant::now()));
        drop(held);
        let code = code.as_str().to_owned();
        let _ = self.order(&Order::Kill { code });
    }

    /// Makes the box hold still.
    pub(crate) fn freeze(&self) -> Result<(), Unheard> {
        let mut held = self.held();
        held.is_still = true;
        held.is_seen_still = false;
        held.freezes += 1;
        drop(held);
        self.order(&Order::Freeze)
    }

    /// Whether the box was told to hold still and some of it may still run.
    pub(crate) fn is_freezing(&self) -> bool {
        let held = self.held();
        let tells = held
            .keeper
            .as_ref()
            .is_some_and(|keeper| keeper.tells_stillness);
        held.is_still && !held.is_seen_still && tells
    }

    /// The keeper says that it holds still, as it was told for the so manieth time. Whether that is still what is wanted.
    pub(crate) fn stilled(&self, freezes: u64) -> bool {
        let mut held = self.held();
        held.is_seen_still |= held.is_still && held.freezes == freezes;
        held.is_seen_still
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) -> Result<(), Unheard> {
        let mut held = self.held();
        held.is_still = false;
        held.is_seen_still = false;
        drop(held);
        self.order(&Order::Thaw)
    }

    /// Tells the keeper something, at once. One that does not listen is killed: its box must not go on unheld.
    pub(crate) fn order(&self, order: &Order) -> Result<(), Unheard> {
        let held = self.held();
        let Some(keeper) = &held.keeper else {
            return Ok(());
        };
        if keeper.wire.send(order, None, Manner::AtOnce).is_ok() {
            return Ok(());
        }
        let _ = pidfd_send_signal(&*keeper.process, Signal::KILL);
        Err(Unheard)
    }

    /// Has the keeper set aside a part of what it may spend on models, for a replica. Takes as long as the keeper does.
    pub(crate) fn carve(&self, child: &str, wanted: Purse) -> Result<Purse, Unheard> {
        let (told, purse) = sync_channel(1);
        self.held().asking.insert(child.to_owned(), told);
        let asked = self.order(&Order::Carve {
            child: child.to_owned(),
            wanted,
        });
        let carved = match asked {
            Ok(()) => purse.recv_timeout(PATIENCE).map_err(|_| Unheard),
            Err(unheard) => Err(unheard),
        };
        self.held().asking.remove(child);
        carved
    }

    /// The keeper has set it aside.
    pub(crate) fn carved(&self, child: &str, purse: Purse) {
        if let Some(told) = self.held().asking.remove(child) {
            let _ = told.try_send(purse);
        }
    }

    /// Why it was killed, if it was.
    pub(crate) fn killed(&self) -> Option<KillCode> {
        self.held().killed.map(|(code, _)| code)
    }

    /// Whether its keeper has had time enough to kill it.
    pub(super) fn is_overdue(&self) -> bool {
        let killed = self.held().killed;
        killed.is_some_and(|(_, since)| since.elapsed() > PATIENCE)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Every change is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
