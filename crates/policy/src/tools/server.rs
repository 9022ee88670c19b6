//! The servers a policy lists.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::{PathRule, SecretPlace, SecretSource};

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
        /// The file with the certificates it is known by; whom the host trusts if not said.
        #[serde(skip_serializing_if = "Option::is_none")]
        ca: Option<PathRule>,
        /// What is added to each request on the way there, in the order of the headers' names.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        headers: Vec<ServerHeader>,
    },
    /// The same on a Unix socket.
    Unix {
        /// The socket's path.
        unix: String,
    },
}

/// A header whose value only the gateway and the server know: where it is, never what it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerHeader {
    /// Where in a request it goes.
    #[serde(rename = "as")]
    pub place: SecretPlace,
    /// Where it is on the host.
    #[serde(rename = "from")]
    pub source: SecretSource,
}

impl McpServer {
    /// A server at an address that asks for nothing.
    #[must_use]
    pub fn at(url: impl Into<String>) -> Self {
        Self::Url {
            url: url.into(),
            ca: None,
            headers: Vec::new(),
        }
    }

    /// The headers it gets.
    #[must_use]
    pub fn headers(&self) -> &[ServerHeader] {
        match self {
            Self::Url { headers, .. } => headers,
            Self::Command { .. } | Self::Unix { .. } => &[],
        }
    }
}

/// Whether a header of MCP's own, or one that says how to answer, goes by this name: those are the gateway's to write.
#[must_use]
pub fn is_mcp_header(name: &str) -> bool {
    name.starts_with("mcp-") || ["accept", "last-event-id", "cookie"].contains(&name)
}

impl fmt::Display for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { command, .. } => f.write_str(&command.join(" ")),
            Self::Url { url, .. } => f.write_str(url),
            Self::Unix { unix } => write!(f, "unix:{unix}"),
        }
    }
}
