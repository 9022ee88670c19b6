//! One listener and what its peers use.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};

use super::{Tag, Tenure};
use crate::http::{Rejection, RequestHead};
use crate::limits::{Bucket, Limits};
use crate::route::{NotFound, Side, find};
use crate::types::Problem;
use crate::{Method, Status};

/// How soon a peer may try again when there is no room. A guess: room comes with the end of another request.
const RETRY_WHEN_BUSY_MS: u64 = 1_000;

/// Replies up to this size are never refused for want of room: a decision that was made has to be told.
const SMALL_REPLY_BYTES: usize = 64 * 1024;

/// A listener, with the books that are kept about its peers. No book is shared between listeners.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) tag: Tag,
    pub(super) side: Side,
    tenure: Tenure,
    pub(super) socket: UnixListener,
    pub(super) connections: BTreeSet<u64>,
    pub(super) pause: Pause,
    requests: Bucket,
    accepts: Bucket,
    request_memory: usize,
    reply_memory: usize,
}

/// Whether new connections wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// They do not.
    No,
    /// Until one of its connections is closed, or until then.
    ForRoom(Option<Instant>),
    /// Until then.
    Until(Instant),
}

impl Pause {
    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            Self::No => None,
            Self::ForRoom(until) => until,
            Self::Until(until) => Some(until),
        }
    }
}

/// A request that may send its body.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) index: usize,
    pub(super) target: Option<String>,
    pub(super) query: String,
    pub(super) length: usize,
    pub(super) persistent: bool,
}

/// What came of looking for a new connection.
pub(super) enum Accepted {
    New(UnixStream),
    /// Nobody waits.
    Nobody,
    /// The peer gave up before we came.
    Again,
    /// Not before then.
    NotYet(Instant),
}

impl Listening {
    pub(super) fn new(
        socket: UnixListener,
        (tag, side, tenure): (Tag, Side, Tenure),
        limits: &Limits,
        now: Instant,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            tag,
            side,
            tenure,
            socket,
            connections: BTreeSet::new(),
            pause: Pause::No,
            requests: Bucket::new(
                match side {
                    Side::Agent => limits.requests,
                    Side::Operator => limits.operator_requests,
                },
                now,
            ),
            accepts: Bucket::new(limits.accepts, now),
            request_memory: 0,
            reply_memory: 0,
        })
    }

    pub(super) fn accept(&mut self, now: Instant) -> Accepted {
        if let Err(wait) = self.accepts.take(now) {
            return Accepted::NotYet(now + wait);
        }
        match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(stream) => Accepted::New(UnixStream::from(stream)),
            Err(Errno::AGAIN) => {
                self.accepts.give_back();
                Accepted::Nobody
            }
            Err(Errno::INTR | Errno::CONNABORTED) => Accepted::Again,
            // No descriptor or no memory: trying at once would spin.
            Err(_) => Accepted::NotYet(now + Duration::from_millis(250)),
        }
    }

    /// Decides by the head alone whether the body may come.
    pub(super) fn admit(
        &mut self,
        head: &RequestHead,
        limits: &Limits,
        now: Instant,
    ) -> Result<Expected, Rejection> {
        // First of all, so that no kind of request is free.
        if let Err(wait) = self.requests.take(now) {
            return Err(too_often(wait));
        }
        let routes = self.side.routes();
        let found = find(routes, &head.method, &head.path)
            .map_err(|error| not_found(error, self.side, head))?;
        if head.length > limits.body_bytes {
            return Err(too_long_a_body(limits.body_bytes));
        }
        if self.request_memory.saturating_add(head.length) > limits.memory_bytes {
            return Err(busy("too many large requests are under way on this socket"));
        }
        self.request_memory += head.length;
        Ok(Expected {
            index: found.index,
            target: found.target.map(str::to_owned),
            query: found.query.to_owned(),
            length: head.length,
            persistent: head.persistent,
        })
    }

    pub(super) fn release_request(&mut self, bytes: usize) {
        self.request_memory = self.request_memory.saturating_sub(bytes);
    }

    /// Makes room for a reply. One large reply is always possible, whatever its size; several only within the limit.
    pub(super) fn reserve_reply(&mut self, bytes: usize, limits: &Limits) -> Result<(), Rejection> {
        let fits = self.reply_memory.saturating_add(bytes) <= limits.memory_bytes;
        if !fits && self.reply_memory > 0 && bytes > SMALL_REPLY_BYTES {
            return Err(busy("too many large replies are under way on this socket"));
        }
        self.reply_memory += bytes;
        Ok(())
    }

    pub(super) fn release_reply(&mut self, bytes: usize) {
        self.reply_memory = self.reply_memory.saturating_sub(bytes);
    }

    /// Nobody gets in any more, and those in the queue are told. Closing alone would not do: a process forked in another
    /// thread may hold a copy of the socket.
    pub(super) fn shut(&self) {
        if self.tenure == Tenure::Lent {
            return;
        }
        // What can't be shut is closed all the same.
        let _closed = shutdown(&self.socket, Shutdown::Both);
        while let Ok(waiting) = accept_with(&self.socket, SocketFlags::CLOEXEC) {
            let _closed = shutdown(&waiting, Shutdown::Both);
        }
    }
}

fn busy(message: &str) -> Rejection {
    let problem = Problem::new("busy", message).retry_after_ms(RETRY_WHEN_BUSY_MS);
    Rejection::new(Status::UNAVAILABLE, problem)
}

fn too_often(wait: Duration) -> Rejection {
    // Rounded up: a peer that waits as long as it was told must get through.
    let milliseconds = wait.as_nanos().div_ceil(1_000_000);
    let problem = Problem::new("rate_limited", "too many requests on this socket")
        .hint("wait as long as `retry_after_ms` says")
        .retry_after_ms(u64::try_from(milliseconds).unwrap_or(u64::MAX));
    Rejection::new(Status::TOO_MANY_REQUESTS, problem)
}

fn too_long_a_body(most: usize) -> Rejection {
    let message = format!("the body is longer than {most} bytes");
    Rejection::new(
        Status::PAYLOAD_TOO_LARGE,
        Problem::new("body_too_large", message),
    )
}

fn not_found(error: NotFound, side: Side, head: &RequestHead) -> Rejection {
    match error {
        NotFound::Path => {
            let paths: Vec<_> = side
                .routes()
                .iter()
                .map(|route| format!("{} {}", route.method, route.path))
                .collect();
            let problem = Problem::new("not_found", format!("there is no path {}", head.path))
                .hint(format!("there are: {}", paths.join(", ")));
            Rejection::new(Status::NOT_FOUND, problem)
        }
        NotFound::Method { allowed } => {
            let words: Vec<_> = allowed
                .iter()
                .map(|method: &Method| method.as_str())
                .collect();
            let message = format!("{} is not asked with {}", head.path, head.method);
            let problem = Problem::new("method_not_allowed", message)
                .hint(format!("use {}", words.join(" or ")));
            let mut rejection = Rejection::new(Status::METHOD_NOT_ALLOWED, problem);
            rejection.allow = allowed;
            rejection
        }
    }
}
