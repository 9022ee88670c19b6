//! Packets that nobody carries: UDP but name lookups, and whatever else is not TCP. The kernel refuses them inside the box
//! and tells of them here; this only puts them on record.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::net::UdpSocket;

use crate::contain::contain;
use crate::gate::Gate;
use crate::record::{RefusalCode, Way};

const PACKET: u16 = 4 << 8;
const PAYLOAD: u16 = 9;
const MESSAGE_HEADER: usize = 16;
const NETFILTER_HEADER: usize = 4;

/// Records what the socket tells until it fails.
pub(crate) async fn follow(socket: OwnedFd, gate: Arc<Gate>) -> io::Result<()> {
    // For reading it is a datagram socket like any other.
    let socket = std::net::UdpSocket::from(socket);
    socket.set_nonblocking(true)?;
    let socket = UdpSocket::from_std(socket)?;
    let mut buffer = [0; 4096];
    loop {
        match socket.recv(&mut buffer).await {
            Ok(length) => {
                let seen = buffer.get(..length).unwrap_or_default();
                // A packet that is not understood is refused by the kernel all the same.
                let _ = contain(|| {
                    packets(seen)
                        .into_iter()
                        .for_each(|packet| record(&gate, packet))
                });
            }
            // More came than there was room for: what was lost was refused all the same.
            Err(error) if error.raw_os_error() == Some(NO_ROOM) => {}
            Err(error) => return Err(error),
        }
    }
}

const NO_ROOM: i32 = rustix::io::Errno::NOBUFS.raw_os_error();

fn record(gate: &Gate, packet: &[u8]) {
    let Some(stray) = Stray::read(packet) else {
        return;
    };
    let detail = match stray.protocol {
        UDP => "UDP".to_owned(),
        1 | 58 => "ICMP".to_owned(),
        other => format!("IP protocol {other}"),
    };
    gate.refuse(
        Way::Packet,
        &stray.to.to_string(),
        stray.port,
        None,
        RefusalCode::Protocol,
        Some(detail),
    );
}

const UDP: u8 = 17;

#[derive(Debug, PartialEq, Eq)]
struct Stray {
    to: IpAddr,
    protocol: u8,
    port: Option<u16>,
}

impl Stray {
    fn read(packet: &[u8]) -> Option<Self> {
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
        let port = packet
            .get(header + 2..header + 4)
            .filter(|_| protocol == UDP);
        let port = port.and_then(|bytes| bytes.try_into().ok());
        Some(Self {
            to,
            protocol,
            port: port.map(u16::from_be_bytes),
        })
    }
}

/// The packets in what the kernel sent.
fn packets(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let Some((message, rest)) = split(bytes, 4) {
        let kind = message.get(4..6).and_then(|kind| kind.try_into().ok());
        if kind.map(u16::from_ne_bytes) == Some(PACKET) {
            let mut attributes = message
                .get(MESSAGE_HEADER + NETFILTER_HEADER..)
                .unwrap_or_default();
            while let Some((attribute, rest)) = split(attributes, 2) {
                let kind = attribute.get(2..4).and_then(|kind| kind.try_into().ok());
                if kind.map(u16::from_ne_bytes) == Some(PAYLOAD) {
                    found.extend(attribute.get(4..));
                }
                attributes = rest;
            }
        }
        bytes = rest;
    }
    found
}

/// The first message or attribute, whose length stands in its first `width` bytes, and what follows it.
fn split(bytes: &[u8], width: usize) -> Option<(&[u8], &[u8])> {
    let length = match width {
        4 => u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize,
        _ => usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?)),
    };
    if length < 4 {
        return None;
    }
    let next = length.next_multiple_of(4).min(bytes.len());
    Some((bytes.get(..length)?, bytes.get(next..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(packet: &[u8]) -> Vec<u8> {
        let mut attribute = ((4 + packet.len()) as u16).to_ne_bytes().to_vec();
        attribute.extend(PAYLOAD.to_ne_bytes());
        attribute.extend(packet);
        attribute.resize(attribute.len().next_multiple_of(4), 0);
        let mut bytes = ((20 + attribute.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(PACKET.to_ne_bytes());
        bytes.resize(20, 0);
        bytes.extend(attribute);
        bytes
    }

    fn udp_v4() -> Vec<u8> {
        let mut packet = vec![0; 28];
        packet[0] = 0x45;
        packet[9] = UDP;
        packet[16..20].copy_from_slice(&[8, 8, 8, 8]);
        packet[22..24].copy_from_slice(&443u16.to_be_bytes());
        packet
    }

    #[test]
    fn destinations_are_read_from_packets() {
        let mut bytes = message(&udp_v4());
        let mut v6 = vec![0; 48];
        v6[0] = 0x60;
        v6[6] = 58;
        v6[39] = 9;
        bytes.extend(message(&v6));
        let found: Vec<_> = packets(&bytes)
            .into_iter()
            .filter_map(Stray::read)
            .collect();
        let expected = [
            Stray {
                to: "8.8.8.8".parse().unwrap(),
                protocol: UDP,
                port: Some(443),
            },
            Stray {
                to: "::9".parse().unwrap(),
                protocol: 58,
                port: None,
            },
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_cut_short_is_passed_over() {
        let whole = message(&udp_v4());
        for length in 0..whole.len() {
            for packet in packets(&whole[..length]) {
                let _ = Stray::read(packet);
            }
        }
        for length in 0..udp_v4().len() {
            let _ = Stray::read(&udp_v4()[..length]);
        }
    }
}
