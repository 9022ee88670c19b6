//! Netlink messages for a box's own network namespace, made beforehand as plain bytes: the routes that lead every address
//! to the box itself, and one table that decides what becomes of a packet there.
//!
//! ```text
//! table inet belljar { chain door { type filter hook prerouting priority mangle; policy drop;
//!     ip daddr 127.0.0.1 tcp dport P tproxy to :ARRIVALS accept      # for each port of the host's own that is open
//!     ip daddr 127.0.0.0/8 accept                                    # the box's own loopback
//!     ip6 daddr ::1 accept
//!     meta l4proto tcp tproxy to :ARRIVALS accept                    # everything else over TCP
//!     limit rate 64/second log group STRAYS                          # what is left is told, not carried
//!     reject with icmpx port-unreachable
//! } }
//! ```
//!
//! `tproxy` leaves addresses alone, so that the accepted socket's own address is where the program wanted to go, and nothing
//! is tracked or rewritten. Numbers are those of linux/netfilter/nf_tables.h, nfnetlink.h and rtnetlink.h.

/// Where connections arrive, in the box's namespace. Below 1024, so that no program of the agent's can be in the way.
pub(super) const ARRIVALS: u16 = 1;
/// The log group that tells of packets nobody carries.
const STRAYS: u16 = 1;

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const EXCL: u16 = 0x200;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;

/// `inet`: both families in one table.
const INET: u8 = 1;
const UNSPEC: u8 = 0;

/// Messages in the order they are sent.
#[derive(Default)]
struct Messages(Vec<u8>);

impl Messages {
    /// Adds a message; `fill` writes what follows its header.
    fn add(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.0.extend([0; 4]);
        self.0.extend(kind.to_ne_bytes());
        self.0.extend((REQUEST | flags).to_ne_bytes());
        self.0.extend([0; 8]);
        fill(self);
        self.close(start, 4);
        self.pad();
    }

    /// Writes the length of what began at `start` there, as the header of messages (4 bytes) or attributes (2) has it.
    fn close(&mut self, start: usize, width: usize) {
        let length = (self.0.len() - start) as u32;
        let bytes = length.to_ne_bytes();
        // On a big-endian machine the low half is at the end.
        let short = (length as u16).to_ne_bytes();
        match width {
            4 => self.0[start..start + 4].copy_from_slice(&bytes),
            _ => self.0[start..start + 2].copy_from_slice(&short),
        }
    }

    fn pad(&mut self) {
        while !self.0.len().is_multiple_of(4) {
            self.0.push(0);
        }
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.close(start, 2);
        self.pad();
    }

    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        const NESTED: u16 = 1 << 15;
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend((kind | NESTED).to_ne_bytes());
        fill(self);
        self.close(start, 2);
    }

    fn number(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    fn text(&mut self, kind: u16, value: &str) {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes);
    }

    /// What every netfilter message begins with.
    fn netfilter(&mut self, family: u8, resource: u16) {
        self.0.extend([family, 0]);
        self.0.extend(resource.to_be_bytes());
    }
}

/// The routes of one family: all that is not the box's own is, for the kernel, on the box itself.
pub(super) fn local_route(v6: bool) -> Vec<u8> {
    const NEW_ROUTE: u16 = 24;
    const LOCAL_TABLE: u8 = 255;
    const STATIC: u8 = 4;
    const HOST_SCOPE: u8 = 254;
    const LOCAL: u8 = 2;
    const LOOPBACK_INDEX: u32 = 1;
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET } as u8;
    let mut messages = Messages::default();
    messages.add(NEW_ROUTE, CREATE | EXCL | ACK, |m| {
        m.0.extend([family, 0, 0, 0, LOCAL_TABLE, STATIC, HOST_SCOPE, LOCAL]);
        m.0.extend([0; 4]);
        m.attribute(4, &LOOPBACK_INDEX.to_ne_bytes());
        // Programs then see the loopback as their own address, on every connection.
        match v6 {
            false => m.attribute(7, &std::net::Ipv4Addr::LOCALHOST.octets()),
            true => m.attribute(7, &std::net::Ipv6Addr::LOCALHOST.octets()),
        }
    });
    messages.0
}

/// The subscription to what is refused without ever reaching a socket.
pub(super) fn follow_strays() -> Vec<u8> {
    const CONFIG: u16 = 4 << 8 | 1;
    /// Enough for both headers.
    const COPIED: u32 = 64;
    let mut messages = Messages::default();
    messages.add(CONFIG, ACK, |m| {
        m.netfilter(UNSPEC, STRAYS);
        // Bind; copy packets; tell each at once.
        m.attribute(1, &[1]);
        let mut mode = COPIED.to_be_bytes().to_vec();
        mode.extend([2, 0]);
        m.attribute(2, &mode);
        m.number(5, 1);
    });
    messages.0
}

/// The table, as one transaction. `host_ports`: ports of the host's own loopback that are led out as well.
pub(super) fn table(host_ports: &[u16]) -> Vec<u8> {
    const SUBSYSTEM: u16 = 10;
    const BEGIN: u16 = 0x10;
    const END: u16 = 0x11;
    const NEW_TABLE: u16 = SUBSYSTEM << 8;
    const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
    const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
    const TABLE: &str = "belljar";
    const CHAIN: &str = "door";
    const PREROUTING: u32 = 0;
    const MANGLE: i32 = -150;
    const DROP: u32 = 0;
    let mut messages = Messages::default();
    let batch = |messages: &mut Messages, kind| {
        messages.add(kind, 0, |m| m.netfilter(UNSPEC, SUBSYSTEM));
    };
    batch(&mut messages, BEGIN);
    messages.add(NEW_TABLE, CREATE, |m| {
        m.netfilter(INET, 0);
        m.text(1, TABLE);
    });
    messages.add(NEW_CHAIN, CREATE, |m| {
        m.netfilter(INET, 0);
        m.text(1, TABLE);
        m.text(3, CHAIN);
        m.nested(4, |m| {
            m.number(1, PREROUTING);
            m.attribute(2, &MANGLE.to_be_bytes());
        });
        m.number(5, DROP);
        m.text(7, "filter");
    });
    let rules = rules(host_ports);
    let last = rules.len() - 1;
    for (number, rule) in rules.iter().enumerate() {
        // The kernel answers once, after all is in place; an error it tells unasked.
        let flags = if number == last { ACK } else { 0 };
        messages.add(NEW_RULE, CREATE | APPEND | flags, |m| {
            m.netfilter(INET, 0);
            m.text(1, TABLE);
            m.text(2, CHAIN);
            m.nested(4, |m| {
                rule.iter().for_each(|expression| expression.write(m))
            });
        });
    }
    batch(&mut messages, END);
    messages.0
}

const TCP: u8 = libc::IPPROTO_TCP as u8;

fn rules(host_ports: &[u16]) -> Vec<Vec<Expression>> {
    use Expression as E;
    let to_loopback = |v6: bool| match v6 {
        false => vec![
            E::Family,
            E::Is(vec![libc::NFPROTO_IPV4 as u8]),
            // The first byte of the destination.
            E::Header { at: 16, length: 1 },
            E::Is(vec![127]),
        ],
        true => vec![
            E::Family,
            E::Is(vec![libc::NFPROTO_IPV6 as u8]),
            E::Header { at: 24, length: 16 },
            E::Is(std::net::Ipv6Addr::LOCALHOST.octets().to_vec()),
        ],
    };
    let led_out = [
        E::Protocol,
        E::Is(vec![TCP]),
        E::Port(ARRIVALS),
        E::Lead,
        E::Accept,
    ];
    let mut rules = Vec::new();
    for port in host_ports {
        for v6 in [false, true] {
            let mut rule = to_loopback(v6);
            rule.extend([E::Protocol, E::Is(vec![TCP])]);
            rule.extend([E::DestinationPort, E::Is(port.to_be_bytes().to_vec())]);
            rule.extend(led_out.iter().cloned());
            rules.push(rule);
        }
    }
    for v6 in [false, true] {
        let mut rule = to_loopback(v6);
        rule.push(E::Accept);
        rules.push(rule);
    }
    rules.push(led_out.to_vec());
    rules.push(vec![E::SixtyFourASecond, E::Tell]);
    rules.push(vec![E::Reject]);
    rules
}

/// One step of a rule. All work on one register.
#[derive(Clone)]
enum Expression {
    /// Loads the packet's family.
    Family,
    /// Loads its protocol.
    Protocol,
    /// Loads bytes of its network header.
    Header {
        at: u32,
        length: u32,
    },
    /// Loads its destination port.
    DestinationPort,
    /// Goes on if what is loaded is this.
    Is(Vec<u8>),
    /// Loads a port to lead to.
    Port(u16),
    /// Leads the packet to the listener on the loaded port.
    Lead,
    Accept,
    /// Goes on, but not too often.
    SixtyFourASecond,
    /// Tells whoever follows the log group.
    Tell,
    /// Has the sender told that nobody is there.
    Reject,
}

impl Expression {
    fn write(&self, m: &mut Messages) {
        const REGISTER: u32 = 1;
        let mut expression = |name: &str, fill: &dyn Fn(&mut Messages)| {
            m.nested(1, |m| {
                m.text(1, name);
                m.nested(2, |m| fill(m));
            });
        };
        let meta = |key: u32| {
            move |m: &mut Messages| {
                m.number(1, REGISTER);
                m.number(2, key);
            }
        };
        let payload = |base: u32, at: u32, length: u32| {
            move |m: &mut Messages| {
                m.number(1, REGISTER);
                m.number(2, base);
                m.number(3, at);
                m.number(4, length);
            }
        };
        match self {
            Self::Family => expression("meta", &meta(15)),
            Self::Protocol => expression("meta", &meta(16)),
            Self::Header { at, length } => expression("payload", &payload(1, *at, *length)),
            Self::DestinationPort => expression("payload", &payload(2, 2, 2)),
            Self::Is(bytes) => expression("cmp", &|m| {
                m.number(1, REGISTER);
                m.number(2, 0);
                m.nested(3, |m| m.attribute(1, bytes));
            }),
            Self::Port(port) => expression("immediate", &|m| {
                m.number(1, REGISTER);
                m.nested(2, |m| m.attribute(1, &port.to_be_bytes()));
            }),
            Self::Lead => expression("tproxy", &|m| {
                m.number(1, u32::from(UNSPEC));
                m.number(3, REGISTER);
            }),
            Self::Accept => expression("immediate", &|m| {
                const VERDICT_REGISTER: u32 = 0;
                const ACCEPT: u32 = 1;
                m.number(1, VERDICT_REGISTER);
                m.nested(2, |m| m.nested(2, |m| m.number(1, ACCEPT)));
            }),
            Self::SixtyFourASecond => expression("limit", &|m| {
                m.attribute(1, &64u64.to_be_bytes());
                m.attribute(2, &1u64.to_be_bytes());
                m.number(3, 64);
                m.number(4, 0);
            }),
            Self::Tell => expression("log", &|m| {
                m.attribute(1, &STRAYS.to_be_bytes());
            }),
            Self::Reject => expression("reject", &|m| {
                const WHICHEVER_FAMILY: u32 = 2;
                const PORT_UNREACHABLE: u8 = 1;
                m.number(1, WHICHEVER_FAMILY);
                m.attribute(2, &[PORT_UNREACHABLE]);
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length leads exactly to the next message, and the last to the end.
    #[test]
    fn messages_follow_one_another_without_gaps() {
        for bytes in [
            local_route(false),
            local_route(true),
            follow_strays(),
            table(&[]),
            table(&[5432, 80]),
        ] {
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let length = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
                assert!(length >= 16 && length <= rest.len());
                rest = &rest[length.next_multiple_of(4)..];
            }
        }
    }
}
