//! Answers find their way to the loop from any thread.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use rustix::event::{EventfdFlags, eventfd};
use serde::Serialize;

use super::{Tag, Tenure};
use crate::route::{Route, Side};
use crate::types::Problem;
use crate::{Method, Status};

/// The server has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server has stopped")]
pub struct Stopped;

/// What other threads tell the loop.
#[derive(Debug)]
pub(super) enum Command {
    Add {
        listener: UnixListener,
        tag: Tag,
        side: Side,
        tenure: Tenure,
    },
    Remove {
        tag: Tag,
    },
    Reply {
        to: ReplyTo,
        reply: Reply,
    },
    Stop,
}

/// Which request an answer is for. Numbers are never used twice, so a late answer reaches nobody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplyTo {
    pub(super) connection: u64,
    pub(super) request: u64,
}

/// A reply without its head.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: Status,
    pub(super) allow: Vec<Method>,
    pub(super) body: Vec<u8>,
}

impl Reply {
    pub(super) fn problem(status: Status, problem: &Problem) -> Self {
        Self {
            status,
            allow: Vec::new(),
            // Strings and numbers alone: there is nothing in a problem that JSON can't say.
            body: serde_json::to_vec(problem).unwrap_or_default(),
        }
    }

    fn of(status: Status, body: &impl Serialize, most: usize) -> Self {
        match serde_json::to_vec(body) {
            Ok(body) if body.len() <= most => Self {
                status,
                allow: Vec::new(),
                body,
            },
            Ok(body) => {
                let message = format!("the reply has {} bytes, and {most} is the most", body.len());
                let problem = Problem::new("reply_too_large", message);
                Self::problem(Status::INTERNAL_ERROR, &problem)
            }
            Err(error) => {
                let message = format!("the reply can't be written as JSON: {error}");
                Self::problem(Status::INTERNAL_ERROR, &Problem::new("internal", message))
            }
        }
    }
}

/// The loop's letter box.
#[derive(Debug)]
pub(super) struct Mail {
    sender: Sender<Command>,
    bell: OwnedFd,
}

impl Mail {
    pub(super) fn new(sender: Sender<Command>) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { sender, bell })
    }

    pub(super) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    pub(super) fn post(&self, command: Command) -> Result<(), Stopped> {
        self.sender.send(command).map_err(|_| Stopped)?;
        // It fails only when it has rung 2^64 times unheard, and then it is ringing.
        let _ringing = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        Ok(())
    }

    /// Empties the bell, before the letters are read.
    pub(super) fn hush(&self) {
        let mut count = [0; 8];
        let _was_silent = rustix::io::read(&self.bell, &mut count);
    }
}

/// The means to answer one request. Dropped without an answer, it answers 500: nobody is left hanging.
pub(crate) struct Answer {
    way: Way,
    most_bytes: usize,
}

/// Where an answer goes.
enum Way {
    /// To a connection of our own server's.
    Mail { mail: Arc<Mail>, to: ReplyTo },
    /// To whoever carries requests some other way.
    Elsewhere(Box<dyn FnOnce(Status, Vec<u8>) + Send>),
    /// It has gone.
    Gone,
}

impl Answer {
    pub(super) fn new(mail: Arc<Mail>, to: ReplyTo, most_bytes: usize) -> Self {
        Self {
            way: Way::Mail { mail, to },
            most_bytes,
        }
    }

    /// An answer that another server carries.
    pub(crate) fn elsewhere(
        most_bytes: usize,
        carry: impl FnOnce(Status, Vec<u8>) + Send + 'static,
    ) -> Self {
        Self {
            way: Way::Elsewhere(Box::new(carry)),
            most_bytes,
        }
    }

    fn send(&mut self, reply: Reply) {
        match std::mem::replace(&mut self.way, Way::Gone) {
            Way::Mail { mail, to } => {
                // A server that is gone has closed the connection; there is nobody to tell.
                let _gone = mail.post(Command::Reply { to, reply });
            }
            Way::Elsewhere(carry) => carry(reply.status, reply.body),
            Way::Gone => {}
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let problem = Problem::new("unanswered", "the request was dropped without an answer")
            .hint("this is a bug of Belljar's; please report it");
        self.send(Reply::problem(Status::INTERNAL_ERROR, &problem));
    }
}

/// Answers one request, once, from any thread. An answer of another route's type does not compile.
pub struct Responder<R: Route> {
    answer: Answer,
    route: PhantomData<fn() -> R>,
}

impl<R: Route> Responder<R> {
    pub(crate) fn new(answer: Answer) -> Self {
        Self {
            answer,
            route: PhantomData,
        }
    }

    /// Grants what was asked.
    pub fn reply(mut self, response: &R::Response) {
        let reply = Reply::of(R::SUCCESS, response, self.answer.most_bytes);
        self.answer.send(reply);
    }

    /// Refuses what was asked. A decision is [`Status::FORBIDDEN`]. A status of success becomes 500: a refusal must not be
    /// taken for a grant.
    pub fn refuse(mut self, status: Status, problem: &Problem) {
        let status = if status.is_success() {
            Status::INTERNAL_ERROR
        } else {
            status
        };
        let reply = Reply::of(status, problem, self.answer.most_bytes);
        self.answer.send(reply);
    }
}

impl<R: Route> fmt::Debug for Responder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Responder({} {})", R::METHOD, R::PATH)
    }
}
