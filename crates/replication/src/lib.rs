//! The replication controller, as a pure state machine.
//!
//! A [`Controller`] decides who may have replicas: it grants, registers, reaps, quarantines and
//! kills, within a [`Contract`](belljar_policy::Contract). It does no I/O, reads no clock and draws no
//! random number: callers pass [`Now`] and ids, carry out its [`Command`]s and store its [`Event`]s.
//! So a simulation on a virtual clock runs the very code that guards real boxes.
//!
//! # Decide and apply in one step
//!
//! Each method decides, applies what it decided to the [`State`] and returns an [`Outcome`]: the result, the
//! events to store and the commands to carry out. There is one owner and one thread, so nothing can come between
//! the check and the debit. The owner then
//!
//! 1. carries out `Kill` and `Freeze` at once: stopping never waits for storage;
//! 2. stores the events;
//! 3. only then acts on what was granted: hands out the manifest, starts the box.
//!
//! If storing fails the owner hands out nothing and either takes the decision back ([`Controller::withdraw`], or
//! [`Controller::end`] with `launch_failed`), which errs on the strict side, or drops the controller, folds
//! what is stored and goes on with [`Controller::resume`]. There is no undo.
//!
//! # What is not folded
//!
//! Heartbeats, timers, closures and the clock's anchor live in the controller alone. After
//! [`Controller::resume`] everyone counts as having just spoken.

mod account;
mod accounts;
mod beats;
mod clock;
mod code;
mod controller;
mod event;
mod grants;
mod holes;
mod ids;
mod index;
mod kind_first;
mod outcome;
mod rate;
mod snapshot;
mod state;
mod stop;
mod timers;
mod tree;
mod view;

#[cfg(test)]
mod threats;

pub use account::{Asked, Share, Shortage, Usage};
pub use code::Code;
pub use controller::{Controller, GRANT_LIFETIME_NS, SWEEP_NS};
pub use event::{Event, Issued, Refused, RootAdmitted, Scope, Step, Version, What, WithdrawnWhy};
pub use ids::{BootId, InvalidId, Jti, Now, WorkerId};
pub use kind_first::{KindFirst, read_kind_first};
#[doc(hidden)]
pub use kind_first::{KindsProbe, OfKind, Rest, kinds_of};
pub use outcome::{
    About, Admitted, Command, Denial, Grant, ManifestFacts, NotAlive, Outcome, OverBudget, Request,
    RootRequest,
};
pub use state::{Fault, MAX_OBITUARIES, MAX_REVOKED, Obituary, State};
pub use stop::{
    Facts, Fails, InvalidCondition, MAX_CONDITIONS, MAX_EXPRESSION_BYTES, Predicate, Problem,
    VARIABLES, Variable, WorkerFacts, check as check_conditions,
};
pub use tree::Status;
pub use view::{GrantView, WorkerView};
