//! A host that sends back what it got: the agent does not see the secret, over either version, in whatever part of the answer.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use belljar_egress::{HeaderSecret, LiveSecret, RefusalCode, SecretPlace, SecretText};
use belljar_policy::{DomainPattern, HttpTerms, WebSocket};
use bytes::Bytes;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::{HeaderMap, Request, Response};
use support::http::*;
use support::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const PLACEHOLDER: &str = "placeholder-key";
const VALUE: &str = "sk-REAL/SECRET+VALUE";

fn secret() -> HeaderSecret {
    HeaderSecret {
        name: "key".to_owned(),
        placeholders: vec![PLACEHOLDER.to_owned()],
        source: "{env: KEY}".to_owned(),
        domain: DomainPattern::parse(NAME).unwrap(),
        ports: Vec::new(),
        place: Some(SecretPlace::Bearer),
        value: LiveSecret::new(SecretText::new(VALUE.to_owned())),
    }
}

/// Frames that come one by one.
struct Pieces(std::collections::VecDeque<Frame<Bytes>>);

impl futures_core::Stream for Pieces {
    type Item = Result<Frame<Bytes>, std::convert::Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.pop_front().map(Ok))
    }
}

/// Says what it got wherever something can be said: in its status line, head, body, a byte at a time, and trailers.
async fn echoes(seen: Seen) -> Response<Body> {
    let told = format!("{:?} {}", seen.headers["authorization"], seen.uri);
    let whole = format!(
        "got {told}, that is {}",
        data_encoding::BASE64.encode(told.as_bytes())
    );
    let mut frames: std::collections::VecDeque<_> = whole
        .bytes()
        .map(|byte| Frame::data(Bytes::from(vec![byte])))
        .collect();
    let mut trailers = HeaderMap::new();
    trailers.insert("x-trailer", seen.headers["authorization"].clone());
    frames.push_back(Frame::trailers(trailers));
    let mut response = Response::builder()
        .header("x-echo", seen.headers["authorization"].clone())
        .header("location", format!("https://{NAME}/?key={VALUE}"))
        .header(format!("x-{}", "sk-real"), "kept")
        .header("trailer", "x-trailer");
    if let Some(encoding) = seen.headers.get("x-answer-in") {
        response = response.header("content-encoding", encoding);
    }
    response
        .body(StreamBody::new(Pieces(frames)).boxed_unsync())
        .unwrap()
}

fn asking(path: &str) -> Request<Body> {
    let mut request = get(path, NAME);
    for (name, value) in [
        ("accept-encoding", "gzip, br"),
        ("range", "bytes=4-9"),
        ("if-range", "\"x\""),
        ("te", "trailers"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    request
}

#[tokio::test]
async fn an_answer_never_holds_the_secret_of_its_host() {
    for wire in [Wire::Tls, Wire::TlsTwo] {
        let server = Server::start(NAME, wire, echoes).await;
        let mut config = config(vec![allow(NAME, &[])]);
        let authority = inspecting(&mut config, &server);
        config.secrets = vec![secret()];
        let bx = start(config);
        // A client that speaks HTTP/1 is led to a server that does.
        for two in [false, true]
            .into_iter()
            .skip(usize::from(wire == Wire::TlsTwo))
        {
            let mut request = asking("/a");
            let response = if two {
                request.headers_mut().remove("host");
                *request.uri_mut() = format!("https://{NAME}:{}/a", server.port).parse().unwrap();
                let mut client = client_two(&bx, NAME, server.port, &authority).await;
                soon(client.send_request(request)).await.unwrap()
            } else {
                let mut client = client_one(&bx, NAME, server.port, &authority).await;
                soon(client.send_request(request)).await.unwrap()
            };
            let (parts, body) = response.into_parts();
            let body = soon(body.collect()).await.unwrap();
            let trailers = format!("{:?}", body.trailers());
            let text = String::from_utf8(body.to_bytes().to_vec()).unwrap();
            let mask = "*".repeat(VALUE.len());
            assert!(text.contains(&format!("Bearer {mask}\"")), "{text}");
            let encoded = data_encoding::BASE64.encode(VALUE.as_bytes());
            for part in [&text, &trailers, &format!("{parts:?}")] {
                assert!(!part.contains("SECRET"), "{part}");
                assert!(!part.contains(&encoded[4..encoded.len() - 4]), "{part}");
            }
            assert!(trailers.contains(&mask) || trailers == "None", "{trailers}");
            assert_eq!(parts.headers["x-echo"], format!("Bearer {mask}"));
            assert_eq!(parts.headers["x-sk-real"], "kept");
        }
        for seen in server.seen() {
            assert_eq!(seen.headers["authorization"], format!("Bearer {VALUE}"));
            assert_eq!(seen.headers["accept-encoding"], "identity");
            assert!(!seen.headers.contains_key("range") && !seen.headers.contains_key("if-range"));
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_compressed_all_the_same_is_not_passed_on() {
    let server = Server::start(NAME, Wire::Tls, echoes).await;
    let mut config = config(vec![allow(NAME, &[])]);
    let authority = inspecting(&mut config, &server);
    config.secrets = vec![secret()];
    let bx = start(config);
    let mut client = client_one(&bx, NAME, server.port, &authority).await;
    for (coding, status) in [("identity", 200), ("gzip", 502), ("x-own", 502)] {
        let mut request = get("/", NAME);
        let headers = request.headers_mut();
        headers.insert("x-answer-in", coding.parse().unwrap());
        soon(client.ready()).await.unwrap();
        let (found, headers, body) = whole(soon(client.send_request(request)).await.unwrap()).await;
        assert_eq!(found, status, "{coding}: {body}");
        if status != 200 {
            assert_eq!(headers["x-belljar-refused"], RefusalCode::Encoded.code());
        }
    }
    let refusal = bx.recording.refusal(RefusalCode::Encoded).await;
    assert!(
        refusal
            .detail
            .is_some_and(|detail| detail.contains("compressed"))
    );
}

/// A server that says on a WebSocket what it was sent, in two frames and several writes.
async fn websocket_echo() -> (Server, u16, tokio::task::JoinHandle<()>) {
    let trusted = Server::start(NAME, Wire::Tls, says_hello).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = trusted.acceptor.clone();
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => head.push(byte),
                    Err(_) => break,
                }
            }
            let head = String::from_utf8(head).unwrap();
            assert!(
                !head
                    .to_ascii_lowercase()
                    .contains("sec-websocket-extensions")
            );
            let told = head
                .lines()
                .find(|line| line.contains("Bearer"))
                .unwrap()
                .to_owned();
            let (one, two) = told.split_at(told.len() - 7);
            let answer = format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nX-Echo: {VALUE}\r\n\r\n"
            );
            let mut bytes = answer.into_bytes();
            for (flags, text) in [(1, one), (0x80, two)] {
                bytes.extend([flags, text.len() as u8]);
                bytes.extend(text.as_bytes());
            }
            for piece in bytes.chunks(11) {
                stream.write_all(piece).await.unwrap();
                stream.flush().await.unwrap();
            }
            let _ = stream.shutdown().await;
        }
    });
    (trusted, port, task)
}

#[tokio::test]
async fn a_websocket_is_refused_unless_a_rule_names_it_and_never_holds_the_secret() {
    let (server, port, task) = websocket_echo().await;
    for allowed in [None, Some(WebSocket::Refuse), Some(WebSocket::Allow)] {
        let mut rule = allow(NAME, &[port]);
        rule.terms.http = allowed.map(|websocket| HttpTerms {
            websocket,
            ..HttpTerms::default()
        });
        let mut config = config(vec![rule]);
        let authority = inspecting(&mut config, &server);
        config.secrets = vec![secret()];
        let bx = start(config);
        let stream = bx.tunnel(&format!("{NAME}:{port}")).await;
        let mut stream = tls(stream, NAME, &authority, &[b"http/1.1"]).await;
        let request = format!(
            "GET / HTTP/1.1\r\nHost: {NAME}:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let is_allowed = allowed == Some(WebSocket::Allow);
        let end: &[u8] = if is_allowed {
            b"******\x80\x07*******"
        } else {
            b"\r\n\r\n"
        };
        let mut answer = Vec::new();
        while !answer.windows(end.len()).any(|part| part == end) {
            answer.push(soon(stream.read_u8()).await.unwrap_or_else(|_| {
                panic!("it ended: {}", answer.escape_ascii());
            }));
        }
        let shown = answer.escape_ascii().to_string();
        assert!(!shown.contains("SECRET"), "{shown}");
        let status = if is_allowed {
            "HTTP/1.1 101"
        } else {
            "HTTP/1.1 426"
        };
        assert!(shown.starts_with(status), "{shown}");
        if !is_allowed {
            bx.recording.refusal(RefusalCode::WebSocket).await;
        }
    }
    task.abort();
}

#[tokio::test]
async fn what_names_another_path_is_taken_out_where_a_rule_has_paths() {
    let server = Server::start(NAME, Wire::Tls, says_hello).await;
    for (methods, paths, dropped) in [(&["GET"][..], &["/public/*"][..], true), (&[], &[], false)] {
        let mut config = config(vec![looked_at(server.port, methods, paths)]);
        let authority = inspecting(&mut config, &server);
        let bx = start(config);
        let mut client = client_one(&bx, NAME, server.port, &authority).await;
        let mut request = get("/public/x", NAME);
        for name in ["x-original-url", "x_rewrite_url", "x-forwarded-prefix"] {
            request
                .headers_mut()
                .insert(name, "/admin".parse().unwrap());
        }
        assert_eq!(
            soon(client.send_request(request)).await.unwrap().status(),
            200
        );
        let seen = Arc::new(server.seen()).last().unwrap().headers.clone();
        assert_eq!(!format!("{seen:?}").contains("/admin"), dropped, "{seen:?}");
    }
}

/// However it was put in, it is searched for in every form that comes of that.
#[tokio::test]
async fn a_secret_that_the_client_placed_never_comes_back_either() {
    let server = Server::start(NAME, Wire::Tls, echoes).await;
    let mut config = config(vec![allow(NAME, &[])]);
    let authority = inspecting(&mut config, &server);
    config.secrets = vec![HeaderSecret {
        place: None,
        ..secret()
    }];
    let bx = start(config);
    for pair in [
        "u:placeholder-key",
        "us:placeholder-key",
        "placeholder-key:",
    ] {
        let mut client = client_one(&bx, NAME, server.port, &authority).await;
        let mut request = asking("/?key=placeholder-key");
        let basic = format!("Basic {}", data_encoding::BASE64.encode(pair.as_bytes()));
        request
            .headers_mut()
            .insert("authorization", basic.parse().unwrap());
        let response = soon(client.send_request(request)).await.unwrap();
        let (head, body) = response.into_parts();
        let body = soon(body.collect()).await.unwrap();
        let trailers = body.trailers().cloned();
        let answer = format!("{head:?} {:?} {trailers:?}", body.to_bytes());
        let basic = pair.replace(PLACEHOLDER, VALUE);
        let encoded = data_encoding::BASE64.encode(basic.as_bytes());
        let sent = &server.seen().pop().unwrap();
        assert_eq!(sent.headers["authorization"], format!("Basic {encoded}"));
        assert_eq!(sent.uri.query(), Some("key=sk-REAL%2FSECRET%2BVALUE"));
        // All but what depends on the bytes around it.
        let inner = data_encoding::BASE64.encode(VALUE.as_bytes());
        for form in [VALUE, "sk-REAL%2FSECRET%2BVALUE", &encoded, &inner[..24]] {
            assert!(!answer.contains(form), "{form}: {answer}");
        }
    }
}

/// A value that was replaced may come back yet, and the one that took its place on a connection that was there before it.
#[tokio::test]
async fn neither_a_replaced_secret_nor_its_successor_comes_back() {
    let server = Server::start(NAME, Wire::Tls, echoes).await;
    let mut config = config(vec![allow(NAME, &[])]);
    let authority = inspecting(&mut config, &server);
    let live = LiveSecret::new(SecretText::new("sk-FIRST-value-1".to_owned()));
    config.secrets = vec![HeaderSecret {
        value: live.clone(),
        ..secret()
    }];
    let bx = start(config);
    let mut client = client_one(&bx, NAME, server.port, &authority).await;
    for (value, other) in [
        ("sk-FIRST-value-1", "sk-SECOND-value-2"),
        ("sk-SECOND-value-2", "sk-FIRST-value-1"),
    ] {
        live.replace(SecretText::new(value.to_owned()));
        soon(client.ready()).await.unwrap();
        // The agent says the other one itself, as a host would that kept it.
        let mut request = asking(&format!("/?said={other}"));
        let placeholder = "Bearer placeholder-key".parse().unwrap();
        request.headers_mut().insert("x-api-key", placeholder);
        let response = soon(client.send_request(request)).await.unwrap();
        let (head, body) = response.into_parts();
        let body = soon(body.collect()).await.unwrap().to_bytes();
        let answer = format!("{head:?} {body:?}");
        let sent = &server.seen().pop().unwrap();
        assert_eq!(sent.headers["authorization"], format!("Bearer {value}"));
        assert_eq!(sent.headers["x-api-key"], format!("Bearer {value}"));
        assert!(!answer.contains(value), "{value}: {answer}");
        assert!(
            value.contains("FIRST") || !answer.contains(other),
            "{answer}"
        );
    }
}
