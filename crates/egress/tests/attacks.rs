//! What a hostile agent or server can put on the wire of HTTP/1.1, and what comes of it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use belljar_egress::RefusalCode;
use support::http::*;
use support::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Sends bytes as they are over plain HTTP; gives back what came, and what the server saw.
async fn raw(bytes: impl Fn(&str) -> String) -> (String, Vec<Seen>, TestBox) {
    let server = Server::start(NAME, Wire::Plain, says_hello).await;
    let mut own = support::config(vec![looked_at(server.port, &["GET", "POST"], &["/ok"])]);
    // Waits no longer than that for another request; those that are sent are there already.
    own.timeouts.request = std::time::Duration::from_millis(100);
    let bx = start(own);
    let host = format!("{NAME}:{}", server.port);
    let mut stream = bx.tunnel(&host).await;
    stream.write_all(bytes(&host).as_bytes()).await.unwrap();
    let answer = String::from_utf8_lossy(&read_all(&mut stream).await).into_owned();
    (answer, server.seen(), bx)
}

#[tokio::test]
async fn no_request_is_smuggled_past_the_rules() {
    // Each hides `GET /secret` from one way of reading. The server must never see it.
    let hidden = "GET /secret HTTP/1.1\r\nHost: x\r\n\r\n";
    let length = hidden.len();
    let tricks: Vec<(&str, String)> = vec![
        (
            "both lengths",
            format!(
                "Content-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}",
                length + 5
            ),
        ),
        (
            "both lengths, the other way round",
            format!("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n{hidden}"),
        ),
        (
            "the same length twice",
            format!("Content-Length: {length}\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        ),
        (
            "two lengths",
            format!("Content-Length: 0\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        ),
        (
            "a list of lengths",
            format!("Content-Length: 0, {length}\r\n\r\n{hidden}"),
        ),
        (
            "a signed length",
            format!("Content-Length: +{length}\r\n\r\n{hidden}"),
        ),
        (
            "chunked and not",
            format!("Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{hidden}"),
        ),
        (
            "chunked with a tab",
            format!("Transfer-Encoding:\tchunked\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        ),
        (
            "chunked in disguise",
            format!("Transfer-Encoding: xchunked\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        ),
        (
            "a folded line",
            format!("X: y\r\n Content-Length: {length}\r\n\r\n{hidden}"),
        ),
        (
            "a bare line feed",
            format!("X: y\nContent-Length: {length}\n\n{hidden}"),
        ),
        (
            "a space before the colon",
            format!("Content-Length : {length}\r\n\r\n{hidden}"),
        ),
        (
            "a length that is taken away",
            format!("Connection: content-length\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        ),
        (
            "a bare carriage return",
            format!("X: y\rContent-Length: {length}\r\n\r\n{hidden}"),
        ),
        (
            "a chunk of odd length",
            format!("Transfer-Encoding: chunked\r\n\r\n{length:x} \r\n{hidden}\r\n0\r\n\r\n"),
        ),
        (
            "no encoding at all",
            format!("Transfer-Encoding: identity\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        ),
        (
            "chunked twice",
            format!(
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"
            ),
        ),
        (
            "a length in hexadecimal",
            format!("Content-Length: 0x{length:x}\r\n\r\n{hidden}"),
        ),
        (
            "a chunk longer than can be counted",
            format!("Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n{hidden}\r\n0\r\n\r\n"),
        ),
        (
            "a negative chunk",
            format!("Transfer-Encoding: chunked\r\n\r\n-1\r\n{hidden}\r\n0\r\n\r\n"),
        ),
        (
            "a request among the trailers",
            format!("Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\n\n{hidden}\r\n\r\n"),
        ),
        (
            "a chunk extension",
            format!("Transfer-Encoding: chunked\r\n\r\n0;\n\r\n{hidden}\r\n\r\n"),
        ),
    ];
    for (what, trick) in tricks {
        let (answer, seen, bx) =
            raw(|host| format!("POST /ok HTTP/1.1\r\nHost: {host}\r\n{trick}")).await;
        for request in &seen {
            assert_eq!(request.uri.path(), "/ok", "{what}: {answer}");
        }
        assert!(seen.len() <= 1, "{what}: {seen:?}");
        // What gives its length twice is refused, whichever comes first.
        let has = |name: &str| trick.matches(name).count();
        if has("Content-Length:") + has("Transfer-Encoding:").min(1) > 1 {
            assert!(seen.is_empty(), "{what}: {answer}");
        }
        // Either it was refused and recorded, or it was read one way and written anew.
        if seen.is_empty() {
            let refused = |event: &belljar_egress::Event| match event {
                belljar_egress::Event::Refused(refusal) => Some(refusal.code),
                _ => None,
            };
            let code = bx.recording.wait(what, refused).await;
            assert_eq!(code, RefusalCode::Malformed, "{what}");
        }
    }
}

#[tokio::test]
async fn a_request_line_for_somebody_else_is_refused() {
    for line in [
        "GET http://other.test/ok HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET /ok HTTP/1.1\r\nHost: HOST\r\nHost: other.test\r\n\r\n",
        "GET /ok HTTP/1.1\r\nHost: other.test\r\n\r\n",
        "GET /ok HTTP/1.1\r\n\r\n",
        "GET /ok HTTP/1.0\r\n\r\n",
        "CONNECT other.test:443 HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET /ok HTTP/1.1\r\nHost: HOST@other.test\r\n\r\n",
    ] {
        let (answer, seen, bx) = raw(|host| line.replace("HOST", host)).await;
        assert!(
            answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.0 4"),
            "{line}: {answer}"
        );
        assert!(seen.is_empty(), "{line}");
        assert!(!bx.recording.refusals().is_empty(), "{line}");
    }
}

#[tokio::test]
async fn a_reused_connection_stays_with_its_host() {
    let requests = |host: &str| {
        format!(
            "GET /ok HTTP/1.1\r\nHost: {host}\r\n\r\nGET /ok HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n\r\n"
        )
    };
    let (answer, seen, bx) = raw(requests).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("HTTP/1.1 421 "), "{answer}");
    assert_eq!(seen.len(), 1);
    bx.recording.refusal(RefusalCode::NameMismatch).await;
}

#[tokio::test]
async fn a_method_in_a_header_must_be_permitted_too() {
    for (header, value, status) in [
        ("x-http-method-override", "DELETE", "403"),
        ("X-HTTP-Method", "put", "403"),
        ("x-method-override", "GET, DELETE", "400"),
        ("x-http-method-override", "POST", "200"),
    ] {
        let request = |host: &str| {
            format!(
                "GET /ok HTTP/1.1\r\nHost: {host}\r\n{header}: {value}\r\nConnection: close\r\n\r\n"
            )
        };
        let (answer, seen, _) = raw(request).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{value}: {answer}"
        );
        assert_eq!(seen.len(), usize::from(status == "200"), "{value}");
    }
}

#[tokio::test]
async fn an_upgrade_to_something_that_is_not_looked_at_is_not_passed_on() {
    let request = |host: &str| {
        format!(
            "GET /ok HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
        )
    };
    let (answer, seen, _) = raw(request).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    for name in ["upgrade", "http2-settings", "connection"] {
        assert!(!seen[0].headers.contains_key(name), "{:?}", seen[0].headers);
    }
}

#[tokio::test]
async fn an_agent_that_waits_to_be_told_to_go_on_is_told() {
    let server = Server::start(NAME, Wire::Plain, says_hello).await;
    let bx = start(config(vec![looked_at(server.port, &["POST"], &["/ok"])]));
    let mut stream = bx.tunnel(&format!("{NAME}:{}", server.port)).await;
    let head = |path: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: {NAME}\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
        )
    };
    stream.write_all(head("/ok").as_bytes()).await.unwrap();
    let mut told = Vec::new();
    while !told.ends_with(b"\r\n\r\n") {
        told.push(soon(stream.read_u8()).await.unwrap());
    }
    assert!(told.starts_with(b"HTTP/1.1 100 "));
    stream.write_all(b"body").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"hello") {
        answer.push(soon(stream.read_u8()).await.unwrap());
    }
    assert_eq!(server.seen()[0].body, "body");
    assert!(!server.seen()[0].headers.contains_key("expect"));
    // Who is refused is not told to send its body first.
    stream.write_all(head("/no").as_bytes()).await.unwrap();
    let answer = String::from_utf8_lossy(&read_all(&mut stream).await).into_owned();
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

/// A server that says these bytes to every connection once it has been asked something, and keeps it open.
async fn hostile(says: &'static str) -> (u16, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            if stream.read_u8().await.is_ok() {
                let _ = stream.write_all(says.as_bytes()).await;
                kept.push(stream);
            }
        }
    });
    (port, task)
}

#[tokio::test]
async fn a_hostile_server_answers_what_was_asked_and_nothing_else() {
    let tricks = [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nX-Injected: 1\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 40\r\n\r\nHTTP/1.1 200 OK\r\nX-Injected: 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nX-Injected: 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\rX-Injected: 1\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\n X-Injected: 1\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nX-Injected: 1",
        "HTTP/1.1 204 No Content\r\nContent-Length: 20\r\n\r\nX-Injected: 1 and so",
        "220 X-Injected: ready\r\n",
    ];
    for trick in tricks {
        let (port, server) = hostile(trick).await;
        let mut own = config(vec![looked_at(port, &["GET"], &["/ok"])]);
        own.timeouts.request = std::time::Duration::from_millis(100);
        let bx = start(own);
        let mut stream = bx.tunnel(&format!("{NAME}:{port}")).await;
        let request = format!("GET /ok HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = String::from_utf8_lossy(&read_all(&mut stream).await).into_owned();
        assert_eq!(answer.matches("HTTP/1.").count(), 1, "{trick}: {answer}");
        assert!(
            !answer.to_lowercase().contains("\nx-injected"),
            "{trick}: {answer}"
        );
        server.abort();
    }
}

#[tokio::test]
async fn a_server_that_only_ever_begins_to_answer_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let flood = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let many = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n".repeat(1000);
        let mut sent = 0_usize;
        while stream.write_all(&many).await.is_ok() {
            sent += many.len();
        }
        sent
    });
    let good = Server::start("good.test", Wire::Plain, says_hello).await;
    let mut own = config(vec![
        looked_at(port, &[], &[]),
        allow("good.test", &[good.port]),
    ]);
    own.timeouts.response = std::time::Duration::from_millis(500);
    let bx = start(own);
    let mut stream = bx.tunnel(&format!("{NAME}:{port}")).await;
    let request = format!("GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    // Others are served meanwhile.
    for _ in 0..10 {
        let mut other = bx.tunnel(&format!("good.test:{}", good.port)).await;
        let request = "GET / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n";
        other.write_all(request.as_bytes()).await.unwrap();
        assert!(read_all(&mut other).await.starts_with(b"HTTP/1.1 200 "));
    }
    assert!(read_all(&mut stream).await.starts_with(b"HTTP/1.1 502 "));
    bx.recording.refusal(RefusalCode::Unreachable).await;
    // The flood ends, too: nobody keeps its connection.
    assert!(soon(flood).await.unwrap() > 0);
}

#[tokio::test]
async fn by_its_address_a_host_is_not_reached_past_what_its_name_must_obey() {
    let echo = Echo::start().await;
    let port = echo.port;
    let bx = start(config(vec![
        allow("127.0.0.0/8", &[port]),
        allow("free.test", &[port]),
        looked_at(port, &["GET"], &["/ok"]),
    ]));
    let target = format!("127.0.0.1:{port}");
    let mut stream = bx.tunnel(&target).await;
    let hello = greeting(Some("free.test"), false);
    stream.write_all(&hello).await.unwrap();
    let mut back = vec![0; hello.len()];
    soon(stream.read_exact(&mut back)).await.unwrap();

    let mut stream = bx.tunnel(&target).await;
    stream
        .write_all(&greeting(Some(NAME), false))
        .await
        .unwrap();
    assert!(read_all(&mut stream).await.is_empty());
    bx.recording.refusal(RefusalCode::NameMismatch).await;
}
