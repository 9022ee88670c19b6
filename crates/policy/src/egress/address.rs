//! Which addresses are part of the open network, and which are somebody's own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::DomainPattern;

/// What kind of address a name came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AddressClass {
    /// On the open network.
    Public,
    /// In somebody's own network: private, shared (CGNAT) or unique local.
    Private,
    /// The host itself.
    Loopback,
    /// Link-local and cloud metadata: they hand out credentials to whoever asks.
    Metadata,
    /// No host to connect to: unspecified, multicast, broadcast, reserved, documentation, benchmark.
    Never,
}

/// Metadata services outside the link-local ranges.
const METADATA_V4: [Ipv4Addr; 2] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
];
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

/// Names that hand out credentials as those addresses do.
const METADATA_NAMES: &[&str] = &[
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "metadata.azure.internal",
    "metadata.tencentyun.com",
    "metadata.platformequinix.com",
    "metadata.packet.net",
    "instance-data",
    "instance-data.ec2.internal",
];

/// What is said in place of the line that would let a metadata service through.
pub const METADATA_HINT: &str = "a metadata service hands out the host's credentials to whoever asks: nothing an agent needs is there";

/// Whether a host, as it was asked for, is a metadata service: by its address, however that is written, or by its name.
#[must_use]
pub fn names_metadata(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse::<IpAddr>() {
        return AddressClass::of(address) == AddressClass::Metadata;
    }
    // A name that wraps an address, as wildcard name services have them, leads there too.
    let wraps = bare.split('.').collect::<Vec<_>>().windows(4).any(|four| {
        let address = four.join(".").parse::<Ipv4Addr>();
        address.is_ok_and(|v4| AddressClass::of_v4(v4) == AddressClass::Metadata)
    });
    // 0xa9fea9fe and 2852039166 are what some programs make addresses of.
    let number = match bare.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => bare.parse::<u32>().ok(),
    };
    let is_number = number.is_some_and(|bits| {
        AddressClass::of_v4(Ipv4Addr::from_bits(bits)) == AddressClass::Metadata
    });
    wraps || is_number || METADATA_NAMES.contains(&bare)
}

impl AddressClass {
    /// The class of an address. One that carries an IPv4 address inside (mapped, compatible, 6to4, NAT64,
    /// Teredo) leads there, so it is of that address's class when that is the stricter.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::of_v4(v4),
            IpAddr::V6(v6) => Self::of_v6(v6),
        }
    }

    fn of_v4(v4: Ipv4Addr) -> Self {
        let [a, b, c, _] = v4.octets();
        match (a, b, c) {
            _ if METADATA_V4.contains(&v4) => Self::Metadata,
            (0 | 240..=255, ..) => Self::Never,
            (127, ..) => Self::Loopback,
            (169, 254, _) => Self::Metadata,
            (10, ..) | (172, 16..=31, _) | (192, 168, _) | (100, 64..=127, _) => Self::Private,
            (192, 0, 0 | 2)
            | (192, 88, 99)
            | (198, 18..=19, _)
            | (198, 51, 100)
            | (203, 0, 113) => Self::Never,
            (224..=239, ..) => Self::Never,
            _ => Self::Public,
        }
    }

    fn of_v6(v6: Ipv6Addr) -> Self {
        if v6 == METADATA_V6 {
            return Self::Metadata;
        }
        if v6.is_loopback() {
            return Self::Loopback;
        }
        if v6.is_unspecified() {
            return Self::Never;
        }
        let embedded = |bits: u32| Self::of_v4(Ipv4Addr::from_bits(bits));
        let low = v6.to_bits() as u32;
        let s = v6.segments();
        let pair = |a: u16, b: u16| (u32::from(a) << 16) | u32::from(b);
        match s {
            // Mapped, compatible and translated: the low half is the address.
            [0, 0, 0, 0, 0, 0xffff, ..] => embedded(low),
            [0, 0, 0, 0, 0xffff, 0, ..] | [0, 0, 0, 0, 0, 0, ..] => {
                embedded(low).max(Self::Private)
            }
            [0x64, 0xff9b, 0, 0, 0, 0, ..] => embedded(low),
            [0x64, 0xff9b, 1, ..] => Self::Private.max(embedded(low)),
            [0x2002, a, b, ..] => embedded(pair(a, b)),
            // Teredo hides the client's address inverted and names its server in the clear.
            [0x2001, 0, a, b, ..] => embedded(!low).max(embedded(pair(a, b))),
            [0xfe80..=0xfebf, ..] => Self::Metadata,
            [0xfec0..=0xfeff, ..] | [0xfc00..=0xfdff, ..] => Self::Private,
            [0x2001, 0x0db8, ..] | [0x2001, 0..=0x01ff, ..] | [0x3fff, 0..=0x0fff, ..] => {
                Self::Never
            }
            [0x2000..=0x3fff, ..] => Self::Public,
            _ => Self::Never,
        }
    }
}

/// At which addresses a host may be for a rule to connect to it. Ordered from less to more.
///
/// A rule gets it from what it names (see [`Reach::of`]), so that no rule about a public name opens the host
/// itself, whatever that name comes to.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// On the open network.
    #[default]
    Public,
    /// In a private network too (`allow_private: true`).
    Private,
    /// On the host itself too: the rule names it, and the ports.
    Host,
    /// At a metadata service too: the rule names that address and says `allow_private`.
    Metadata,
}

/// What a rule says about addresses that are not public.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivateAddresses {
    /// Nothing: make no connection.
    Refuse,
    /// `allow_private: true`.
    Accept,
}

impl Reach {
    /// How far a rule reaches that is about these hosts and ports.
    #[must_use]
    pub fn of(domain: &DomainPattern, ports: &[u16], private: PrivateAddresses) -> Self {
        let names_host = domain.is_loopback()
            || matches!(domain, DomainPattern::Exact(name) if name == "localhost");
        let names_metadata = matches!(domain, DomainPattern::Ip(address)
            if AddressClass::of(*address) == AddressClass::Metadata);
        match private {
            _ if names_host && !ports.is_empty() => Self::Host,
            PrivateAddresses::Refuse => Self::Public,
            PrivateAddresses::Accept if names_metadata => Self::Metadata,
            PrivateAddresses::Accept => Self::Private,
        }
    }

    /// Whether a connection may be made to `address`, to which a host came.
    #[must_use]
    pub fn includes(self, address: IpAddr) -> bool {
        match AddressClass::of(address) {
            AddressClass::Public => true,
            AddressClass::Private => self >= Self::Private,
            AddressClass::Loopback => self >= Self::Host,
            AddressClass::Metadata => self == Self::Metadata,
            AddressClass::Never => false,
        }
    }

    pub(super) fn is_public(&self) -> bool {
        *self == Self::Public
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_services_are_known_by_address_and_by_name() {
        for host in [
            "169.254.169.254",
            "169.254.170.2",
            "[fe80::1]",
            "fd00:ec2::254",
            "::ffff:169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "Metadata.Google.Internal.",
            "metadata",
            "instance-data",
            "169.254.169.254.nip.io",
            "a.169.254.169.254.example",
            "2852039166",
            "0xa9fea9fe",
        ] {
            assert!(names_metadata(host), "{host}");
        }
        for host in [
            "",
            "10.0.0.1",
            "metadata.example.com",
            "a.com",
            "fd00::1",
            "1.2.3.4.nip.io",
            "80",
        ] {
            assert!(!names_metadata(host), "{host}");
        }
    }

    #[test]
    fn only_the_open_network_is_public() {
        let check = |text: &str, expect| {
            assert_eq!(AddressClass::of(text.parse().unwrap()), expect, "{text}");
        };
        for public in [
            "8.8.8.8",
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1",
            "64:ff9b::808:808",
        ] {
            check(public, AddressClass::Public);
        }
        for private in [
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "fd00::1",
        ] {
            check(private, AddressClass::Private);
        }
        for inside in [
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "2002:a00:1::1",
            "64:ff9b:1::8.8.8.8",
            "::8.8.8.8",
        ] {
            check(inside, AddressClass::Private);
        }
        for own in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "::ffff:127.0.0.1",
            "2002:7f00:1::",
        ] {
            check(own, AddressClass::Loopback);
        }
        for metadata in [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "fe80::1",
            "fd00:ec2::254",
            "100.100.100.200",
            "168.63.129.16",
        ] {
            check(metadata, AddressClass::Metadata);
        }
        for never in [
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "198.18.0.1",
            "192.0.2.1",
            "::",
            "ff02::1",
            "2001:db8::1",
            "100::1",
            "4000::1",
        ] {
            check(never, AddressClass::Never);
        }
    }

    #[test]
    fn addresses_of_ones_own_need_a_rule_that_names_them() {
        use PrivateAddresses::{Accept, Refuse};
        let check = |domain: &str, ports: &[u16], private, address: &str, expect| {
            let reach = Reach::of(&DomainPattern::parse(domain).unwrap(), ports, private);
            let includes = reach.includes(address.parse().unwrap());
            assert_eq!(includes, expect, "{domain} {ports:?} {private:?} {address}");
        };
        check("a.com", &[], Refuse, "8.8.8.8", true);
        check("a.com", &[], Refuse, "10.0.0.1", false);
        check("a.com", &[], Accept, "10.0.0.1", true);
        check("0.0.0.0/0", &[], Refuse, "10.0.0.1", false);
        check("a.com", &[80], Accept, "127.0.0.1", false);
        check("0.0.0.0/0", &[80], Accept, "127.0.0.1", false);
        check("localhost", &[], Accept, "127.0.0.1", false);
        check("localhost", &[80], Refuse, "127.0.0.1", true);
        check("127.0.0.1", &[80], Refuse, "127.0.0.1", true);
        check("::1", &[80], Refuse, "::1", true);
        check("a.com", &[80], Accept, "169.254.169.254", false);
        check("169.254.0.0/16", &[80], Accept, "169.254.169.254", false);
        check("169.254.169.254", &[80], Refuse, "169.254.169.254", false);
        check(
            "169.254.169.254",
            &[80],
            Accept,
            "::ffff:169.254.169.254",
            true,
        );
        check("a.com", &[80], Accept, "0.0.0.0", false);
    }
}
