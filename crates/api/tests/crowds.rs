//! Many peers, greedy peers, and the end of the server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use belljar_api::{AgentCall, Call, CallError, Empty, Heartbeat, Limits, Rate, Side, Status, Tag};
use support::{HEARTBEAT, Peer, TestServer, patient, simple};

const CLOSING_HEARTBEAT: &str = "POST /v1/heartbeat HTTP/1.1\r\nConnection: close\r\n\r\n";

#[track_caller]
fn beats(peer: &mut Peer) {
    assert_eq!(peer.send(HEARTBEAT).hear().status, 200);
}

/// Whether something has come, without waiting for it.
fn has_heard(peer: &Peer) -> bool {
    let mut byte = [0];
    let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
    rustix::net::recv(&peer.0, &mut byte, flags).is_ok()
}

#[test]
fn a_thousand_connections_are_served() {
    // Both ends are in this process.
    let mut files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    files.current = files.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, files).unwrap();
    let server = TestServer::start(patient(), simple);
    let mut peers: Vec<_> = (0..1_000)
        .map(|_| server.peer().send_and_keep(CLOSING_HEARTBEAT))
        .collect();
    for peer in &mut peers {
        assert_eq!(peer.hear().status, 200);
        assert!(peer.hear_the_end().is_empty());
    }
    server.stop();
}

#[test]
fn no_more_connections_than_the_limit_are_served_at_once() {
    let server = TestServer::start(
        Limits {
            connections: 2,
            ..patient()
        },
        simple,
    );
    server.listen(Tag(2), Side::Agent);
    let (mut first, mut second) = (server.peer(), server.peer());
    beats(&mut first);
    beats(&mut second);
    let mut third = server.peer();
    third.send(HEARTBEAT);
    let mut elsewhere = Peer::connect(&server.path(Tag(2)));
    for _ in 0..20 {
        beats(&mut elsewhere);
    }
    assert!(!has_heard(&third));
    drop(first);
    assert_eq!(third.hear().status, 200);
    server.stop();
}

#[test]
fn idle_connections_give_way() {
    let limits = Limits {
        connections: 2,
        idle_when_full: Duration::ZERO,
        ..patient()
    };
    let server = TestServer::start(limits, simple);
    let (mut first, mut second) = (server.peer(), server.peer());
    beats(&mut first);
    beats(&mut second);
    beats(&mut first);
    // The one that has been idle for longest goes.
    let mut third = server.peer();
    beats(&mut third);
    assert!(second.hear_the_end().is_empty());
    beats(&mut first);
    server.stop();
}

#[test]
fn the_greediest_gives_way_when_all_places_are_taken() {
    let limits = Limits {
        connections_in_all: 4,
        ..patient()
    };
    let server = TestServer::start(limits, simple);
    server.listen(Tag(2), Side::Agent);
    let mut greedy: Vec<_> = (0..4).map(|_| server.peer()).collect();
    greedy.iter_mut().for_each(beats);
    let mut modest = Peer::connect(&server.path(Tag(2)));
    beats(&mut modest);
    assert!(greedy[0].hear_the_end().is_empty());
    greedy[1..].iter_mut().for_each(beats);
    // Three against one: a second modest one may come, and then it is even.
    let mut second = Peer::connect(&server.path(Tag(2)));
    beats(&mut second);
    let mut third = Peer::connect(&server.path(Tag(2)));
    third.send(HEARTBEAT);
    beats(&mut modest);
    greedy[2..].iter_mut().for_each(beats);
    assert!(!has_heard(&third));
    drop(second);
    assert_eq!(third.hear().status, 200);
    server.stop();
}

#[test]
fn too_many_requests_are_refused_on_that_socket_alone() {
    let rare = Rate {
        burst: 3,
        per_second: 1,
    };
    let server = TestServer::start(
        Limits {
            requests: rare,
            ..patient()
        },
        simple,
    );
    server.listen(Tag(2), Side::Agent);
    let mut peer = server.peer();
    // A slow machine earns one more each second, so the refusal comes sooner or later.
    let refused = (0..1_000)
        .map(|_| peer.send(HEARTBEAT).hear())
        .find(|heard| heard.status != 200);
    let refused = refused.expect("a thousand requests passed");
    assert_eq!((refused.status, refused.code()), (429, "rate_limited"));
    let wait = refused.body["retry_after_ms"].as_u64().unwrap();
    assert!((1..=1_000).contains(&wait), "{wait}");
    // Whoever goes too fast also has to connect anew.
    assert!(refused.closes() && peer.hear_the_end().is_empty());
    beats(&mut Peer::connect(&server.path(Tag(2))));
    server.stop();
}

#[test]
fn new_connections_are_slowed_down_not_lost() {
    let rare = Rate {
        burst: 2,
        per_second: 1,
    };
    let limits = Limits {
        accepts: rare,
        ..patient()
    };
    let server = TestServer::start(limits, simple);
    server.listen(Tag(2), Side::Agent);
    let mut elsewhere = Peer::connect(&server.path(Tag(2)));
    // A slow machine earns one more each second, so one that has to wait comes sooner or later.
    let waiting = (0..100).find_map(|_| {
        let peer = server.peer().send_and_keep(CLOSING_HEARTBEAT);
        (0..20).for_each(|_| beats(&mut elsewhere));
        (!has_heard(&peer)).then_some(peer)
    });
    let mut waiting = waiting.expect("a hundred connections were taken without delay");
    assert_eq!(waiting.hear().status, 200);
    server.stop();
}

#[test]
fn a_noisy_neighbour_is_not_heard_next_door() {
    let server = TestServer::start(Limits::default(), simple);
    server.listen(Tag(2), Side::Agent);
    let enough = Arc::new(AtomicBool::new(false));
    let rounds = Arc::new(AtomicUsize::new(0));
    let path = server.path(Tag(1));
    let noisy: Vec<_> = (0..4)
        .map(|kind| {
            let (enough, rounds) = (Arc::clone(&enough), Arc::clone(&rounds));
            let path = path.clone();
            thread::spawn(move || {
                while !enough.load(Ordering::Relaxed) {
                    make_noise(kind, &path);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let hoard: Vec<_> = (0..64)
        .filter_map(|_| UnixStream::connect(&path).ok())
        .collect();
    // More than the burst of the noisy one's socket: from here on it is being refused.
    let deadline = Instant::now() + support::PATIENCE;
    while rounds.load(Ordering::Relaxed) < 50 {
        assert!(Instant::now() < deadline, "the noise never began");
        thread::yield_now();
    }
    // Fewer than the burst, so that a refusal can only come from next door.
    let mut client = server.client(Tag(2));
    for _ in 0..90 {
        let beat = client.call::<Heartbeat>(&Empty {}).unwrap();
        assert_eq!(beat.next_within_ms, Some(2));
    }
    enough.store(true, Ordering::Relaxed);
    drop(hoard);
    server.stop();
    for thread in noisy {
        thread.join().unwrap();
    }
}

/// Whatever happens to the noisy ones, they go on; only the quiet one is looked at.
fn make_noise(kind: usize, path: &std::path::Path) {
    use std::io::{Read, Write};
    let Ok(mut stream) = UnixStream::connect(path) else {
        return;
    };
    let timeout = Some(Duration::from_millis(20));
    let _ = stream
        .set_read_timeout(timeout)
        .and(stream.set_write_timeout(timeout));
    let bytes = match kind {
        0 => HEARTBEAT.repeat(1_000).into_bytes(),
        1 => vec![0xff; 1 << 20],
        2 => b"POST /v1/replicate HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n".to_vec(),
        _ => Vec::new(),
    };
    let _ = stream.write_all(&bytes);
    let _ = stream.read(&mut [0; 1024]);
}

#[test]
fn a_removed_listener_closes_and_the_others_stay() {
    let (sender, receiver) = mpsc::channel();
    let server = TestServer::start(
        Limits {
            connections: 2,
            ..patient()
        },
        move |request| match request.call {
            Call::Agent(AgentCall::Shutdown(asked)) => sender.send(asked).unwrap(),
            _ => simple(request),
        },
    );
    let listener = UnixListener::bind(server.path(Tag(2))).unwrap();
    // A process forked at the wrong moment holds such a copy.
    let copy = listener.try_clone().unwrap();
    server
        .handle
        .add_listener(listener, Tag(2), Side::Agent)
        .unwrap();
    let connect = || Peer::connect(&server.path(Tag(2)));
    let (mut idle, mut waiting) = (connect(), connect());
    beats(&mut idle);
    waiting.ask("POST /v1/shutdown", r#"{"reason":"x"}"#);
    let asked = receiver.recv_timeout(support::PATIENCE).unwrap();
    let mut queued = connect();
    let mut kept = server.peer();
    beats(&mut kept);

    server.handle.remove(Tag(2)).unwrap();
    assert!(idle.hear_the_end().is_empty());
    let heard = waiting.hear();
    assert_eq!((heard.status, heard.code()), (503, "stopping"));
    assert!(waiting.hear_the_end().is_empty());
    assert!(queued.hear_the_end().is_empty());
    assert!(UnixStream::connect(server.path(Tag(2))).is_err());
    asked.responder.reply(&belljar_api::Done::DONE);
    beats(&mut kept);
    drop(copy);
    server.stop();
}

#[test]
fn stopping_closes_everything() {
    let (sender, receiver) = mpsc::channel();
    let server = TestServer::start(patient(), move |request| match request.call {
        Call::Agent(AgentCall::Shutdown(asked)) => sender.send(asked).unwrap(),
        _ => simple(request),
    });
    let (mut idle, mut half, mut waiting) = (server.peer(), server.peer(), server.peer());
    beats(&mut idle);
    half.send("POST /v1/heart");
    waiting.ask("POST /v1/shutdown", r#"{"reason":"x"}"#);
    let asked = receiver.recv_timeout(support::PATIENCE).unwrap();
    let mut client = server.client(Tag(1));
    let (handle, path) = (server.handle.clone(), server.path(Tag(1)));
    let _directory = server.stop();
    assert!(idle.hear_the_end().is_empty());
    assert!(half.hear_the_end().is_empty());
    assert_eq!(waiting.hear().status, Status::UNAVAILABLE.code());
    assert!(UnixStream::connect(path).is_err());
    // Late answers and late commands find nobody, and say so where somebody asks.
    asked.responder.reply(&belljar_api::Done::DONE);
    assert!(handle.remove(Tag(1)).is_err());
    handle.stop();
    let error = client.call::<Heartbeat>(&Empty {}).unwrap_err();
    assert!(matches!(error, CallError::NotThere { .. }), "{error:?}");
}
