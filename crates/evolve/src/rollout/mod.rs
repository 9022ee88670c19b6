//! Rollout: a candidate takes over a few instances at a time, is compared with the rest, and goes back by itself.
//!
//! [`machine`] decides and is pure: what happened goes in, what is to be done comes out. [`Driver`] does it: writes each
//! event down before it is acted on, moves the places that instances run from, asks how they are: the operator's command, or the
//! supervisor that keeps them. A process that is killed anywhere leaves what the next one goes on from.

pub mod machine;
pub mod plan;

mod driver;
mod error;
mod hook;
mod supervised;
mod view;
mod watched;

pub use driver::{Driver, Tick, directory_of};
pub use error::RolloutError;
pub use machine::{Next, Rollout, Stage};
pub use plan::{InvalidPlan, Plan};
pub use supervised::Supervised;
pub(crate) use view::{stage, view};
pub use watched::{Watched, place_of, watched};
