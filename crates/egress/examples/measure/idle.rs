//! What connections hold in the engine's own memory while nothing happens on them.

use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::engine::{Looks, Running};
use crate::origin::{Origin, Route, ask, connect};
use crate::process::resident;
use crate::{NAME, runtime};

/// Enough that what the process has anyway does not show.
const SPLICED: usize = 1500;
const INSPECTED: usize = 400;

pub(crate) fn measure() -> Value {
    let scratch = tempfile::tempdir().unwrap();
    let origin = Origin::start(scratch.path());
    // Whom a host trusts in earnest, and the measurement's own.
    let trusted = scratch.path().join("trusted.pem");
    let mut bundle = std::fs::read("/etc/ssl/certs/ca-certificates.crt").unwrap_or_default();
    bundle.extend(std::fs::read(&origin.root).unwrap());
    std::fs::write(&trusted, bundle).unwrap();
    let start = |looks, port| Running::start(port, looks, scratch.path(), &trusted);

    let echo = echo();
    let engine = start(Looks::Away, echo);
    let idle = resident(engine.id());
    let runtime = runtime();
    let (first, all) = runtime.block_on(async {
        let (mut kept, mut first) = (Vec::new(), 0.0);
        for at in 0..=SPLICED {
            let mut stream = connect(Some(engine.proxy), echo).await;
            stream.write_all(b"x").await.unwrap();
            stream.read_u8().await.unwrap();
            kept.push(stream);
            if at == 0 {
                first = resident(engine.id());
            }
        }
        (first, resident(engine.id()))
    });
    let spliced = (all - first) / SPLICED as f64;
    drop(engine);

    let engine = start(Looks::Inside, origin.port);
    let looking_idle = resident(engine.id());
    let one = Route::new(
        Some(engine.proxy),
        origin.port,
        &engine.authority,
        "http/1.1",
    );
    let (first, all) = runtime.block_on(async {
        let (mut kept, mut first, mut buffer) = (Vec::new(), 0.0, Vec::new());
        for at in 0..=INSPECTED {
            let mut stream = one.connect_tls().await;
            ask(&mut stream, origin.port, &mut buffer).await;
            kept.push(stream);
            if at == 0 {
                first = resident(engine.id());
            }
        }
        (first, resident(engine.id()))
    });
    let with_roots = first;
    let http1 = (all - first) / INSPECTED as f64;
    drop(engine);

    let engine = start(Looks::Inside, origin.port);
    let two = Route::new(Some(engine.proxy), origin.port, &engine.authority, "h2");
    let (first, all) = runtime.block_on(async {
        let (mut kept, mut first) = (Vec::new(), 0.0);
        for at in 0..=INSPECTED {
            kept.push(ask_two(&two, origin.port).await);
            if at == 0 {
                first = resident(engine.id());
            }
        }
        (first, resident(engine.id()))
    });
    let http2 = (all - first) / INSPECTED as f64;
    json!({
        "engine_process_kib": idle,
        "inspecting_process_kib": looking_idle,
        "with_host_roots_kib": with_roots,
        "spliced_kib": spliced,
        "inspected_http1_kib": http1,
        "inspected_http2_kib": http2,
    })
}

/// A connection of HTTP/2 that has carried one request and stays open.
async fn ask_two(
    route: &Route,
    port: u16,
) -> hyper::client::conn::http2::SendRequest<http_body_util::Empty<bytes::Bytes>> {
    let stream = route.connect_tls().await;
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::get(format!("https://{NAME}:{port}/v1/item"))
        .body(http_body_util::Empty::new())
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    while let Some(frame) = http_body_util::BodyExt::frame(&mut body).await {
        frame.unwrap();
    }
    sender
}

/// Sends back what it gets, on a thread of its own.
fn echo() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        runtime().block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    while let Ok(byte) = stream.read_u8().await {
                        stream.write_u8(byte).await.unwrap();
                    }
                });
            }
        });
    });
    port
}
