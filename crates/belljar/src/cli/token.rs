//! The tokens of the web API.

use clap::{Args, Subcommand, ValueEnum};

use super::Format;

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Make a token, and print it: this once, and never again
    Create(Create),
    /// List tokens, those that are over too
    List {
        #[command(flatten)]
        format: Format,
    },
    /// End a token, its sessions and its streams, at once
    Revoke {
        /// Its id, or the beginning of it
        id: String,
        #[command(flatten)]
        format: Format,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// What it lets its holder do
    #[arg(long, value_enum)]
    pub(crate) role: TokenRole,
    /// What to call it, in lists and in the record [default: the role]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// How long it is good for
    #[arg(long, value_name = "DAYS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub(crate) expires_days: u32,
    /// Good until it is revoked
    #[arg(long, conflicts_with = "expires_days")]
    pub(crate) never_expires: bool,
    #[command(flatten)]
    pub(crate) format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TokenRole {
    /// Look
    Viewer,
    /// Also act on agents: start, stop, quarantine, kill, engage the kill switch
    Operator,
    /// Also change what binds everybody: reset the kill switch, revoke, shut down
    Admin,
}
