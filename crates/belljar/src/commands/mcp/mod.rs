//! `belljar mcp …`: MCP servers under rules.

mod boxed;
mod serve;
mod wrap;

use crate::cli::mcp::Mcp;
use crate::exit::Failure;

pub(crate) fn mcp(command: Mcp) -> Result<u8, Failure> {
    match command {
        Mcp::Wrap(arguments) => wrap::wrap(arguments),
        Mcp::Serve(arguments) => serve::serve(arguments),
    }
}
