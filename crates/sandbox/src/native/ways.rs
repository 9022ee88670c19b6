//! The sockets through which a box reaches whoever answers for its network: made by init inside the box's network
//! namespace, used by the keeper outside of it. A socket stays in the namespace it was made in.

use super::message::{Kind, Message};
use super::netlink;
use crate::plan::Network;
use crate::sys;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, ipproto, netlink as protocol,
};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Where a proxy answers inside a box whose network is guarded.
pub const PROXY_PORT: u16 = 3128;
/// Where names are looked up.
const DNS_PORT: u16 = 53;

/// What init is to do about the network, every message made beforehand.
#[derive(Clone, Copy)]
pub(crate) struct Wiring<B = Vec<u8>> {
    routes: [B; 2],
    table: B,
    strays: B,
}

impl Wiring {
    pub(crate) fn of(network: &Network) -> Option<Self> {
        match network {
            Network::Closed => None,
            Network::Guarded { host_ports } => Some(Self {
                routes: [netlink::local_route(false), netlink::local_route(true)],
                table: netlink::table(host_ports),
                strays: netlink::follow_strays(),
            }),
        }
    }

    /// The same, for init to read in its copy of our memory.
    pub(crate) fn borrowed(&self) -> Wiring<&[u8]> {
        let [first, second] = &self.routes;
        Wiring {
            routes: [first, second],
            table: &self.table,
            strays: &self.strays,
        }
    }
}

/// The sockets of a guarded box. While nobody accepts, what the box sends waits; when they are closed, it fails.
#[derive(Debug)]
pub struct Ways {
    /// TCP connections to anywhere; each socket's own address is where the program wanted to go. One for each family.
    pub arrivals: Vec<OwnedFd>,
    /// TCP connections to the proxy.
    pub proxy: OwnedFd,
    /// Name lookups.
    pub dns_udp: OwnedFd,
    /// Name lookups over TCP.
    pub dns_tcp: OwnedFd,
    /// Netlink messages about packets that were refused: UDP, and whatever else is not TCP.
    pub strays: OwnedFd,
}

/// How many descriptors go in one message.
const MOST: usize = 8;

/// Wires the box's namespace and hands its sockets to the keeper. Runs in init: allocates nothing.
pub(super) fn open(wiring: Wiring<&[u8]>, control: BorrowedFd<'_>) -> Result<(), Errno> {
    let wired = wire(wiring)?;
    let five = [
        &wired.proxy,
        &wired.dns_udp,
        &wired.dns_tcp,
        &wired.strays,
        &wired.arrivals,
    ]
    .map(AsFd::as_fd);
    let [a, b, c, d, e] = five;
    match &wired.arrivals_v6 {
        Some(v6) => send(control, &[a, b, c, d, e, v6.as_fd()]),
        None => send(control, &five),
    }
}

/// The sockets of a namespace that is wired; as in [`Ways`], but nothing is allocated for them.
pub(crate) struct Wired {
    pub(crate) arrivals: OwnedFd,
    /// Where there is IPv6.
    pub(crate) arrivals_v6: Option<OwnedFd>,
    pub(crate) proxy: OwnedFd,
    pub(crate) dns_udp: OwnedFd,
    pub(crate) dns_tcp: OwnedFd,
    pub(crate) strays: OwnedFd,
}

/// Wires the network namespace that this process is in: everything leads to these sockets.
pub(crate) fn wire(wiring: Wiring<&[u8]>) -> Result<Wired, Errno> {
    let routes = netlink_socket(None)?;
    ask(routes.as_fd(), wiring.routes[0])?;
    // A kernel without IPv6 has none to lead anywhere.
    let has_v6 = ask(routes.as_fd(), wiring.routes[1]).is_ok();
    let strays = netlink_socket(Some(protocol::NETFILTER))?;
    ask(strays.as_fd(), wiring.strays)?;
    // The listeners first: from the table on, every connection finds one.
    let any_v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, netlink::ARRIVALS));
    let arrivals = listen(any_v4, Guise::Anyone)?;
    let arrivals_v6 = match has_v6 {
        true => {
            let any_v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, netlink::ARRIVALS));
            Some(listen(any_v6, Guise::Anyone)?)
        }
        false => None,
    };
    let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let proxy = listen(local(PROXY_PORT), Guise::Itself)?;
    let dns_tcp = listen(local(DNS_PORT), Guise::Itself)?;
    let dns_udp = socket(AddressFamily::INET, SocketType::DGRAM)?;
    rustix::net::bind(&dns_udp, &local(DNS_PORT))?;
    let filter = netlink_socket(Some(protocol::NETFILTER))?;
    ask(filter.as_fd(), wiring.table)?;
    Ok(Wired {
        arrivals,
        arrivals_v6,
        proxy,
        dns_udp,
        dns_tcp,
        strays,
    })
}

/// Listens on a port of the box's loopback and hands the listener to the keeper. Runs in init: allocates nothing.
pub(super) fn answer_at(port: u16, control: BorrowedFd<'_>) -> Result<(), Errno> {
    send_as(Kind::Answered, control, &[listen_at(port)?.as_fd()])
}

/// Listens on a port of the loopback.
pub(crate) fn listen_at(port: u16) -> Result<OwnedFd, Errno> {
    listen(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), Guise::Itself)
}

fn send(control: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    send_as(Kind::Ways, control, fds)
}

fn send_as(kind: Kind, control: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(fds));
    let message = Message::new(kind, fds.len() as i32, 0).encode();
    let parts = [std::io::IoSlice::new(&message)];
    rustix::net::sendmsg(control, &parts, &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}

impl Ways {
    /// From what init sent, in its order.
    pub(super) fn from_descriptors(fds: Vec<OwnedFd>) -> Option<Self> {
        let mut fds = fds.into_iter();
        let ways = Self {
            proxy: fds.next()?,
            dns_udp: fds.next()?,
            dns_tcp: fds.next()?,
            strays: fds.next()?,
            arrivals: fds.collect(),
        };
        (!ways.arrivals.is_empty()).then_some(ways)
    }
}

/// Receives a message and the descriptors that came with it; no message when the other side is gone.
pub(super) fn receive(from: BorrowedFd<'_>) -> (Option<Message>, Vec<OwnedFd>) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0u8; Message::SIZE];
    let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
    let mut take =
        || rustix::net::recvmsg(from, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC);
    let received = match take() {
        // The other side ended before it read all we said; what it said itself comes after this.
        Err(Errno::CONNRESET) => take(),
        other => other,
    };
    let fds = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
        _ => Vec::new(),
    });
    let fds = fds.collect();
    let length = received.map_or(0, |received| received.bytes);
    (bytes.get(..length).and_then(Message::decode), fds)
}

/// Whose connections a listener takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guise {
    /// Those made to it.
    Itself,
    /// Those made to anybody, that the table leads to it.
    Anyone,
}

fn listen(at: SocketAddr, guise: Guise) -> Result<OwnedFd, Errno> {
    const BACKLOG: i32 = 1024;
    let family = match at {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let listener = socket(family, SocketType::STREAM)?;
    if family == AddressFamily::INET6 {
        rustix::net::sockopt::set_ipv6_v6only(&listener, true)?;
    }
    if guise == Guise::Anyone {
        sys::pose_as_anyone(listener.as_fd(), family == AddressFamily::INET6)?;
    }
    rustix::net::bind(&listener, &at)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

fn socket(family: AddressFamily, kind: SocketType) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, kind, flags, None)
}

/// A socket to the kernel; no protocol is that of routes.
fn netlink_socket(protocol: Option<rustix::net::Protocol>) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)
}

/// Sends messages to the kernel, the last of which asks for an answer, and takes the first that comes: an error, or that
/// all is done. (The kernel has answered before `send` returns.)
fn ask(socket: BorrowedFd<'_>, messages: &[u8]) -> Result<(), Errno> {
    const ERROR: u16 = 2;
    rustix::net::send(socket, messages, SendFlags::empty())?;
    // An error comes with a copy of the message it is about.
    let mut answer = [0u8; 4096];
    let (length, _) = rustix::net::recv(socket, &mut answer, RecvFlags::DONTWAIT)?;
    let answer = answer.get(..length.min(answer.len())).ok_or(Errno::IO)?;
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok());
    let code = answer.get(16..20).and_then(|bytes| bytes.try_into().ok());
    match (kind.map(u16::from_ne_bytes), code.map(i32::from_ne_bytes)) {
        (Some(ERROR), Some(0)) => Ok(()),
        (Some(ERROR), Some(code)) => Err(Errno::from_raw_os_error(-code)),
        _ => Err(Errno::IO),
    }
}

/// Tries all of it in a namespace that is gone at once.
pub(crate) fn try_network() -> Result<(), Errno> {
    let network = Network::Guarded {
        host_ports: Vec::new(),
    };
    let Some(wiring) = Wiring::of(&network) else {
        return Ok(());
    };
    let (_ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let wiring = wiring.borrowed();
    match sys::clone_into(sys::BIRTH_NAMESPACES, None)? {
        sys::Fork::Child => {
            let tried = sys::leave_namespaces()
                .and_then(|()| sys::raise_loopback())
                .and_then(|()| open(wiring, theirs.as_fd()));
            sys::exit_now(tried.map_or_else(|errno| errno.raw_os_error().min(255), |()| 0))
        }
        sys::Fork::Parent { pid, .. } => match sys::reap(pid)?.status >> 8 & 0xff {
            0 => Ok(()),
            code => Err(Errno::from_raw_os_error(code)),
        },
    }
}

/// Makes sockets inside a running box, by asking its init.
#[derive(Debug)]
pub struct BoxSockets {
    channel: Mutex<OwnedFd>,
}

/// Init answers within microseconds unless the box is frozen or dead.
const PATIENCE: Duration = Duration::from_secs(1);

impl BoxSockets {
    pub(super) fn new(channel: OwnedFd) -> Self {
        Self {
            channel: Mutex::new(channel),
        }
    }

    /// A TCP socket that lives in the box and is not connected to anything yet. It does not block.
    pub fn tcp(&self) -> Result<OwnedFd, Errno> {
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        // An answer that came too late for whoever asked then.
        while let (Some(_), _) = receive_now(channel.as_fd())? {}
        Message::new(Kind::Socket, 0, 0).send(channel.as_fd())?;
        let mut ready = [rustix::event::PollFd::new(
            &*channel,
            rustix::event::PollFlags::IN,
        )];
        let patience = PATIENCE.try_into().map_err(|_| Errno::INVAL)?;
        if rustix::event::poll(&mut ready, Some(&patience))? == 0 {
            return Err(Errno::TIMEDOUT);
        }
        let (message, fds) = receive(channel.as_fd());
        match (fds.into_iter().next(), message) {
            (Some(socket), _) => Ok(socket),
            (None, Some(Message { b: code @ 1.., .. })) => Err(Errno::from_raw_os_error(code)),
            (None, _) => Err(Errno::CONNRESET),
        }
    }
}

fn receive_now(channel: BorrowedFd<'_>) -> Result<(Option<Message>, Vec<OwnedFd>), Errno> {
    let mut ready = [rustix::event::PollFd::from_borrowed_fd(
        channel,
        rustix::event::PollFlags::IN,
    )];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match rustix::event::poll(&mut ready, Some(&now))? {
        0 => Ok((None, Vec::new())),
        _ => Ok(receive(channel)),
    }
}

/// Answers one wish for a socket. Runs in init: allocates nothing.
pub(super) fn answer(channel: BorrowedFd<'_>) -> Result<(), Errno> {
    match Message::receive(channel, RecvFlags::DONTWAIT)? {
        Some(Message {
            kind: Kind::Socket, ..
        }) => {}
        Some(_) => return Ok(()),
        None => return Err(Errno::CONNRESET),
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let tcp = Some(ipproto::TCP);
    match rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, tcp) {
        Ok(socket) => send(channel, &[socket.as_fd()]),
        Err(errno) => Message::new(Kind::Socket, 0, errno.raw_os_error()).send(channel),
    }
}
