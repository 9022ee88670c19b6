//! Where an agent may connect.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize, Serializer};

use crate::{Decision, Origin, Reason, Rule};

/// What a rule does with a connection it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressEffect {
    /// Lets it through.
    Allow,
    /// Stops it, whatever other rules say.
    Deny,
}

/// One rule about connections. A deny rule wins over every allow rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EgressRule {
    /// The hosts it is about.
    pub domain: DomainPattern,
    /// The ports it is about, sorted, each once; empty means all.
    pub ports: Vec<u16>,
    /// Requests per minute (allow rules).
    pub rate_limit_per_min: u32,
    /// What it does.
    pub effect: EgressEffect,
}

/// Which hosts a rule is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DomainPattern {
    /// One host, in lower case without a final dot.
    Exact(String),
    /// `*.suffix`: every host below the suffix, not the suffix itself.
    Below(String),
    /// One address.
    Ip(IpAddr),
    /// A block of addresses.
    Block(IpBlock),
    /// Every host. Only deny rules are made with it; no file can write it.
    Any,
}

/// A block of addresses in CIDR form; host bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpBlock {
    network: IpAddr,
    prefix: u8,
}

/// Why a text is no domain of an egress rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDomain {
    /// Nothing there.
    #[error("a domain is empty")]
    Empty,
    /// `*` alone.
    #[error("`*` would open the whole network, which is not offered")]
    Everything,
    /// A `*` that is not the leading `*.`.
    #[error("a `*` is accepted only as the leading `*.`")]
    Wildcard,
    /// A scheme or a path.
    #[error("a URL is not a domain")]
    Url,
    /// `host:port`.
    #[error("a port is not part of a domain")]
    Port,
    /// Characters outside ASCII.
    #[error("a domain holds characters outside ASCII")]
    NotAscii,
    /// A malformed label.
    #[error("not a domain name")]
    Label,
    /// A name that ends in a number, which resolvers may read as an address.
    #[error("a domain that ends in a number could be read as an address")]
    Numeric,
    /// A malformed CIDR block.
    #[error("not an address block")]
    Block,
}

impl InvalidDomain {
    /// What to write instead.
    #[must_use]
    pub fn hint(self) -> &'static str {
        match self {
            Self::Empty | Self::Everything => "name each host, or `*.example.com`",
            Self::Wildcard => "write `*.example.com` for every host below example.com",
            Self::Url => "write the host alone, e.g. api.example.com",
            Self::Port => "put the port in `ports`, e.g. ports: [443]",
            Self::NotAscii => "write the name in its `xn--` form",
            Self::Label => "a name is letters, digits and hyphens between dots, at most 253 in all",
            Self::Numeric => "write the whole address, e.g. 192.0.2.1",
            Self::Block => "write e.g. 192.0.2.0/24 or 2001:db8::/32",
        }
    }
}

impl DomainPattern {
    /// Reads the `domain` of an egress rule.
    ///
    /// # Errors
    /// When the text names no host; see [`InvalidDomain`].
    pub fn parse(text: &str) -> Result<Self, InvalidDomain> {
        if text.is_empty() {
            return Err(InvalidDomain::Empty);
        }
        if text == "*" {
            return Err(InvalidDomain::Everything);
        }
        if let Some(address) = parse_ip(text) {
            return Ok(Self::Ip(address));
        }
        if text.contains("://") {
            return Err(InvalidDomain::Url);
        }
        if let Some((network, prefix)) = text.split_once('/') {
            return IpBlock::parse(network, prefix).map(Self::Block);
        }
        match text.strip_prefix("*.") {
            Some(suffix) => host_name(suffix).map(Self::Below),
            None => host_name(text).map(Self::Exact),
        }
    }

    fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            (Self::Exact(name), Host::Name(host)) => name == host,
            (Self::Below(suffix), Host::Name(host)) => is_below(host, suffix),
            (Self::Ip(own), Host::Address(address)) => own == address,
            (Self::Block(block), Host::Address(address)) => block.contains(*address),
            _ => false,
        }
    }

    /// Whether every host of `other` is one of this pattern's.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Exact(a), Self::Exact(b)) => a == b,
            (Self::Below(suffix), Self::Exact(name)) => is_below(name, suffix),
            (Self::Below(a), Self::Below(b)) => a == b || is_below(b, a),
            (Self::Ip(a), Self::Ip(b)) => a == b,
            (Self::Block(block), Self::Ip(address)) => block.contains(*address),
            (Self::Block(a), Self::Block(b)) => a.prefix <= b.prefix && a.contains(b.network),
            // A block of one address is that address.
            (Self::Ip(a), Self::Block(b)) => b.is_single() && *a == b.network,
            _ => false,
        }
    }

    /// The hosts both patterns are about. Patterns nest or are apart, so it is one of the two.
    pub(crate) fn intersect(&self, other: &Self) -> Option<Self> {
        if self.covers(other) {
            Some(other.clone())
        } else if other.covers(self) {
            Some(self.clone())
        } else {
            None
        }
    }
}

impl IpBlock {
    fn parse(network: &str, prefix: &str) -> Result<Self, InvalidDomain> {
        let network: IpAddr = network.parse().map_err(|_| InvalidDomain::Url)?;
        let decimal = !prefix.is_empty() && prefix.bytes().all(|b| b.is_ascii_digit());
        let prefix: u8 = prefix.parse().map_err(|_| InvalidDomain::Block)?;
        let width = if network.is_ipv4() { 32 } else { 128 };
        if !decimal || prefix > width {
            return Err(InvalidDomain::Block);
        }
        Ok(Self {
            network: mask(network, prefix),
            prefix,
        })
    }

    fn contains(self, address: IpAddr) -> bool {
        self.network.is_ipv4() == address.is_ipv4() && mask(address, self.prefix) == self.network
    }

    fn is_single(self) -> bool {
        self.prefix == if self.network.is_ipv4() { 32 } else { 128 }
    }
}

fn mask(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let keep = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & keep))
        }
        IpAddr::V6(v6) => {
            let keep = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & keep))
        }
    }
}

/// A host as a connection names it.
enum Host {
    Name(String),
    Address(IpAddr),
}

impl Host {
    fn parse(text: &str) -> Self {
        match parse_ip(text) {
            Some(address) => Self::Address(address),
            None => Self::Name(text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase()),
        }
    }
}

/// Reads an address, with or without the brackets of a URL; an IPv4 address written inside IPv6 is
/// that IPv4 address, so the two spellings can't be told apart by a rule.
fn parse_ip(text: &str) -> Option<IpAddr> {
    let bare = text
        .strip_prefix('[')
        .and_then(|t| t.strip_suffix(']'))
        .unwrap_or(text);
    bare.parse::<IpAddr>()
        .ok()
        .map(|address| address.to_canonical())
}

fn is_below(host: &str, suffix: &str) -> bool {
    host.strip_suffix(suffix)
        .is_some_and(|front| front.len() > 1 && front.ends_with('.'))
}

fn host_name(text: &str) -> Result<String, InvalidDomain> {
    let name = text.strip_suffix('.').unwrap_or(text);
    if !name.is_ascii() {
        return Err(InvalidDomain::NotAscii);
    }
    if name.contains('*') {
        return Err(InvalidDomain::Wildcard);
    }
    if name
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok())
    {
        return Err(InvalidDomain::Port);
    }
    if name.len() > 253 || !name.split('.').all(is_label) {
        return Err(InvalidDomain::Label);
    }
    let last = name.rsplit('.').next().unwrap_or(name);
    let hexadecimal = last.starts_with("0x") || last.starts_with("0X");
    if hexadecimal || last.bytes().all(|b| b.is_ascii_digit()) {
        return Err(InvalidDomain::Numeric);
    }
    Ok(name.to_ascii_lowercase())
}

fn is_label(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && label
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Decides whether a connection to `host` (a name or an address) and `port` may be made.
#[must_use]
pub fn decide_host(rules: &[Rule<EgressRule>], host: &str, port: u16) -> Decision {
    let parsed = Host::parse(host);
    let matching = |effect| {
        rules.iter().find(|rule| {
            rule.value.effect == effect
                && rule.value.domain.matches(&parsed)
                && (rule.value.ports.is_empty() || rule.value.ports.contains(&port))
        })
    };
    if let Some(rule) = matching(EgressEffect::Deny) {
        let hint = format!("remove the rule at {} that blocks it", rule.origin);
        return Decision::deny(Reason::DenyEgressBlocked, rule.origin.clone(), Some(hint));
    }
    match matching(EgressEffect::Allow) {
        Some(rule) => Decision::allow(Reason::AllowEgressRule, rule.origin.clone()),
        None => {
            let hint = format!(
                "add to capability.yaml: network_egress_rules: [{{domain: {host:?}, ports: [{port}]}}]"
            );
            Decision::deny(Reason::DenyNoEgressRule, Origin::built_in(), Some(hint))
        }
    }
}

impl fmt::Display for DomainPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Below(suffix) => write!(f, "*.{suffix}"),
            Self::Ip(address) => write!(f, "{address}"),
            Self::Block(block) => write!(f, "{}/{}", block.network, block.prefix),
            Self::Any => f.write_str("*"),
        }
    }
}

impl Serialize for DomainPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(domain: &str, ports: &[u16], effect: EgressEffect) -> Rule<EgressRule> {
        let domain = DomainPattern::parse(domain).unwrap();
        let value = EgressRule {
            domain,
            ports: ports.to_vec(),
            rate_limit_per_min: 60,
            effect,
        };
        Rule::new(value, Origin::built_in())
    }

    #[test]
    fn hosts_match_as_written_and_a_deny_wins() {
        let rules = [
            rule("api.example.com", &[443], EgressEffect::Allow),
            rule("*.example.org", &[], EgressEffect::Allow),
            rule("bad.example.org", &[], EgressEffect::Deny),
            rule("192.0.2.0/24", &[], EgressEffect::Allow),
            rule("2001:db8::1", &[], EgressEffect::Allow),
        ];
        let check = |host, port, code: &str| {
            assert_eq!(
                decide_host(&rules, host, port).reason().code(),
                code,
                "{host}:{port}"
            );
        };
        check("api.example.com", 443, "allow_egress_rule");
        check("API.Example.com.", 443, "allow_egress_rule");
        check("api.example.com", 80, "deny_no_egress_rule");
        check("x.api.example.com", 443, "deny_no_egress_rule");
        check("a.example.org", 22, "allow_egress_rule");
        check("a.b.example.org", 22, "allow_egress_rule");
        check("example.org", 22, "deny_no_egress_rule");
        check("notexample.org", 22, "deny_no_egress_rule");
        check(".example.org", 22, "deny_no_egress_rule");
        check("bad.example.org", 443, "deny_egress_blocked");
        check("192.0.2.77", 1, "allow_egress_rule");
        check("::ffff:192.0.2.77", 1, "allow_egress_rule");
        check("192.0.3.1", 1, "deny_no_egress_rule");
        check("[2001:db8::1]", 1, "allow_egress_rule");
    }

    #[test]
    fn domains_are_read_strictly() {
        let check = |text: &str, expect: Result<&str, InvalidDomain>| {
            let parsed = DomainPattern::parse(text).map(|p| p.to_string());
            assert_eq!(parsed, expect.map(str::to_owned), "{text}");
        };
        check("API.Example.com.", Ok("api.example.com"));
        check("*.Example.com", Ok("*.example.com"));
        check("10.1.2.3/8", Ok("10.0.0.0/8"));
        check("0.0.0.0/0", Ok("0.0.0.0/0"));
        check("::/0", Ok("::/0"));
        check("localhost", Ok("localhost"));
        check("", Err(InvalidDomain::Empty));
        check("*", Err(InvalidDomain::Everything));
        check("a.*.com", Err(InvalidDomain::Wildcard));
        check("https://x.com/a", Err(InvalidDomain::Url));
        check("x.com/a", Err(InvalidDomain::Url));
        check("x.com:443", Err(InvalidDomain::Port));
        check("exämple.com", Err(InvalidDomain::NotAscii));
        check("a..b", Err(InvalidDomain::Label));
        check("-a.com", Err(InvalidDomain::Label));
        check("a b.com", Err(InvalidDomain::Label));
        check("127.1", Err(InvalidDomain::Numeric));
        check("0x7f000001", Err(InvalidDomain::Numeric));
        check("10.0.0.0/33", Err(InvalidDomain::Block));
        check("10.0.0.0/+8", Err(InvalidDomain::Block));
    }
}
