//! The gateway between an agent and MCP servers.
//!
//! Every message is read strictly, has its meaning judged, and goes on only as this crate writes it again: what was judged
//! and what the other side reads can't differ.

pub mod gateway;
pub mod judge;
pub mod message;
pub mod plain_judge;
pub mod stdio;
