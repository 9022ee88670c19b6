//! What people say about proposals, and what becomes of those they approve.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Format;

#[derive(Debug, Subcommand)]
pub(crate) enum EvolveReview {
    /// Look at a proposal: what changes, what it touches, what the stages found, what to type next
    Review {
        /// The proposal, or the beginning of its name
        id: String,
        #[command(flatten)]
        format: Format,
    },
    /// Say yes to exactly what is there now
    Approve(Approve),
    /// Say no, and why
    Reject(Reject),
    /// Say something else
    Comment(Comment),
    /// The review as a page by itself
    Report {
        /// The proposal
        id: String,
        /// Where to write it; `-` for standard output
        #[arg(long, value_name = "FILE")]
        html: PathBuf,
    },
    /// Start to roll an approved proposal out
    Deploy {
        /// The proposal
        id: String,
        /// How: instances, the command that says how they are, steps
        #[arg(long, value_name = "FILE")]
        plan: PathBuf,
        #[command(flatten)]
        format: Format,
    },
    /// Look at the instances and go on, wait, or go back, as the figures say
    Promote {
        /// The proposal
        id: String,
        /// How often to look, at most
        #[arg(long, value_name = "N", default_value_t = 1)]
        rounds: u32,
        /// How long to wait between two looks
        #[arg(long, value_name = "SECONDS", default_value_t = 10)]
        every: u64,
        #[command(flatten)]
        format: Format,
    },
    /// Hold a rollout where it is; a failing one still goes back
    Pause {
        /// The proposal
        id: String,
        /// Why
        #[arg(long, value_name = "TEXT", required_unless_present = "resume")]
        reason: Option<String>,
        /// Let it go on
        #[arg(long, conflicts_with = "reason")]
        resume: bool,
    },
    /// Take a candidate back, from every instance, for good
    Rollback {
        /// The proposal
        id: String,
        /// Why
        #[arg(long, value_name = "TEXT")]
        reason: String,
        #[command(flatten)]
        format: Format,
    },
    /// Where a rollout is
    Status {
        /// The proposal
        id: String,
        #[command(flatten)]
        format: Format,
    },
    /// What was proposed, what became of it, and why
    Stats {
        #[command(flatten)]
        format: Format,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Who {
    /// Who says it
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) name: String,
    /// The file of their key
    #[arg(long, value_name = "FILE")]
    pub(crate) key: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Approve {
    /// The proposal
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) who: Who,
    /// The code that the authenticator shows
    #[arg(long, value_name = "DIGITS")]
    pub(crate) code: Option<String>,
    /// How long it counts
    #[arg(long, value_name = "HOURS", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=720))]
    pub(crate) hours: u32,
    /// Words to go with it
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) message: String,
    #[command(flatten)]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct Reject {
    /// The proposal
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) who: Who,
    /// Why: incorrect, tests, scope, security, performance, behaviour, clarity, unneeded, misleading, other
    #[arg(long = "reason", value_name = "WORD", required = true)]
    pub(crate) reasons: Vec<String>,
    /// Why, in words: the agent reads them
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) message: String,
    #[command(flatten)]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct Comment {
    /// The proposal
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) who: Who,
    /// What
    #[arg(long, value_name = "TEXT")]
    pub(crate) message: String,
    #[command(flatten)]
    pub(crate) format: Format,
}
