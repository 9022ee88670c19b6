//! What the tests share: an engine with its doors on loopback, and a record of what it reported.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part"
)]

pub mod http;
pub mod llm;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belljar_egress::{
    Arrival, Config, Engine, Event, NameBlock, Recorder, Refusal, RefusalCode, Resolve,
    ResolveError, Resolving, Transparent, Ways,
};
use belljar_policy::{
    CompiledRules, DomainPattern, EgressEffect, EgressRule, EgressTerms, Origin, Reach, Rule,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Longer than anything takes on the busiest machine; only a failing test waits this long.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A rule that allows a host on its ports, on the host itself too: the tests' servers are there.
pub fn allow(domain: &str, ports: &[u16]) -> EgressRule {
    EgressRule {
        domain: DomainPattern::parse(domain).expect("a domain"),
        ports: ports.to_vec(),
        rate_limit_per_min: 100_000,
        effect: EgressEffect::Allow,
        terms: EgressTerms {
            reach: Reach::Host,
            ..EgressTerms::default()
        },
    }
}

pub fn compile(rules: Vec<EgressRule>) -> CompiledRules {
    let rules: Vec<_> = rules
        .into_iter()
        .map(|rule| Rule::new(rule, Origin::built_in()))
        .collect();
    CompiledRules::new(rules)
}

/// Names and their addresses; every other name is at 127.0.0.1.
#[derive(Default)]
pub struct Names(pub HashMap<String, Vec<IpAddr>>);

impl Resolve for Names {
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a> {
        let found = match self.0.get(name) {
            Some(addresses) => addresses.clone(),
            None => vec![Ipv4Addr::LOCALHOST.into()],
        };
        Box::pin(async move {
            if found.is_empty() {
                Err(ResolveError::NoSuchName)
            } else {
                Ok(found)
            }
        })
    }
}

/// Keeps every event.
#[derive(Default)]
pub struct Recording(Mutex<Vec<Event>>);

impl Recorder for Recording {
    fn record(&self, event: Event) {
        self.0.lock().expect("a lock").push(event);
    }
}

impl Recording {
    pub fn events(&self) -> Vec<Event> {
        self.0.lock().expect("a lock").clone()
    }

    pub fn refusals(&self) -> Vec<Refusal> {
        let refusal = |event| match event {
            Event::Refused(refusal) => Some(refusal),
            _ => None,
        };
        self.events().into_iter().filter_map(refusal).collect()
    }

    /// Waits for an event.
    pub async fn wait<T>(&self, what: &str, mut found: impl FnMut(&Event) -> Option<T>) -> T {
        let started = std::time::Instant::now();
        loop {
            if let Some(value) = self.events().iter().find_map(&mut found) {
                return value;
            }
            assert!(
                started.elapsed() < DEADLINE,
                "no {what} in {:?}",
                self.events()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits for a refusal with this code.
    pub async fn refusal(&self, code: RefusalCode) -> Refusal {
        self.wait(code.code(), |event| match event {
            Event::Refused(refusal) if refusal.code == code => Some(refusal.clone()),
            _ => None,
        })
        .await
    }
}

/// An engine with a proxy door and a name server on loopback.
pub struct TestBox {
    pub engine: Engine,
    pub recording: Arc<Recording>,
    pub proxy: SocketAddr,
    pub dns: SocketAddr,
    pub dns_tcp: SocketAddr,
}

/// Starts an engine; `transparent` is where plain connections arrive, if they do.
pub fn start_with(mut config: Config, transparent: Option<TcpListener>) -> TestBox {
    let listener = || TcpListener::bind("127.0.0.1:0").expect("a port");
    let (proxy, dns_tcp) = (listener(), listener());
    let dns = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let recording = Arc::new(Recording::default());
    let (proxy_at, dns_tcp_at) = (
        proxy.local_addr().expect("an address"),
        dns_tcp.local_addr().expect("an address"),
    );
    let dns_at = dns.local_addr().expect("an address");
    config.name_block = name_block();
    let ways = Ways {
        transparent: transparent
            .into_iter()
            .map(|listener| Transparent {
                listener,
                arrival: Arrival::AnyAddress,
            })
            .collect(),
        dns_udp: vec![dns],
        dns_tcp: vec![dns_tcp],
        proxy: vec![proxy],
        ..Ways::default()
    };
    let recorder: Arc<dyn Recorder> = Arc::clone(&recording) as _;
    TestBox {
        engine: Engine::start(config, ways, recorder).expect("an engine"),
        recording,
        proxy: proxy_at,
        dns: dns_at,
        dns_tcp: dns_tcp_at,
    }
}

pub fn start(config: Config) -> TestBox {
    start_with(config, None)
}

/// A configuration with these rules, for which every name is at 127.0.0.1.
pub fn config(rules: Vec<EgressRule>) -> Config {
    let mut config = Config::new(compile(rules));
    config.resolver = Arc::new(Names::default());
    config
}

/// All of 127.0.0.0/8 is local, so these addresses reach a listener without a namespace of one's own.
pub fn name_block() -> NameBlock {
    NameBlock::around(Ipv4Addr::new(127, 128, 0, 0))
}

/// Bounded waiting.
pub async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(DEADLINE, future)
        .await
        .expect("it takes too long")
}

impl TestBox {
    /// Asks the proxy for a connection; gives back the status line and the connection.
    pub async fn connect(&self, target: &str) -> (String, TcpStream) {
        let mut stream = soon(TcpStream::connect(self.proxy))
            .await
            .expect("a connection");
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
        soon(stream.write_all(request.as_bytes()))
            .await
            .expect("a request");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match soon(stream.read_u8()).await {
                Ok(byte) => head.push(byte),
                Err(_) => break,
            }
        }
        let head = String::from_utf8_lossy(&head);
        (head.lines().next().unwrap_or_default().to_owned(), stream)
    }

    /// A connection through the proxy.
    pub async fn tunnel(&self, target: &str) -> TcpStream {
        let (status, stream) = self.connect(target).await;
        assert!(status.starts_with("HTTP/1.1 200 "), "{target}: {status}");
        stream
    }
}

/// Everything until the other side ends or fails.
pub async fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        match soon(stream.read(&mut chunk)).await {
            Ok(0) | Err(_) => return bytes,
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
        }
    }
}

/// A server that sends back what it gets, and says how many connections it had.
pub struct Echo {
    pub port: u16,
    pub connections: Arc<std::sync::atomic::AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Echo {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let connections = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                    let _ = write.shutdown().await;
                });
            }
        });
        Self {
            port,
            connections,
            task,
        }
    }

    pub fn count(&self) -> usize {
        self.connections.load(std::sync::atomic::Ordering::SeqCst)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A TLS greeting for a host, as small as it can be.
pub fn greeting(name: Option<&str>, encrypted: bool) -> Vec<u8> {
    let sized = |content: &[u8]| {
        let mut out = (content.len() as u16).to_be_bytes().to_vec();
        out.extend_from_slice(content);
        out
    };
    let mut extensions = Vec::new();
    if let Some(name) = name {
        let entry = [vec![0], sized(name.as_bytes())].concat();
        extensions.extend([0, 0]);
        extensions.extend(sized(&sized(&entry)));
    }
    if encrypted {
        extensions.extend([0xfe, 0x0d]);
        extensions.extend(sized(b"x"));
    }
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    body.extend(sized(&[0x13, 1]));
    body.extend([1, 0]);
    body.extend(sized(&extensions));
    let message = [vec![1, 0], sized(&body)].concat();
    [vec![22, 3, 1], sized(&message)].concat()
}
