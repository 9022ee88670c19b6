//! The commands about changes that agents propose to their own code.

use clap::{Args, Subcommand};
use std::path::PathBuf;

use super::Format;
use super::evolve_review::EvolveReview;

/// Exit codes of `belljar evolve check` and `propose`.
const CHECK_HELP: &str = "\
Exit codes:
    0  every stage passed; people decide
    1  a stage refused it
  121  the request can't be applied, or a file is wrong";

#[derive(Debug, Subcommand)]
pub(crate) enum Evolve {
    /// Write an evolve.toml to start from
    Init {
        /// The project
        #[arg(default_value = ".")]
        project: PathBuf,
    },
    /// Propose a change: apply a request to a copy of the project and run every stage on it
    ///
    /// The project itself is only read. Stages run in fresh boxes without a network; what counts is read outside of them.
    #[command(after_help = CHECK_HELP)]
    Propose(Propose),
    /// Run the stages of a proposal again
    #[command(after_help = CHECK_HELP)]
    Check {
        /// The proposal: its name, or the first eight digits or more
        id: String,
        #[command(flatten)]
        format: Format,
    },
    /// List what agents proposed from inside their boxes (`belljar agent propose`)
    Inbox(Format),
    /// Propose what an agent asked for, in its name, and tell it what became of it
    #[command(after_help = CHECK_HELP)]
    Take {
        /// Its name in the inbox
        name: String,
        /// The agent's project
        #[arg(long, value_name = "DIR")]
        project: PathBuf,
        #[command(flatten)]
        format: Format,
    },
    /// List proposals
    List(Format),
    /// Show a proposal: what it changes, what each stage found, and why it is as risky as it is
    Show {
        /// The proposal
        id: String,
        #[command(flatten)]
        format: Format,
    },
    #[command(flatten)]
    Review(EvolveReview),
}

#[derive(Debug, Args)]
pub(crate) struct Propose {
    /// A request.yaml
    pub(crate) request: PathBuf,
    /// The project
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) project: PathBuf,
    /// Only apply it; `belljar evolve check` runs the stages
    #[arg(long)]
    pub(crate) draft: bool,
    /// The reviewer who proposes it, and so does not approve it; without it, one person more must approve
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) author: Option<String>,
    #[command(flatten)]
    pub(crate) format: Format,
}
