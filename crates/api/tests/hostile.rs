//! Peers that send nonsense, too much, too little or out of turn. Each is told why, and nobody else notices.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::Shutdown;
use std::sync::mpsc;

use belljar_api::{AgentCall, Call, Limits, Problem, Status, Tag};
use support::{HEARTBEAT, Peer, TestServer, patient, simple};

#[track_caller]
fn check_alive(server: &TestServer) {
    let heard = server.peer().send(HEARTBEAT).hear();
    assert_eq!(heard.status, 200);
}

/// Sends bytes on a connection of its own; the server must answer with that status and code, and close.
#[track_caller]
fn check_refused(server: &TestServer, bytes: impl AsRef<[u8]>, status: u16, code: &str) {
    let mut peer = server.peer();
    let heard = peer.send(bytes).hear();
    assert_eq!((heard.status, heard.code()), (status, code), "{heard:?}");
    assert!(heard.closes(), "{heard:?}");
    assert!(peer.hear_the_end().is_empty());
    check_alive(server);
}

#[test]
fn nonsense_is_refused() {
    let server = TestServer::start(patient(), simple);
    check_refused(
        &server,
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        400,
        "bad_http",
    );
    check_refused(&server, [0; 4096], 400, "bad_http");
    check_refused(&server, [0xff; 100_000], 400, "bad_http");
    check_refused(&server, "hello\r\n\r\n", 400, "bad_http");
    check_refused(&server, "GET /v1/usage HTTP/3.0\r\n\r\n", 505, "bad_http");
    check_refused(
        &server,
        "GET /v1/usage HTTP/1.1\r\nA: \0\r\n\r\n",
        400,
        "bad_http",
    );
    let twice = "POST /v1/heartbeat HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}";
    check_refused(&server, twice, 400, "bad_http");
    let chunks = "POST /v1/heartbeat HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    check_refused(&server, chunks, 411, "length_required");
    let wonders = "POST /v1/heartbeat HTTP/1.1\r\nExpect: wonders\r\n\r\n";
    check_refused(&server, wonders, 417, "bad_http");
    server.stop();
}

#[test]
fn too_much_is_refused() {
    let server = TestServer::start(patient(), simple);
    let long = format!(
        "GET /v1/usage HTTP/1.1\r\nA: {}\r\n\r\n",
        "x".repeat(8 * 1024)
    );
    check_refused(&server, long, 431, "head_too_large");
    let endless = format!("GET /{}", "x".repeat(20_000));
    check_refused(&server, endless, 431, "head_too_large");
    let many = format!("GET /v1/usage HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(100));
    check_refused(&server, many, 431, "head_too_large");
    let body = 1024 * 1024 + 256 * 1024 + 1;
    for length in [body.to_string(), u64::MAX.to_string(), "9".repeat(60)] {
        let head = format!("POST /v1/replicate HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
        check_refused(&server, head, 413, "body_too_large");
    }
    server.stop();
}

#[test]
fn a_head_may_be_as_long_as_the_limit() {
    let server = TestServer::start(patient(), simple);
    let frame = "POST /v1/heartbeat HTTP/1.1\r\nA: \r\n\r\n".len();
    let head = |padding: usize| {
        format!(
            "POST /v1/heartbeat HTTP/1.1\r\nA: {}\r\n\r\n",
            "x".repeat(padding)
        )
    };
    let most = Limits::default().head_bytes - frame;
    assert_eq!(server.peer().send(head(most)).hear().status, 200);
    check_refused(&server, head(most + 1), 431, "head_too_large");
    server.stop();
}

#[test]
fn bad_json_is_refused_and_the_connection_goes_on() {
    let server = TestServer::start(patient(), simple);
    let mut peer = server.peer();
    let deep = format!(
        r#"{{"reason":{}1{}}}"#,
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    for (body, code, word) in [
        ("{", "bad_json", "EOF"),
        ("\u{feff}{}", "bad_json", "expected value"),
        ("{}", "bad_request", "missing field `reason`"),
        (
            r#"{"reason":"x","worker_id":"root"}"#,
            "bad_request",
            "unknown field `worker_id`",
        ),
        (r#"{"reason":1}"#, "bad_request", "expected a string"),
        (r#"["x"]"#, "bad_request", "expected an object"),
        (&deep, "bad_json", "32 levels"),
        ("", "bad_request", "missing field `reason`"),
    ] {
        let heard = peer.ask("POST /v1/shutdown", body).hear();
        assert_eq!((heard.status, heard.code()), (400, code), "{heard:?}");
        let message = heard.body["message"].as_str().unwrap();
        assert!(message.contains(word), "{message}");
    }
    let heard = peer.ask("POST /v1/shutdown", r#"{"reason":"x"}"#).hear();
    assert_eq!(heard.status, 200);
    server.stop();
}

#[test]
fn paths_and_methods_are_named() {
    let server = TestServer::start(patient(), simple);
    let mut peer = server.peer();
    let heard = peer.ask("GET /v1/nothing", "").hear();
    assert_eq!((heard.status, heard.code()), (404, "not_found"));
    assert!(
        heard.body["hint"]
            .as_str()
            .unwrap()
            .contains("POST /v1/replicate")
    );
    let heard = peer.ask("DELETE /v1/usage", "").hear();
    assert_eq!((heard.status, heard.code()), (405, "method_not_allowed"));
    assert!(
        heard.head.contains("Allow: GET, POST\r\n"),
        "{}",
        heard.head
    );
    // What is not asked for there is not ignored.
    let heard = peer.ask("GET /v1/usage?x=1", "").hear();
    assert_eq!((heard.status, heard.code()), (400, "bad_request"));
    assert_eq!(peer.ask("POST /v1/heartbeat?x=1", "").hear().status, 404);
    assert_eq!(peer.send(HEARTBEAT).hear().status, 200);
    server.stop();
}

#[test]
fn neither_side_has_the_others_routes() {
    let server = TestServer::start(patient(), simple);
    let engage = r#"{"reason":"x"}"#;
    let mut agent = server.peer();
    assert_eq!(agent.ask("POST /v1/kill-switch", engage).hear().status, 404);
    let mut operator = Peer::connect(&server.path(Tag(0)));
    assert_eq!(operator.send(HEARTBEAT).hear().status, 404);
    let mut operator = Peer::connect(&server.path(Tag(0)));
    let heard = operator.ask("POST /v1/workers/a%2fb/kill", engage).hear();
    assert_eq!((heard.status, heard.code()), (400, "bad_worker_id"));
    server.stop();
}

#[test]
fn a_request_that_breaks_off_is_refused() {
    let server = TestServer::start(patient(), simple);
    for part in [
        "POST /v1/he",
        "POST /v1/shutdown HTTP/1.1\r\nContent-Length: 9\r\n\r\n{",
    ] {
        let mut peer = server.peer();
        peer.send(part).0.shutdown(Shutdown::Write).unwrap();
        let heard = peer.hear();
        assert_eq!((heard.status, heard.code()), (400, "bad_http"));
        assert!(peer.hear_the_end().is_empty());
    }
    // Half open and silent: closed without a word.
    let mut peer = server.peer();
    peer.0.shutdown(Shutdown::Write).unwrap();
    assert!(peer.hear_the_end().is_empty());
    // Half open after a whole request: answered.
    let mut peer = server.peer();
    peer.send(HEARTBEAT).0.shutdown(Shutdown::Write).unwrap();
    assert_eq!(peer.hear().status, 200);
    assert!(peer.hear_the_end().is_empty());
    check_alive(&server);
    server.stop();
}

#[test]
fn requests_in_a_row_are_answered_in_turn() {
    let server = TestServer::start(patient(), simple);
    let mut peer = server.peer();
    let shutdown = "POST /v1/shutdown HTTP/1.1\r\nContent-Length: 14\r\n\r\n{\"reason\":\"x\"}";
    let nothing = "GET / HTTP/1.1\r\n\r\n";
    // More than one read's worth, so that some wait in the socket.
    for _ in 0..200 {
        peer.send([HEARTBEAT, shutdown, nothing].concat());
        for status in [200, 200, 404] {
            assert_eq!(peer.hear().status, status);
        }
    }
    peer.send([HEARTBEAT, nothing, shutdown].concat().repeat(100));
    for _ in 0..100 {
        for status in [200, 404, 200] {
            assert_eq!(peer.hear().status, status);
        }
    }
    server.stop();
}

#[test]
fn one_request_of_a_connection_is_under_way_at_a_time() {
    let (sender, receiver) = mpsc::channel();
    let server = TestServer::start(patient(), move |request| match request.call {
        Call::Agent(AgentCall::Shutdown(asked)) => sender.send(asked).unwrap(),
        _ => simple(request),
    });
    let shutdown = "POST /v1/shutdown HTTP/1.1\r\nContent-Length: 14\r\n\r\n{\"reason\":\"x\"}";
    let mut peer = server.peer();
    peer.send(shutdown.repeat(3));
    for _ in 0..3 {
        let asked = receiver.recv_timeout(support::PATIENCE).unwrap();
        // The loop goes on in the meantime, and hands over nothing more of that connection.
        for _ in 0..5 {
            check_alive(&server);
        }
        assert!(receiver.try_recv().is_err());
        let problem = Problem::new("deny_quota", "no");
        // Answered from another thread than the loop's.
        asked.responder.refuse(Status::FORBIDDEN, &problem);
        assert_eq!(peer.hear().status, 403);
    }
    server.stop();
}

#[test]
fn a_body_is_asked_for_where_the_peer_waits() {
    let server = TestServer::start(patient(), simple);
    let mut peer = server.peer();
    peer.send("POST /v1/shutdown HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n");
    assert_eq!(peer.hear().status, 100);
    assert_eq!(peer.send(r#"{"reason":"x"}"#).hear().status, 200);
    // One that would be refused is not asked for.
    peer.send("POST /v1/nothing HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n");
    assert_eq!(peer.hear().status, 404);
    server.stop();
}

#[test]
fn a_peer_that_leaves_at_once_is_still_heard() {
    let (sender, receiver) = mpsc::channel();
    let server = TestServer::start(patient(), move |request| match request.call {
        Call::Agent(AgentCall::Shutdown(asked)) => sender.send(asked).unwrap(),
        _ => simple(request),
    });
    server
        .peer()
        .ask("POST /v1/shutdown", r#"{"reason":"bye"}"#);
    let asked = receiver.recv_timeout(support::PATIENCE).unwrap();
    assert_eq!(asked.request.reason.as_str(), "bye");
    // Its answer reaches nobody and hurts nobody.
    asked.responder.reply(&belljar_api::Done::DONE);
    check_alive(&server);
    server.stop();
}

#[test]
fn a_dropped_responder_answers() {
    let server = TestServer::start(patient(), drop);
    let mut peer = server.peer();
    for _ in 0..3 {
        let heard = peer.send(HEARTBEAT).hear();
        assert_eq!((heard.status, heard.code()), (500, "unanswered"));
    }
    server.stop();
}

#[test]
fn a_refusal_is_never_taken_for_a_grant() {
    let server = TestServer::start(patient(), |request| match request.call {
        Call::Agent(call) => call.refuse(Status::CREATED, &Problem::new("deny_quota", "no")),
        Call::Operator(_) => {}
    });
    let heard = server.peer().send(HEARTBEAT).hear();
    assert_eq!((heard.status, heard.code()), (500, "deny_quota"));
    server.stop();
}
