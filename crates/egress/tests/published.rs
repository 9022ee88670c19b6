//! Published ports: the host's connections reach servers in the box, and nothing else of it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belljar_egress::{BoxSockets, Config, Engine, Published, StartError, Ways};
use socket2::{Domain, Socket, Type};
use support::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The tests have no namespace of a box: their own loopback stands for it.
struct Ordinary;

impl BoxSockets for Ordinary {
    fn tcp_socket(&self) -> io::Result<OwnedFd> {
        Socket::new(Domain::IPV4, Type::STREAM, None).map(OwnedFd::from)
    }
}

/// Makes a socket when it is told to.
struct Slow(Mutex<Receiver<()>>);

impl Slow {
    fn new() -> (Sender<()>, Self) {
        let (go, wait) = channel();
        (go, Self(Mutex::new(wait)))
    }
}

impl BoxSockets for Slow {
    fn tcp_socket(&self) -> io::Result<OwnedFd> {
        // The test is over when nobody can tell any more.
        let _ = self.0.lock().unwrap().recv();
        Ordinary.tcp_socket()
    }
}

/// A box that is over.
struct Gone;

impl BoxSockets for Gone {
    fn tcp_socket(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
}

struct Host {
    engine: Engine,
    published: SocketAddr,
    proxy: SocketAddr,
}

fn publish(config: Config, port: u16, sockets: impl BoxSockets + 'static) -> Host {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let (published, proxy_at) = (listener.local_addr().unwrap(), proxy.local_addr().unwrap());
    let ways = Ways {
        published: vec![Published { listener, port }],
        box_sockets: Some(Arc::new(sockets)),
        proxy: vec![proxy],
        ..Ways::default()
    };
    Host {
        engine: Engine::start(config, ways, Arc::new(Recording::default())).unwrap(),
        published,
        proxy: proxy_at,
    }
}

async fn echoes(stream: &mut TcpStream, text: &[u8]) {
    soon(stream.write_all(text)).await.unwrap();
    let mut back = vec![0; text.len()];
    soon(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(back, text);
}

/// A port where nothing listens; `_kept` holds it for as long as that matters.
fn silent_port() -> (Socket, u16) {
    let kept = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    kept.bind(&any.into()).unwrap();
    let port = kept.local_addr().unwrap().as_socket().unwrap().port();
    (kept, port)
}

#[tokio::test]
async fn a_server_in_the_box_is_reached_from_the_host() {
    let echo = Echo::start().await;
    let host = publish(config(Vec::new()), echo.port, Ordinary);
    let mut first = TcpStream::connect(host.published).await.unwrap();
    echoes(&mut first, b"hello").await;
    let mut second = TcpStream::connect(host.published).await.unwrap();
    echoes(&mut second, &[7; 100_000]).await;
    // The end of one side is passed on; what the server still says arrives.
    second.write_all(b"bye").await.unwrap();
    second.shutdown().await.unwrap();
    assert_eq!(read_all(&mut second).await, b"bye");
    echoes(&mut first, b"still there").await;
    drop(first);
    let usage = host.engine.stop();
    let bytes = 5 + 100_000 + 3 + 11;
    let published = usage.published;
    assert_eq!((published.connections, published.failed), (2, 0));
    assert_eq!((published.sent, published.received), (bytes, bytes));
    // They are the host's doing, not the agent's.
    assert_eq!((usage.connections, usage.sent, usage.received), (0, 0, 0));
}

#[tokio::test]
async fn a_port_where_nothing_listens_is_closed() {
    let (_kept, port) = silent_port();
    let host = publish(config(Vec::new()), port, Ordinary);
    let mut stream = TcpStream::connect(host.published).await.unwrap();
    assert!(read_all(&mut stream).await.is_empty());
    let published = host.engine.stop().published;
    assert_eq!((published.connections, published.failed), (0, 1));
}

#[tokio::test]
async fn a_box_that_is_over_is_closed() {
    let echo = Echo::start().await;
    let host = publish(config(Vec::new()), echo.port, Gone);
    let mut stream = TcpStream::connect(host.published).await.unwrap();
    assert!(read_all(&mut stream).await.is_empty());
    assert_eq!(echo.count(), 0);
    assert_eq!(host.engine.stop().published.failed, 1);
}

#[tokio::test]
async fn the_host_has_only_so_many_connections_and_the_box_has_its_own() {
    let echo = Echo::start().await;
    let mut config = config(vec![allow("a.test", &[echo.port])]);
    config.limits.published = 2;
    config.limits.connections = 1;
    let host = publish(config, echo.port, Ordinary);
    let mut first = TcpStream::connect(host.published).await.unwrap();
    let mut second = TcpStream::connect(host.published).await.unwrap();
    echoes(&mut first, b"1").await;
    echoes(&mut second, b"2").await;
    let mut third = TcpStream::connect(host.published).await.unwrap();
    assert!(read_all(&mut third).await.is_empty());
    echoes(&mut first, b"still there").await;
    // The box's own way out is as free as before.
    let mut out = TcpStream::connect(host.proxy).await.unwrap();
    let target = format!("a.test:{}", echo.port);
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    out.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    soon(out.read_exact(&mut head)).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    assert_eq!(host.engine.stop().published.failed, 1);
}

#[tokio::test]
async fn a_box_that_is_slow_to_make_sockets_holds_nobody_up() {
    let echo = Echo::start().await;
    let (go, slow) = Slow::new();
    let host = publish(config(vec![allow("a.test", &[echo.port])]), echo.port, slow);
    let mut waiting: Vec<TcpStream> = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(host.published).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        waiting.push(stream);
    }
    let mut out = TcpStream::connect(host.proxy).await.unwrap();
    let target = format!("a.test:{}", echo.port);
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\nhello");
    out.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nhello") {
        answer.push(soon(out.read_u8()).await.unwrap());
    }
    assert_eq!(host.engine.usage().published.connections, 0);
    for _ in &waiting {
        go.send(()).unwrap();
    }
    for stream in &mut waiting {
        let mut back = [0; 5];
        soon(stream.read_exact(&mut back)).await.unwrap();
        assert_eq!(&back, b"hello");
    }
}

#[tokio::test]
async fn a_silent_connection_to_a_published_port_ends() {
    let echo = Echo::start().await;
    let mut config = config(Vec::new());
    config.timeouts.idle = Duration::from_millis(100);
    let host = publish(config, echo.port, Ordinary);
    let mut stream = TcpStream::connect(host.published).await.unwrap();
    assert!(read_all(&mut stream).await.is_empty());
}

#[tokio::test]
async fn when_the_engine_ends_the_port_is_no_longer_published() {
    let echo = Echo::start().await;
    let host = publish(config(Vec::new()), echo.port, Ordinary);
    let mut stream = TcpStream::connect(host.published).await.unwrap();
    echoes(&mut stream, b"x").await;
    let _ = host.engine.stop();
    assert!(read_all(&mut stream).await.is_empty());
    assert!(TcpStream::connect(host.published).await.is_err());
}

#[tokio::test]
async fn a_port_can_not_be_published_by_a_box_that_makes_no_sockets() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ways = Ways {
        published: vec![Published { listener, port: 80 }],
        ..Ways::default()
    };
    let started = Engine::start(config(Vec::new()), ways, Arc::new(Recording::default()));
    assert!(matches!(started, Err(StartError::NoBoxSockets)));
}
