//! What a web server is to be.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::Pages;

/// What a web server is to be. The defaults: only this machine reaches it, at port 8080, without TLS.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it listens. Port 0 takes any that is free.
    pub bind: SocketAddr,
    /// Further names it is asked by, `host` or `host:port`; loopback's names are known. A request under any other name is refused, so
    /// that a page from elsewhere whose name was made to point here gets nothing.
    pub names: Vec<String>,
    /// Its certificate, where it speaks TLS.
    pub tls: Option<Tls>,
    /// What it bears.
    pub limits: Limits,
    /// The pages at `/`.
    pub pages: Pages,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            bind: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080),
            names: Vec::new(),
            tls: None,
            limits: Limits::default(),
            pages: Pages::embedded(),
        }
    }
}

/// PEM files for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities for clients. Where given, a client needs a certificate of theirs *and* a token.
    pub client_ca: Option<PathBuf>,
}

/// What a server bears. All of it holds; the values are a caller's to change, for tests above all.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// Header lines of a request.
    pub headers: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Bytes of a reply's body.
    pub reply_bytes: usize,
    /// Connections at once. When they are used up, a newcomer takes the place of the one that has longest shown no token.
    pub connections: usize,
    /// Live streams at once.
    pub streams: usize,
    /// Live streams of one token at once.
    pub streams_of_one: usize,
    /// Messages that wait for the reader of a stream.
    pub stream_messages: usize,
    /// How long a stream may be silent.
    pub heartbeat: Duration,
    /// How soon a stream notices that its token or session is over.
    pub check: Duration,
    /// Calls that are being answered at once; more wait.
    pub calls: usize,
    /// How long a head may take to arrive, and a connection may be idle.
    pub head: Duration,
    /// How long a body may take to arrive.
    pub body: Duration,
    /// How long TLS may take to be agreed on.
    pub handshake: Duration,
    /// How long an answer may take to be found.
    pub answer: Duration,
    /// How long a peer may take nothing of what we send.
    pub stall: Duration,
    /// Sessions at once. When they are used up, the oldest ends.
    pub sessions: usize,
    /// Sessions of one token at once, likewise.
    pub sessions_of_one: usize,
    /// How long a session lasts.
    pub session: Duration,
    /// Failed logins of one address: so many at once, and one more each [`login_every`](Self::login_every).
    pub logins_of_one: u32,
    /// Failed logins of all addresses, likewise but ten times as often.
    pub logins: u32,
    /// See [`logins_of_one`](Self::logins_of_one).
    pub login_every: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes: 16 * 1024,
            headers: 64,
            body_bytes: 1024 * 1024 + 256 * 1024,
            reply_bytes: 48 * 1024 * 1024,
            connections: 256,
            streams: 64,
            streams_of_one: 16,
            stream_messages: 256,
            heartbeat: Duration::from_secs(15),
            check: Duration::from_millis(500),
            calls: 32,
            head: Duration::from_secs(15),
            body: Duration::from_secs(10),
            handshake: Duration::from_secs(10),
            answer: Duration::from_secs(60),
            stall: Duration::from_secs(30),
            sessions: 1000,
            sessions_of_one: 50,
            session: Duration::from_secs(12 * 60 * 60),
            logins_of_one: 10,
            logins: 100,
            login_every: Duration::from_secs(6),
        }
    }
}
