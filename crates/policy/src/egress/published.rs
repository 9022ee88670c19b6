//! Ports of the box that the host can connect to.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::Serialize;

/// A server inside the box that is reached from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PublishedPort {
    /// The port inside the box.
    #[serde(rename = "box")]
    pub in_box: u16,
    /// The port on the host; 0 is any free one.
    #[serde(rename = "host")]
    pub on_host: u16,
    /// The host's address to listen on.
    pub address: IpAddr,
}

impl PublishedPort {
    /// The address when a file names none: nobody but the host itself.
    pub const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// The port of the box under the same number on the host, for the host itself.
    #[must_use]
    pub fn same(port: u16) -> Self {
        Self {
            in_box: port,
            on_host: port,
            address: Self::LOOPBACK,
        }
    }

    /// Whether both can't be there at once, or one says nothing the other does not.
    #[must_use]
    pub fn collides_with(&self, other: &Self) -> bool {
        let same_address = self.takes(other.address) || other.takes(self.address);
        let same_port = self.on_host == other.on_host;
        match self.on_host {
            0 => same_port && self.in_box == other.in_box && same_address,
            _ => same_port && same_address,
        }
    }

    /// Whether whoever listens here has that address too.
    fn takes(&self, address: IpAddr) -> bool {
        self.address == address
            || (self.address.is_unspecified() && self.address.is_ipv4() == address.is_ipv4())
    }

    pub(crate) fn covers(&self, other: &Self) -> bool {
        let Self {
            in_box,
            on_host,
            address,
        } = other;
        self.in_box == *in_box && self.on_host == *on_host && self.takes(*address)
    }

    /// What both publish; `None` when that is nothing.
    pub(crate) fn meet(&self, other: &Self) -> Option<Self> {
        if self.covers(other) {
            Some(*other)
        } else if other.covers(self) {
            Some(*self)
        } else {
            None
        }
    }
}

impl fmt::Display for PublishedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {} of the box at ", self.in_box)?;
        match self.on_host {
            0 => write!(f, "a free port of {}", self.address),
            port => SocketAddr::new(self.address, port).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_collide_where_the_host_has_only_one() {
        let port = |in_box, on_host, address: &str| PublishedPort {
            in_box,
            on_host,
            address: address.parse().unwrap(),
        };
        let check = |a: PublishedPort, b: PublishedPort, expect| {
            assert_eq!(a.collides_with(&b), expect, "{a}; {b}");
            assert_eq!(b.collides_with(&a), expect, "{b}; {a}");
        };
        let web = PublishedPort::same(8080);
        check(web, port(9, 8080, "127.0.0.1"), true);
        check(web, port(9, 8080, "0.0.0.0"), true);
        check(web, port(9, 8080, "127.0.0.2"), false);
        check(web, port(8080, 8080, "::1"), false);
        check(web, port(8080, 9090, "127.0.0.1"), false);
        check(web, port(8080, 0, "127.0.0.1"), false);
        check(port(1, 0, "::1"), port(1, 0, "::1"), true);
        check(port(1, 0, "::1"), port(2, 0, "::1"), false);
    }
}
