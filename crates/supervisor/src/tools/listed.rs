//! The servers that a policy lists.

use super::address;
use super::backstage::Backstage;
use super::boxed::Boxed;
use crate::command::Command;
use crate::error::RunError;
use crate::reins::Reins;
use crate::state::StateDir;
use belljar_mcp::ServerFacts;
use belljar_mcp::http::{Reach, Server};
use belljar_policy::{Capability, McpServer};
use std::path::Path;
use std::sync::Arc;

/// What a policy's servers find around them.
#[derive(Debug, Clone, Copy)]
pub struct Around<'a> {
    /// What they are given and the policy does not show.
    pub backstage: &'a Backstage,
    /// Where they work.
    pub work: &'a Path,
    /// Where state lives.
    pub state: &'a StateDir,
    /// Whose servers they are: their boxes hold still and end with that one's, and are named after it.
    pub agent: Option<(&'a str, &'a Reins)>,
}

/// Every server of `mcp.servers`: how it is reached, and how the judge knows it.
///
/// # Errors
/// When one can't be had as the policy says.
pub fn servers(
    capability: &Capability,
    around: Around<'_>,
) -> Result<Vec<(Server, ServerFacts)>, RunError> {
    let mut all = Vec::new();
    for (name, rule) in capability.tools.all_servers() {
        if !belljar_mcp::is_server_name(name) {
            return Err(RunError::Invalid {
                what: format!("{name:?} can't be a server's name: {}", rule.origin),
                hint: "letters, digits, `-` and single `_`, at most 64".into(),
            });
        }
        let (reach, facts) = match &rule.value {
            McpServer::Command {
                command,
                capability,
                env: _,
            } => {
                let own = around.backstage.capability(capability.as_deref())?;
                let mut start = Command::new(command).workdir(around.work);
                for (name, value) in around.backstage.env(name) {
                    start = start.env(name, value);
                }
                let program = Boxed::new(own, start, around.state.clone());
                let program = match around.agent {
                    Some((agent, reins)) => program.of(agent, reins.clone()),
                    None => program,
                };
                let facts = ServerFacts::local(name, command, around.work);
                (Reach::Program(Arc::new(program)), facts)
            }
            McpServer::Url { url, ca, headers } => {
                address::listed(name, rule, url, ca.as_ref(), headers, &around)?
            }
            McpServer::Unix { unix } => {
                let at = format!("unix:{unix}");
                address::listed(name, rule, &at, None, &[], &around)?
            }
        };
        let name = name.to_owned();
        all.push((Server { name, reach }, facts));
    }
    Ok(all)
}
