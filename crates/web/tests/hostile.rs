//! Peers that mean ill, or are broken.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use belljar_web::{Pages, Role};
use proptest::prelude::*;
use support::{PATIENCE, Peer, REACHED, TestServer, request};

const SOON: Duration = Duration::from_millis(200);

#[test]
fn a_head_that_does_not_come_ends_the_connection() {
    let server = TestServer::with(|settings| settings.limits.head = SOON);
    for begun in ["", "G", "GET / HTTP/1.1\r\nHost: x\r\nX: y"] {
        let mut peer = server.peer();
        peer.send(begun);
        peer.hear_the_end();
    }
}

#[test]
fn a_head_that_comes_drop_by_drop_ends_the_connection_all_the_same() {
    let server = TestServer::with(|settings| settings.limits.head = SOON);
    let mut peer = server.peer();
    peer.send("GET / HTTP/1.1\r\n");
    peer.0
        .get_ref()
        .set_read_timeout(Some(Duration::from_millis(10)))
        .unwrap();
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "it is still open");
        // Waits for an end that may come, and sends a drop when it has not.
        match peer.0.get_mut().read(&mut [0; 64]) {
            Ok(0) => break,
            Ok(_) => continue,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        if peer.0.get_mut().write_all(b"x").is_err() {
            break;
        }
    }
}

#[test]
fn a_body_that_does_not_come_is_refused() {
    let server = TestServer::with(|settings| settings.limits.body = SOON);
    let (_, admin) = server.token(Role::Admin);
    for (path, length) in [
        ("/v1/kill-switch", "Content-Length: 100"),
        ("/v1/kill-switch", "Transfer-Encoding: chunked"),
        ("/v1/session", "Content-Length: 100"),
    ] {
        let mut peer = server.peer();
        peer.send(format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {admin}\r\nContent-Type: application/json\r\n{length}\r\n\r\n",
            server.address
        ));
        let heard = peer.hear();
        assert_eq!(
            (heard.status, heard.code().as_str()),
            (408, "too_slow"),
            "{path} {length}"
        );
        peer.hear_the_end();
    }
    assert_eq!(server.seen.calls(), []);
}

#[test]
fn what_is_too_large_is_refused() {
    let server = TestServer::with(|settings| settings.limits.body_bytes = 1000);
    let (_, admin) = server.token(Role::Admin);
    let head = |rest: &str| {
        format!(
            "POST /v1/kill-switch HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {admin}\r\nContent-Type: application/json\r\n{rest}\r\n\r\n",
            server.address
        )
    };
    // Refused by what it says of itself: no byte of it is read.
    let heard = server.peer().send(head("Content-Length: 1001")).hear();
    assert_eq!(
        (heard.status, heard.code().as_str()),
        (413, "body_too_large")
    );
    // And by what comes, where it says nothing.
    let mut peer = server.peer();
    peer.send(head("Transfer-Encoding: chunked"));
    peer.send(format!("3E9\r\n{}\r\n", "x".repeat(1001)));
    assert_eq!(peer.hear().status, 413);
    let long = "x".repeat(20 * 1024);
    for headers in [
        vec![format!("X-Long: {long}")],
        vec!["X: y".to_owned(); 100],
    ] {
        let mut peer = server.peer();
        peer.send(request("GET /", server.address, &headers, None));
        assert_eq!(peer.hear_head().status, 431);
    }
    let mut peer = server.peer();
    peer.send(format!(
        "GET /{long} HTTP/1.1\r\nHost: {}\r\n\r\n",
        server.address
    ));
    assert!([414, 431].contains(&peer.hear_head().status));
    assert_eq!(server.seen.calls(), []);
    let login = format!("{{\"token\":\"{}\"}}", "x".repeat(2000));
    assert_eq!(
        server.ask("POST /v1/session", None, Some(&login)).status,
        413
    );
}

#[test]
fn two_hundred_who_say_nothing_keep_nobody_out() {
    let server = TestServer::with(|settings| settings.limits.connections = 20);
    let (_, viewer) = server.token(Role::Viewer);
    let headers = [format!("Authorization: Bearer {viewer}")];
    let ask = request("GET /v1/status", server.address, &headers, None);
    let mut known: Vec<Peer> = (0..10).map(|_| server.peer()).collect();
    for peer in &mut known {
        assert_eq!(peer.send(&ask).hear().status, REACHED);
    }
    let strangers: Vec<Peer> = (0..200).map(|_| server.peer()).collect();
    // A newcomer with a token finds a place, and those who had one keep it.
    assert_eq!(server.peer().send(&ask).hear().status, REACHED);
    for peer in &mut known {
        assert_eq!(peer.send(&ask).hear().status, REACHED);
    }
    drop(strangers);
}

#[test]
fn two_hundred_who_ask_at_once_are_all_answered() {
    let server = TestServer::start();
    let (_, viewer) = server.token(Role::Viewer);
    let headers = [format!("Authorization: Bearer {viewer}")];
    let ask = request("GET /v1/agents?ended=true", server.address, &headers, None);
    let mut peers: Vec<Peer> = (0..200).map(|_| server.peer()).collect();
    for peer in &mut peers {
        peer.send(&ask);
    }
    for peer in &mut peers {
        assert_eq!(peer.hear().status, REACHED);
    }
    assert_eq!(server.seen.calls().len(), 200);
}

#[test]
fn whoever_does_not_take_what_was_asked_for_is_let_go() {
    let large = vec![b'x'; 64 * 1024 * 1024];
    let server = TestServer::with(|settings| {
        settings.limits.stall = SOON;
        settings.pages = Pages::new([("/large.txt".to_owned(), large)]);
    });
    let (_, viewer) = server.token(Role::Viewer);
    let mut peer = server.peer();
    peer.send(request("GET /large.txt", server.address, &[], None));
    assert_eq!(peer.hear_head().status, 200);
    let start = Instant::now();
    loop {
        let numbers = server.ask("GET /metrics", Some(&viewer), None).text();
        if numbers.contains("\nbelljar_web_connections 1\n") {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "it is still waited for");
    }
    assert!(peer.hear_the_end().len() < 64 * 1024 * 1024);
}

#[test]
fn an_answer_that_does_not_come_is_told() {
    let server = TestServer::with(|settings| settings.limits.answer = SOON);
    *server.seen.kept.lock().unwrap() = Some(Vec::new());
    let (_, viewer) = server.token(Role::Viewer);
    let heard = server.ask("GET /v1/status", Some(&viewer), None);
    assert_eq!((heard.status, heard.code().as_str()), (504, "no_answer"));
    assert!(heard.json()["hint"].is_string());
}

#[test]
fn an_order_to_kill_waits_for_no_list() {
    let server = TestServer::with(|settings| settings.limits.calls = 1);
    let (_, admin) = server.token(Role::Admin);
    server.seen.hold(true);
    let headers = [format!("Authorization: Bearer {admin}")];
    let mut lists: Vec<Peer> = (0..5).map(|_| server.peer()).collect();
    for peer in &mut lists {
        peer.send(request("GET /v1/tree", server.address, &headers, None));
    }
    let body = Some(r#"{"reason":"a test"}"#);
    assert_eq!(
        server
            .ask("POST /v1/kill-switch", Some(&admin), body)
            .status,
        REACHED
    );
    server.seen.hold(false);
    for peer in &mut lists {
        assert_eq!(peer.hear().status, REACHED);
    }
}

#[test]
fn a_get_with_a_body_is_refused() {
    let server = TestServer::start();
    let (_, viewer) = server.token(Role::Viewer);
    for ask in [
        "GET /v1/status",
        "GET /v1/session",
        "GET /v1/stream",
        "GET /metrics",
    ] {
        assert_eq!(
            server.ask(ask, Some(&viewer), Some("{}")).status,
            400,
            "{ask}"
        );
    }
    assert_eq!(server.seen.calls(), []);
}

#[test]
fn requests_one_after_the_other_on_one_connection_are_answered_in_order() {
    let server = TestServer::start();
    let (_, viewer) = server.token(Role::Viewer);
    let headers = [format!("Authorization: Bearer {viewer}")];
    let one = request("GET /v1/status", server.address, &headers, None);
    let other = request("GET /healthz", server.address, &[], None);
    let mut peer = server.peer();
    peer.send(format!("{one}{other}{one}"));
    assert_eq!(
        [peer.hear().status, peer.hear().status, peer.hear().status],
        [REACHED, 200, REACHED]
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_bring_the_server_down(parts in proptest::collection::vec(part(), 1..12)) {
        let server = shared();
        let mut peer = server.peer();
        for part in &parts {
            // The server may have had enough.
            if peer.0.get_mut().write_all(part).is_err() {
                break;
            }
        }
        let _ = peer.0.get_ref().shutdown(std::net::Shutdown::Write);
        peer.hear_the_end();
        prop_assert_eq!(server.ask("GET /healthz", None, None).status, 200);
        prop_assert!(server.seen.calls().is_empty());
    }
}

fn shared() -> &'static TestServer {
    static SERVER: std::sync::OnceLock<TestServer> = std::sync::OnceLock::new();
    SERVER.get_or_init(TestServer::start)
}

/// Bytes, and pieces of what a request is made of.
fn part() -> impl Strategy<Value = Vec<u8>> {
    let words = [
        "GET ",
        "POST ",
        "OPTIONS * ",
        "/v1/status",
        "/v1/session",
        "/v1/stream",
        " HTTP/1.1\r\n",
        " HTTP/1.0\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "Host: ",
        "Content-Length: 5\r\n",
        "Content-Length: -1\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: x\r\n",
        "Authorization: Bearer bj_\r\n",
        "Cookie: belljar=;;=;\r\n",
        "Expect: 100-continue\r\n",
        "Upgrade: h2c\r\nConnection: upgrade\r\n",
        "Content-Type: application/json\r\n",
        "\r\n",
        "\r\n\r\n",
        "0\r\n\r\n",
        "FFFFFFFFFFFFFFFF\r\n",
        "\0",
        "%00",
        "/../..",
        "{\"token\":",
        "[[[[",
    ];
    prop_oneof![
        3 => proptest::sample::select(words.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        1 => Just(format!("Host: {}\r\n", shared().address).into_bytes()),
        1 => proptest::collection::vec(any::<u8>(), 0..64),
    ]
}
