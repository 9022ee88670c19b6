//! `belljar diff | apply | discard`: changes that wait.

use super::Format;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Of which box, and which of its changes.
#[derive(Debug, Args)]
pub(crate) struct KeptChanges {
    /// The id that `belljar run` printed, not needed when one box alone left changes; then files, directories or patterns
    #[arg(value_name = "ID|PATH")]
    pub(crate) words: Vec<OsString>,
    /// Files, directories or patterns, whatever they are called
    #[arg(last = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Of several boxes that left changes, the one that ended last
    #[arg(long)]
    pub(crate) last: bool,
    #[command(flatten)]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    #[command(flatten)]
    pub(crate) kept: KeptChanges,
    /// How many lines changed in each file
    #[arg(long, conflicts_with = "name_only")]
    pub(crate) stat: bool,
    /// The paths alone
    #[arg(long)]
    pub(crate) name_only: bool,
    /// Git's own files one by one, and what agents and tools keep for themselves in the home
    #[arg(long)]
    pub(crate) all: bool,
    /// Do not pipe into $PAGER (less, if it is not set)
    #[arg(long)]
    pub(crate) no_pager: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Apply {
    #[command(flatten)]
    pub(crate) kept: KeptChanges,
    /// Ask about each file, and about each part of it
    #[arg(long, short)]
    pub(crate) interactive: bool,
}
