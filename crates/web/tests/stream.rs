//! The live stream.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_api::{AgentId, Live};
use belljar_web::{Feed, Role};
use support::{PATIENCE, Peer, TestServer, request, token};

fn watch(server: &TestServer, key: &str) -> Peer {
    let mut peer = server.peer();
    peer.send(request(
        "GET /v1/stream",
        server.address,
        &[key.to_owned()],
        None,
    ));
    peer
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

/// Opens a stream and reads up to its first message, which holds all agents.
fn open(server: &TestServer, key: &str) -> Peer {
    let mut peer = watch(server, key);
    let head = peer.hear_head();
    assert_eq!(head.status, 200);
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    assert_eq!(head.header("cache-control"), Some("no-store"));
    assert_eq!(peer.chunk().as_deref(), Some("retry: 2000\n\n"));
    assert_eq!(peer.chunk().as_deref(), Some("event: agents\ndata: []\n\n"));
    peer
}

fn forgotten(ids: &[&str]) -> Arc<Live> {
    let ids = ids.iter().map(|id| AgentId::new(*id).unwrap());
    Arc::new(Live::Forgotten(ids.collect()))
}

/// Tells until nobody listens any more.
fn wait_until_gone(feed: &Feed) {
    let start = Instant::now();
    while feed.send(Arc::new(Live::Lost)).is_ok() {
        assert!(start.elapsed() < PATIENCE, "somebody still listens");
        std::thread::yield_now();
    }
}

#[test]
fn what_happens_is_told_by_name_to_everybody_who_watches() {
    let server = TestServer::start();
    let (_, viewer) = server.token(Role::Viewer);
    let mut one = open(&server, &bearer(&viewer));
    let mut other = open(&server, &bearer(&viewer));
    let message = forgotten(&["w1", "w2"]);
    for feed in server.seen.feeds(2) {
        feed.send(Arc::clone(&message)).unwrap();
        feed.send(Arc::new(Live::Lost)).unwrap();
    }
    for peer in [&mut one, &mut other] {
        assert_eq!(
            peer.chunk().as_deref(),
            Some("event: forgotten\ndata: [\"w1\",\"w2\"]\n\n")
        );
        assert_eq!(peer.chunk().as_deref(), Some("event: lost\ndata: null\n\n"));
    }
}

#[test]
fn a_silent_stream_has_a_heartbeat() {
    let server = TestServer::with(|settings| {
        settings.limits.heartbeat = Duration::from_millis(5);
        // A look at the token must not put the heartbeat off.
        settings.limits.check = Duration::from_millis(2);
    });
    let (_, viewer) = server.token(Role::Viewer);
    let mut peer = open(&server, &bearer(&viewer));
    for _ in 0..3 {
        assert_eq!(peer.chunk().as_deref(), Some(": still here\n\n"));
    }
}

#[test]
fn a_slow_reader_is_told_that_it_lost_something_and_keeps_nobody_waiting() {
    let server = TestServer::with(|settings| settings.limits.stream_messages = 4);
    let (_, viewer) = server.token(Role::Viewer);
    let mut peer = open(&server, &bearer(&viewer));
    let feed = server.seen.feeds(1).remove(0);
    // Much more than the sockets between us hold.
    let long = "x".repeat(60);
    let large = forgotten(&vec![long.as_str(); 16 * 1024]);
    for _ in 0..64 {
        feed.send(Arc::clone(&large)).unwrap();
    }
    let mut whole = 0;
    let lost = loop {
        // A large message comes in several chunks.
        let chunk = peer.chunk().unwrap();
        whole += chunk.len();
        if chunk == "event: lost\ndata: null\n\n" {
            break whole;
        }
    };
    assert!(lost < 64 * 1024 * 1024, "everything was kept for it");
    feed.send(forgotten(&["the-newest"])).unwrap();
    while peer.chunk().unwrap() != "event: forgotten\ndata: [\"the-newest\"]\n\n" {}
}

#[test]
fn there_are_so_many_streams_and_a_place_is_free_when_its_reader_goes() {
    let server = TestServer::with(|settings| {
        settings.limits.streams = 3;
        settings.limits.streams_of_one = 2;
    });
    let (_, viewer) = server.token(Role::Viewer);
    let (_, other) = server.token(Role::Viewer);
    let first = open(&server, &bearer(&viewer));
    let _second = open(&server, &bearer(&viewer));
    let refused = watch(&server, &bearer(&viewer)).hear();
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (429, "too_many_streams")
    );
    let _third = open(&server, &bearer(&other));
    assert_eq!(watch(&server, &bearer(&other)).hear().status, 429);
    drop(first);
    wait_until_gone(&server.seen.feeds(1)[0]);
    let start = Instant::now();
    while watch(&server, &bearer(&viewer)).hear_head().status != 200 {
        assert!(start.elapsed() < PATIENCE, "the place is not free");
    }
}

#[test]
fn a_stream_ends_when_its_token_is_revoked() {
    let server = TestServer::start();
    let (record, viewer) = server.token(Role::Viewer);
    let (_, other) = server.token(Role::Viewer);
    let (cookie, _) = server.log_in(&viewer);
    let mut by_token = open(&server, &bearer(&viewer));
    let mut by_session = open(&server, &format!("Cookie: {cookie}"));
    let mut bystander = open(&server, &bearer(&other));
    let feeds = server.seen.feeds(3);
    server.tokens.revoke(record.id.as_str()).unwrap();
    assert_eq!(by_token.chunk(), None);
    assert_eq!(by_session.chunk(), None);
    wait_until_gone(&feeds[0]);
    feeds[2].send(forgotten(&["w"])).unwrap();
    assert!(bystander.chunk().is_some());
}

#[test]
fn a_stream_ends_with_its_session() {
    let server = TestServer::start();
    let (_, viewer) = server.token(Role::Viewer);
    let (cookie, csrf) = server.log_in(&viewer);
    let cookie = format!("Cookie: {cookie}");
    let mut peer = open(&server, &cookie);
    let headers = [cookie, server.origin(), format!("X-Belljar-Csrf: {csrf}")];
    assert_eq!(
        server
            .ask_with("POST /v1/session/end", &headers, None)
            .status,
        200
    );
    assert_eq!(peer.chunk(), None);
}

#[test]
fn a_stream_ends_when_its_token_expires() {
    let server = TestServer::start();
    let (_, viewer) = token(&server.tokens, Role::Viewer, Some(Duration::from_secs(2)));
    let mut peer = open(&server, &bearer(&viewer));
    assert_eq!(peer.chunk(), None);
    assert_eq!(
        server.ask("GET /v1/session", Some(&viewer), None).status,
        401
    );
}

#[test]
fn a_server_that_is_dropped_ends_its_streams_and_frees_its_port() {
    let mut server = TestServer::start();
    let (_, viewer) = server.token(Role::Viewer);
    let mut peer = open(&server, &bearer(&viewer));
    drop(server.running.take());
    peer.hear_the_end();
    std::net::TcpListener::bind(server.address).unwrap();
}
