//! The box's name server, and connections to the addresses it gives.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use belljar_egress::{Arrival, Engine, RefusalCode, Transparent, Way, Ways};
use support::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};

const A: u16 = 1;
const TXT: u16 = 16;
const AAAA: u16 = 28;
const HTTPS: u16 = 65;
const ANY: u16 = 255;

fn query(labels: &[&[u8]], kind: u16) -> Vec<u8> {
    let mut out = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in labels {
        out.push(label.len() as u8);
        out.extend_from_slice(label);
    }
    out.push(0);
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&1_u16.to_be_bytes());
    out
}

/// The code and the address of an answer.
fn read(answer: &[u8]) -> (u8, Option<IpAddr>) {
    assert_eq!(answer[..2], [0xab, 0xcd]);
    let address = match (answer[7], answer.len()) {
        (0, _) => None,
        (_, length) if answer[length - 5] == 4 && answer[length - 6] == 0 => {
            let octets: [u8; 4] = answer[length - 4..].try_into().unwrap();
            Some(octets.into())
        }
        (_, length) => {
            let octets: [u8; 16] = answer[length - 16..].try_into().unwrap();
            Some(octets.into())
        }
    };
    (answer[3] & 0xf, address)
}

async fn ask(bx: &TestBox, labels: &[&[u8]], kind: u16) -> (u8, Option<IpAddr>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(bx.dns).await.unwrap();
    socket.send(&query(labels, kind)).await.unwrap();
    let mut answer = [0; 512];
    let length = soon(socket.recv(&mut answer)).await.unwrap();
    read(&answer[..length])
}

#[tokio::test]
async fn allowed_names_have_addresses_of_their_own_and_others_do_not_exist() {
    let bx = start(config(vec![
        allow("a.test", &[443]),
        allow("*.b.test", &[]),
    ]));
    let (code, first) = ask(&bx, &[b"a", b"test"], A).await;
    assert_eq!(
        (code, first),
        (0, Some(Ipv4Addr::new(127, 128, 0, 1).into()))
    );
    assert_eq!(ask(&bx, &[b"A", b"TEST"], A).await, (0, first));
    let (code, six) = ask(&bx, &[b"a", b"test"], AAAA).await;
    assert_eq!((code, six), (0, Some("fd00:be11::1".parse().unwrap())));
    let (_, second) = ask(&bx, &[b"x", b"b", b"test"], A).await;
    assert_eq!(second, Some(Ipv4Addr::new(127, 128, 0, 2).into()));
    assert_eq!(ask(&bx, &[b"a", b"test"], HTTPS).await, (0, None));
    assert!(bx.recording.refusals().is_empty());

    for labels in [
        &[&b"evil"[..], b"test"][..],
        &[b"b", b"test"],
        &[b"xa", b"test"],
        &[b"test"],
    ] {
        assert_eq!(ask(&bx, labels, A).await, (3, None));
    }
    let refusal = bx.recording.refusal(RefusalCode::NoRule).await;
    assert_eq!(
        (refusal.way, refusal.host.as_str()),
        (Way::Dns, "evil.test")
    );
}

#[tokio::test]
async fn lookups_carry_nothing_out() {
    let bx = start(config(vec![allow("a.test", &[])]));
    let long = [b'x'; 63];
    assert_eq!(
        ask(&bx, &[&long, &long, &long, b"evil", b"test"], TXT).await,
        (3, None)
    );
    bx.recording.refusal(RefusalCode::NoRule).await;
    for kind in [TXT, ANY, 2, 6, 15, 33] {
        assert_eq!(ask(&bx, &[b"a", b"test"], kind).await, (5, None), "{kind}");
    }
    bx.recording.refusal(RefusalCode::DnsQuery).await;
    for labels in [
        &[&b"a.test"[..]][..],
        &[b"a\0", b"test"],
        &[b"127", b"0", b"0", b"1"],
        &[b"a ", b"test"],
    ] {
        assert_eq!(ask(&bx, labels, A).await, (3, None), "{labels:?}");
    }
    assert_eq!(
        bx.recording.refusal(RefusalCode::InvalidHost).await.host,
        "a.test"
    );
}

#[tokio::test]
async fn a_box_has_room_for_so_many_names() {
    let mut config = config(vec![allow("*.a.test", &[])]);
    config.limits.names = 2;
    let bx = start(config);
    for (label, code) in [(b"1", 0), (b"2", 0), (b"1", 0), (b"3", 2)] {
        assert_eq!(ask(&bx, &[label, b"a", b"test"], A).await.0, code);
    }
    bx.recording.refusal(RefusalCode::TooManyNames).await;
}

#[tokio::test]
async fn lookups_over_tcp_are_answered_until_they_make_no_sense() {
    let bx = start(config(vec![allow("a.test", &[])]));
    let mut stream = TcpStream::connect(bx.dns_tcp).await.unwrap();
    for (labels, code) in [(&[&b"a"[..], b"test"][..], 0), (&[b"b", b"test"], 3)] {
        let query = query(labels, A);
        stream.write_u16(query.len() as u16).await.unwrap();
        stream.write_all(&query).await.unwrap();
        let mut answer = vec![0; usize::from(soon(stream.read_u16()).await.unwrap())];
        soon(stream.read_exact(&mut answer)).await.unwrap();
        assert_eq!(read(&answer).0, code);
    }
    stream.write_u16(u16::MAX).await.unwrap();
    assert!(read_all(&mut stream).await.is_empty());
}

/// A server and, at the same port of the first name's address, the place where the box's connections arrive.
async fn echo_and_door() -> (Echo, std::net::TcpListener) {
    loop {
        let echo = Echo::start().await;
        if let Ok(door) = std::net::TcpListener::bind((Ipv4Addr::new(127, 128, 0, 1), echo.port)) {
            return (echo, door);
        }
    }
}

#[tokio::test]
async fn a_connection_is_known_by_the_name_its_address_stands_for() {
    let (echo, door) = echo_and_door().await;
    let bx = start_with(config(vec![allow("a.test", &[echo.port])]), Some(door));
    let address = SocketAddr::from((Ipv4Addr::new(127, 128, 0, 1), echo.port));
    // Nobody looked the name up yet: the address stands for nothing.
    let mut stream = TcpStream::connect(address).await.unwrap();
    assert!(read_all(&mut stream).await.is_empty());
    bx.recording.refusal(RefusalCode::UnknownAddress).await;
    assert_eq!(echo.count(), 0);

    let (_, found) = ask(&bx, &[b"a", b"test"], A).await;
    assert_eq!(found, Some(address.ip()));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut back = [0; 5];
    soon(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(&back, b"hello");
    // TLS for another name on the same address.
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(&greeting(Some("b.test"), false))
        .await
        .unwrap();
    assert!(read_all(&mut stream).await.is_empty());
    let refusal = bx.recording.refusal(RefusalCode::NameMismatch).await;
    assert_eq!((refusal.way, refusal.host.as_str()), (Way::Tcp, "a.test"));
}

#[tokio::test]
async fn an_address_that_no_rule_names_is_refused() {
    let door = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = door.local_addr().unwrap();
    let bx = start_with(config(vec![allow("a.test", &[])]), Some(door));
    let mut stream = TcpStream::connect(address).await.unwrap();
    assert!(read_all(&mut stream).await.is_empty());
    let refusal = bx.recording.refusal(RefusalCode::NoRule).await;
    assert_eq!(
        (refusal.host.as_str(), refusal.port),
        ("127.0.0.1", Some(address.port()))
    );
}

#[tokio::test]
async fn a_connection_that_nobody_redirected_goes_nowhere() {
    // It came to the listener itself, so at best it wanted to go there, and no rule says so.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let arrival = Arrival::Redirected;
    let ways = Ways {
        transparent: vec![Transparent { listener, arrival }],
        ..Ways::default()
    };
    let recording = Arc::new(Recording::default());
    let own = config(vec![allow("a.test", &[])]);
    let engine = Engine::start(own, ways, recording).unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    assert!(read_all(&mut stream).await.is_empty());
    assert_eq!(engine.stop().connections, 0);
}
