//! A host as a connection names it: a valid name or an address, and nothing else.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

/// The longest name DNS can carry, without the final dot.
const LONGEST_NAME: usize = 253;

/// A host: a valid name in lower case without a final dot, or an address.
///
/// One host has one spelling here, whatever the client wrote: `EXAMPLE.com.` is `example.com`, `0x7f.1` is
/// `127.0.0.1`, `::ffff:10.0.0.1` is `10.0.0.1`. So rules can't be avoided by spelling.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(Kind);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Name(Box<str>),
    Address(IpAddr),
}

/// Why a text is no host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHost {
    /// Nothing there.
    #[error("the host is empty")]
    Empty,
    /// More than a name can be.
    #[error("the host is too long")]
    TooLong,
    /// `user@host`.
    #[error("the host carries a user name")]
    UserInfo,
    /// `fe80::1%eth0`.
    #[error("the address carries a zone")]
    Zone,
    /// Characters outside ASCII.
    #[error("the host holds characters outside ASCII")]
    NotAscii,
    /// A malformed label.
    #[error("the host is not a name")]
    Label,
    /// It ends in a number, but is no address.
    #[error("the host ends in a number, but is no address")]
    Numeric,
}

impl Host {
    /// Reads a host as clients write it: in a URL, a `CONNECT`, a SOCKS request, a TLS greeting.
    ///
    /// # Errors
    /// When the text is neither a name nor an address; see [`InvalidHost`].
    pub fn parse(text: &str) -> Result<Self, InvalidHost> {
        if text.is_empty() {
            return Err(InvalidHost::Empty);
        }
        if text.len() > LONGEST_NAME + 1 {
            return Err(InvalidHost::TooLong);
        }
        if !text.is_ascii() {
            return Err(InvalidHost::NotAscii);
        }
        if text.contains('@') {
            return Err(InvalidHost::UserInfo);
        }
        if let Some(address) = parse_ip(text) {
            return Ok(Self::from(address));
        }
        if text.contains('%') {
            return Err(InvalidHost::Zone);
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.len() > LONGEST_NAME {
            return Err(InvalidHost::TooLong);
        }
        if ends_in_number(name) {
            return parse_numbers(name)
                .map(|v4| Self::from(IpAddr::V4(v4)))
                .ok_or(InvalidHost::Numeric);
        }
        if !name.split('.').all(is_label) {
            return Err(InvalidHost::Label);
        }
        Ok(Self(Kind::Name(name.to_ascii_lowercase().into())))
    }

    /// The name, unless it is an address.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match &self.0 {
            Kind::Name(name) => Some(name),
            Kind::Address(_) => None,
        }
    }

    /// The address, unless it is a name.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        match &self.0 {
            Kind::Name(_) => None,
            Kind::Address(address) => Some(*address),
        }
    }
}

impl From<IpAddr> for Host {
    /// IPv4 inside IPv6 is that IPv4 address.
    fn from(address: IpAddr) -> Self {
        Self(Kind::Address(address.to_canonical()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Name(name) => f.write_str(name),
            Kind::Address(address) => write!(f, "{address}"),
        }
    }
}

/// Reads an address, with or without the brackets of a URL; an IPv4 address written inside IPv6 is
/// that IPv4 address, so the two spellings can't be told apart by a rule.
pub(super) fn parse_ip(text: &str) -> Option<IpAddr> {
    let bare = text
        .strip_prefix('[')
        .and_then(|t| t.strip_suffix(']'))
        .unwrap_or(text);
    bare.parse::<IpAddr>()
        .ok()
        .map(|address| address.to_canonical())
}

/// Whether resolvers would read the name as an address: its last label is a number in any base.
pub(super) fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let hexadecimal = last.starts_with("0x") || last.starts_with("0X");
    hexadecimal || (!last.is_empty() && last.bytes().all(|b| b.is_ascii_digit()))
}

/// The old spellings of IPv4 that C libraries and browsers still read: fewer parts, octal, hexadecimal.
fn parse_numbers(name: &str) -> Option<Ipv4Addr> {
    let mut parts = [0_u32; 4];
    let mut count = 0;
    for part in name.split('.') {
        *parts.get_mut(count)? = parse_number(part)?;
        count += 1;
    }
    let (last, front) = parts.get(..count)?.split_last()?;
    if front.iter().any(|part| *part > 255) {
        return None;
    }
    let room = 32 - 8 * u32::try_from(front.len()).ok()?;
    if u64::from(*last) >= 1_u64 << room {
        return None;
    }
    let high = front
        .iter()
        .enumerate()
        .map(|(at, part)| part << (24 - 8 * at));
    Some(Ipv4Addr::from_bits(high.sum::<u32>() + last))
}

fn parse_number(part: &str) -> Option<u32> {
    let (digits, base) = if let Some(hex) = part.strip_prefix("0x").or(part.strip_prefix("0X")) {
        (hex, 16)
    } else if part.len() > 1 && part.starts_with('0') {
        (&part[1..], 8)
    } else {
        (part, 10)
    };
    // `from_str_radix` takes a sign; addresses have none.
    if part.is_empty() || digits.starts_with(['+', '-']) {
        return None;
    }
    if digits.is_empty() {
        return Some(0);
    }
    u32::from_str_radix(digits, base).ok()
}

pub(super) fn is_label(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && label
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_has_one_spelling() {
        let check = |text: &str, expect: Result<&str, InvalidHost>| {
            let parsed = Host::parse(text).map(|host| host.to_string());
            assert_eq!(parsed, expect.map(str::to_owned), "{text}");
        };
        check("Example.COM.", Ok("example.com"));
        check("xn--bcher-kva.example", Ok("xn--bcher-kva.example"));
        check("_dmarc.example.com", Ok("_dmarc.example.com"));
        check("127.0.0.1", Ok("127.0.0.1"));
        check("127.0.0.1.", Ok("127.0.0.1"));
        check("127.1", Ok("127.0.0.1"));
        check("2130706433", Ok("127.0.0.1"));
        check("0x7f000001", Ok("127.0.0.1"));
        check("0x7f.0.0.0x1", Ok("127.0.0.1"));
        check("0177.0.0.01", Ok("127.0.0.1"));
        check("10.1.258", Ok("10.1.1.2"));
        check("::ffff:10.0.0.1", Ok("10.0.0.1"));
        check("[::FFFF:a00:1]", Ok("10.0.0.1"));
        check("[2001:DB8::1]", Ok("2001:db8::1"));
        check("", Err(InvalidHost::Empty));
        check(".", Err(InvalidHost::Label));
        check("a..b", Err(InvalidHost::Label));
        check("a.com\0.b.com", Err(InvalidHost::Label));
        check("a com", Err(InvalidHost::Label));
        check("a.com:80", Err(InvalidHost::Label));
        check("[a.com]", Err(InvalidHost::Label));
        check("good.com@evil.com", Err(InvalidHost::UserInfo));
        check("fe80::1%eth0", Err(InvalidHost::Zone));
        check("bücher.example", Err(InvalidHost::NotAscii));
        check("256.0.0.1", Err(InvalidHost::Numeric));
        check("1.2.3.4.5", Err(InvalidHost::Numeric));
        check("example.123", Err(InvalidHost::Numeric));
        check("4294967296", Err(InvalidHost::Numeric));
        check("0x+1", Err(InvalidHost::Numeric));
        check("09.0.0.1", Err(InvalidHost::Numeric));
        check(&"a.".repeat(140), Err(InvalidHost::TooLong));
        check(&format!("{}.com", "a".repeat(64)), Err(InvalidHost::Label));
    }
}
