//! Rollout: a candidate takes over a few instances at a time, is compared with the rest, and goes back by itself.
//!
//! [`machine`] decides and is pure: what happened goes in, what is to be done comes out. [`Driver`] does it: writes each
//! event down before it is acted on, moves the places that instances run from, asks the operator's command how they are. No
//! daemon is needed, and a process that is killed anywhere leaves what the next one goes on from.

pub mod machine;
pub mod plan;

mod driver;
mod hook;

pub use driver::{Driver, RolloutError, Tick};
pub use machine::{Next, Rollout, Stage};
pub use plan::{InvalidPlan, Plan};
