//! A server to attack, and peers that speak in bytes.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part of this")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use belljar_api::{
    AgentCall, Call, Client, Done, Handle, HeartbeatReply, Limits, Rate, Request, Running, Server,
    Side, Tag,
};
use tempfile::TempDir;

/// Long enough for any machine; a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Limits that no test reaches by accident, however slow the machine.
pub fn patient() -> Limits {
    Limits {
        idle: PATIENCE * 10,
        idle_when_full: PATIENCE * 10,
        request: PATIENCE * 10,
        answer: PATIENCE * 10,
        reply: PATIENCE * 10,
        linger: PATIENCE * 10,
        requests: Rate {
            burst: 1_000_000,
            per_second: 1_000_000,
        },
        accepts: Rate {
            burst: 1_000_000,
            per_second: 1_000_000,
        },
        ..Limits::default()
    }
}

pub struct TestServer {
    pub handle: Handle,
    directory: TempDir,
    running: Option<Running>,
}

impl TestServer {
    /// Serves one agent's socket under tag 1, and the operator's under tag 0.
    pub fn start(limits: Limits, handler: impl FnMut(Request) + Send + 'static) -> Self {
        let (server, handle) = Server::new(limits).unwrap();
        let running = Some(server.spawn(handler).unwrap());
        let server = Self {
            handle,
            directory: tempfile::tempdir().unwrap(),
            running,
        };
        server.listen(Tag(0), Side::Operator);
        server.listen(Tag(1), Side::Agent);
        server
    }

    pub fn path(&self, tag: Tag) -> PathBuf {
        self.directory.path().join(tag.0.to_string())
    }

    pub fn listen(&self, tag: Tag, side: Side) {
        let listener = UnixListener::bind(self.path(tag)).unwrap();
        self.handle.add_listener(listener, tag, side).unwrap();
    }

    /// A peer of the agent's socket.
    pub fn peer(&self) -> Peer {
        Peer::connect(&self.path(Tag(1)))
    }

    pub fn client(&self, tag: Tag) -> Client {
        Client::connect(self.path(tag)).unwrap()
    }

    /// Stops the server; its socket files stay as long as the result does.
    pub fn stop(mut self) -> TempDir {
        self.running.take().unwrap().stop().unwrap();
        self.directory
    }
}

/// Answers heartbeats and shutdowns at once, and drops all else.
pub fn simple(request: Request) {
    match request.call {
        Call::Agent(AgentCall::Heartbeat(asked)) => {
            let next_within_ms = Some(request.tag.0);
            asked.responder.reply(&HeartbeatReply {
                ok: true,
                next_within_ms,
            });
        }
        Call::Agent(AgentCall::Shutdown(asked)) => asked.responder.reply(&Done::DONE),
        _ => {}
    }
}

pub struct Peer(pub UnixStream);

/// A reply: its status, its headers in one text, its body.
#[derive(Debug)]
pub struct Heard {
    pub status: u16,
    pub head: String,
    pub body: serde_json::Value,
}

impl Heard {
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    pub fn closes(&self) -> bool {
        self.head.contains("Connection: close")
    }
}

impl Peer {
    pub fn connect(path: &std::path::Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.0.write_all(bytes.as_ref()).unwrap();
        self
    }

    pub fn send_and_keep(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.send(bytes);
        self
    }

    /// Sends a whole request with a body.
    pub fn ask(&mut self, line: &str, body: &str) -> &mut Self {
        self.send(format!(
            "{line} HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    pub fn hear(&mut self) -> Heard {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            self.0.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.0.read_exact(&mut body).unwrap();
        let body = if body.is_empty() {
            serde_json::Value::Null
        } else {
            serde_json::from_slice(&body).unwrap()
        };
        Heard { status, head, body }
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

pub const HEARTBEAT: &str = "POST /v1/heartbeat HTTP/1.1\r\n\r\n";
