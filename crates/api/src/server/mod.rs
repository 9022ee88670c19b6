//! A server for many sockets in one thread. A slow or hostile peer costs a bounded amount and hurts nobody else.

// What others send is read here: a panic would end whoever serves them.
#![deny(
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::unwrap_used,
    clippy::expect_used
)]

mod answer;
mod connection;
mod event_loop;
mod listening;
mod serve;

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};

pub(crate) use answer::Answer;
use answer::{Command, Mail};
pub use answer::{Responder, Stopped};

use crate::Limits;
use crate::route::{Route, Side};
use crate::routes::{AgentCall, OperatorCall};

/// The caller's name for a listener. It is all that says who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u64);

/// Whose a listener is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tenure {
    /// The server's: nobody gets in once it is removed.
    Own,
    /// Somebody else's.
    Lent,
}

/// A request, whole and well formed.
#[derive(Debug)]
pub struct Request {
    /// The listener it came on.
    pub tag: Tag,
    /// What is asked, with the means to answer.
    pub call: Call,
}

/// What is asked, on either side.
#[derive(Debug)]
pub enum Call {
    /// By an agent.
    Agent(AgentCall),
    /// By an operator.
    Operator(OperatorCall),
}

/// A question and the means to answer it.
#[derive(Debug)]
pub struct Asked<R: Route> {
    /// What the path names.
    pub target: R::Target,
    /// The body.
    pub request: R::Request,
    /// Where the answer goes, now or later, from any thread.
    pub responder: Responder<R>,
}

/// A server that has not started. Listeners come through its [`Handle`], before the start or after.
#[derive(Debug)]
pub struct Server {
    limits: Limits,
    mail: Arc<Mail>,
    inbox: Receiver<Command>,
}

impl Server {
    /// Makes a server and its handle.
    pub fn new(limits: Limits) -> io::Result<(Self, Handle)> {
        let (sender, inbox) = mpsc::channel();
        let mail = Arc::new(Mail::new(sender)?);
        let handle = Handle {
            mail: Arc::clone(&mail),
        };
        Ok((
            Self {
                limits,
                mail,
                inbox,
            },
            handle,
        ))
    }

    /// Serves until [`Handle::stop`]. The handler runs in this thread and must not block: whatever takes time, it hands on
    /// and answers later.
    pub fn run(self, handler: impl FnMut(Request)) -> io::Result<()> {
        event_loop::run(self.limits, self.mail, self.inbox, handler)
    }

    /// Serves in a thread of its own.
    pub fn spawn(self, handler: impl FnMut(Request) + Send + 'static) -> io::Result<Running> {
        let handle = Handle {
            mail: Arc::clone(&self.mail),
        };
        let thread = thread::Builder::new()
            .name("belljar-api".to_owned())
            .spawn(move || self.run(handler))?;
        Ok(Running {
            handle,
            thread: Some(thread),
        })
    }
}

/// The way to a server from other threads.
#[derive(Clone, Debug)]
pub struct Handle {
    mail: Arc<Mail>,
}

impl Handle {
    /// Serves one more socket. Its requests carry the tag and may ask what the side may ask.
    pub fn add_listener(
        &self,
        listener: UnixListener,
        tag: Tag,
        side: Side,
    ) -> Result<(), Stopped> {
        self.mail.post(Command::Add {
            listener,
            tag,
            side,
            tenure: Tenure::Own,
        })
    }

    /// The same for a socket that somebody else owns and goes on with: it is let go of in the end, and not shut. Whoever waits in
    /// its queue then waits for the next to serve it.
    pub fn add_lent_listener(
        &self,
        listener: UnixListener,
        tag: Tag,
        side: Side,
    ) -> Result<(), Stopped> {
        self.mail.post(Command::Add {
            listener,
            tag,
            side,
            tenure: Tenure::Lent,
        })
    }

    /// Closes the sockets with that tag and their connections. A request that was already read may still be handed over.
    pub fn remove(&self, tag: Tag) -> Result<(), Stopped> {
        self.mail.post(Command::Remove { tag })
    }

    /// Closes everything and ends [`Server::run`]. Stopping twice is no error.
    pub fn stop(&self) {
        // A server that is gone has nothing left to stop.
        let _gone = self.mail.post(Command::Stop);
    }
}

/// A server in its own thread. Dropping it stops the server and waits for the thread.
#[derive(Debug)]
pub struct Running {
    handle: Handle,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Running {
    /// Stops the server and says how it went.
    pub fn stop(mut self) -> io::Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.handle.stop();
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the server's thread panicked")),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Whoever wants to know calls `stop`.
        let _result = self.finish();
    }
}
