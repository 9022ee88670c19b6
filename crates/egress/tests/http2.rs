//! HTTP/2, frame by frame: floods of frames, and requests that were taken back, cost the engine little and reach nobody.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use hyper::Request;
use support::http::*;
use support::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

/// `GET https://HOST/`, in the words of the static table.
fn head(host: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x87, 0x84, 0x41, host.len() as u8];
    block.extend(host.as_bytes());
    block
}

/// A box, and a connection of it on which nothing but the greeting was said.
async fn raw_two(server: &Server) -> (TestBox, TlsStream<TcpStream>) {
    let mut config = config(vec![looked_at(server.port, &["GET"], &[])]);
    let authority = inspecting(&mut config, server);
    let bx = start(config);
    let stream = bx.tunnel(&format!("{NAME}:{}", server.port)).await;
    let mut stream = tls(stream, NAME, &authority, &[b"h2"]).await;
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await
        .unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    (bx, stream)
}

/// Sends the same until the engine has had enough, and says how much that was.
async fn flood(stream: TlsStream<TcpStream>, bytes: &[u8], most: usize) -> usize {
    let (mut read, mut write) = tokio::io::split(stream);
    let reading = tokio::spawn(async move {
        let mut chunk = [0; 4096];
        while matches!(read.read(&mut chunk).await, Ok(count) if count > 0) {}
    });
    let mut sent = 0;
    while sent < most && !reading.is_finished() {
        if soon(write.write_all(bytes)).await.is_err() {
            break;
        }
        sent += bytes.len();
    }
    reading.abort();
    sent
}

/// Whether the engine still serves others.
async fn still_serves(bx: &TestBox) {
    let echo = Echo::start().await;
    let (status, _) = bx.connect(&format!("elsewhere.test:{}", echo.port)).await;
    assert!(status.starts_with("HTTP/1.1 403 "), "{status}");
}

#[tokio::test]
async fn a_head_without_end_is_cut_off() {
    const MOST: usize = 32 << 20;
    let server = Server::start(NAME, Wire::TlsTwo, says_hello).await;
    let (bx, mut stream) = raw_two(&server).await;
    stream
        .write_all(&frame(HEADERS, END_STREAM, 1, &head(NAME)))
        .await
        .unwrap();
    // A literal that is not put in the table: `x: yyy…`.
    let field = [&[0, 1, b'x', 100][..], &[b'y'; 100]].concat();
    let block = field.repeat(150);
    let sent = flood(stream, &frame(CONTINUATION, 0, 1, &block), MOST).await;
    assert!(sent < MOST, "{sent} bytes were taken");
    assert!(server.seen().is_empty());
    still_serves(&bx).await;
}

#[tokio::test]
async fn requests_that_are_taken_back_at_once_stop_nobody() {
    let server = Server::start(NAME, Wire::TlsTwo, says_hello).await;
    let (bx, stream) = raw_two(&server).await;
    let authority = format!("{NAME}:{}", server.port);
    let mut requests = Vec::new();
    for at in 0..5000 {
        let id = 2 * at + 1;
        requests.extend(frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            id,
            &head(&authority),
        ));
        requests.extend(frame(RESET, 0, id, &8_u32.to_be_bytes()));
    }
    flood(stream, &requests, 1).await;
    still_serves(&bx).await;
}

#[tokio::test]
async fn requests_that_are_taken_back_are_still_rated() {
    const RATE: u32 = 20;
    let server = Server::start(NAME, Wire::TlsTwo, |_| async {
        std::future::pending().await
    })
    .await;
    let mut rule = looked_at(server.port, &["GET"], &[]);
    rule.rate_limit_per_min = RATE;
    let mut config = config(vec![rule]);
    let authority = inspecting(&mut config, &server);
    let bx = start(config);
    let two = client_two(&bx, NAME, server.port, &authority).await;
    let uri = format!("https://{NAME}:{}/", server.port);
    let mut refused = 0;
    for _ in 0..2 * RATE {
        let request = Request::get(&uri).body(text("")).unwrap();
        let before = server.seen().len();
        let mut two = two.clone();
        let mut sending = tokio::spawn(async move { two.send_request(request).await });
        // Taken back as soon as the server has it, which never answers; or it is refused.
        loop {
            tokio::select! {
                answer = &mut sending => {
                    assert_eq!(answer.unwrap().unwrap().status(), 429);
                    refused += 1;
                    break;
                }
                () = tokio::time::sleep(std::time::Duration::from_millis(1)) => {}
            }
            if server.seen().len() > before {
                sending.abort();
                break;
            }
        }
    }
    assert_eq!((server.seen().len(), refused), (RATE as usize, RATE));
}

#[tokio::test]
async fn pings_without_end_do_not_stop_others() {
    let server = Server::start(NAME, Wire::TlsTwo, says_hello).await;
    let (bx, stream) = raw_two(&server).await;
    let pings = frame(PING, 0, 0, &[7; 8]).repeat(1000);
    let flooding = tokio::spawn(async move { flood(stream, &pings, 4 << 20).await });
    still_serves(&bx).await;
    soon(flooding).await.unwrap();
    still_serves(&bx).await;
}

#[tokio::test]
async fn a_request_names_one_host_in_every_place() {
    let server = Server::start(NAME, Wire::TlsTwo, says_hello).await;
    let mut config = config(vec![looked_at(server.port, &["GET"], &["/ok"])]);
    let authority = inspecting(&mut config, &server);
    let bx = start(config);
    let mut two = client_two(&bx, NAME, server.port, &authority).await;
    let port = server.port;
    for (uri, host, status) in [
        (format!("https://{NAME}:{port}/ok"), None, 200),
        (format!("https://{NAME}.:{port}/ok"), None, 200),
        (format!("https://API.TEST:{port}/ok"), Some(NAME), 200),
        (format!("https://x@{NAME}:{port}/ok"), None, 421),
        (format!("https://{NAME}:1/ok"), None, 421),
        (format!("https://{NAME}:{port}/ok"), Some("other.test"), 421),
        (format!("https://xn--api-test:{port}/ok"), None, 421),
        (format!("https://{NAME}:{port}//ok"), None, 403),
        (format!("https://{NAME}:{port}/./ok"), None, 403),
    ] {
        soon(two.ready()).await.unwrap();
        let mut request = Request::get(&uri);
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let request = request.body(text("")).unwrap();
        let (found, ..) = whole(soon(two.send_request(request)).await.unwrap()).await;
        assert_eq!(found, status, "{uri} {host:?}");
    }
    assert_eq!(server.seen().len(), 3);
}
