//! Much data, and small messages, on connections that are not looked into: direct, and through the engine.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use serde_json::{Value, json};

use crate::engine::{Looks, Running};
use crate::origin::connect;
use crate::{median, runtime};

const BULK: usize = 1 << 30;
const ROUNDS: usize = 9;
const MESSAGES: usize = 10_000;
const MESSAGE: usize = 200;

pub(crate) fn measure() -> Value {
    let port = server();
    let scratch = tempfile::tempdir().unwrap();
    let engine = Running::start(port, Looks::Away, scratch.path(), scratch.path());
    let routes = [None, Some(engine.proxy)];
    let mut rates = [Vec::new(), Vec::new()];
    let mut trips = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (at, proxy) in routes.iter().enumerate() {
            rates[at].push(take(open(*proxy, port)));
            trips[at].push(exchange(open(*proxy, port)));
        }
    }
    let ratio = median(
        rates[0]
            .iter()
            .zip(&rates[1])
            .map(|(direct, own)| own / direct),
    );
    let [direct, spliced] = rates.map(median);
    let [direct_trip, spliced_trip] = trips.map(median);
    json!({
        "direct_gb_per_second": direct,
        "spliced_gb_per_second": spliced,
        "spliced_to_direct": ratio,
        "direct_message_us": direct_trip,
        "spliced_message_us": spliced_trip,
    })
}

/// Blocking, so that no event queue of the measurement's own is measured.
fn open(proxy: Option<SocketAddr>, port: u16) -> TcpStream {
    let stream = runtime().block_on(async { connect(proxy, port).await.into_std() });
    let stream = stream.unwrap();
    stream.set_nonblocking(false).unwrap();
    stream
}

/// What a connection wants is in its first byte: `b` for bulk, `e` for an echo of messages.
fn server() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || serve(stream.unwrap()));
        }
    });
    port
}

fn serve(mut stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let mut wish = [0];
    stream.read_exact(&mut wish).unwrap();
    if wish == *b"b" {
        let chunk = vec![0; 256 * 1024];
        for _ in 0..BULK / chunk.len() {
            stream.write_all(&chunk).unwrap();
        }
        return;
    }
    let mut message = [0; MESSAGE];
    while stream.read_exact(&mut message).is_ok() {
        stream.write_all(&message).unwrap();
    }
}

/// Gigabytes a second.
fn take(mut stream: TcpStream) -> f64 {
    stream.write_all(b"b").unwrap();
    let mut buffer = vec![0; 256 * 1024];
    let (started, mut taken) = (Instant::now(), 0);
    while taken < BULK {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0);
        taken += count;
    }
    BULK as f64 / started.elapsed().as_secs_f64() / 1e9
}

/// Microseconds for a message and its answer.
fn exchange(mut stream: TcpStream) -> f64 {
    stream.write_all(b"e").unwrap();
    let mut message = [7; MESSAGE];
    let started = Instant::now();
    for _ in 0..MESSAGES {
        stream.write_all(&message).unwrap();
        stream.read_exact(&mut message).unwrap();
    }
    started.elapsed().as_secs_f64() * 1e6 / MESSAGES as f64
}
