//! A client and a server on pipes, with a session between them: one thread, one loop.
//!
//! Nothing here waits for one side while the other has something to say: reads happen when there is something, writes as far
//! as there is room, and what is left waits in bounded buffers.

mod lines;
mod outbox;

pub use lines::{Line, Lines};

use crate::gateway::{Action, Session};
use crate::judge::HoldAnswer;
use outbox::Outbox;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// The four ends.
#[derive(Debug)]
pub struct Pipes {
    /// What the client says. May be shared with others, so it is left as it is.
    pub client_in: OwnedFd,
    /// What the client hears. Likewise.
    pub client_out: OwnedFd,
    /// What the server hears. Becomes non-blocking.
    pub server_in: OwnedFd,
    /// What the server says. Likewise.
    pub server_out: OwnedFd,
}

/// Which side ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The server closed its output. All that waited was answered.
    ByServer,
    /// The client left, and the server did not within its time.
    ByClient,
}

/// More than this waits in front of one side only if it came at once: then nobody is listened to that adds to it.
const BACKLOG: usize = 1 << 20;

/// How long a server has to end by itself when its client has left.
const FAREWELL: Duration = Duration::from_secs(5);

/// Passes messages on until one side ends.
///
/// # Errors
/// When the system refuses what it must not: to make an eventfd, to wait.
pub fn relay(session: Session, pipes: Pipes) -> Result<Ended, Errno> {
    rustix::io::ioctl_fionbio(&pipes.server_in, true)?;
    rustix::io::ioctl_fionbio(&pipes.server_out, true)?;
    Relay::new(session, pipes)?.run()
}

struct Relay {
    session: Session,
    client_in: Option<OwnedFd>,
    client_out: OwnedFd,
    server_in: Option<OwnedFd>,
    server_out: OwnedFd,
    from_client: Lines,
    from_server: Lines,
    to_client: Outbox,
    to_server: Outbox,
    todo: Vec<Action>,
    /// Answers of operators, and the bell they ring.
    bell: Arc<OwnedFd>,
    answers: Receiver<(u64, HoldAnswer)>,
    answer: Sender<(u64, HoldAnswer)>,
    /// When the server must have ended.
    farewell: Option<Instant>,
    chunk: Vec<u8>,
}

impl Relay {
    fn new(session: Session, pipes: Pipes) -> Result<Self, Errno> {
        let (answer, answers) = channel();
        let limits = *session.limits();
        Ok(Self {
            session,
            client_in: Some(pipes.client_in),
            client_out: pipes.client_out,
            server_in: Some(pipes.server_in),
            server_out: pipes.server_out,
            from_client: Lines::new(limits.from_client),
            from_server: Lines::new(limits.from_server),
            to_client: Outbox::default(),
            to_server: Outbox::default(),
            todo: Vec::new(),
            bell: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            answers,
            answer,
            farewell: None,
            chunk: vec![0; 64 << 10],
        })
    }

    fn run(mut self) -> Result<Ended, Errno> {
        loop {
            let ready = self.wait()?;
            let now = Instant::now();
            if ready.bell {
                self.hear_operators(now);
            }
            if ready.client && !self.read_client(now) {
                self.client_in = None;
                self.farewell = now.checked_add(FAREWELL);
            }
            let server_ended = ready.server && !self.read_server(now);
            self.session.expire(now, &mut self.todo);
            if !self.todo.is_empty() && self.to_server.len() > BACKLOG {
                // It had the time of a whole answer to take what waits for it.
                self.session.server_is_deaf(now, &mut self.todo);
                self.to_server.drop_unbegun();
            }
            if server_ended {
                self.session.server_gone(now, &mut self.todo);
            }
            self.carry_out();
            if server_ended {
                self.to_client.flush_blocking(self.client_out.as_fd());
                return Ok(Ended::ByServer);
            }
            // A client that takes nothing any more has left.
            let client_gone = self
                .to_client
                .flush_patiently(self.client_out.as_fd())
                .is_err();
            if client_gone || self.farewell.is_some_and(|end| now >= end) {
                return Ok(Ended::ByClient);
            }
            self.flush_server();
        }
    }

    fn flush_server(&mut self) {
        let Some(server) = &self.server_in else {
            return;
        };
        // A server that closed its input may still say something; that it ended is heard on its output.
        let broken = self.to_server.flush(server.as_fd()).is_err();
        if broken || (self.client_in.is_none() && self.to_server.is_empty()) {
            self.server_in = None;
            self.to_server.clear();
        }
    }

    fn wait(&mut self) -> Result<Ready, Errno> {
        let next = [self.session.next_deadline(), self.farewell];
        let timeout = next.into_iter().flatten().min();
        let timeout = timeout.map(|end| end.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
        let none = PollFlags::empty();
        // A source that nobody wants to hear is waited for with no event; only its end would ring.
        let crowded = self.to_client.len() > BACKLOG;
        let client = match &self.client_in {
            Some(fd) if !crowded && self.to_server.len() <= BACKLOG => (fd.as_fd(), PollFlags::IN),
            _ => (self.bell.as_fd(), none),
        };
        let server = match crowded {
            false => (self.server_out.as_fd(), PollFlags::IN),
            true => (self.bell.as_fd(), none),
        };
        let out = match self.to_client.is_empty() {
            false => (self.client_out.as_fd(), PollFlags::OUT),
            true => (self.bell.as_fd(), none),
        };
        let to_server = match &self.server_in {
            Some(fd) if !self.to_server.is_empty() => (fd.as_fd(), PollFlags::OUT),
            _ => (self.bell.as_fd(), none),
        };
        let bell = (self.bell.as_fd(), PollFlags::IN);
        let mut fds = [client, server, bell, out, to_server]
            .map(|(fd, events): (BorrowedFd<'_>, _)| PollFd::from_borrowed_fd(fd, events));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let [client, server, bell, ..] = fds.each_ref().map(|fd| !fd.revents().is_empty());
        Ok(Ready {
            client,
            server,
            bell,
        })
    }

    fn hear_operators(&mut self, now: Instant) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8][..]);
        while let Ok((key, answer)) = self.answers.try_recv() {
            self.session.decided(key, answer, now, &mut self.todo);
        }
    }

    /// Whether there may be more.
    fn read_client(&mut self, now: Instant) -> bool {
        let Some(client) = &self.client_in else {
            return false;
        };
        let count = match rustix::io::read(client, &mut self.chunk[..]) {
            Ok(0) => return false,
            Ok(count) => count,
            Err(Errno::INTR | Errno::AGAIN) => return true,
            Err(_) => return false,
        };
        let (session, todo) = (&mut self.session, &mut self.todo);
        self.from_client
            .take(&self.chunk[..count], |line| match line {
                Line::Whole(bytes) => session.from_client(bytes, now, todo),
                Line::TooLong => session.client_too_long(todo),
            });
        true
    }

    fn read_server(&mut self, now: Instant) -> bool {
        let count = match rustix::io::read(&self.server_out, &mut self.chunk[..]) {
            Ok(0) => return false,
            Ok(count) => count,
            Err(Errno::INTR | Errno::AGAIN) => return true,
            Err(_) => return false,
        };
        let (session, todo) = (&mut self.session, &mut self.todo);
        self.from_server
            .take(&self.chunk[..count], |line| match line {
                Line::Whole(bytes) => session.from_server(bytes, now, todo),
                Line::TooLong => session.server_too_long(now, todo),
            });
        true
    }

    fn carry_out(&mut self) {
        for action in self.todo.drain(..) {
            match action {
                Action::ToServer(message) if self.server_in.is_some() => {
                    self.to_server.put(&message);
                }
                Action::ToServer(_) | Action::Forget(_) => {}
                Action::ToClient(message) => self.to_client.put(&message),
                Action::Hold { key, ticket } => {
                    let judge = self.session.judge().clone();
                    let (answer, bell) = (self.answer.clone(), self.bell.clone());
                    let ask = move || {
                        let _ = answer.send((key, judge.wait(&ticket)));
                        let _ = rustix::io::write(&*bell, &1_u64.to_ne_bytes());
                    };
                    let thread = std::thread::Builder::new().name("hold".into());
                    if thread.spawn(ask).is_err() {
                        // Nobody can be asked, so nobody says yes.
                        let _ = self.answer.send((key, HoldAnswer::TimedOut));
                        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
                    }
                }
            }
        }
    }
}

struct Ready {
    client: bool,
    server: bool,
    bell: bool,
}

#[cfg(test)]
mod tests;
