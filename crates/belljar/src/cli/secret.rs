//! Secrets that Belljar keeps for policies.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Ask, Format};

#[derive(Debug, Subcommand)]
pub(crate) enum Secret {
    /// Keep a secret under a name, for `from: {store: NAME}` in a policy; it is read from standard input, or asked for
    Set(SetSecret),
    /// List the names of what is kept
    List {
        #[command(flatten)]
        format: Format,
    },
    /// Forget a secret
    Rm {
        /// Its name
        name: String,
    },
    /// Say whether a secret can be read, and which hosts a policy gives it to: exit 0 if it can, 1 if not
    Test {
        /// The name of a stored secret, or of one of the policy's
        name: String,
        #[command(flatten)]
        ask: Ask,
    },
}

#[derive(Debug, Args)]
pub(crate) struct SetSecret {
    /// What policies call it
    pub(crate) name: String,
    /// Take it from this environment variable
    #[arg(long, value_name = "VARIABLE", conflicts_with = "from_file")]
    pub(crate) from_env: Option<String>,
    /// Take it from this file, less its final line end
    #[arg(long, value_name = "FILE")]
    pub(crate) from_file: Option<PathBuf>,
}
