//! Any bytes, in any pieces: the server answers in HTTP or hangs up, and goes on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{Read, Write};
use std::net::Shutdown;

use belljar_api::{AgentCall, Call, Done, Problem, Status};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use support::{HEARTBEAT, TestServer, patient};

fn server() -> TestServer {
    TestServer::start(patient(), |request| match request.call {
        Call::Agent(AgentCall::Shutdown(asked)) => asked.responder.reply(&Done::DONE),
        Call::Agent(call) => call.refuse(Status::FORBIDDEN, &Problem::new("no", "no")),
        Call::Operator(_) => {}
    })
}

/// Sends the pieces, says no more, and gives everything that came back.
fn exchange(server: &TestServer, pieces: &[&[u8]]) -> Vec<u8> {
    let mut peer = server.peer();
    for piece in pieces {
        // The server may have had enough.
        if peer.0.write_all(piece).is_err() {
            break;
        }
    }
    let _gone = peer.0.shutdown(Shutdown::Write);
    peer.hear_the_end()
}

/// Cuts at those places, wherever they fall.
fn cut<'a>(bytes: &'a [u8], places: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut ends: Vec<_> = places
        .iter()
        .map(|place| place.index(bytes.len() + 1))
        .collect();
    ends.extend([0, bytes.len()]);
    ends.sort_unstable();
    ends.windows(2)
        .map(|pair| &bytes[pair[0]..pair[1]])
        .collect()
}

/// The same cases in every run: a failure can be repeated.
fn runner(cases: u32) -> TestRunner {
    let config = Config {
        failure_persistence: None,
        ..Config::with_cases(cases)
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(config, rng)
}

/// Something close to a request, which gets deeper than noise does.
fn nearly_a_request() -> impl Strategy<Value = Vec<u8>> {
    let method = prop::sample::select(vec!["GET", "POST", "HEAD", "get", "P\0ST", ""]);
    let path = prop::sample::select(vec![
        "/v1/usage",
        "/v1/shutdown",
        "/v1/replicate",
        "/",
        "*",
        "/v1/\u{7f}",
    ]);
    let version = prop::sample::select(vec!["HTTP/1.1", "HTTP/1.0", "HTTP/9.9", ""]);
    let header = prop::sample::select(vec![
        "Content-Length: 5",
        "Content-Length: 14",
        "content-length: 99999999",
        "Content-Length: -1",
        "Transfer-Encoding: chunked",
        "Connection: close",
        "Connection: keep-alive",
        "Expect: 100-continue",
        "Host: x",
        ": x",
        "A:\u{1}",
    ]);
    let headers = prop::collection::vec(header, 0..5);
    let body = prop_oneof![
        Just(b"{\"reason\":\"x\"}".to_vec()),
        Just(b"[[[[[".to_vec()),
        prop::collection::vec(any::<u8>(), 0..64),
    ];
    let ending = prop::sample::select(vec!["\r\n", "\n", "\r"]);
    (method, path, version, headers, body, ending).prop_map(
        |(method, path, version, headers, body, ending)| {
            let mut text = format!("{method} {path} {version}{ending}");
            for header in headers {
                text += header;
                text += ending;
            }
            text += ending;
            [text.into_bytes(), body].concat()
        },
    )
}

#[test]
fn any_bytes_get_an_answer_or_an_end() {
    let server = server();
    let noise = prop::collection::vec(any::<u8>(), 0..2_000);
    let nearly = prop::collection::vec(nearly_a_request(), 1..4).prop_map(|all| all.concat());
    let places = prop::collection::vec(any::<prop::sample::Index>(), 0..6);
    let input = (prop_oneof![1 => noise, 3 => nearly], places);
    runner(400)
        .run(&input, |(bytes, places)| {
            let heard = exchange(&server, &cut(&bytes, &places));
            prop_assert!(heard.is_empty() || heard.starts_with(b"HTTP/1.1 "));
            prop_assert!(heard.len() < 100_000);
            Ok(())
        })
        .unwrap();
    assert_eq!(server.peer().send(HEARTBEAT).hear().status, 403);
    server.stop();
}

#[test]
fn how_a_request_is_cut_makes_no_difference() {
    let server = server();
    let state = "x".repeat(100_000);
    let long = format!(r#"{{"reason":"x","state":"{state}"}}"#);
    let row = format!(
        "{HEARTBEAT}GET / HTTP/1.1\r\n\r\nPOST /v1/shutdown HTTP/1.1\r\nContent-Length: 14\r\n\r\n{{\"reason\":\"x\"}}\
         POST /v1/replicate HTTP/1.1\r\nContent-Length: {}\r\n\r\n{long}{HEARTBEAT}",
        long.len()
    );
    let whole = exchange(&server, &[row.as_bytes()]);
    let answers = whole.windows(9).filter(|nine| nine == b"HTTP/1.1 ").count();
    assert_eq!(answers, 5);
    let places = prop::collection::vec(any::<prop::sample::Index>(), 0..12);
    // Cuts are wanted in the heads, which are a small part of the whole.
    let early = prop::collection::vec(0..200_usize, 0..12);
    runner(60)
        .run(&(places, early), |(places, mut early)| {
            early.sort_unstable();
            let (front, back) = row.as_bytes().split_at(200);
            early.insert(0, 0);
            early.push(200);
            let mut pieces: Vec<_> = early
                .windows(2)
                .map(|pair| &front[pair[0]..pair[1]])
                .collect();
            pieces.extend(cut(back, &places));
            prop_assert!(exchange(&server, &pieces) == whole);
            Ok(())
        })
        .unwrap();
    let bytes: Vec<_> = row.as_bytes()[..400].chunks(1).collect();
    let rest = &row.as_bytes()[400..];
    assert!(exchange(&server, &[&bytes[..], &[rest]].concat()) == whole);
    // A reader of one byte at a time does no harm either.
    let mut peer = server.peer();
    peer.send(HEARTBEAT);
    let mut byte = [0];
    peer.0.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"H");
    server.stop();
}
