//! Carries out a [`Plan`]: starts a process tree that the kernel keeps inside walls, holds it to limits, and ends it.
//!
//! This crate decides nothing. Whatever may be chosen was chosen by whoever made the plan; a plan that this host
//! cannot carry out in full is refused by [`Host::can_carry`] or by [`native::start`], never carried out in part.

pub mod cgroup;
pub mod cpio;
pub mod descriptors;
pub mod gvisor;
pub mod host;
mod memory_file;
pub mod microvm;
pub mod native;
mod order;
pub mod plan;
mod reach;
pub mod sample;
pub mod show;
pub mod signals;
mod sys;
pub mod tier;
mod told;
mod trial;

pub use host::Host;
pub use plan::Plan;
pub use sys::give_back_code;
pub use tier::{Tier, take_over};
pub use trial::{Ground, TrialError, trial};
