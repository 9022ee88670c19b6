//! Review: people with keys of their own say yes or no to exactly one tree, judged on exactly one body of evidence.
//!
//! [`standing`] decides and is pure. [`Desk`] is the one door to it: it checks who says something, spends one-time
//! codes, signs, records and keeps. An [`Approved`] is the proof that enough people said yes; nothing else makes one.

pub mod page;
pub mod paint;
pub mod registry;
pub mod standing;
pub mod statement;
pub mod stats;
pub mod totp;

mod desk;
mod dossier;
mod findings;
#[cfg(test)]
mod tests;

pub use desk::{Desk, Opinion, ReviewError, make_key, read_key};
pub use dossier::{DiffLine, Dossier, FileChange, Impact, Kind, NotReady};
pub use registry::{Registry, Reviewer, ReviewerName};
pub use standing::{
    Approved, Proposer, ReviewPolicy, Standing, Subject, UNNAMED, Void, Withdrawal, judge,
};
pub use statement::{Envelope, Reason, Statement, Verdict};
