//! What a listener's peers can make the server hold.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::mpsc;

use belljar_api::{AgentCall, Call, Limits, ManifestReply};
use serde_json::Map;
use support::{HEARTBEAT, Peer, TestServer, patient, simple};

#[track_caller]
fn beats(peer: &mut Peer) {
    assert_eq!(peer.send(HEARTBEAT).hear().status, 200);
}

/// A request of a little more than 1 MiB, whose sender waits to be asked for the body.
fn large_request() -> (String, String) {
    let body = format!(r#"{{"reason":"x"{}}}"#, " ".repeat(1 << 20));
    let head = format!(
        "POST /v1/shutdown HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    (head, body)
}

/// Asks until there is room. A peer that leaves is noticed in the next turn or so.
#[track_caller]
fn wait_for_room(server: &TestServer, head: &str) {
    let found = (0..1_000).any(|_| server.peer().send(head).hear().status == 100);
    assert!(found, "the room of a peer that left was never given back");
}

#[test]
fn memory_of_a_listener_is_bounded() {
    let limits = Limits {
        memory_bytes: 2 << 20,
        ..patient()
    };
    let server = TestServer::start(limits, simple);
    let (head, body) = large_request();
    let mut first = server.peer();
    assert_eq!(first.send(&head).hear().status, 100);
    let heard = server.peer().send(&head).hear();
    assert_eq!((heard.status, heard.code()), (503, "busy"));
    assert_eq!(heard.body["retry_after_ms"], 1_000);
    // Small requests go on, and room comes back with the reply.
    beats(&mut server.peer());
    assert_eq!(first.send(&body).hear().status, 200);
    let mut second = server.peer();
    assert_eq!(second.send(&head).hear().status, 100);
    // Room comes back from those who leave, too.
    drop(second);
    wait_for_room(&server, &head);
    server.stop();
}

#[test]
fn a_peer_that_leaves_while_somebody_decides_gives_its_room_back() {
    let (sender, receiver) = mpsc::channel();
    let limits = Limits {
        memory_bytes: 2 << 20,
        ..patient()
    };
    let server = TestServer::start(limits, move |request| match request.call {
        Call::Agent(AgentCall::Shutdown(asked)) => sender.send(asked).unwrap(),
        _ => simple(request),
    });
    let (head, body) = large_request();
    let mut peer = server.peer();
    assert_eq!(peer.send(&head).hear().status, 100);
    peer.send(&body);
    // The body is with whoever decides, and still counts.
    let undecided = receiver.recv_timeout(support::PATIENCE).unwrap();
    assert_eq!(server.peer().send(&head).hear().status, 503);
    drop(peer);
    wait_for_room(&server, &head);
    drop(undecided);
    server.stop();
}

#[test]
fn large_replies_are_bounded() {
    // More than any socket holds by default, so that a reply nobody reads stays with the server.
    const LARGE: usize = 6 << 20;
    let limits = Limits {
        reply_bytes: LARGE + 1024,
        memory_bytes: 1 << 20,
        ..patient()
    };
    let mut sizes = vec![LARGE, LARGE, LARGE, LARGE + 1024];
    let server = TestServer::start(limits, move |request| match request.call {
        Call::Agent(AgentCall::Manifest(asked)) => asked.responder.reply(&ManifestReply {
            envelope: "x".repeat(sizes.pop().unwrap_or_default()),
            payload: Map::new(),
        }),
        _ => simple(request),
    });
    let heard = server.peer().ask("GET /v1/manifest", "").hear();
    assert_eq!((heard.status, heard.code()), (500, "reply_too_large"));
    // One beyond the listener's memory is possible; a second at the same time is not.
    let mut first = server.peer();
    first.ask("GET /v1/manifest", "");
    let mut byte = [0];
    let seen = rustix::net::recv(&first.0, &mut byte, rustix::net::RecvFlags::PEEK).unwrap();
    assert_eq!(seen.1, 1);
    let heard = server.peer().ask("GET /v1/manifest", "").hear();
    assert_eq!((heard.status, heard.code()), (503, "busy"));
    beats(&mut server.peer());
    assert_eq!(first.hear().status, 200);
    assert_eq!(server.peer().ask("GET /v1/manifest", "").hear().status, 200);
    server.stop();
}
