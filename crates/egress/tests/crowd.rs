//! Many connections, slow ones and dead ones: each costs little, and the others do not notice.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use belljar_egress::RefusalCode;
use support::http::*;
use support::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Client, engine and server are one process here, so each connection takes four descriptors.
fn raise_descriptors(count: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.map_or(count, |current| current.max(count));
    let raised = Rlimit {
        current: Some(current),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
}

async fn echoes(stream: &mut TcpStream, text: &[u8]) {
    soon(stream.write_all(text)).await.unwrap();
    let mut back = vec![0; text.len()];
    soon(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(back, text);
}

#[tokio::test]
async fn two_thousand_connections_at_once_and_not_one_more() {
    const COUNT: usize = 2000;
    raise_descriptors(9000);
    let echo = Echo::start().await;
    let bx = start(config(vec![allow("a.test", &[echo.port])]));
    let target = format!("a.test:{}", echo.port);
    let mut open = Vec::new();
    for at in 0..COUNT {
        let mut stream = bx.tunnel(&target).await;
        echoes(&mut stream, &at.to_be_bytes()).await;
        open.push(stream);
    }
    assert_eq!(bx.engine.usage().open, COUNT as u64);
    let mut more = TcpStream::connect(bx.proxy).await.unwrap();
    assert!(read_all(&mut more).await.is_empty());
    bx.recording.refusal(RefusalCode::Connections).await;
    for (at, stream) in open.iter_mut().enumerate() {
        echoes(stream, &(at as u64 * 7).to_be_bytes()).await;
    }
    // There is room again once one has left.
    drop(open.pop());
    bx.recording
        .wait("end", |event| {
            matches!(event, belljar_egress::Event::Closed(_)).then_some(())
        })
        .await;
    let mut again = loop {
        // The place is given back a moment after the end is recorded.
        let (status, stream) = bx.connect(&target).await;
        if status.starts_with("HTTP/1.1 200 ") {
            break stream;
        }
    };
    echoes(&mut again, b"welcome back").await;
}

#[tokio::test]
async fn who_sends_a_head_byte_by_byte_is_cut_off_and_stops_nobody() {
    const COUNT: usize = 100;
    let server = Server::start(NAME, Wire::Tls, says_hello).await;
    let mut own = config(vec![looked_at(server.port, &[], &[])]);
    own.timeouts.greeting = Duration::from_millis(500);
    own.timeouts.request = Duration::from_millis(500);
    let authority = inspecting(&mut own, &server);
    let bx = start(own);
    let target = format!("{NAME}:{}", server.port);
    let mut slow = Vec::new();
    for at in 0..COUNT {
        let stream = bx.tunnel(&target).await;
        // Half of them are slow before TLS, half of them after.
        let dribbling: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = match at % 2 {
            0 => Box::pin(dribble(stream, b"\x16\x03\x01\x40\x00".to_vec())),
            _ => {
                let stream = tls(stream, NAME, &authority, &[b"http/1.1"]).await;
                Box::pin(dribble(stream, b"GET / HTTP/1.1\r\nX: ".to_vec()))
            }
        };
        slow.push(tokio::spawn(dribbling));
    }
    let mut client = client_one(&bx, NAME, server.port, &authority).await;
    let (status, ..) = whole(soon(client.send_request(get("/", NAME))).await.unwrap()).await;
    assert_eq!(status, 200);
    for one in slow {
        soon(one).await.unwrap();
    }
    assert_eq!(server.seen().len(), 1);
}

/// Sends a beginning, and then a byte now and then, until it is cut off.
async fn dribble(stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite, beginning: Vec<u8>) {
    let (mut read, mut write) = tokio::io::split(stream);
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    if write.write_all(&beginning).await.is_err() {
        return;
    }
    loop {
        let mut chunk = [0; 256];
        tokio::select! {
            count = read.read(&mut chunk) => if !matches!(count, Ok(count) if count > 0) { return },
            _ = pace.tick() => {
                let sent = async { write.write_all(b"x").await?; write.flush().await };
                if sent.await.is_err() { return }
            }
        }
    }
}

#[tokio::test]
async fn servers_that_never_answer_are_given_up_and_stop_nobody() {
    const COUNT: usize = 100;
    let dead = Server::start("dead.test", Wire::Plain, |_| async {
        std::future::pending().await
    })
    .await;
    let good = Server::start(NAME, Wire::Plain, says_hello).await;
    let mut own = config(vec![
        allow("dead.test", &[dead.port]),
        allow(NAME, &[good.port]),
    ]);
    own.timeouts.response = Duration::from_secs(1);
    let bx = start(own);
    let mut waiting = Vec::new();
    for _ in 0..COUNT {
        let mut stream = bx.tunnel(&format!("dead.test:{}", dead.port)).await;
        let request = b"GET / HTTP/1.1\r\nHost: dead.test\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        waiting.push(stream);
    }
    for _ in 0..10 {
        let mut stream = bx.tunnel(&format!("{NAME}:{}", good.port)).await;
        let request = format!("GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        assert!(read_all(&mut stream).await.starts_with(b"HTTP/1.1 200 "));
    }
    for stream in &mut waiting {
        assert!(read_all(stream).await.starts_with(b"HTTP/1.1 502 "));
    }
    let closed = |event: &belljar_egress::Event| matches!(event, belljar_egress::Event::Closed(connection) if connection.host == "dead.test");
    let started = std::time::Instant::now();
    while bx.recording.events().iter().filter(|e| closed(e)).count() < COUNT {
        assert!(started.elapsed() < DEADLINE);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_thousand_rules_are_as_good_as_one() {
    let echo = Echo::start().await;
    let rules = (0..1000).map(|at| match at % 3 {
        0 => allow(&format!("h{at}.test"), &[echo.port]),
        1 => allow(&format!("*.s{at}.test"), &[echo.port]),
        _ => allow(&format!("10.{}.{}.0/24", at % 256, at / 256), &[echo.port]),
    });
    let bx = start(config(rules.collect()));
    for (host, status) in [
        ("h0.test", "200"),
        ("h999.test", "200"),
        ("a.s1.test", "200"),
        ("a.b.s997.test", "200"),
        ("s1.test", "403"),
        ("h1.test", "403"),
        ("10.1.9.1", "403"),
    ] {
        let (found, _) = bx.connect(&format!("{host}:{}", echo.port)).await;
        assert!(
            found.starts_with(&format!("HTTP/1.1 {status} ")),
            "{host}: {found}"
        );
    }
}

#[tokio::test]
async fn plain_connections_over_ipv6_meet_the_same_rules() {
    let door = std::net::TcpListener::bind("[::1]:0").unwrap();
    let address = door.local_addr().unwrap();
    let bx = start_with(config(vec![allow("a.test", &[])]), Some(door));
    let mut stream = TcpStream::connect(address).await.unwrap();
    assert!(read_all(&mut stream).await.is_empty());
    let refusal = bx.recording.refusal(RefusalCode::NoRule).await;
    assert_eq!(
        (refusal.host.as_str(), refusal.port),
        ("::1", Some(address.port()))
    );
}
