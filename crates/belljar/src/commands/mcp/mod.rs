//! `belljar mcp …`: MCP servers under rules.

mod asking;
mod connect;
mod holds;
pub(super) mod in_box;
mod pins;
mod serve;
mod wrap;

use crate::cli::mcp::Mcp;
use crate::exit::Failure;

pub(crate) fn mcp(command: Mcp) -> Result<u8, Failure> {
    match command {
        Mcp::Wrap(arguments) => wrap::wrap(arguments),
        Mcp::Pin(arguments) => pins::pin(&arguments),
        Mcp::Diff(arguments) => pins::diff(&arguments),
        Mcp::Accept(arguments) => pins::accept(&arguments),
        Mcp::Inspect(arguments) => pins::inspect(&arguments),
        Mcp::Holds(arguments) => holds::list(&arguments),
        Mcp::Answer(arguments) => holds::answer(&arguments),
        Mcp::Serve(arguments) => serve::serve(arguments),
        Mcp::Connect => connect::connect(),
    }
}

/// A command as text, for its digest.
fn words(command: &[std::ffi::OsString]) -> Vec<String> {
    let words = command.iter();
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

fn store(source: std::io::Error) -> Failure {
    invalid(
        &format!("the state directory can't be used: {source}"),
        "set BELLJAR_STATE_DIR to a directory you can write to",
    )
}

fn invalid(what: &str, hint: &str) -> Failure {
    Failure::Invalid(what.to_owned(), hint.to_owned())
}

/// Who gives an answer: the user this process is of, as the kernel knows them.
fn of_user() -> String {
    format!("uid {}", rustix::process::getuid().as_raw())
}
