//! `belljar learn`.

use super::{Policy, seconds};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct Learn {
    #[command(flatten)]
    pub(crate) policy: Policy,
    /// What becomes of connections while learning
    #[arg(long, value_enum, default_value_t = HostsMode::Refuse)]
    pub(crate) hosts: HostsMode,
    /// Write what was learned to this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Replace the file if it is there
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
    /// Print how this file differs, what it lacks for the run and what the run did not use
    #[arg(long, value_name = "FILE")]
    pub(crate) against: Option<PathBuf>,
    /// A capability file, or everything that was seen
    #[arg(long, value_enum, default_value_t = LearnFormat::Yaml)]
    pub(crate) format: LearnFormat,
    /// End the box after so many seconds, whatever the policy says
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<std::time::Duration>,
    /// No summary
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HostsMode {
    /// Refused, but for those that the policy allows; what was refused becomes a rule
    Refuse,
    /// Every host on the open network may be reached; what was reached becomes a rule
    Record,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LearnFormat {
    /// A capability.yaml
    Yaml,
    /// One JSON value: the run, and every file, host and program seen
    Json,
}
