//! `belljar check tool`: what becomes of a call of an MCP tool.

use belljar_mcp::HostPaths;
use belljar_policy::{Paths, ToolQuestion, decide_tool};
use serde_json::Value;

use super::answer;
use crate::cli::Tool;
use crate::exit::Failure;

pub(super) fn check(question: &Tool) -> Result<u8, Failure> {
    let capability = crate::commands::capability(&question.ask.policy)?;
    let Some(named) = ToolQuestion::named(&question.tool) else {
        return Err(Failure::Invalid(
            "a tool is named without its server".into(),
            "write SERVER:TOOL, e.g. files:read_file".into(),
        ));
    };
    let arguments = match &question.args {
        Some(text) => serde_json::from_str(text).map_err(|error| {
            let hint = r#"write an object, e.g. --args '{"path": "/etc/x"}'"#;
            Failure::Invalid(format!("--args is no JSON: {error}"), hint.into())
        })?,
        None => Value::Null,
    };
    let host;
    let paths: &dyn Paths = match &question.cwd {
        Some(directory) => {
            host = HostPaths::at(directory);
            &host
        }
        None => named.paths,
    };
    let asked = ToolQuestion {
        arguments: &arguments,
        paths,
        ..named
    };
    let decision = decide_tool(&capability.tools, &asked);
    Ok(answer(
        &question.ask,
        &format!("tool {}", question.tool),
        &decision,
    ))
}
