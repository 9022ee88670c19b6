//! Self-evolution: an agent may propose a change to its own code; evidence and people make it real.
//!
//! A [`request::Request`] says what is to be changed. It is applied outside, to a [`tree::Tree`] that has no history,
//! judged by its entries ([`scope`]), its text ([`signals`]) and what it does in boxes ([`pipeline`]), and given a
//! [`Risk`] that its author can only raise. Nothing here asks the candidate how it went: what counts is read by this side.

pub mod evidence;
pub mod proposal;

pub use proposal::{Digests, Proposal, ProposalId, Risk, Status};
