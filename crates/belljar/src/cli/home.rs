//! Private homes.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Format;

#[derive(Debug, Subcommand)]
pub(crate) enum Home {
    /// List private homes
    List {
        #[command(flatten)]
        format: Format,
    },
    /// Say whose a home is, where its changes lie, how many there are
    Show(NamedHome),
    /// List what differs from the host's home directory: A for added, M for modified, D for deleted
    Diff(NamedHome),
    /// Write what was added and modified as a tar archive
    Export {
        #[command(flatten)]
        home: WhichHome,
        /// Where to; `-` is standard output
        #[arg(long, short, value_name = "FILE")]
        file: PathBuf,
    },
    /// Throw homes away: the next run starts with the host's home directory again
    Reset {
        #[command(flatten)]
        home: WhichHome,
        /// Every home that no box uses
        #[arg(long, conflicts_with = "home")]
        all: bool,
        #[command(flatten)]
        format: Format,
    },
}

/// One home.
#[derive(Debug, Args)]
pub(crate) struct WhichHome {
    /// A project's directory, an agent's name, or an id or its beginning [default: this directory]
    #[arg(value_name = "HOME")]
    pub(crate) home: Option<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct NamedHome {
    #[command(flatten)]
    pub(crate) home: WhichHome,
    #[command(flatten)]
    pub(crate) format: Format,
}
