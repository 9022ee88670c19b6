//! `belljar mcp …`

use super::tools::{Accept, AnswerHold, AskServer, Diff, ListHolds};
use super::{Policy, seconds};
use crate::exit;
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub(crate) enum Mcp {
    /// Run an MCP server in a box and stand between it and its client
    ///
    /// Put it in front of a server's command in any client's configuration. The file of --config says what the server's box may
    /// do and which of its tools may be called. Standard input and output speak MCP; what the server says on its error
    /// output passes through.
    #[command(after_help = exit::HELP)]
    Wrap(Wrap),
    /// Start a server in its box and pin its tools as they are now
    Pin(AskServer),
    /// Show tools that are new or changed since they were pinned; exits with 1 if there are any
    Diff(Diff),
    /// Agree to tools that are new or changed
    Accept(Accept),
    /// Start a server in its box and list its tools with the verdict each would get
    Inspect(AskServer),
    /// List the calls that wait for an operator
    Holds(ListHolds),
    /// Answer a call that waits
    Answer(AnswerHold),
    /// Serve one or several MCP servers at one address, by streamable HTTP
    ///
    /// Programs run in boxes, one for each client's session. One server's tools keep their names, those of several are
    /// `server__tool`. Prints the address when it listens, and serves until it is told to end.
    #[command(after_help = exit::HELP)]
    Serve(Serve),
    /// In a box: speak with the MCP servers of `mcp.servers`, on standard input and output
    ///
    /// For clients that start a command: name `belljar mcp connect` as the one server.
    Connect,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) policy: Policy,
    /// Listen here; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: std::net::SocketAddr,
    /// Listen on this Unix socket instead, which must not exist
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    pub(crate) socket: Option<std::path::PathBuf>,
    /// A name that clients may call this host by, besides the loopback's
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,
    /// A server at an address: http://HOST:PORT/PATH, https://HOST/PATH, or unix:PATH
    #[arg(long, value_name = "NAME=ADDRESS", value_parser = server_at)]
    pub(crate) server: Vec<(String, String)>,
    /// What rules call the server that is a program
    #[arg(long, value_name = "NAME", default_value = "server", value_parser = server_name)]
    pub(crate) name: String,
    /// How long a server may take for an answer, since it was asked or last told of progress
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub(crate) deadline: Duration,
    /// A server that is a program, and its arguments
    #[arg(last = true, value_name = "SERVER")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Wrap {
    /// What rules call the server: the part before the colon in `server:tool`
    #[arg(long, value_name = "NAME", default_value = "server", value_parser = server_name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) policy: Policy,
    /// How long the server may take for an answer, since it was asked or last told of progress
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub(crate) deadline: Duration,
    /// The server and its arguments
    #[arg(last = true, required = true, value_name = "SERVER")]
    pub(crate) command: Vec<OsString>,
}

/// Names that fit in front of `:` in rules and of `__` in tools' names.
pub(crate) fn server_name(text: &str) -> Result<String, String> {
    match belljar_mcp::is_server_name(text) {
        true => Ok(text.to_owned()),
        false => Err("letters, digits, `-` and single `_`, at most 64".into()),
    }
}

fn server_at(text: &str) -> Result<(String, String), String> {
    let (name, address) = text.split_once('=').ok_or("write NAME=ADDRESS")?;
    Ok((server_name(name)?, address.to_owned()))
}
