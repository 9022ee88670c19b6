//! What an engine is started with.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use belljar_policy::CompiledRules;

use crate::dial::UpstreamProxy;
use crate::dns::{Resolve, SystemResolver};
use crate::inspect::{Authority, HeaderSecret, Roots};
use crate::llm::LlmPolicy;

/// Everything an engine goes by.
pub struct Config {
    /// Where the agent may connect.
    pub rules: CompiledRules,
    /// What the engine may use.
    pub limits: EngineLimits,
    /// How long the engine waits.
    pub timeouts: Timeouts,
    /// How names are resolved on the host.
    pub resolver: Arc<dyn Resolve>,
    /// The proxy of the host's network, where there is one.
    pub upstream_proxy: Option<UpstreamProxy>,
    /// What to do with a TLS greeting that may hide another name.
    pub encrypted_hello: EncryptedHello,
    /// Ports that take one protocol only.
    pub ports: ProtocolPorts,
    /// The addresses that stand for names inside the box.
    pub name_block: NameBlock,
    /// The box's own certificate authority. Without it, hosts that need looking at are refused.
    pub authority: Option<Arc<Authority>>,
    /// Whom to trust when looking at TLS.
    pub roots: Roots,
    /// Secrets that are put in on the way out.
    pub secrets: Vec<HeaderSecret>,
    /// What calls to models may cost.
    pub llm: Option<LlmPolicy>,
}

impl Config {
    /// A configuration with these rules and nothing else out of the ordinary.
    #[must_use]
    pub fn new(rules: CompiledRules) -> Self {
        Self {
            rules,
            limits: EngineLimits::default(),
            timeouts: Timeouts::default(),
            resolver: Arc::new(SystemResolver::default()),
            upstream_proxy: None,
            encrypted_hello: EncryptedHello::Refuse,
            ports: ProtocolPorts::default(),
            name_block: NameBlock::default(),
            authority: None,
            roots: Roots::Host,
            secrets: Vec::new(),
            llm: None,
        }
    }
}

/// What an engine may use.
#[derive(Clone, Copy, Debug)]
pub struct EngineLimits {
    /// Connections from the box at once.
    pub connections: u32,
    /// Names that may be looked up in the whole run.
    pub names: u32,
    /// Connections from the host to published ports at once. Apart from the box's own, so that neither side can
    /// use up the other's.
    pub published: u32,
}

impl Default for EngineLimits {
    fn default() -> Self {
        Self {
            connections: 2_000,
            names: 16_384,
            published: 512,
        }
    }
}

/// How long an engine waits.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the first bytes of a client that has to speak first.
    pub greeting: Duration,
    /// For the next request on a connection, and for the whole of its head.
    pub request: Duration,
    /// For the host's resolver.
    pub resolve: Duration,
    /// For each address to answer.
    pub connect: Duration,
    /// For the answer to a request to begin.
    pub response: Duration,
    /// For anything to move on a connection.
    pub idle: Duration,
    /// For anything to move once one side has ended.
    pub half_closed: Duration,
    /// For the rest of a model's answer that the agent did not wait for: what it used is told at its end.
    pub rest: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            greeting: Duration::from_secs(30),
            request: Duration::from_secs(75),
            resolve: Duration::from_secs(10),
            connect: Duration::from_secs(10),
            response: Duration::from_secs(15 * 60),
            idle: Duration::from_secs(15 * 60),
            half_closed: Duration::from_secs(60),
            rest: Duration::from_secs(120),
        }
    }
}

/// What to do with a TLS greeting that may hide another name (ECH) on a connection that is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncryptedHello {
    /// Close: a host that serves many names could be asked for any of them.
    Refuse,
    /// Pass it on. Some browsers always send one, with nothing in it.
    Accept,
}

/// Ports that take one protocol only; on others anything may be spoken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolPorts {
    /// TLS, and nothing else.
    pub tls: Vec<u16>,
    /// HTTP without TLS, or TLS.
    pub http: Vec<u16>,
}

impl Default for ProtocolPorts {
    fn default() -> Self {
        Self {
            tls: belljar_policy::TLS_PORTS.to_vec(),
            http: vec![80],
        }
    }
}

/// The IPv4 addresses that stand for names inside the box: a block of 2^17.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameBlock(Ipv4Addr);

impl NameBlock {
    /// The block that holds this address.
    #[must_use]
    pub fn around(address: Ipv4Addr) -> Self {
        Self(Ipv4Addr::from_bits(address.to_bits() & !(Self::ROOM - 1)))
    }

    pub(crate) const ROOM: u32 = 1 << 17;

    pub(crate) fn base(self) -> u32 {
        self.0.to_bits()
    }
}

/// 198.18.0.0/15 is for benchmarks: no host on the open network is there.
impl Default for NameBlock {
    fn default() -> Self {
        Self(Ipv4Addr::new(198, 18, 0, 0))
    }
}

/// The sockets through which a box reaches its engine, made inside the box's network namespace, and those through which
/// the host reaches servers in the box.
#[derive(Default)]
pub struct Ways {
    /// Where plain connections arrive.
    pub transparent: Vec<Transparent>,
    /// Name lookups over UDP.
    pub dns_udp: Vec<UdpSocket>,
    /// Name lookups over TCP.
    pub dns_tcp: Vec<TcpListener>,
    /// The HTTP and SOCKS5 proxy.
    pub proxy: Vec<TcpListener>,
    /// Tells of packets that are not TCP and were refused: a netfilter log of the box's namespace.
    pub strays: Vec<OwnedFd>,
    /// Ports of the box that the host can connect to.
    pub published: Vec<Published>,
    /// Makes the sockets that published ports are reached through. Needed when a port is published.
    pub box_sockets: Option<Arc<dyn BoxSockets>>,
}

impl fmt::Debug for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ways")
            .field("transparent", &self.transparent)
            .field("dns_udp", &self.dns_udp)
            .field("dns_tcp", &self.dns_tcp)
            .field("proxy", &self.proxy)
            .field("strays", &self.strays)
            .field("published", &self.published)
            .finish_non_exhaustive()
    }
}

/// A port of the box that the host can connect to.
#[derive(Debug)]
pub struct Published {
    /// Where the host's connections arrive. It is made on the host, on whatever address the port is published.
    pub listener: TcpListener,
    /// The port in the box, on its own 127.0.0.1.
    pub port: u16,
}

/// Makes sockets inside the box's network namespace, where the engine itself is not.
pub trait BoxSockets: Send + Sync {
    /// An IPv4 TCP socket, not connected. It may block for a moment: it is called on a thread where that does no harm.
    ///
    /// # Errors
    /// When the box can't make one, because it is over or has no descriptors left.
    fn tcp_socket(&self) -> io::Result<OwnedFd>;
}

/// A listener for connections that were meant for someone else.
#[derive(Debug)]
pub struct Transparent {
    /// The listener.
    pub listener: TcpListener,
    /// How they came here, and so how to tell where they wanted to go.
    pub arrival: Arrival,
}

/// How connections come to a listener that they were not made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A packet filter redirected them; it knows the destination (`SO_ORIGINAL_DST`).
    Redirected,
    /// Every address is local; the socket's own address is the destination.
    AnyAddress,
}
