//! What the engine reports: every refusal, every connection, every metered call.

use std::fmt::Write as _;

use belljar_policy::Origin;
use serde::{Serialize, Serializer};

/// Takes the engine's events.
///
/// It is called on the engine's own thread, so it must not block: hand the event on and return. An agent can cause
/// events as fast as it can connect; whoever keeps them bounds them.
pub trait Recorder: Send + Sync {
    /// Something happened.
    fn record(&self, event: Event);
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// Something was refused.
    Refused(Refusal),
    /// A connection ended.
    Closed(Connection),
    /// A call to a model ended and was charged.
    Charged(crate::llm::Charge),
}

/// Something the agent asked for and did not get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// How it asked.
    pub way: Way,
    /// The host, as it was asked for; unprintable bytes are escaped.
    pub host: String,
    /// The port, where one was named.
    pub port: Option<u16>,
    /// The rule that refused it or that let the host through so far.
    pub rule: Option<Origin>,
    /// The stable code.
    pub code: RefusalCode,
    /// What was found, where the code does not say it all.
    pub detail: Option<String>,
    /// What to write to allow it, or why nothing would.
    pub hint: String,
}

/// A connection that was made and is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Connection {
    /// How it was asked for.
    pub way: Way,
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The rule that allowed it.
    pub rule: Origin,
    /// Bytes from the agent.
    pub sent: u64,
    /// Bytes to the agent.
    pub received: u64,
}

/// How the agent asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// A name lookup.
    Dns,
    /// A plain connection.
    Tcp,
    /// The HTTP proxy.
    HttpProxy,
    /// The SOCKS proxy.
    Socks,
    /// A request on a connection that is looked at.
    Http,
    /// A packet that is not TCP.
    Packet,
}

impl Way {
    /// A stable word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Tcp => "tcp",
            Self::HttpProxy => "http_proxy",
            Self::Socks => "socks",
            Self::Http => "http",
            Self::Packet => "packet",
        }
    }
}

belljar_policy::codes! {
    /// Why something was refused. The codes are stable: scripts and ledgers keep them.
    pub enum RefusalCode {
        /// No rule is about the host and port.
        NoRule = "deny_no_egress_rule",
        /// A rule blocks the host or port.
        Blocked = "deny_egress_blocked",
        /// The host is neither a name nor an address.
        InvalidHost = "deny_invalid_host",
        /// A lookup of a kind that is not answered.
        DnsQuery = "deny_dns_query",
        /// The box has used more names than are kept.
        TooManyNames = "deny_too_many_names",
        /// An address of the name range that no name was given.
        UnknownAddress = "deny_unknown_address",
        /// The name came to an address the rule does not reach.
        PrivateAddress = "deny_private_address",
        /// The name came to no address.
        Unresolved = "deny_unresolved",
        /// No connection could be made.
        Unreachable = "deny_unreachable",
        /// The rule's rate is used up for now.
        Rate = "deny_egress_rate",
        /// The rule's or the box's connections are all in use.
        Connections = "deny_egress_connections",
        /// The rule's bytes are used up.
        Bytes = "deny_egress_bytes",
        /// UDP, or something else that is not TCP.
        Protocol = "deny_protocol",
        /// Something other than TLS on a port that is for TLS.
        NotTls = "deny_not_tls",
        /// TLS, CONNECT or Host named another host.
        NameMismatch = "deny_name_mismatch",
        /// TLS named no host, or hid it.
        NoServerName = "deny_no_server_name",
        /// No rule permits the method and path.
        Request = "deny_http_request",
        /// The rule refuses WebSockets.
        WebSocket = "deny_websocket",
        /// Not a well-formed request.
        Malformed = "deny_malformed_request",
        /// The token budget is used up.
        Tokens = "deny_llm_tokens",
        /// The money budget is used up.
        Cost = "deny_llm_cost",
        /// A model without a price, under a money budget.
        UnknownModel = "deny_llm_unknown_model",
        /// A call that can't be metered, under a budget.
        Unmetered = "deny_llm_unmetered",
        /// An answer that can't be searched for the host's secret.
        Encoded = "deny_encoded_answer",
        /// A secret's placeholder went to a host that the secret isn't for.
        SecretHost = "deny_secret_host",
        /// A secret's command failed when it was run again.
        SecretRefresh = "deny_secret_refresh",
        /// A fault of Belljar's own ended the connection.
        Internal = "deny_internal_error",
    }
}

impl Serialize for RefusalCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}

/// Bytes from the agent as text that can stand in a record: printable ASCII, bounded.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes.iter().take(255) {
        match byte {
            b' '..=b'~' if *byte != b'\\' => text.push(char::from(*byte)),
            _ => {
                // Writing to a String can't fail.
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_are_unique_and_agree_with_the_policys() {
        let codes: BTreeSet<_> = RefusalCode::ALL.iter().map(|code| code.code()).collect();
        assert_eq!(codes.len(), RefusalCode::ALL.len());
        assert!(codes.iter().all(|code| code.starts_with("deny_")));
        for shared in [
            RefusalCode::NoRule,
            RefusalCode::Blocked,
            RefusalCode::Request,
            RefusalCode::WebSocket,
            RefusalCode::PrivateAddress,
            RefusalCode::NotTls,
        ] {
            assert!(belljar_policy::Reason::from_code(shared.code()).is_some());
        }
    }

    #[test]
    fn every_code_is_documented() {
        let page = include_str!("../../../docs/egress.md");
        for code in RefusalCode::ALL {
            assert!(
                page.contains(&format!("| `{}` |", code.code())),
                "{}",
                code.code()
            );
        }
    }

    #[test]
    fn records_hold_nothing_unprintable() {
        assert_eq!(printable(b"a\0b\x1b[2J\\"), "a\\x00b\\x1b[2J\\x5c");
        assert!(printable(&[7; 9000]).len() <= 1020);
    }
}
