//! Self-evolution: an agent may propose a change to its own code; evidence and people make it real.
//!
//! A [`request::Request`] says what is to be changed. It is applied outside, to a [`tree::Tree`] that has no history, and
//! judged by its entries, its text and what it does in boxes. It has a [`Risk`] that its author can only raise. Nothing here
//! asks the candidate how it went: what counts is read by this side.

pub mod blob;
pub mod compare;
pub mod config;
pub mod edit;
pub mod evidence;
pub mod glob;
pub mod imports;
pub mod lang;
pub mod path;
pub mod pipeline;
pub mod proposal;
pub mod release;
pub mod request;
pub mod review;
pub mod risk;
pub mod rollout;
pub mod scope;
pub mod signals;
pub mod store;
pub mod tree;

mod disk;
mod export;
mod pack;

pub use path::TreePath;
pub use proposal::{Digests, Proposal, ProposalId, Risk, Status};
