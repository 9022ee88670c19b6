//! The bridge's end of what leads out of a guest and into it.
//!
//! It has no rights of its own: it connects, as any program in the box could, in the box's own network namespace. So what a
//! guest asks for, a fallen one too, meets the same table, the same keeper and the same rules as a native program's
//! connections, and a guest of a box without a network asks in vain.

use super::{Channel, Failure, send};
use crate::microvm::flows::{self, Flows, Listener, Side, Target, Wrong};
use crate::microvm::wire::{Frame, Kind, LONGEST_LOOKUP};
use crate::native::listen_at;
use crate::plan::Network;
use crate::reach::Reach;
use rustix::fd::OwnedFd;
use rustix::net::AddressFamily;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;

/// Where names are looked up in the box.
const LOOKUPS: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 53);

/// What a guest reaches, or is reached by.
pub(super) struct Ways {
    reach: Reach,
    flows: Arc<Flows>,
    packets: Option<Packets>,
}

/// For what is not a connection.
struct Packets {
    lookups: Arc<UdpSocket>,
    /// Of both families, where there are both.
    strays: [Option<UdpSocket>; 2],
}

impl Packets {
    fn new() -> io::Result<Self> {
        let strays = |at: SocketAddr| {
            let socket = UdpSocket::bind(at).ok()?;
            socket.set_nonblocking(true).ok()?;
            Some(socket)
        };
        Ok(Self {
            lookups: Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?),
            strays: [
                strays((Ipv4Addr::UNSPECIFIED, 0).into()),
                strays((Ipv6Addr::UNSPECIFIED, 0).into()),
            ],
        })
    }
}

impl Ways {
    /// Opens them. Nothing comes through before [`Ways::start`].
    pub(super) fn open(reach: Reach) -> io::Result<Self> {
        Ok(Self {
            flows: Flows::new(Side::Bridge)?,
            packets: match reach.network {
                Network::Closed => None,
                Network::Guarded { .. } => Some(Packets::new()?),
            },
            reach,
        })
    }

    /// Begins to carry what comes: the guest is up.
    pub(super) fn start(&self, channel: &Channel) -> Result<(), Failure> {
        let mut listeners = Vec::new();
        for port in &self.reach.published {
            let socket = listen_at(*port).map_err(|errno| Failure::Start(errno.into()))?;
            listeners.push(Listener { socket, to: None });
        }
        let doors = self.reach.doors.clone();
        let said = Arc::clone(channel);
        self.flows.start(
            listeners,
            Box::new(move |target| dial(target, &doors)),
            move |kind, body| send(&said, kind, body),
        );
        if let Some(packets) = &self.packets {
            let (lookups, channel) = (Arc::clone(&packets.lookups), Arc::clone(channel));
            std::thread::spawn(move || pass_answers(&lookups, &channel));
        }
        Ok(())
    }

    /// Takes what a guest said about any of it.
    pub(super) fn hear(&self, frame: &Frame) -> Result<(), Failure> {
        let wrong = |Wrong(what)| Failure::Garbage(what.to_owned());
        match (frame.kind, &self.packets) {
            (Kind::Open | Kind::Flow | Kind::Room | Kind::Over, _) => {
                self.flows.hear(frame).map_err(wrong)
            }
            (Kind::Lookup, Some(packets)) => {
                // What finds no room is lost, as on any network.
                let flags = rustix::net::SendFlags::DONTWAIT;
                let to = SocketAddr::from(LOOKUPS);
                let _ = rustix::net::sendto(&packets.lookups, &frame.body, flags, &to);
                Ok(())
            }
            (Kind::Stray, Some(packets)) => match Target::decode(&frame.body) {
                Some(Target::Tcp(to)) => {
                    packets.repeat(to);
                    Ok(())
                }
                _ => Err(wrong(Wrong("a packet to nowhere"))),
            },
            _ => Err(wrong(Wrong("packets without a network"))),
        }
    }
}

impl Packets {
    /// A packet like the one that was refused in the guest is refused here as well, and put on record as a native one is.
    fn repeat(&self, to: SocketAddr) {
        let [v4, v6] = &self.strays;
        if let Some(socket) = if to.is_ipv4() { v4 } else { v6 } {
            let _ = socket.send_to(&[], to);
        }
    }
}

fn pass_answers(lookups: &UdpSocket, channel: &Channel) {
    let mut answer = vec![0; LONGEST_LOOKUP];
    loop {
        match lookups.recv_from(&mut answer) {
            Ok((count, from)) if from == SocketAddr::from(LOOKUPS) => {
                let answer = answer.get(..count).unwrap_or_default();
                send(channel, Kind::Lookup, answer);
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Nobody was there for a question.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_) => return,
        }
    }
}

/// Begins a connection of the box's.
fn dial(target: Target, doors: &[PathBuf]) -> io::Result<OwnedFd> {
    match target {
        Target::Tcp(to) => flows::connect(to),
        Target::Door(number) => {
            let path = doors
                .get(usize::from(number))
                .ok_or(io::ErrorKind::NotFound)?;
            let socket = flows::stream(AddressFamily::UNIX)?;
            rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(path)?)?;
            Ok(socket)
        }
    }
}
