//! The commands about replicas: the operator's, and the agent's own.

use clap::{Args, Subcommand};
use std::path::PathBuf;

use super::Format;

#[derive(Debug, Subcommand)]
pub(crate) enum Replication {
    /// Show the family as it is now, with budgets; after its end, as the log tells it
    Tree(Format),
    /// List workers; after their end, as the log tells it
    Workers {
        /// Those that ended too
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        format: Format,
    },
    /// Freeze a worker: no process of it runs, it gets no grants, evidence stays. Its descendants run on, unless --subtree is given
    Quarantine {
        #[command(flatten)]
        on: OnWorker,
        /// The descendants too
        #[arg(long)]
        subtree: bool,
    },
    /// Let a quarantined worker go on
    Release {
        #[command(flatten)]
        on: OnWorker,
        /// The descendants too
        #[arg(long)]
        subtree: bool,
    },
    /// Kill a worker; with --subtree its descendants too
    Kill {
        #[command(flatten)]
        on: OnWorker,
        /// The descendants too
        #[arg(long)]
        subtree: bool,
    },
    /// Kill everything, and refuse everything until it is reset
    #[command(subcommand)]
    KillSwitch(KillSwitch),
    /// Take back a worker's manifest: the worker and its descendants end, and theirs are worth nothing any more
    Revoke(OnWorker),
    /// Take back every manifest there is
    BumpEpoch(Format),
    /// Say that a jump of the clock was looked at; grants go on
    AcknowledgeClock(Format),
    /// Check a contract file
    #[command(subcommand)]
    Contract(Contract),
}

#[derive(Debug, Args)]
pub(crate) struct OnWorker {
    /// Its id, or the beginning of it
    pub(crate) worker: String,
    /// Why; it goes on record
    #[arg(long, default_value = "operator")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) format: Format,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KillSwitch {
    /// Engage it: works with and without a controller running
    Engage {
        /// Why; it goes on record
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        format: Format,
    },
    /// Take it off
    Reset {
        /// Why; it goes on record
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        format: Format,
    },
    /// Whether it is engaged: exit 0 if not, 1 if it is
    Status(Format),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Contract {
    /// Exit 0 if valid, 1 if not
    Validate {
        /// A contract.yaml
        file: PathBuf,
        #[command(flatten)]
        format: Format,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Agent {
    /// Ask for a replica of yourself
    Replicate {
        /// What for
        #[arg(long)]
        reason: String,
        /// A file whose contents the replica finds in /belljar/state; - for standard input
        #[arg(long, value_name = "FILE")]
        state: Option<PathBuf>,
        /// Replicas that it may make in turn
        #[arg(long, value_name = "N")]
        replicas: Option<u64>,
        /// What stands between it and the host's kernel: as strong as yours, or stronger
        #[arg(long, value_name = "TIER", value_parser = tier)]
        tier: Option<belljar_api::TierName>,
        /// CPU seconds for it and its descendants
        #[arg(long, value_name = "SECONDS")]
        cpu_seconds: Option<f64>,
        /// Memory for it and its descendants, in MiB
        #[arg(long, value_name = "MB")]
        memory_mb: Option<u64>,
        /// Processes for it and its descendants
        #[arg(long, value_name = "N")]
        processes: Option<u64>,
        /// Tokens of models for it and its descendants
        #[arg(long, value_name = "N")]
        tokens: Option<u64>,
        /// US dollars for models, for it and its descendants
        #[arg(long, value_name = "USD")]
        cost_usd: Option<f64>,
        #[command(flatten)]
        format: Format,
        /// What it runs; the same as you if not given
        #[arg(last = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Say that you are well
    Heartbeat(Format),
    /// Print your manifest
    Manifest(Format),
    /// What you were granted, what is left; or report what you used
    Usage {
        /// Report: tokens read by a model
        #[arg(long, value_name = "N")]
        tokens_in: Option<u64>,
        /// Report: tokens written by a model
        #[arg(long, value_name = "N")]
        tokens_out: Option<u64>,
        /// Report: money spent, in US dollars
        #[arg(long, value_name = "USD")]
        cost_usd: Option<f64>,
        #[command(flatten)]
        format: Format,
    },
    /// List your replicas
    Replicas(Format),
    /// Propose a change to your own code; an operator has it judged
    Propose {
        /// A request.yaml; - for standard input
        request: PathBuf,
        #[command(flatten)]
        format: Format,
    },
    /// What you proposed, and what became of it
    Proposals(Format),
    /// End yourself, and with you your replicas unless the contract keeps them
    Shutdown {
        /// Why; it goes on record
        #[arg(long, default_value = "done")]
        reason: String,
    },
    /// Behave as a live experiment says
    #[command(hide = true)]
    Subject {
        /// What tells this run's processes from all others
        mark: String,
    },
}

/// A tier, spelled as in policies.
fn tier(word: &str) -> Result<belljar_api::TierName, String> {
    serde_json::from_value(word.into())
        .map_err(|_| "seccomp, container, gvisor, microvm or firecracker".to_owned())
}
