//! Asks a server, within a deadline.

use std::io;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};

use crate::http::{self, ResponseHead};
use crate::route::{Named, NoTarget, Route};
use crate::types::Problem;
use crate::{Method, Status};

/// How long a call may take where nothing else is said: longer than a server takes to give up on a decision.
const DEADLINE: Duration = Duration::from_secs(90);
/// Bytes of a response's head.
const MOST_HEAD: usize = 8 * 1024;
/// Bytes of a response's body: a little more than a server sends.
const MOST_BODY: usize = 64 * 1024 * 1024;
/// Bytes read at once.
const READ_AT_ONCE: usize = 64 * 1024;

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody serves that socket.
    #[error("nobody answers at {}", path.display())]
    NotThere {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The server said no. Its problem says why.
    #[error("refused ({status}, {}): {}", problem.code, problem.message)]
    Refused {
        /// The status of the reply.
        status: Status,
        /// Its body.
        problem: Problem,
    },
    /// The server, or whoever has its socket, does not speak our protocol, or broke off.
    #[error("the answer can't be used: {0}")]
    Protocol(String),
    /// No answer in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
}

impl CallError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::NotThere { .. } => Some("is the supervisor running?"),
            Self::Refused { problem, .. } => problem.hint.as_deref(),
            Self::Protocol(_) => None,
            Self::TimedOut(_) => Some("it may still come about: look before you ask again"),
        }
    }
}

/// A connection to a server; made anew when the server has closed it in between.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    way: Option<Way>,
    stream: Option<UnixStream>,
    deadline: Duration,
}

/// A way to a server that is not a socket's path.
pub struct Way {
    /// Opens it.
    pub open: Box<dyn Fn() -> io::Result<UnixStream> + Send + Sync>,
    /// What requests name as their host.
    pub host: String,
    /// What shows who asks.
    pub token: String,
}

/// Without the token.
impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Way")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to the socket at that path.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, CallError> {
        Self::begin(path.as_ref().to_owned(), None)
    }

    /// Connects by a way of the caller's.
    pub fn connect_by(way: Way) -> Result<Self, CallError> {
        Self::begin(PathBuf::from(&way.host), Some(way))
    }

    fn begin(path: PathBuf, way: Option<Way>) -> Result<Self, CallError> {
        let mut client = Self {
            path,
            way,
            stream: None,
            deadline: DEADLINE,
        };
        client.stream = Some(client.open(Instant::now() + client.deadline)?);
        Ok(client)
    }

    /// Sets how long each call may take in all.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Whether the connection is open and quiet. A closed one is made anew by the next call.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.stream.as_ref().is_some_and(is_quiet)
    }

    /// Asks a route that names no worker in its path.
    pub fn call<R: Route<Target = NoTarget>>(
        &mut self,
        request: &R::Request,
    ) -> Result<R::Response, CallError> {
        self.ask::<R>(R::PATH, request)
    }

    /// Asks a route about what its path names: a worker, an agent, an alert and the like.
    pub fn call_on<R: Route<Target: Named>>(
        &mut self,
        target: &R::Target,
        request: &R::Request,
    ) -> Result<R::Response, CallError> {
        self.ask::<R>(&R::PATH.replace("{id}", target.segment()), request)
    }

    fn ask<R: Route>(
        &mut self,
        path: &str,
        request: &R::Request,
    ) -> Result<R::Response, CallError> {
        let mut path = path.to_owned();
        let body = match R::METHOD {
            Method::Get => {
                let query = serde_urlencoded::to_string(request).map_err(|error| {
                    CallError::Protocol(format!("the question is no query: {error}"))
                })?;
                if !query.is_empty() {
                    path = format!("{path}?{query}");
                }
                Vec::new()
            }
            Method::Post => serde_json::to_vec(request).map_err(|error| {
                CallError::Protocol(format!("the question is no JSON: {error}"))
            })?,
        };
        let (host, credentials) = match &self.way {
            None => ("belljar", String::new()),
            Some(way) => (
                way.host.as_str(),
                format!("Authorization: Bearer {}\r\n", way.token),
            ),
        };
        let mut question = format!(
            "{} {path} HTTP/1.1\r\nHost: {host}\r\n{credentials}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            R::METHOD,
            body.len()
        )
        .into_bytes();
        question.extend_from_slice(&body);
        let (status, body) = self.exchange(&question)?;
        if !status.is_success() {
            return Err(refusal(status, &body));
        }
        serde_json::from_slice(&body)
            .map_err(|error| CallError::Protocol(format!("its body is not as expected: {error}")))
    }

    /// One question, one answer. A connection is kept only after a whole answer.
    fn exchange(&mut self, question: &[u8]) -> Result<(Status, Vec<u8>), CallError> {
        let until = Instant::now() + self.deadline;
        let stream = match self.stream.take().filter(is_quiet) {
            Some(stream) => stream,
            None => self.open(until)?,
        };
        let sent = self.send(&stream, question, until);
        if let Err(error @ CallError::TimedOut(_)) = sent {
            return Err(error);
        }
        // A server that refuses early stops reading, and its answer says why: so it is read even where sending failed.
        let (head, body) = self
            .receive(&stream, until)
            .map_err(|error| match (&sent, error) {
                (Err(CallError::Protocol(text)), CallError::Protocol(_)) => {
                    CallError::Protocol(text.clone())
                }
                (_, error) => error,
            })?;
        if head.persistent && sent.is_ok() {
            self.stream = Some(stream);
        }
        Ok((head.status, body))
    }

    fn open(&self, until: Instant) -> Result<UnixStream, CallError> {
        let not_there = |error: Errno| CallError::NotThere {
            path: self.path.clone(),
            source: error.into(),
        };
        if let Some(way) = &self.way {
            return (way.open)().map_err(|source| CallError::NotThere {
                path: self.path.clone(),
                source,
            });
        }
        let address = SocketAddrUnix::new(&self.path).map_err(not_there)?;
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(not_there)?;
        loop {
            // A full queue makes `connect` wait, and the time for sending bounds it.
            set_socket_timeout(&socket, Timeout::Send, Some(self.left(until)?))
                .map_err(not_there)?;
            match connect(&socket, &address) {
                Ok(()) => return Ok(UnixStream::from(socket)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(CallError::TimedOut(self.deadline)),
                Err(error) => return Err(not_there(error)),
            }
        }
    }

    fn send(&self, stream: &UnixStream, mut bytes: &[u8], until: Instant) -> Result<(), CallError> {
        while !bytes.is_empty() {
            let left = Some(self.left(until)?);
            set_socket_timeout(stream, Timeout::Send, left)
                .map_err(|error| broken(error.into()))?;
            match send(stream, bytes, SendFlags::NOSIGNAL) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                // The next round looks at the clock.
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(broken(error.into())),
            }
        }
        Ok(())
    }

    fn receive(
        &self,
        stream: &UnixStream,
        until: Instant,
    ) -> Result<(ResponseHead, Vec<u8>), CallError> {
        let mut bytes = Vec::new();
        loop {
            match http::read_response_head(&bytes).map_err(CallError::Protocol)? {
                Some(head) if head.status.code() < 200 => {
                    bytes.drain(..head.bytes);
                    continue;
                }
                Some(head) if head.length > MOST_BODY => {
                    return Err(CallError::Protocol(format!("it has {} bytes", head.length)));
                }
                Some(head) => {
                    bytes.drain(..head.bytes);
                    while bytes.len() < head.length {
                        self.read_some(stream, &mut bytes, until)?;
                    }
                    if bytes.len() > head.length {
                        return Err(CallError::Protocol("there is more than one".to_owned()));
                    }
                    return Ok((head, bytes));
                }
                None if bytes.len() > MOST_HEAD => {
                    return Err(CallError::Protocol("its head is too long".to_owned()));
                }
                None => self.read_some(stream, &mut bytes, until)?,
            }
        }
    }

    fn read_some(
        &self,
        mut stream: &UnixStream,
        bytes: &mut Vec<u8>,
        until: Instant,
    ) -> Result<(), CallError> {
        let mut piece = [0; READ_AT_ONCE];
        loop {
            stream
                .set_read_timeout(Some(self.left(until)?))
                .map_err(broken)?;
            match stream.read(&mut piece) {
                Ok(0) => return Err(CallError::Protocol("it broke off".to_owned())),
                Ok(count) => {
                    bytes.extend_from_slice(piece.get(..count).unwrap_or_default());
                    return Ok(());
                }
                // The next round looks at the clock.
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(broken(error)),
            }
        }
    }

    /// What is left of the time. Never zero, which would mean "for ever" to the kernel.
    fn left(&self, until: Instant) -> Result<Duration, CallError> {
        match until.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Ok(left.max(Duration::from_millis(1))),
            _ => Err(CallError::TimedOut(self.deadline)),
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

fn broken(error: io::Error) -> CallError {
    CallError::Protocol(format!("the connection broke: {error}"))
}

fn refusal(status: Status, body: &[u8]) -> CallError {
    match serde_json::from_slice(body) {
        Ok(problem) => CallError::Refused { status, problem },
        Err(error) => CallError::Protocol(format!("it says {status} and not why: {error}")),
    }
}

/// Whether a kept connection is still good: a server that closed it shows as something to read.
fn is_quiet(stream: &UnixStream) -> bool {
    let mut watched = [PollFd::new(stream, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut watched, Some(&at_once)) == Ok(0)
}
