//! A server to attack, and peers that speak in bytes.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part of this")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use belljar_api::{Live, Name, OperatorCall, Problem, Status};
use belljar_web::{
    Backend, Caller, Feed, Limits, NewToken, Pages, Role, Running, Settings, TokenFile,
    TokenRecord, Web,
};
use tempfile::TempDir;

/// Long enough for any machine; a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What the backend was asked, and by whom.
#[derive(Default)]
pub struct Seen {
    pub calls: Mutex<Vec<(String, Role, &'static str)>>,
    feeds: Mutex<Vec<Feed>>,
    subscribed: Condvar,
    pub numbers_read: Mutex<u64>,
    pub unready: Mutex<bool>,
    /// Whether what is read is held up, in its thread.
    held: Mutex<bool>,
    released: Condvar,
    /// Calls that are kept and not answered, where there is a place for them.
    pub kept: Mutex<Option<Vec<OperatorCall>>>,
}

impl Seen {
    /// The feeds of all who subscribed, once there are that many.
    pub fn feeds(&self, count: usize) -> Vec<Feed> {
        let feeds = self.feeds.lock().unwrap();
        let (feeds, late) = self
            .subscribed
            .wait_timeout_while(feeds, PATIENCE, |feeds| feeds.len() < count)
            .unwrap();
        assert!(!late.timed_out(), "{} of {count} subscribed", feeds.len());
        feeds.clone()
    }

    pub fn hold(&self, held: bool) {
        *self.held.lock().unwrap() = held;
        self.released.notify_all();
    }

    pub fn calls(&self) -> Vec<(String, Role, &'static str)> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

/// Refuses everything with a word that nobody else uses: whoever hears it reached the backend.
pub struct TestBackend(pub Arc<Seen>);

pub const REACHED: u16 = 409;

impl Backend for TestBackend {
    fn answer(&self, by: &Caller, call: OperatorCall) {
        let asked = (by.name().to_string(), by.role(), call.name());
        self.0.calls.lock().unwrap().push(asked);
        if let OperatorCall::ReadTree(_) = &call {
            let held = self.0.held.lock().unwrap();
            let held = self
                .0
                .released
                .wait_timeout_while(held, PATIENCE, |held| *held);
            drop(held.unwrap());
        }
        if let Some(kept) = &mut *self.0.kept.lock().unwrap() {
            kept.push(call);
            return;
        }
        call.refuse(
            Status::CONFLICT,
            &Problem::new("reached", "the backend was reached"),
        );
    }

    fn subscribe(&self, feed: Feed) {
        feed.send(Arc::new(Live::Agents(Vec::new()))).unwrap();
        self.0.feeds.lock().unwrap().push(feed);
        self.0.subscribed.notify_all();
    }

    fn prometheus(&self) -> String {
        *self.0.numbers_read.lock().unwrap() += 1;
        "belljar_agents 3".to_owned()
    }

    fn ready(&self) -> Result<(), String> {
        let unready = *self.0.unready.lock().unwrap();
        if unready {
            Err("SECRET/path is full".to_owned())
        } else {
            Ok(())
        }
    }
}

/// Limits that no test reaches by accident, however slow the machine.
pub fn patient() -> Limits {
    Limits {
        head: PATIENCE * 10,
        body: PATIENCE * 10,
        handshake: PATIENCE * 10,
        answer: PATIENCE * 10,
        stall: PATIENCE * 10,
        heartbeat: PATIENCE * 10,
        check: Duration::from_millis(20),
        ..Limits::default()
    }
}

pub struct TestServer {
    pub running: Option<Running>,
    pub seen: Arc<Seen>,
    pub tokens: TokenFile,
    pub address: SocketAddr,
    pub state: TempDir,
}

impl TestServer {
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let state = tempfile::tempdir().unwrap();
        let tokens = TokenFile::of(state.path());
        Self::on(state, tokens, change)
    }

    pub fn on(state: TempDir, tokens: TokenFile, change: impl FnOnce(&mut Settings)) -> Self {
        let seen = Arc::new(Seen::default());
        let mut settings = Settings {
            bind: "127.0.0.1:0".parse().unwrap(),
            limits: patient(),
            pages: pages(),
            ..Settings::default()
        };
        change(&mut settings);
        let backend = TestBackend(Arc::clone(&seen));
        let running = Web::start(settings, tokens.clone(), backend).unwrap();
        Self {
            address: running.address(),
            running: Some(running),
            seen,
            tokens,
            state,
        }
    }

    pub fn token(&self, role: Role) -> (TokenRecord, String) {
        token(&self.tokens, role, Some(Duration::from_secs(3600)))
    }

    pub fn peer(&self) -> Peer {
        Peer::connect(self.address)
    }

    /// Sends a request on a connection of its own, with a Host and a token if there is one.
    pub fn ask(&self, line: &str, token: Option<&str>, body: Option<&str>) -> Heard {
        let headers: Vec<String> = token
            .map(|token| format!("Authorization: Bearer {token}"))
            .into_iter()
            .collect();
        self.ask_with(line, &headers, body)
    }

    pub fn ask_with(&self, line: &str, headers: &[String], body: Option<&str>) -> Heard {
        let mut peer = self.peer();
        peer.send(request(line, self.address, headers, body));
        peer.hear()
    }

    /// Logs in; gives the cookie and the value for X-Belljar-Csrf.
    pub fn log_in(&self, token: &str) -> (String, String) {
        let body = format!("{{\"token\":\"{token}\"}}");
        let heard = self.ask("POST /v1/session", None, Some(&body));
        assert_eq!(heard.status, 200, "{heard:?}");
        let cookie = heard.header("set-cookie").unwrap();
        let cookie = cookie.split(';').next().unwrap().to_owned();
        (cookie, heard.json()["csrf"].as_str().unwrap().to_owned())
    }

    pub fn origin(&self) -> String {
        format!("Origin: http://{}", self.address)
    }
}

pub fn token(tokens: &TokenFile, role: Role, lifetime: Option<Duration>) -> (TokenRecord, String) {
    let new = NewToken {
        name: Name::new(format!("the {role}")).unwrap(),
        role,
        lifetime,
    };
    let (record, text) = tokens.create(new).unwrap();
    (record, text.reveal().to_owned())
}

pub fn pages() -> Pages {
    Pages::new([
        (
            "/index.html".to_owned(),
            b"<!doctype html>the dashboard".to_vec(),
        ),
        ("/assets/index-B3xY_z-9.js".to_owned(), b"the code".to_vec()),
        ("/favicon.svg".to_owned(), b"<svg/>".to_vec()),
    ])
}

pub fn request(line: &str, address: SocketAddr, headers: &[String], body: Option<&str>) -> String {
    let mut text = format!("{line} HTTP/1.1\r\nHost: {address}\r\n");
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    match body {
        Some(body) => {
            let length = body.len();
            text.push_str(&format!(
                "Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
            ));
        }
        None => text.push_str("\r\n"),
    }
    text
}

/// A reply.
#[derive(Debug)]
pub struct Heard {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Heard {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The stable word of a refusal.
    pub fn code(&self) -> String {
        let read = serde_json::from_slice::<serde_json::Value>(&self.body);
        let read = read.unwrap_or_default();
        read["code"].as_str().unwrap_or_default().to_owned()
    }
}

pub struct Peer<S = TcpStream>(pub BufReader<S>);

impl Peer {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }
}

impl<S: Read + Write> Peer<S> {
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
        self
    }

    /// The head of a reply, whose body goes on.
    pub fn hear_head(&mut self) -> Heard {
        let status = self.line();
        let status = status.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap();
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Heard {
            status,
            headers,
            body: Vec::new(),
        }
    }

    pub fn hear(&mut self) -> Heard {
        let mut heard = self.hear_head();
        let length = heard
            .header("content-length")
            .map_or(0, |length| length.parse().unwrap());
        heard.body = vec![0; length];
        self.0.read_exact(&mut heard.body).unwrap();
        heard
    }

    /// A line, without its end; empty at the end of everything.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end_matches(['\r', '\n']).to_owned()
    }

    /// The next chunk of a body without a length; `None` at its end.
    pub fn chunk(&mut self) -> Option<String> {
        let mut length = String::new();
        match self.0.read_line(&mut length) {
            Ok(0) => return None,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
            read => read.unwrap(),
        };
        let length = usize::from_str_radix(length.trim(), 16).unwrap();
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes).unwrap();
        bytes.truncate(length);
        (length > 0).then(|| String::from_utf8(bytes).unwrap())
    }

    /// Reads until the server closes; fails when it does not.
    pub fn hear_the_end(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => rest,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => rest,
            Err(error) => panic!("not closed: {error}"),
        }
    }
}
