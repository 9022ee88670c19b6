//! The gateway between an agent and MCP servers.
//!
//! Every message is read strictly, has its meaning judged, and goes on only as this crate writes it again: what was judged
//! and what the other side reads can't differ.

pub mod client;
pub mod gateway;
pub mod holds;
mod host_paths;
pub mod http;
pub mod judge;
pub mod message;
pub mod news;
pub mod pins;
pub mod policy_judge;
mod private_files;
mod rate;
pub mod record;
mod redact;
mod server_facts;
pub mod stdio;
pub mod versions;
mod watch;

pub use host_paths::HostPaths;
pub use policy_judge::{JudgeCode, PolicyJudge};
pub use server_facts::ServerFacts;
pub use watch::Suspicion;

/// Whether an operator can call a server so: what fits in front of `:` in rules and of `__` in tools' names.
#[must_use]
pub fn is_server_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_plain = text.bytes().all(fits) && !text.contains("__");
    (1..=64).contains(&text.len()) && is_plain && !text.starts_with('_') && !text.ends_with('_')
}
