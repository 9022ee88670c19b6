//! Peers and deciders that take too long. Deadlines are short here; nothing asserts how soon they strike, only that they do.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::os::unix::net::UnixListener;
use std::sync::mpsc;
use std::time::Duration;

use belljar_api::{AgentCall, Call, Done, HeartbeatReply, Limits, ManifestReply, Side, Tag};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Map, Value};
use support::{HEARTBEAT, PATIENCE, Peer, TestServer, patient, simple};

const SHORT: Duration = Duration::from_millis(50);

/// Waits until the server has dropped the connection, without reading from it.
#[track_caller]
fn wait_until_dropped(peer: &Peer) {
    let patience = Timespec::try_from(PATIENCE).unwrap();
    let mut watched = [PollFd::new(&peer.0, PollFlags::empty())];
    assert_eq!(
        poll(&mut watched, Some(&patience)),
        Ok(1),
        "the connection was not dropped"
    );
}

#[test]
fn a_slow_request_is_refused() {
    let server = TestServer::start(
        Limits {
            request: SHORT,
            ..patient()
        },
        simple,
    );
    for part in [
        "P",
        "POST /v1/heartbeat HTTP/1.1\r\nA: b\r\n",
        "POST /v1/shutdown HTTP/1.1\r\nContent-Length: 9\r\n\r\n{",
    ] {
        let mut peer = server.peer();
        let heard = peer.send(part).hear();
        assert_eq!((heard.status, heard.code()), (408, "too_slow"));
        assert!(peer.hear_the_end().is_empty());
    }
    server.stop();
}

#[test]
fn bytes_now_and_then_do_not_stretch_the_deadline() {
    let server = TestServer::start(
        Limits {
            request: SHORT,
            linger: SHORT,
            ..patient()
        },
        simple,
    );
    let mut peer = server.peer();
    peer.send("POST /v1/heartbeat HTTP/1.1\r\nA: ");
    peer.0.set_read_timeout(Some(SHORT / 10)).unwrap();
    let mut byte = [0];
    // 8,000 bytes at one per 5 ms would keep it busy for 40 s, were the clock started anew by each.
    for _ in 0..8_000 {
        if std::io::Read::read(&mut peer.0, &mut byte).is_ok_and(|count| count == 1) {
            return drop(server.stop());
        }
        // The server may hang up in between.
        let _closed = std::io::Write::write(&mut peer.0, b"x");
    }
    panic!("no answer to a head that never ends");
}

#[test]
fn an_idle_connection_is_closed() {
    let server = TestServer::start(
        Limits {
            idle: SHORT,
            ..patient()
        },
        simple,
    );
    let mut silent = server.peer();
    assert!(silent.hear_the_end().is_empty());
    // Sent before the server knows the socket: this peer is in time, however slow the machine.
    let listener = UnixListener::bind(server.path(Tag(2))).unwrap();
    let mut used = Peer::connect(&server.path(Tag(2)));
    used.send(HEARTBEAT);
    server
        .handle
        .add_listener(listener, Tag(2), Side::Agent)
        .unwrap();
    assert_eq!(used.hear().status, 200);
    assert!(used.hear_the_end().is_empty());
    server.stop();
}

#[test]
fn a_refused_peer_that_stays_is_dropped() {
    let server = TestServer::start(
        Limits {
            linger: SHORT,
            ..patient()
        },
        simple,
    );
    let mut peer = server.peer();
    assert_eq!(peer.send("nonsense\r\n\r\n").hear().status, 400);
    wait_until_dropped(&peer);
    server.stop();
}

#[test]
fn a_peer_that_never_reads_is_dropped() {
    let server = TestServer::start(
        Limits {
            reply: SHORT,
            ..patient()
        },
        |request| match request.call {
            Call::Agent(AgentCall::Manifest(asked)) => {
                let payload = Map::from_iter([("a".to_owned(), Value::from("x".repeat(6 << 20)))]);
                let envelope = String::new();
                asked.responder.reply(&ManifestReply { envelope, payload });
            }
            _ => simple(request),
        },
    );
    let mut peer = server.peer();
    peer.ask("GET /v1/manifest", "");
    wait_until_dropped(&peer);
    assert!(peer.hear_the_end().len() < 6 << 20);
    assert_eq!(server.peer().send(HEARTBEAT).hear().status, 200);
    server.stop();
}

#[test]
fn no_decision_is_an_answer_and_a_late_one_reaches_nobody() {
    let (sender, receiver) = mpsc::channel();
    let server = TestServer::start(
        Limits {
            answer: SHORT,
            ..patient()
        },
        move |request| match request.call {
            Call::Agent(AgentCall::Shutdown(asked)) => sender.send(asked).unwrap(),
            Call::Agent(AgentCall::Heartbeat(asked)) => {
                asked.responder.reply(&HeartbeatReply {
                    ok: true,
                    next_within_ms: Some(77),
                });
            }
            _ => {}
        },
    );
    let mut peer = server.peer();
    let heard = peer.ask("POST /v1/shutdown", r#"{"reason":"x"}"#).hear();
    assert_eq!((heard.status, heard.code()), (504, "undecided"));
    // The same connection asks again; the answer to its first question comes in between.
    peer.ask("POST /v1/shutdown", r#"{"reason":"y"}"#);
    let first = receiver.recv_timeout(PATIENCE).unwrap();
    let second = receiver.recv_timeout(PATIENCE).unwrap();
    assert_eq!(
        (
            first.request.reason.as_str(),
            second.request.reason.as_str()
        ),
        ("x", "y")
    );
    first.responder.reply(&Done::DONE);
    assert_eq!(peer.hear().status, 504);
    second.responder.reply(&Done::DONE);
    let heard = peer.send(HEARTBEAT).hear();
    assert_eq!(heard.body["next_within_ms"], 77);
    server.stop();
}
