//! The client against servers that are absent, slow, or no servers of ours.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use belljar_api::{
    CallError, Client, Empty, Heartbeat, Reason, Replicate, ReplicateRequest, Side, StateText, Tag,
};
use support::{TestServer, patient, simple};
use tempfile::TempDir;

const GOOD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{\"ok\":true}";

/// Reads a request without a body to speak of.
fn read_question(stream: &mut UnixStream) {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"{}") {
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
}

/// A server that answers each connection's first question with the next of these, and hangs up.
fn fake(answers: Vec<Vec<u8>>) -> (TempDir, PathBuf, thread::JoinHandle<()>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let thread = thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            read_question(&mut stream);
            // A client that has seen enough may be gone.
            let _gone = stream.write_all(&answer);
        }
    });
    (directory, path, thread)
}

#[track_caller]
fn check_protocol_error(answer: impl Into<Vec<u8>>, word: &str) {
    let (_directory, path, thread) = fake(vec![answer.into()]);
    let mut client = Client::connect(path).unwrap();
    match client.call::<Heartbeat>(&Empty {}).unwrap_err() {
        CallError::Protocol(text) => assert!(text.contains(word), "{text}"),
        other => panic!("{other:?}"),
    }
    drop(client);
    thread.join().unwrap();
}

#[test]
fn nobody_there_is_said_with_the_path() {
    let directory = tempfile::tempdir().unwrap();
    let absent = directory.path().join("absent");
    let error = Client::connect(&absent).unwrap_err();
    assert!(matches!(&error, CallError::NotThere { path, .. } if *path == absent));
    assert!(error.to_string().contains("absent") && error.hint().is_some());
    let dead = directory.path().join("dead");
    drop(UnixListener::bind(&dead).unwrap());
    let error = Client::connect(&dead).unwrap_err();
    assert!(matches!(error, CallError::NotThere { .. }));
    let error = Client::connect("x".repeat(200)).unwrap_err();
    assert!(matches!(error, CallError::NotThere { .. }));
}

#[test]
fn answers_of_strangers_are_errors() {
    check_protocol_error("", "broke off");
    check_protocol_error("220 mail.example ESMTP\r\n", "not an HTTP response");
    check_protocol_error("HTTP/1.1 200 OK\r\n\r\n", "no Content-Length");
    check_protocol_error(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "chunks",
    );
    check_protocol_error(
        "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{\"ok\":true}",
        "broke off",
    );
    check_protocol_error(
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        "bytes",
    );
    check_protocol_error(
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        "not as expected",
    );
    check_protocol_error(
        "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\n{}",
        "not why",
    );
    check_protocol_error(
        format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(100_000)),
        "too long",
    );
    check_protocol_error(format!("{GOOD}{GOOD}"), "more than one");
}

#[test]
fn a_closed_connection_is_made_anew() {
    let between = format!("HTTP/1.1 100 Continue\r\n\r\n{GOOD}");
    let closing = GOOD.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let answers = [GOOD.to_owned(), between, closing, GOOD.to_owned()];
    let (_directory, path, thread) = fake(answers.map(String::into_bytes).to_vec());
    let mut client = Client::connect(&path).unwrap();
    for _ in 0..3 {
        assert!(client.call::<Heartbeat>(&Empty {}).unwrap().ok);
        // The server hangs up after each answer; from then on the old connection is of no use.
        client = wait_for_the_end(client);
    }
    assert!(client.call::<Heartbeat>(&Empty {}).unwrap().ok);
    thread.join().unwrap();
}

/// The server's thread closes right after it wrote; the client notices by itself as soon as that has happened.
fn wait_for_the_end(client: Client) -> Client {
    let deadline = std::time::Instant::now() + support::PATIENCE;
    while client.is_connected() {
        assert!(
            std::time::Instant::now() < deadline,
            "the server never hung up"
        );
        thread::yield_now();
    }
    client
}

#[test]
fn silence_times_out() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let _silent = UnixListener::bind(&path).unwrap();
    let short = Duration::from_millis(20);
    let mut client = Client::connect(&path).unwrap().with_deadline(short);
    let error = client.call::<Heartbeat>(&Empty {}).unwrap_err();
    assert!(
        matches!(error, CallError::TimedOut(after) if after == short),
        "{error:?}"
    );
    // A body that nobody reads, longer than the socket holds.
    let request = ReplicateRequest {
        reason: Reason::new("x").unwrap(),
        command: None,
        state: Some(StateText::new("x".repeat(1 << 20)).unwrap()),
        capability: None,
        budget: None,
    };
    let error = client.call::<Replicate>(&request).unwrap_err();
    assert!(matches!(error, CallError::TimedOut(_)), "{error:?}");
}

#[test]
fn an_early_refusal_of_a_long_body_is_read() {
    let limits = belljar_api::Limits {
        body_bytes: 1_000,
        ..patient()
    };
    let server = TestServer::start(limits, simple);
    let request = ReplicateRequest {
        reason: Reason::new("x").unwrap(),
        command: None,
        state: Some(StateText::new("x".repeat(1 << 20)).unwrap()),
        capability: None,
        budget: None,
    };
    let mut client = server.client(Tag(1));
    for _ in 0..10 {
        match client.call::<Replicate>(&request).unwrap_err() {
            CallError::Refused { status, problem } => {
                assert_eq!((status.code(), &*problem.code), (413, "body_too_large"));
            }
            other => panic!("{other:?}"),
        }
    }
    server.stop();
}

#[test]
fn one_connection_serves_many_calls() {
    let limits = belljar_api::Limits {
        // A second connection would have to wait for ever.
        accepts: belljar_api::Rate {
            burst: 1,
            per_second: 1,
        },
        connections: 1,
        ..patient()
    };
    let server = TestServer::start(limits, simple);
    server.listen(Tag(2), Side::Agent);
    let mut client = server.client(Tag(2));
    for _ in 0..100 {
        assert!(client.call::<Heartbeat>(&Empty {}).unwrap().ok);
        assert!(client.is_connected());
    }
    server.stop();
}
