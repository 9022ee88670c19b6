//! Much data on connections that are not looked into: it arrives whole, is counted to the byte, and stops nobody.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use belljar_egress::{Event, RefusalCode};
use support::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Bytes that tell where they belong: one that is lost, doubled or swapped shows.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

/// Sends the same to everyone who connects, and ends.
async fn flood(length: usize) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let bytes = std::sync::Arc::new(pattern(length));
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let bytes = std::sync::Arc::clone(&bytes);
            tokio::spawn(async move {
                // It may be cut off.
                let _ = stream.write_all(&bytes).await;
            });
        }
    });
    (port, task)
}

async fn take(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    // How it ends is not what is tested.
    let _ = soon(stream.read_to_end(&mut all)).await;
    all
}

#[tokio::test]
async fn much_data_passes_whole_both_ways_at_once() {
    const LENGTH: usize = 24 << 20;
    let echo = Echo::start().await;
    let bx = start(config(vec![allow("a.test", &[echo.port])]));
    let mut stream = bx.tunnel(&format!("a.test:{}", echo.port)).await;
    let sent = pattern(LENGTH);
    let (mut read, mut write) = stream.split();
    let sending = async {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    let (_, received) = soon(async { tokio::join!(sending, read.read_to_end(&mut back)) }).await;
    received.unwrap();
    assert!(back == sent, "what came back is not what was sent");
    let closed = bx
        .recording
        .wait("end", |event| match event {
            Event::Closed(connection) => Some(connection.clone()),
            _ => None,
        })
        .await;
    assert_eq!(
        (closed.sent, closed.received),
        (LENGTH as u64, LENGTH as u64)
    );
}

#[tokio::test]
async fn a_rules_bytes_are_counted_to_the_last_however_fast_they_come() {
    const MOST: usize = 5_000_001;
    let (port, server) = flood(20 << 20).await;
    let mut rule = allow("a.test", &[port]);
    rule.terms.max_bytes = Some(MOST as u64);
    let bx = start(config(vec![rule]));
    let mut stream = bx.tunnel(&format!("a.test:{port}")).await;
    assert!(take(&mut stream).await == pattern(MOST));
    bx.recording.refusal(RefusalCode::Bytes).await;
    let usage = bx.engine.stop();
    assert_eq!(usage.received, MOST as u64);
    server.abort();
}

#[tokio::test]
async fn clients_that_do_not_read_stop_nobody() {
    const LENGTH: usize = 16 << 20;
    // More than there are pipes.
    const STALLED: usize = 40;
    let (port, server) = flood(LENGTH).await;
    let bx = start(config(vec![allow("a.test", &[port])]));
    let target = format!("a.test:{port}");
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        let mut stream = bx.tunnel(&target).await;
        // It flows by now, and then nobody takes it.
        soon(stream.read_u8()).await.unwrap();
        stalled.push(stream);
    }
    let mut stream = bx.tunnel(&target).await;
    assert!(take(&mut stream).await == pattern(LENGTH));
    // And they get theirs when they want it.
    let rest = take(&mut stalled[0]).await;
    assert!(rest == pattern(LENGTH)[1..]);
    server.abort();
}
