//! The protocol's versions.

/// No handshake and no session: each request says all there is to know.
pub const STATELESS: &str = "2026-07-28";

/// The last with a handshake.
pub const LAST_WITH_HANDSHAKE: &str = "2025-11-25";

/// All that are spoken, oldest first.
pub const KNOWN: [&str; 5] = [
    "2024-11-05",
    "2025-03-26",
    "2025-06-18",
    LAST_WITH_HANDSHAKE,
    STATELESS,
];

/// Where a stateless request says which version it is of.
pub const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

/// Where a stateless request says what its client can do.
pub const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";

/// Where it says who its client is.
pub const CLIENT_KEY: &str = "io.modelcontextprotocol/clientInfo";

/// Where it says which messages of the server's log it wants.
pub const LOG_LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";

/// Where a stateless server says who it is.
pub const SERVER_KEY: &str = "io.modelcontextprotocol/serverInfo";

/// Whether this version is spoken.
#[must_use]
pub fn is_known(version: &str) -> bool {
    KNOWN.contains(&version)
}
