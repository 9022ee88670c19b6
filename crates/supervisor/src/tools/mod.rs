//! MCP servers of a box: each in a box of its own, and a gateway between in the keeper's process, which the agent can't reach.
//!
//! ```text
//! agent ─► /belljar/mcp.sock ─► keeper: gateway (rules, pins, holds, record) ─► pipes ─► server's box, in tow of the agent's
//! ```
//!
//! What stands behind servers and no agent is shown, their capabilities' texts and the values of their variables, is told
//! to the first agent of a family and handed down to its replicas: a file that an agent changes meanwhile changes nothing.

mod address;
mod backstage;
mod boxed;
mod listed;
mod record;
mod tally;
mod way;

pub use address::address;
pub use backstage::{Backstage, ServerFiles};
pub use boxed::Boxed;
pub use listed::{Around, servers};
pub use record::recorder;
pub use tally::ToolCalls;
pub(crate) use tally::{ByTool, OTHER, Tally, rows};
pub(crate) use way::socket_name;
pub use way::{Way, Whose};
