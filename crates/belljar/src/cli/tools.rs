//! `belljar mcp pin`, `diff`, `accept`, `inspect`, `holds` and `answer`.

use super::mcp::server_name;
use super::{Format, Policy};
use clap::{Args, ValueEnum};
use std::ffi::OsString;

/// A server to start and ask for its tools.
#[derive(Debug, Args)]
pub(crate) struct AskServer {
    /// What rules call the server: the part before the colon in `server:tool`
    #[arg(long, value_name = "NAME", default_value = "server", value_parser = server_name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) policy: Policy,
    #[command(flatten)]
    pub(crate) format: Format,
    /// The server and its arguments
    #[arg(last = true, required = true, value_name = "SERVER")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// Of this server alone
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct Accept {
    /// Only this server's, or only this tool; everything that waits if not given
    #[arg(value_name = "SERVER[:TOOL]")]
    pub(crate) which: Option<String>,
    #[command(flatten)]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct ListHolds {
    #[command(flatten)]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct AnswerHold {
    /// Which, as `belljar mcp holds` lists them
    pub(crate) id: String,
    /// What becomes of the call
    pub(crate) answer: Leave,
    /// Why: it is put on record, and told to whoever asked where the answer is no
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Leave {
    /// The call is made
    Allow,
    /// The call is answered with an error
    Refuse,
}
