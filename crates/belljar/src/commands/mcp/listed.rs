//! The servers that a policy lists.

use super::boxed::Boxed;
use super::invalid;
use crate::commands::run::protect;
use crate::exit::Failure;
use belljar_mcp::ServerFacts;
use belljar_mcp::http::{Reach, Server};
use belljar_policy::{Capability, McpServer};
use belljar_supervisor::StateDir;
use std::path::Path;
use std::sync::Arc;

/// Every server of `mcp.servers`: how it is reached, and how the judge knows it. A capability's file is looked for beside `config`.
pub(super) fn servers(
    capability: &Capability,
    config: Option<&Path>,
    state: &StateDir,
) -> Result<Vec<(Server, ServerFacts)>, Failure> {
    let here = std::env::current_dir()
        .map_err(|source| super::wrap::system("finding the directory", source))?;
    let mut all = Vec::new();
    for (name, rule) in capability.tools.all_servers() {
        if !belljar_mcp::is_server_name(name) {
            return Err(invalid(
                &format!("{name:?} can't be a server's name: {}", rule.origin),
                "letters, digits, `-` and single `_`, at most 64",
            ));
        }
        let (reach, facts) = match &rule.value {
            McpServer::Command {
                command,
                capability,
                env,
            } => {
                let own = own_capability(capability.as_deref(), config)?;
                let words = command.iter().map(Into::into).collect();
                let mut program = Boxed::new(own, words, state.clone());
                program.env = env.clone().into_iter().collect();
                let facts = ServerFacts::local(name, command, &here);
                (Reach::Program(Arc::new(program)), facts)
            }
            McpServer::Url { url, ca, headers } => {
                super::address::listed(name, rule, url, ca.as_ref(), headers)?
            }
            McpServer::Unix { unix } => {
                let address = format!("unix:{unix}");
                super::address::listed(name, rule, &address, None, &[])?
            }
        };
        let name = name.to_owned();
        all.push((Server { name, reach }, facts));
    }
    Ok(all)
}

/// What a server's box may do: its own file, or the profile `strict`.
fn own_capability(file: Option<&str>, config: Option<&Path>) -> Result<Capability, Failure> {
    let Some(file) = file else {
        return belljar_manifest::profile("strict")
            .ok_or_else(|| invalid("no profile strict", "`belljar profile list` names them"));
    };
    let beside = config.and_then(Path::parent).unwrap_or(Path::new("."));
    let file = beside.join(file);
    let mut capability = belljar_manifest::read_capability_file(&file)?;
    protect(&mut capability, &file);
    Ok(capability)
}
