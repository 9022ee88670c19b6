//! Which hosts a rule is about.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Serialize, Serializer};

use super::host::{Host, ends_in_number, is_label, parse_ip};

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

    /// Whether it is about this host.
    #[must_use]
    pub fn matches(&self, host: &Host) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(own) => host.name().is_some_and(|name| name == own),
            Self::Below(suffix) => host.name().is_some_and(|name| is_below(name, suffix)),
            Self::Ip(own) => host.address() == Some(*own),
            Self::Block(block) => host
                .address()
                .is_some_and(|address| block.contains(address)),
        }
    }

    /// Whether it is about the host's own addresses alone.
    pub(super) fn is_loopback(&self) -> bool {
        match self {
            Self::Ip(address) => address.is_loopback(),
            Self::Block(block) => {
                let least = if block.network.is_ipv4() { 8 } else { 128 };
                block.network.is_loopback() && block.prefix >= least
            }
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

    /// Its first address.
    #[must_use]
    pub fn network(self) -> IpAddr {
        self.network
    }

    /// How many leading bits its addresses share.
    #[must_use]
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    fn contains(self, address: IpAddr) -> bool {
        self.network.is_ipv4() == address.is_ipv4() && mask(address, self.prefix) == self.network
    }

    fn is_single(self) -> bool {
        self.prefix == if self.network.is_ipv4() { 32 } else { 128 }
    }
}

pub(super) fn mask(address: IpAddr, prefix: u8) -> IpAddr {
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
    if ends_in_number(name) {
        return Err(InvalidDomain::Numeric);
    }
    Ok(name.to_ascii_lowercase())
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
