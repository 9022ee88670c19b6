//! Connections that are looked into: methods, paths, hosts, WebSockets, streaming.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use belljar_egress::RefusalCode;
use belljar_policy::WebSocket;
use bytes::Bytes;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::{Request, Response};
use support::http::*;
use support::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[tokio::test]
async fn requests_follow_the_rules_on_one_connection() {
    let server = Server::start(NAME, Wire::Tls, says_hello).await;
    let mut config = config(vec![looked_at(server.port, &["GET"], &["/v1/*"])]);
    let authority = inspecting(&mut config, &server);
    let bx = start(config);
    let mut client = client_one(&bx, NAME, server.port, &authority).await;
    for (request, status, code) in [
        (get("/v1/models?x=1", NAME), 200, None),
        (get("/v2/models", NAME), 403, Some(RefusalCode::Request)),
        (get("/v1/../v2", NAME), 403, Some(RefusalCode::Request)),
        (get("/v1/%2e%2e/v2", NAME), 403, Some(RefusalCode::Request)),
        (
            Request::post("/v1/x")
                .header("host", NAME)
                .body(text("x"))
                .unwrap(),
            403,
            Some(RefusalCode::Request),
        ),
        (
            get("/v1/x", "other.test"),
            421,
            Some(RefusalCode::NameMismatch),
        ),
        (get("/v1/models", NAME), 200, None),
    ] {
        soon(client.ready()).await.unwrap();
        let shown = format!("{request:?}");
        let (found, headers, body) = whole(soon(client.send_request(request)).await.unwrap()).await;
        assert_eq!(found, status, "{shown} {body}");
        let refused = headers
            .get("x-belljar-refused")
            .map(|value| value.to_str().unwrap());
        assert_eq!(refused, code.map(RefusalCode::code), "{shown}");
    }
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].uri, "/v1/models?x=1");
    assert_eq!(seen[0].headers["host"], format!("{NAME}:{}", server.port));
    let usage = bx.engine.stop();
    assert_eq!((usage.connections, usage.requests), (1, 2));
}

#[tokio::test]
async fn both_versions_reach_servers_of_both_versions() {
    for wire in [Wire::Tls, Wire::TlsTwo] {
        let server = Server::start(NAME, wire, says_hello).await;
        let mut config = config(vec![looked_at(server.port, &["GET"], &["/ok"])]);
        let authority = inspecting(&mut config, &server);
        let bx = start(config);
        let mut two = client_two(&bx, NAME, server.port, &authority).await;
        let uri = |host: &str, path: &str| format!("https://{host}:{}{path}", server.port);
        let requests = [
            (NAME, "/ok", 200),
            (NAME, "/no", 403),
            ("other.test", "/ok", 421),
            (NAME, "/ok", 200),
        ];
        for (host, path, status) in requests {
            soon(two.ready()).await.unwrap();
            let request = Request::get(uri(host, path)).body(text("")).unwrap();
            let (found, _, body) = whole(soon(two.send_request(request)).await.unwrap()).await;
            assert_eq!(found, status, "{host}{path} {body}");
        }
        // A Host that says something else than :authority.
        let request = Request::get(uri(NAME, "/ok"))
            .header("host", "other.test")
            .body(text(""))
            .unwrap();
        let (found, ..) = whole(soon(two.send_request(request)).await.unwrap()).await;
        assert_eq!(found, 421);
        assert_eq!(server.seen().len(), 2);
        bx.recording.refusal(RefusalCode::NameMismatch).await;
    }
}

#[tokio::test]
async fn many_requests_at_once_over_http_two_reach_a_server_that_speaks_one() {
    let server = Server::start(NAME, Wire::Tls, says_hello).await;
    let mut config = config(vec![looked_at(server.port, &[], &[])]);
    let authority = inspecting(&mut config, &server);
    let bx = start(config);
    let two = client_two(&bx, NAME, server.port, &authority).await;
    let requests = (0..10).map(|at| {
        let mut two = two.clone();
        let request = Request::get(format!("https://{NAME}:{}/{at}", server.port))
            .body(text(""))
            .unwrap();
        tokio::spawn(async move {
            whole(soon(two.send_request(request)).await.unwrap())
                .await
                .0
        })
    });
    for request in requests.collect::<Vec<_>>() {
        assert_eq!(soon(request).await.unwrap(), 200);
    }
    assert_eq!(server.seen().len(), 10);
}

#[tokio::test]
async fn a_server_nobody_trusts_is_not_spoken_to() {
    let server = Server::start(NAME, Wire::Tls, says_hello).await;
    let mut config = config(vec![looked_at(server.port, &[], &[])]);
    let authority = inspecting(&mut config, &server);
    let stranger = Server::start(NAME, Wire::Tls, says_hello).await;
    config.roots = belljar_egress::Roots::Pem(vec![stranger.root_pem.clone()]);
    let bx = start(config);
    let mut client = client_one(&bx, NAME, server.port, &authority).await;
    let (status, ..) = whole(soon(client.send_request(get("/", NAME))).await.unwrap()).await;
    assert_eq!(status, 502);
    bx.recording.refusal(RefusalCode::Unreachable).await;
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn without_an_authority_a_host_that_needs_looking_at_is_closed() {
    let server = Server::start(NAME, Wire::Tls, says_hello).await;
    let bx = start(config(vec![looked_at(server.port, &["GET"], &[])]));
    let mut stream = bx.tunnel(&format!("{NAME}:{}", server.port)).await;
    stream
        .write_all(&greeting(Some(NAME), false))
        .await
        .unwrap();
    assert!(read_all(&mut stream).await.is_empty());
    bx.recording.refusal(RefusalCode::NotTls).await;
}

#[tokio::test]
async fn bodies_stream_both_ways() {
    let (go_on, mut told) = tokio::sync::mpsc::channel::<()>(1);
    let told = Arc::new(tokio::sync::Mutex::new(Some(
        async move { told.recv().await },
    )));
    let server = Server::start(NAME, Wire::Tls, move |_| {
        let told = Arc::clone(&told);
        async move {
            let (sender, receiver) = tokio::sync::mpsc::channel::<&'static str>(1);
            tokio::spawn(async move {
                sender.send("first").await.unwrap();
                // The rest comes only once the client has seen the beginning.
                let waiting = told.lock().await.take().unwrap();
                waiting.await;
                sender.send("second").await.unwrap();
            });
            let stream = Receiving(receiver);
            Response::new(StreamBody::new(stream).boxed_unsync())
        }
    })
    .await;
    let mut config = config(vec![looked_at(server.port, &[], &[])]);
    let authority = inspecting(&mut config, &server);
    let bx = start(config);
    let mut client = client_one(&bx, NAME, server.port, &authority).await;
    let mut body = soon(client.send_request(get("/", NAME)))
        .await
        .unwrap()
        .into_body();
    let first = soon(body.frame())
        .await
        .unwrap()
        .unwrap()
        .into_data()
        .unwrap();
    assert_eq!(first, "first");
    go_on.send(()).await.unwrap();
    let rest = soon(body.collect()).await.unwrap().to_bytes();
    assert_eq!(rest, "second");
}

/// A channel as a stream of frames.
struct Receiving(tokio::sync::mpsc::Receiver<&'static str>);

impl futures_core::Stream for Receiving {
    type Item = Result<Frame<Bytes>, std::convert::Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0
            .poll_recv(cx)
            .map(|text| text.map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
    }
}

/// A server that takes a WebSocket and sends back what it gets.
async fn websocket_server() -> (u16, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => head.push(byte),
                    Err(_) => break,
                }
            }
            let answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n";
            let _ = stream.write_all(answer).await;
            let (mut read, mut write) = stream.split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
        }
    });
    (port, task)
}

async fn upgrade(bx: &TestBox, port: u16) -> (String, TcpStream) {
    let mut stream = bx.tunnel(&format!("{NAME}:{port}")).await;
    let request = format!(
        "GET /ok HTTP/1.1\r\nHost: {NAME}:{port}\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(soon(stream.read_u8()).await.unwrap());
    }
    (String::from_utf8(head).unwrap(), stream)
}

#[tokio::test]
async fn a_websocket_passes_where_the_rule_says_so() {
    let (port, server) = websocket_server().await;
    let mut rule = looked_at(port, &["GET"], &["/ok"]);
    let refusing = start(config(vec![rule.clone()]));
    let (head, _) = upgrade(&refusing, port).await;
    assert!(head.starts_with("HTTP/1.1 426 "), "{head}");
    refusing.recording.refusal(RefusalCode::WebSocket).await;

    if let Some(http) = &mut rule.terms.http {
        http.websocket = WebSocket::Allow;
    }
    rule.terms.max_bytes = Some(100);
    let bx = start(config(vec![rule]));
    let (head, mut stream) = upgrade(&bx, port).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    stream.write_all(&[1; 30]).await.unwrap();
    let mut back = [0; 30];
    soon(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(back, [1; 30]);
    // The rule's bytes count inside, too.
    stream.write_all(&[2; 90]).await.unwrap();
    assert!(read_all(&mut stream).await.len() <= 40);
    bx.recording.refusal(RefusalCode::Bytes).await;
    server.abort();
}

#[tokio::test]
async fn a_proxy_request_without_a_tunnel_meets_the_same_rules() {
    let server = Server::start(NAME, Wire::Plain, says_hello).await;
    let bx = start(config(vec![looked_at(server.port, &["GET"], &["/ok"])]));
    let port = server.port;
    for (line, host, status) in [
        (
            format!("GET http://{NAME}:{port}/ok HTTP/1.1"),
            format!("{NAME}:{port}"),
            "200",
        ),
        (
            format!("GET http://{NAME}:{port}/no HTTP/1.1"),
            format!("{NAME}:{port}"),
            "403",
        ),
        (
            format!("GET http://other.test:{port}/ok HTTP/1.1"),
            format!("other.test:{port}"),
            "403",
        ),
        (
            format!("GET http://{NAME}:{port}/ok HTTP/1.1"),
            "other.test".to_owned(),
            "421",
        ),
        (
            format!("GET http://x@{NAME}:{port}/ok HTTP/1.1"),
            format!("{NAME}:{port}"),
            "403",
        ),
        (
            format!("GET https://{NAME}:{port}/ok HTTP/1.1"),
            format!("{NAME}:{port}"),
            "400",
        ),
        (
            "GET /ok HTTP/1.1".to_owned(),
            format!("{NAME}:{port}"),
            "400",
        ),
    ] {
        let mut stream = TcpStream::connect(bx.proxy).await.unwrap();
        let request = format!("{line}\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = String::from_utf8_lossy(&read_all(&mut stream).await).into_owned();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{line}: {answer}"
        );
    }
    assert_eq!(server.seen().len(), 1);
    assert_eq!(server.seen()[0].uri, "/ok");
}

#[tokio::test]
async fn a_redirect_is_only_an_answer() {
    let server = Server::start(NAME, Wire::Plain, |_| async {
        let answer = Response::builder()
            .status(302)
            .header("location", "http://evil.test/");
        answer.body(text("")).unwrap()
    })
    .await;
    let bx = start(config(vec![allow(NAME, &[server.port])]));
    let mut stream = bx.tunnel(&format!("{NAME}:{}", server.port)).await;
    let request = format!("GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    assert!(read_all(&mut stream).await.starts_with(b"HTTP/1.1 302 "));
    assert!(
        bx.connect("evil.test:80")
            .await
            .0
            .starts_with("HTTP/1.1 403 ")
    );
}

#[tokio::test]
async fn requests_are_rated_and_bodies_counted() {
    let server = Server::start(NAME, Wire::Tls, says_hello).await;
    let mut rule = looked_at(server.port, &[], &[]);
    rule.rate_limit_per_min = 3;
    rule.terms.max_bytes = Some(12);
    let mut config = config(vec![rule]);
    let authority = inspecting(&mut config, &server);
    let bx = start(config);
    let mut client = client_one(&bx, NAME, server.port, &authority).await;
    for _ in 0..2 {
        soon(client.ready()).await.unwrap();
        assert_eq!(
            whole(soon(client.send_request(get("/", NAME))).await.unwrap())
                .await
                .2,
            "hello"
        );
    }
    // Two bytes are left, and five would come.
    soon(client.ready()).await.unwrap();
    let response = soon(client.send_request(get("/", NAME))).await;
    let complete = match response {
        Ok(response) => soon(response.into_body().collect()).await.is_ok(),
        Err(_) => false,
    };
    assert!(!complete);
    bx.recording.refusal(RefusalCode::Bytes).await;
    let mut client = client_one(&bx, NAME, server.port, &authority).await;
    let (status, ..) = whole(soon(client.send_request(get("/", NAME))).await.unwrap()).await;
    assert_eq!(status, 429);
    bx.recording.refusal(RefusalCode::Rate).await;
}

#[tokio::test]
async fn a_connection_that_turns_out_to_be_http_is_rated_once() {
    let server = Server::start(NAME, Wire::Plain, says_hello).await;
    let mut rule = allow(NAME, &[server.port]);
    rule.rate_limit_per_min = 2;
    let bx = start(config(vec![rule]));
    let mut stream = bx.tunnel(&format!("{NAME}:{}", server.port)).await;
    let request = format!("GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
    let last = request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let all = [request.as_str(), &request, &last].concat();
    stream.write_all(all.as_bytes()).await.unwrap();
    let answer = String::from_utf8_lossy(&read_all(&mut stream).await).into_owned();
    assert_eq!(answer.matches("HTTP/1.1 200 ").count(), 2, "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 429 ").count(), 1, "{answer}");
    assert_eq!(server.seen().len(), 2);
}
