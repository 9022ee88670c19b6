//! `belljar mcp connect`: standard input and output to the socket in the box, for clients that start a command.

use super::invalid;
use super::wrap::system;
use crate::exit::{self, Failure};
use belljar_supervisor::MCP_SOCKET;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

pub(super) fn connect() -> Result<u8, Failure> {
    let Some(path) = std::env::var_os(MCP_SOCKET) else {
        return Err(invalid(
            &format!("{MCP_SOCKET} is not set: this box was given no MCP servers"),
            "list some in mcp.servers of the capability, and run this in its box",
        ));
    };
    let trouble = |source| system("speaking with the MCP servers", source);
    let mut hears = UnixStream::connect(&path).map_err(trouble)?;
    let mut says = hears.try_clone().map_err(trouble)?;
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut says);
        // The session ends with its client.
        let _ = says.shutdown(Shutdown::Write);
    });
    let mut output = io::stdout().lock();
    io::copy(&mut hears, &mut output).map_err(trouble)?;
    Ok(exit::OK)
}
