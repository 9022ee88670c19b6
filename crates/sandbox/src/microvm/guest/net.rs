//! The guest's end of what leads out of it and into it.
//!
//! The guest's kernel is wired as a native box is: every address leads to the guest itself, and one table leads every
//! connection to a listener of ours. What a keeper does with such a listener is done outside: each connection becomes a flow.

use super::{BOX, Channel, Trouble, send, trouble};
use crate::microvm::flows::{self, Flows, Listener, Side, Target};
use crate::microvm::wire::{Frame, Kind, LONGEST_LOOKUP};
use crate::native::{Wired, Wiring, listen_at, wire};
use crate::reach::Reach;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Where the doors' sockets are, for us.
const DOORS: &str = "/doors";

/// All of it.
#[derive(Clone)]
pub(super) struct Ways {
    flows: Arc<Flows>,
    lookups: Arc<OnceLock<Lookups>>,
}

impl Ways {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            flows: Flows::new(Side::Guest)?,
            lookups: Arc::new(OnceLock::new()),
        })
    }

    /// Takes what the bridge said about any of it.
    pub(super) fn hear(&self, frame: &Frame) {
        if frame.kind != Kind::Lookup {
            let _ = self.flows.hear(frame);
        } else if let Some(lookups) = self.lookups.get() {
            lookups.answer(&frame.body);
        }
    }

    /// Wires the guest, and begins to carry what comes. The loopback is there, and so are the box's files.
    pub(super) fn start(&self, reach: &Reach, channel: &Channel) -> Result<(), Trouble> {
        let mut sockets = Vec::new();
        if let Some(wiring) = Wiring::of(&reach.network) {
            let wired = wire(wiring.borrowed()).map_err(trouble("the network"))?;
            self.attend(wired, &mut sockets, channel)?;
        }
        if let Some(port) = reach.answered {
            sockets.push(listen_at(port).map_err(trouble("the keeper's port"))?);
        }
        let mut listeners: Vec<Listener> = sockets
            .into_iter()
            .map(|socket| Listener { socket, to: None })
            .collect();
        for (number, path) in (0..).zip(&reach.doors) {
            listeners.push(Listener {
                socket: hang_door(number, path)?,
                to: Some(Target::Door(number)),
            });
        }
        if listeners.is_empty() && reach.published.is_empty() {
            return Ok(());
        }
        let channel = Arc::clone(channel);
        let dial = |target| match target {
            Target::Tcp(to) => flows::connect(to),
            Target::Door(_) => Err(io::ErrorKind::Unsupported.into()),
        };
        self.flows
            .start(listeners, Box::new(dial), move |kind, body| {
                send(&channel, kind, body)
            });
        Ok(())
    }

    fn attend(
        &self,
        wired: Wired,
        sockets: &mut Vec<OwnedFd>,
        channel: &Channel,
    ) -> Result<(), Trouble> {
        sockets.extend([wired.arrivals, wired.proxy, wired.dns_tcp]);
        sockets.extend(wired.arrivals_v6);
        let socket = UdpSocket::from(wired.dns_udp);
        socket
            .set_nonblocking(false)
            .map_err(trouble("name lookups"))?;
        let lookups = self.lookups.get_or_init(|| Lookups::new(socket));
        let questions = lookups
            .socket
            .try_clone()
            .map_err(trouble("name lookups"))?;
        let (ways, said) = (self.clone(), Arc::clone(channel));
        std::thread::spawn(move || ways.pass_questions(&questions, &said));
        let said = Arc::clone(channel);
        std::thread::spawn(move || pass_strays(&wired.strays, &said));
        Ok(())
    }

    fn pass_questions(&self, socket: &UdpSocket, channel: &Channel) {
        let mut question = vec![0; LONGEST_LOOKUP];
        loop {
            let Ok((count, from)) = socket.recv_from(&mut question) else {
                continue;
            };
            let question = question.get_mut(..count).unwrap_or_default();
            if let Some(lookups) = self.lookups.get()
                && lookups.note(question, from)
            {
                send(channel, Kind::Lookup, question);
            }
        }
    }
}

/// Questions about names that have no answer yet. Their numbers are ours while they are on their way, as several programs
/// may use the same.
struct Lookups {
    socket: UdpSocket,
    asked: Mutex<(u16, Vec<Option<Asked>>)>,
}

struct Asked {
    ours: [u8; 2],
    theirs: [u8; 2],
    from: SocketAddr,
}

impl Lookups {
    /// How many are remembered; older ones have been asked again, if anybody still waits.
    const MOST: usize = 256;

    fn new(socket: UdpSocket) -> Self {
        let asked = std::iter::repeat_with(|| None).take(Self::MOST);
        Self {
            socket,
            asked: Mutex::new((0, asked.collect())),
        }
    }

    /// Gives a question a number of ours.
    fn note(&self, question: &mut [u8], from: SocketAddr) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(number) = question.first_chunk_mut::<2>() else {
            return false;
        };
        let (last, places) = &mut *asked;
        *last = last.wrapping_add(1);
        let (ours, theirs) = (last.to_be_bytes(), *number);
        if let Some(place) = places.get_mut(usize::from(*last) % Self::MOST) {
            *place = Some(Asked { ours, theirs, from });
        }
        *number = ours;
        true
    }

    /// Passes an answer on to who asked.
    fn answer(&self, answer: &[u8]) {
        let Some((number, rest)) = answer.split_first_chunk::<2>() else {
            return;
        };
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let at = usize::from(u16::from_be_bytes(*number)) % Self::MOST;
        let found = asked.1.get_mut(at).and_then(|place| {
            let is_it = place.as_ref().is_some_and(|asked| asked.ours == *number);
            place.take_if(|_| is_it)
        });
        drop(asked);
        if let Some(Asked { theirs, from, .. }) = found {
            let answer = [&theirs[..], rest].concat();
            let flags = rustix::net::SendFlags::DONTWAIT;
            let _ = rustix::net::sendto(&self.socket, &answer, flags, &from);
        }
    }
}

/// Puts a socket of ours where the box has its keeper's.
fn hang_door(number: u16, path: &Path) -> Result<OwnedFd, Trouble> {
    let what = || format!("the socket {}", path.display());
    let own = Path::new(DOORS).join(number.to_string());
    let listen = || -> io::Result<OwnedFd> {
        std::fs::create_dir_all(DOORS)?;
        let listener = UnixListener::bind(&own)?;
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o666))?;
        listener.set_nonblocking(true)?;
        let below = path
            .strip_prefix("/")
            .map_err(|_| io::Error::from(Errno::INVAL))?;
        rustix::mount::mount_bind(&own, Path::new(BOX).join(below))?;
        Ok(listener.into())
    };
    listen().map_err(trouble(what()))
}

/// Tells the bridge of the packets that the table refused.
fn pass_strays(strays: &OwnedFd, channel: &Channel) {
    let mut message = [0; 4096];
    loop {
        match rustix::io::read(strays, &mut message) {
            Ok(count) => {
                let message = message.get(..count).unwrap_or_default();
                if let Some(to) = packet_of(message).and_then(destination) {
                    send(channel, Kind::Stray, &Target::Tcp(to).encode());
                }
            }
            // More came than there was room for: it was refused all the same.
            Err(Errno::NOBUFS | Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// The packet in a message of the kernel's log: one each, as was asked for.
fn packet_of(message: &[u8]) -> Option<&[u8]> {
    const HEADERS: usize = 20;
    const PAYLOAD: u16 = 9;
    let mut attributes = message.get(HEADERS..)?;
    loop {
        let (length, rest) = attributes.split_first_chunk::<2>()?;
        let (kind, _) = rest.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_ne_bytes(*length));
        if u16::from_ne_bytes(*kind) == PAYLOAD {
            return attributes.get(4..length);
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

/// Where a UDP packet was to go. Programs can't make any other kind that is neither TCP nor refused before.
fn destination(packet: &[u8]) -> Option<SocketAddr> {
    const UDP: u8 = libc::IPPROTO_UDP as u8;
    let first = *packet.first()?;
    let (to, protocol, header): (IpAddr, u8, usize) = match first >> 4 {
        4 => {
            let to: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            let header = usize::from(first & 15) * 4;
            (Ipv4Addr::from(to).into(), *packet.get(9)?, header)
        }
        6 => {
            let to: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            (Ipv6Addr::from(to).into(), *packet.get(6)?, 40)
        }
        _ => return None,
    };
    let port = packet.get(header + 2..header + 4)?.try_into().ok()?;
    (protocol == UDP).then(|| SocketAddr::new(to, u16::from_be_bytes(port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_read_from_the_kernels_log() {
        let mut packet = vec![0; 28];
        packet[0] = 0x45;
        packet[9] = 17;
        packet[16..20].copy_from_slice(&[8, 8, 8, 8]);
        packet[22..24].copy_from_slice(&443u16.to_be_bytes());
        let mut message = vec![0; 20];
        for (kind, value) in [(1u16, &[0u8, 1, 2][..]), (9, &packet)] {
            message.extend(((4 + value.len()) as u16).to_ne_bytes());
            message.extend(kind.to_ne_bytes());
            message.extend(value);
            message.resize(message.len().next_multiple_of(4), 0);
        }
        let found = packet_of(&message).and_then(destination);
        assert_eq!(found, Some("8.8.8.8:443".parse().unwrap()));
        for length in 0..message.len() {
            let _ = packet_of(&message[..length]).and_then(destination);
        }
    }

    #[test]
    fn answers_go_to_who_asked_even_where_two_use_the_same_number() {
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let lookups = Lookups::new(server);
        let programs = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let mut questions = [*b"\x12\x34one?", *b"\x12\x34two?"];
        for (question, program) in questions.iter_mut().zip(&programs) {
            assert!(lookups.note(question, program.local_addr().unwrap()));
        }
        for question in questions.iter().rev() {
            lookups.answer(question);
            // Once.
            lookups.answer(question);
        }
        lookups.answer(b"?");
        for (program, expected) in programs.iter().zip([*b"\x12\x34one?", *b"\x12\x34two?"]) {
            let mut answer = [0; 16];
            let (count, _) = program.recv_from(&mut answer).unwrap();
            assert_eq!(answer[..count], expected);
        }
    }
}
