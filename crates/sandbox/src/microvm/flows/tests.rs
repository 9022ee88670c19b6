//! Both ends of a channel without a guest between them, and one end with somebody at the other who says what he likes.

use super::*;
use crate::microvm::wire;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn slot_and(slot: u32, rest: &[u8]) -> Vec<u8> {
    [&slot.to_le_bytes()[..], rest].concat()
}

fn frame(kind: Kind, slot: u32, rest: &[u8]) -> Frame {
    Frame {
        kind,
        body: slot_and(slot, rest),
    }
}

fn over(slot: u32, how: How) -> Frame {
    frame(Kind::Over, slot, &numbers(&[how as u32]))
}

fn open(slot: u32, target: Target) -> Frame {
    frame(Kind::Open, slot, &target.encode())
}

/// Two ends, each of which hears all that the other says. Connections to the guest's listener come out at the address.
fn joined(server: SocketAddr) -> SocketAddr {
    let guest = Flows::new(Side::Guest).unwrap();
    let bridge = Flows::new(Side::Bridge).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let at = listener.local_addr().unwrap();
    let hear = |flows: &Arc<Flows>| {
        let flows = Arc::clone(flows);
        move |kind: Kind, body: &[u8]| {
            let frame = Frame {
                kind,
                body: body.to_vec(),
            };
            assert_eq!(flows.hear(&frame), Ok(()), "{kind:?}");
        }
    };
    let listeners = vec![Listener {
        socket: listener.into(),
        to: Some(Target::Door(0)),
    }];
    guest.start(
        listeners,
        Box::new(|_| Err(io::ErrorKind::Unsupported.into())),
        hear(&bridge),
    );
    bridge.start(Vec::new(), Box::new(move |_| connect(server)), hear(&guest));
    at
}

/// A connection that does not wait for ever when something is wrong.
fn patient(at: SocketAddr) -> TcpStream {
    let peer = TcpStream::connect(at).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    peer
}

#[test]
fn every_byte_passes_both_ways_and_so_does_the_end_of_each() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = joined(server.local_addr().unwrap());
    let echo = std::thread::spawn(move || {
        // More in all than there are slots: each is free again after its flow.
        for _ in 0..GUEST_SLOTS + 20 {
            let (mut peer, _) = server.accept().unwrap();
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            all.reverse();
            peer.write_all(&all).unwrap();
        }
    });
    for turn in 0..GUEST_SLOTS + 20 {
        // A few that fill every window.
        let length = if turn % 64 == 0 {
            20 * FLOW_WINDOW
        } else {
            100
        };
        let sent: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
        let mut peer = patient(at);
        let mut writer = peer.try_clone().unwrap();
        let bytes = sent.clone();
        let talker = std::thread::spawn(move || {
            writer.write_all(&bytes).unwrap();
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut answer = Vec::new();
        peer.read_to_end(&mut answer).unwrap();
        talker.join().unwrap();
        answer.reverse();
        assert!(answer == sent, "{} of {length} bytes", answer.len());
    }
    echo.join().unwrap();
}

#[test]
fn a_connection_that_breaks_or_is_refused_breaks_at_the_other_end() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = joined(server.local_addr().unwrap());
    let mut peer = patient(at);
    let (there, _) = server.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&there, Some(Duration::ZERO)).unwrap();
    drop(there);
    let broken = peer.read(&mut [0; 1]).unwrap_err();
    assert_eq!(broken.kind(), io::ErrorKind::ConnectionReset);
    drop(server);
    let mut refused = patient(at);
    let refused = refused.read(&mut [0; 1]).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn targets_survive_the_way_and_nothing_else_is_taken_for_one() {
    for target in [
        Target::Door(1),
        Target::Tcp("93.184.216.34:443".parse().unwrap()),
        Target::Tcp("[2606:2800:220:1::1]:80".parse().unwrap()),
    ] {
        let bytes = target.encode();
        assert_eq!(Target::decode(&bytes), Some(target));
        for length in 0..bytes.len() {
            assert_eq!(Target::decode(&bytes[..length]), None);
        }
    }
    assert_eq!(Target::decode(&[4; 19]), None);
    assert_eq!(Target::decode(&[0xff; 19]), None);
    assert_eq!(Target::decode(&[0; 20]), None);
}

/// A bridge whose connections lead to a listener that nobody accepts from, one flow in slot 0 in it.
fn bridge_with_a_flow() -> (Arc<Flows>, Dial, TcpListener) {
    let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = nobody.local_addr().unwrap();
    let flows = Flows::new(Side::Bridge).unwrap();
    assert_eq!(flows.hear(&open(0, Target::Tcp(to))), Ok(()));
    (flows, Box::new(move |_| connect(to)), nobody)
}

#[test]
fn what_no_guest_says_about_a_flow_is_wrong() {
    let somewhere = Target::Tcp("127.0.0.1:1".parse().unwrap());
    let piece = |slot| frame(Kind::Flow, slot, b"x");
    let room = |count: u32| frame(Kind::Room, 0, &numbers(&[count]));
    let ours = GUEST_SLOTS as u32;
    for words in [
        vec![open(0, somewhere)],
        vec![open(ours, somewhere)],
        vec![open(u32::MAX, somewhere)],
        vec![frame(Kind::Open, 1, b"nowhere")],
        vec![Frame {
            kind: Kind::Open,
            body: vec![1],
        }],
        vec![piece(1)],
        vec![piece(u32::MAX)],
        vec![frame(Kind::Flow, 0, b"")],
        vec![room(1)],
        vec![room(0)],
        vec![room(u32::MAX)],
        vec![frame(Kind::Room, 0, b"")],
        vec![frame(Kind::Over, 0, &numbers(&[7]))],
        vec![frame(Kind::Over, 0, b"x")],
        vec![over(0, How::Done)],
        vec![over(0, How::Finished), piece(0)],
        vec![over(0, How::Finished), over(0, How::Finished)],
        vec![over(0, How::Finished), over(0, How::Done)],
        vec![over(0, How::Broken), piece(0)],
        vec![over(0, How::Broken), over(0, How::Broken)],
        vec![over(0, How::Broken), open(0, somewhere)],
    ] {
        let (flows, _, _nobody) = bridge_with_a_flow();
        let (last, first) = words.split_last().unwrap();
        for word in first {
            assert_eq!(flows.hear(word), Ok(()), "{words:?}");
        }
        assert!(flows.hear(last).is_err(), "{words:?}");
    }
}

#[test]
fn what_nobody_takes_is_never_more_than_a_window() {
    let (flows, _, _nobody) = bridge_with_a_flow();
    let piece = frame(Kind::Flow, 0, &[7; FLOW_PIECE]);
    let taken = (0..10_000).take_while(|_| flows.hear(&piece).is_ok());
    assert_eq!(taken.count(), FLOW_WINDOW / FLOW_PIECE);
    let slots = flows.slots.lock().unwrap();
    let held: usize = slots.iter().flatten().map(|flow| flow.arrived.len()).sum();
    assert_eq!(held, FLOW_WINDOW);
}

#[test]
fn a_flood_of_openings_takes_every_slot_once() {
    let (flows, dial, _nobody) = bridge_with_a_flow();
    let to = Target::Tcp("127.0.0.1:1".parse().unwrap());
    let taken = (1..100_000).take_while(|slot| flows.hear(&open(*slot, to)).is_ok());
    assert_eq!(taken.count(), GUEST_SLOTS - 1);
    // One turn makes them all. Whoever the guest leaves at once is gone at once, and its slot is free.
    for slot in 0..GUEST_SLOTS as u32 {
        assert_eq!(flows.hear(&over(slot, How::Broken)), Ok(()));
    }
    let words = flows.turn(&[], &dial);
    assert_eq!(words.len(), GUEST_SLOTS, "each end is said once");
    assert!(flows.slots.lock().unwrap().iter().all(Option::is_none));
}

#[test]
fn whatever_a_guest_says_what_is_held_stays_bounded() {
    // A small generator of our own: the same words every time.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    for _ in 0..60 {
        let (flows, dial, nobody) = bridge_with_a_flow();
        let to = Target::Tcp(nobody.local_addr().unwrap());
        for _ in 0..400 {
            let slot = next(6) as u32;
            let word = match next(12) {
                0..=2 => open(slot, to),
                3..=6 => frame(Kind::Flow, slot, &vec![1; next(FLOW_PIECE as u64) as usize]),
                7 => frame(Kind::Room, slot, &numbers(&[next(200) as u32])),
                8 => over(slot, How::Finished),
                9 => over(slot, How::Done),
                10 => over(slot, How::Broken),
                _ => {
                    let kind = wire::Kind::ALL[next(wire::Kind::ALL.len() as u64) as usize];
                    frame(kind, slot, &[next(256) as u8; 5])
                }
            };
            // The first wrong word would end it; what is held stays bounded even where none does.
            if flows.hear(&word).is_ok() {
                let words = flows.turn(&[], &dial);
                assert!(words.len() <= 64, "{} words at once", words.len());
            }
            let slots = flows.slots.lock().unwrap();
            for flow in slots.iter().flatten() {
                assert!(flow.arrived.len() <= FLOW_WINDOW && flow.room <= FLOW_WINDOW);
            }
        }
    }
}
