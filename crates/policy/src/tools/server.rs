//! The servers a policy lists.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// How a server is reached. Starting one is a power: a child lists none that its parent does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum McpServer {
    /// A program that speaks on its standard input and output, in a box of its own.
    Command {
        /// The program and its arguments.
        command: Vec<String>,
        /// The file of its capability, as it was written; the profile `strict` if not said.
        #[serde(skip_serializing_if = "Option::is_none")]
        capability: Option<String>,
        /// Variables it is given.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        env: BTreeMap<String, String>,
    },
    /// A server that speaks streamable HTTP.
    Url {
        /// Its address.
        url: String,
    },
    /// The same on a Unix socket.
    Unix {
        /// The socket's path.
        unix: String,
    },
}

impl fmt::Display for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { command, .. } => f.write_str(&command.join(" ")),
            Self::Url { url } => f.write_str(url),
            Self::Unix { unix } => write!(f, "unix:{unix}"),
        }
    }
}
