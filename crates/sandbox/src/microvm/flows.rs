//! Connections across the channel, the same code at both ends: what one end accepts the other makes, and bytes pass in both
//! directions with a window each.
//!
//! A flow has a *slot*, of those that belong to the end that opened it. Each end says once that it sends no more
//! ([`How::Finished`], where it does) and once that it is done with the flow altogether. When both have said the latter the
//! slot is free again, and may be used from the very next word on. So every word about a flow is right or wrong at the moment it
//! is heard, and a guest that says a wrong one has fallen.
//!
//! One thread owns all sockets of an end. Whoever listens to the channel only leaves word for it, and never waits.

use super::wire::{FLOW_PIECE, Frame, Kind, numbers};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How many connections the program may have at once. More wait to be accepted.
pub(super) const GUEST_SLOTS: usize = 256;
/// How many connections to its published ports there may be at once.
pub(super) const BRIDGE_SLOTS: usize = 64;
/// How many bytes of a flow may be on their way in one direction.
pub(super) const FLOW_WINDOW: usize = 64 << 10;

/// Where a flow leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Tcp(SocketAddr),
    /// One of the order's doors.
    Door(u16),
}

impl Target {
    pub(super) fn encode(self) -> [u8; 19] {
        let mut bytes = [0; 19];
        let (kind, port) = match self {
            Self::Door(number) => (0, number),
            Self::Tcp(at) if at.is_ipv4() => (4, at.port()),
            Self::Tcp(at) => (6, at.port()),
        };
        bytes[0] = kind;
        bytes[1..3].copy_from_slice(&port.to_le_bytes());
        match self {
            Self::Tcp(SocketAddr::V4(at)) => bytes[3..7].copy_from_slice(&at.ip().octets()),
            Self::Tcp(SocketAddr::V6(at)) => bytes[3..].copy_from_slice(&at.ip().octets()),
            Self::Door(_) => {}
        }
        bytes
    }

    /// What was encoded; nothing if it is anything else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, bytes) = bytes.split_first()?;
        let (port, bytes) = bytes.split_first_chunk::<2>()?;
        let port = u16::from_le_bytes(*port);
        let address: [u8; 16] = bytes.try_into().ok()?;
        let (first, rest) = address.split_first_chunk::<4>()?;
        let is_empty = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        let ip: IpAddr = match kind {
            0 if is_empty(&address) => return Some(Self::Door(port)),
            4 if is_empty(rest) => Ipv4Addr::from(*first).into(),
            6 => Ipv6Addr::from(address).into(),
            _ => return None,
        };
        Some(Self::Tcp(SocketAddr::new(ip, port)))
    }
}

/// How an end is done with a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// It sends no more, and still takes.
    Finished = 0,
    /// It has sent all and delivered all.
    Done = 1,
    /// Its connection broke.
    Broken = 2,
}

impl How {
    fn decode(number: u32) -> Option<Self> {
        [Self::Finished, Self::Done, Self::Broken]
            .into_iter()
            .find(|how| *how as u32 == number)
    }
}

/// Connections that this end accepts.
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    /// Where they lead; where the one who made them wanted to, otherwise.
    pub(super) to: Option<Target>,
}

/// What the other end said that it never says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong(pub(super) &'static str);

type Dial = Box<dyn Fn(Target) -> io::Result<OwnedFd> + Send>;

/// Which end this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Bridge,
    Guest,
}

/// All flows of one end.
pub(super) struct Flows {
    side: Side,
    slots: Mutex<Vec<Option<Flow>>>,
    wake: OwnedFd,
}

struct Flow {
    connection: Connection,
    /// What came for it and is not delivered yet.
    arrived: VecDeque<u8>,
    /// Bytes that came and were not told as taken.
    unconfirmed: usize,
    /// Bytes that we may send.
    room: usize,
    ours: Said,
    theirs: Said,
    /// Whether our connection was told that no more comes.
    is_shut: bool,
}

enum Connection {
    /// To be made.
    Wanted(Target),
    /// Being made.
    Begun(Arc<OwnedFd>),
    Stands(Arc<OwnedFd>),
    /// Broken, or not needed any more.
    Gone,
}

/// What an end has said of its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    Nothing,
    Finished,
    Done,
    Broken,
}

impl Flow {
    fn new(connection: Connection) -> Self {
        Self {
            connection,
            arrived: VecDeque::new(),
            unconfirmed: 0,
            room: FLOW_WINDOW,
            ours: Said::Nothing,
            theirs: Said::Nothing,
            is_shut: false,
        }
    }

    fn is_on(&self, other: &Arc<OwnedFd>) -> bool {
        match &self.connection {
            Connection::Begun(socket) | Connection::Stands(socket) => Arc::ptr_eq(socket, other),
            Connection::Wanted(_) | Connection::Gone => false,
        }
    }

    fn is_over(&self) -> bool {
        self.ours >= Said::Done && self.theirs >= Said::Done
    }
}

impl Flows {
    pub(super) fn new(side: Side) -> io::Result<Arc<Self>> {
        let slots = std::iter::repeat_with(|| None).take(GUEST_SLOTS + BRIDGE_SLOTS);
        Ok(Arc::new(Self {
            side,
            slots: Mutex::new(slots.collect()),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        }))
    }

    fn slots_of(side: Side) -> std::ops::Range<usize> {
        match side {
            Side::Guest => 0..GUEST_SLOTS,
            Side::Bridge => GUEST_SLOTS..GUEST_SLOTS + BRIDGE_SLOTS,
        }
    }

    /// Takes what the other end said about a flow.
    pub(super) fn hear(&self, frame: &Frame) -> Result<(), Wrong> {
        let (slot, body) = frame
            .body
            .split_first_chunk::<4>()
            .ok_or(Wrong("a flow without a slot"))?;
        let slot = u32::from_le_bytes(*slot) as usize;
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let place = slots.get_mut(slot).ok_or(Wrong("a flow in no slot"))?;
        if frame.kind == Kind::Open {
            let target = Target::decode(body).ok_or(Wrong("a flow to nowhere"))?;
            if Self::slots_of(self.side).contains(&slot) {
                return Err(Wrong("a flow in a slot of ours"));
            }
            if place.is_some() {
                return Err(Wrong("a flow in a slot that is taken"));
            }
            *place = Some(Flow::new(Connection::Wanted(target)));
        } else {
            let flow = place.as_mut().ok_or(Wrong("no such flow"))?;
            flow.hear(frame.kind, body)?;
            // At once: the other end may use the slot again from here on.
            if flow.is_over() {
                *place = None;
            }
        }
        drop(slots);
        // It counts; it can't be full.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        Ok(())
    }

    /// Carries everything until the channel ends, in a thread of its own. `send` sends a frame.
    pub(super) fn start(
        self: &Arc<Self>,
        listeners: Vec<Listener>,
        dial: Dial,
        send: impl Fn(Kind, &[u8]) + Send + 'static,
    ) {
        let flows = Arc::clone(self);
        std::thread::spawn(move || {
            loop {
                let words = flows.turn(&listeners, &dial);
                for (kind, body) in words {
                    send(kind, &body);
                    // Others have something to say as well.
                    std::thread::yield_now();
                }
            }
        });
    }

    /// Waits for something to do, does it, and returns what is to be said about it: nothing is said while the slots are
    /// held, for both ends could wait for each other then.
    fn turn(&self, listeners: &[Listener], dial: &Dial) -> Vec<(Kind, Vec<u8>)> {
        let (watched, has_room) = self.interests();
        let mut sources = vec![PollFd::new(&self.wake, PollFlags::IN)];
        if has_room {
            let ready = listeners
                .iter()
                .map(|listener| PollFd::new(&listener.socket, PollFlags::IN));
            sources.extend(ready);
        }
        let first = sources.len();
        let flows = watched
            .iter()
            .map(|(_, socket, events)| PollFd::new(socket.as_ref(), *events));
        sources.extend(flows);
        if poll(&mut sources, None).is_err() {
            return Vec::new();
        }
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let is_ready = |source: &PollFd<'_>| !source.revents().is_empty();
        let ready_flows: Vec<(usize, Arc<OwnedFd>)> = watched
            .iter()
            .zip(sources.iter().skip(first))
            .filter(|(_, source)| is_ready(source))
            .map(|((slot, socket, _), _)| (*slot, Arc::clone(socket)))
            .collect();
        let ready_listeners: Vec<&Listener> = listeners
            .iter()
            .zip(sources.get(1..first).unwrap_or_default())
            .filter(|(_, source)| is_ready(source))
            .map(|(listener, _)| listener)
            .collect();
        let mut words = Vec::new();
        self.make_wanted(dial);
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        for listener in ready_listeners {
            accept(listener, &mut slots, Self::slots_of(self.side), &mut words);
        }
        for (slot, place) in slots.iter_mut().enumerate() {
            if let Some(flow) = place {
                let mut say = Words {
                    slot,
                    words: &mut words,
                };
                // By its socket: the slot may be another flow's since.
                let is_ready = ready_flows
                    .iter()
                    .any(|(ready, socket)| *ready == slot && flow.is_on(socket));
                flow.step(is_ready, &mut say);
                if flow.is_over() {
                    *place = None;
                }
            }
        }
        words
    }

    /// What each flow waits for, and whether another connection may be accepted.
    fn interests(&self) -> (Vec<(usize, Arc<OwnedFd>, PollFlags)>, bool) {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let watched = slots.iter().enumerate().filter_map(|(slot, place)| {
            let flow = place.as_ref()?;
            let (socket, events) = match &flow.connection {
                Connection::Begun(socket) => (socket, PollFlags::OUT),
                Connection::Stands(socket) => (socket, flow.events()),
                Connection::Wanted(_) | Connection::Gone => return None,
            };
            // One that waits for nothing would be told of its peer's end again and again.
            (!events.is_empty()).then(|| (slot, Arc::clone(socket), events))
        });
        let own = slots.get(Self::slots_of(self.side)).unwrap_or_default();
        (watched.collect(), own.iter().any(Option::is_none))
    }

    /// Makes the connections that the other end wants. It may take a moment, in which nobody waits for the slots.
    fn make_wanted(&self, dial: &Dial) {
        let wanted: Vec<(usize, Target)> = {
            let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            let wanted = slots.iter().enumerate();
            let wanted = wanted.filter_map(|(slot, place)| match place.as_ref()?.connection {
                Connection::Wanted(target) => Some((slot, target)),
                _ => None,
            });
            wanted.collect()
        };
        for (slot, target) in wanted {
            let made = match dial(target) {
                Ok(socket) => Connection::Begun(Arc::new(socket)),
                Err(_) => Connection::Gone,
            };
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(Some(flow)) = slots.get_mut(slot)
                && let Connection::Wanted(_) = flow.connection
            {
                flow.connection = made;
            }
        }
    }
}

/// What is to be said about one flow.
struct Words<'a> {
    slot: usize,
    words: &'a mut Vec<(Kind, Vec<u8>)>,
}

impl Words<'_> {
    fn say(&mut self, kind: Kind, rest: &[u8]) {
        let mut body = numbers(&[self.slot as u32]);
        body.extend(rest);
        self.words.push((kind, body));
    }

    fn over(&mut self, how: How) {
        self.say(Kind::Over, &numbers(&[how as u32]));
    }
}

fn accept(
    listener: &Listener,
    slots: &mut [Option<Flow>],
    own: std::ops::Range<usize>,
    words: &mut Vec<(Kind, Vec<u8>)>,
) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    for slot in own {
        let Some(place @ None) = slots.get_mut(slot) else {
            continue;
        };
        let Ok(socket) = rustix::net::accept_with(&listener.socket, flags) else {
            return;
        };
        let address = || rustix::net::getsockname(&socket).ok()?.try_into().ok();
        let Some(target) = listener.to.or_else(|| address().map(Target::Tcp)) else {
            continue;
        };
        hurry(&socket);
        *place = Some(Flow::new(Connection::Stands(Arc::new(socket))));
        Words { slot, words }.say(Kind::Open, &target.encode());
    }
}

/// Small pieces go at once; a Unix socket does so anyway.
fn hurry(socket: &OwnedFd) {
    let _ = rustix::net::sockopt::set_tcp_nodelay(socket, true);
}

impl Flow {
    /// Takes what the other end said.
    fn hear(&mut self, kind: Kind, body: &[u8]) -> Result<(), Wrong> {
        let number = || -> Option<u32> { Some(u32::from_le_bytes(body.try_into().ok()?)) };
        if self.theirs >= Said::Done {
            return Err(Wrong("a word about a flow it was done with"));
        }
        match kind {
            Kind::Flow => {
                if self.theirs != Said::Nothing || body.is_empty() {
                    return Err(Wrong("more of a flow that was finished"));
                }
                self.unconfirmed += body.len();
                if self.unconfirmed > FLOW_WINDOW {
                    return Err(Wrong("more of a flow than was asked for"));
                }
                // Nobody is there for it any more: the other end hears of that.
                if self.ours < Said::Done {
                    self.arrived.extend(body);
                }
            }
            Kind::Room => {
                let count = number().ok_or(Wrong("a count of another length"))? as usize;
                if count == 0 || count > FLOW_WINDOW - self.room {
                    return Err(Wrong("more of a flow was taken than was sent"));
                }
                self.room += count;
            }
            Kind::Over => {
                let how = number().and_then(How::decode);
                self.theirs = match how.ok_or(Wrong("an end of no known kind"))? {
                    How::Finished if self.theirs == Said::Nothing => Said::Finished,
                    How::Done if self.theirs == Said::Finished && self.ours != Said::Nothing => {
                        Said::Done
                    }
                    How::Broken => Said::Broken,
                    _ => return Err(Wrong("an end that can't be")),
                };
            }
            _ => return Err(Wrong("no word about a flow")),
        }
        Ok(())
    }

    fn events(&self) -> PollFlags {
        let mut events = PollFlags::empty();
        if self.ours == Said::Nothing && self.room > 0 {
            events |= PollFlags::IN;
        }
        if !self.arrived.is_empty() {
            events |= PollFlags::OUT;
        }
        events
    }

    /// Does what can be done at once.
    fn step(&mut self, is_ready: bool, say: &mut Words<'_>) {
        if self.ours >= Said::Done {
            return;
        }
        if self.theirs == Said::Broken {
            return self.break_off(say);
        }
        let socket = match &self.connection {
            Connection::Wanted(_) => return,
            Connection::Gone => return self.break_off(say),
            Connection::Begun(_) if !is_ready => return,
            Connection::Begun(socket) => match rustix::net::sockopt::socket_error(socket) {
                Ok(Ok(())) => Arc::clone(socket),
                _ => return self.break_off(say),
            },
            Connection::Stands(socket) => Arc::clone(socket),
        };
        if let Connection::Begun(_) = self.connection {
            hurry(&socket);
            self.connection = Connection::Stands(Arc::clone(&socket));
        }
        let carried = self.deliver(&socket, say).and_then(|()| match is_ready {
            true => self.take(&socket, say),
            false => Ok(()),
        });
        if carried.is_err() {
            return self.break_off(say);
        }
        if self.ours == Said::Finished && self.theirs >= Said::Finished && self.arrived.is_empty() {
            self.ours = Said::Done;
            self.connection = Connection::Gone;
            say.over(How::Done);
        }
    }

    /// Passes on what came.
    fn deliver(&mut self, socket: &OwnedFd, say: &mut Words<'_>) -> Result<(), Errno> {
        while !self.arrived.is_empty() {
            let (front, _) = self.arrived.as_slices();
            let flags = rustix::net::SendFlags::NOSIGNAL;
            match rustix::net::send(socket, front, flags) {
                Ok(count) => {
                    self.arrived.drain(..count);
                    self.unconfirmed -= count;
                    say.say(Kind::Room, &numbers(&[count as u32]));
                }
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        if self.theirs >= Said::Finished && !std::mem::replace(&mut self.is_shut, true) {
            rustix::net::shutdown(socket, rustix::net::Shutdown::Write)?;
        }
        Ok(())
    }

    /// Sends on what its connection has for the other end.
    fn take(&mut self, socket: &OwnedFd, say: &mut Words<'_>) -> Result<(), Errno> {
        let wanted = self.room.min(FLOW_PIECE);
        if self.ours != Said::Nothing || wanted == 0 {
            return Ok(());
        }
        let mut piece = vec![0; wanted];
        match rustix::io::read(socket, &mut piece) {
            Ok(0) => {
                self.ours = Said::Finished;
                say.over(How::Finished);
            }
            Ok(count) => {
                self.room -= count;
                say.say(Kind::Flow, piece.get(..count).unwrap_or_default());
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    /// Whoever is at our end is told that it broke, and so is the other end.
    fn break_off(&mut self, say: &mut Words<'_>) {
        if let Connection::Begun(socket) | Connection::Stands(socket) = &self.connection {
            let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
        self.connection = Connection::Gone;
        self.arrived = VecDeque::new();
        self.ours = Said::Broken;
        say.over(How::Broken);
    }
}

/// Begins a TCP connection.
pub(super) fn connect(to: SocketAddr) -> io::Result<OwnedFd> {
    let socket = stream(match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    })?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}

/// A stream socket that does not block.
pub(super) fn stream(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(
        family,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

#[cfg(test)]
mod tests;
