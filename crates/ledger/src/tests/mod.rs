//! Tests that reach inside: the tree against a naive one, and the file system stopped at every step.

#![allow(clippy::unwrap_used)]

mod crash;
mod damage;
pub(crate) mod faults;
mod kit;
mod power;
mod proofs;
