//! One client's connection to one server.

use super::client::Client;
use super::upstream::Upstream;
use super::{Reach, Server, Start, Started};
use crate::gateway::{Action, Limits, Session};
use crate::judge::{HoldAnswer, HoldTicket, Judge};
use crate::message::{Id, Kind, Message};
use crate::stdio::{Line, Lines};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{spawn_blocking, spawn_local};

pub(super) struct Link {
    pub(super) name: String,
    session: RefCell<Session>,
    limits: Limits,
    way: Way,
    alive: Cell<bool>,
    /// What the server said of itself: the result of `initialize`.
    pub(super) about: RefCell<Value>,
    /// What waits for an operator.
    held: RefCell<HashMap<u64, HoldTicket>>,
}

enum Way {
    Pipe {
        lines: UnboundedSender<Vec<u8>>,
        /// Bytes in `lines`.
        queued: Rc<Cell<usize>>,
        /// Ends the program.
        _hold: Box<dyn Send>,
    },
    Address(Rc<Upstream>),
    /// It could not be started: nobody answers.
    Nowhere,
}

/// More than this waits for a server only if it does not read.
const MOST_QUEUED: usize = 32 << 20;

impl Link {
    /// Starts the server's program, or gets ready to call its address.
    pub(super) async fn open(
        client: &Rc<Client>,
        server: &Server,
        judge: &Arc<dyn Judge>,
        limits: Limits,
    ) -> Rc<Self> {
        let (way, output) = match &server.reach {
            Reach::Address(address) => {
                let upstream = Upstream::new(address.clone(), limits.from_server);
                (Way::Address(Rc::new(upstream)), None)
            }
            Reach::Program(program) => match start(program.clone()).await {
                Ok((way, output)) => (way, Some(output)),
                Err(why) => {
                    judge.malformed(&server.name, &format!("not started: {why}"));
                    (Way::Nowhere, None)
                }
            },
        };
        let link = Rc::new(Self {
            name: server.name.clone(),
            session: RefCell::new(Session::new(&server.name, judge.clone(), limits)),
            limits,
            alive: Cell::new(!matches!(way, Way::Nowhere)),
            way,
            about: RefCell::new(Value::Null),
            held: RefCell::default(),
        });
        if let Some(output) = output {
            link.read_from(client, output);
        }
        link
    }

    pub(super) fn is_alive(&self) -> bool {
        self.alive.get()
    }

    /// The server's version, and that the client is there: from now on it may speak by itself.
    pub(super) fn settled(self: &Rc<Self>, client: &Rc<Client>, version: &str) {
        if let Way::Address(upstream) = &self.way {
            upstream.speak(version);
            upstream.listen(client, self);
        }
    }

    /// The version that the server wants to hear.
    pub(super) fn speak(&self, version: &str) {
        if let Way::Address(upstream) = &self.way {
            upstream.speak(version);
        }
    }

    pub(super) fn waits_for(&self, id: &Id) -> bool {
        self.session.borrow().waits_for(id)
    }

    /// Hands the client's message to the session.
    pub(super) fn client_says(self: &Rc<Self>, client: &Rc<Client>, message: Message) {
        self.act(client, None, |session, now, todo| {
            session.client_says(message, now, todo);
        });
        if !self.alive.get() {
            self.act(client, None, Session::server_gone);
        }
    }

    pub(super) fn server_says(self: &Rc<Self>, client: &Rc<Client>, message: Message) {
        self.act(client, None, |session, now, todo| {
            session.server_says(message, 0, now, todo);
        });
    }

    /// Hands what the server said, in the exchange about the question that went on as `asked`, to the session. Whether it was
    /// the answer.
    pub(super) fn heard(
        self: &Rc<Self>,
        client: &Rc<Client>,
        bytes: &[u8],
        asked: Option<&Id>,
    ) -> bool {
        let related = asked.and_then(|ours| self.session.borrow().asker(ours).cloned());
        let Ok(message) = Message::read(bytes, self.limits.from_server) else {
            self.act(client, related, |session, now, todo| {
                session.from_server(bytes, now, todo);
            });
            return false;
        };
        let answered = match message.kind() {
            Kind::Response(id) => Some(id) == asked,
            _ => false,
        };
        self.act(client, related, |session, now, todo| {
            session.server_says(message, bytes.len(), now, todo);
        });
        answered
    }

    pub(super) fn expire(self: &Rc<Self>, client: &Rc<Client>) {
        self.act(client, None, Session::expire);
    }

    /// Lets the session act, and does what it wants done. `related` is the client's question that this is about.
    pub(super) fn act(
        self: &Rc<Self>,
        client: &Rc<Client>,
        related: Option<Id>,
        with: impl FnOnce(&mut Session, Instant, &mut Vec<Action>),
    ) {
        let mut todo = Vec::new();
        with(&mut self.session.borrow_mut(), Instant::now(), &mut todo);
        self.withdraw_held(|session, key| session.is_held(key));
        self.carry_out(client, related, todo);
    }

    /// Nobody is asked any longer about what does not wait.
    fn withdraw_held(&self, waits: impl Fn(&Session, u64) -> bool) {
        let session = self.session.borrow();
        self.held.borrow_mut().retain(|key, ticket| {
            let waits = waits(&session, *key);
            if !waits {
                session.judge().withdraw(ticket);
            }
            waits
        });
    }

    fn carry_out(self: &Rc<Self>, client: &Rc<Client>, related: Option<Id>, todo: Vec<Action>) {
        for action in todo {
            match action {
                Action::ToServer(message) => self.send(client, message),
                Action::ToClient(message) => client.deliver(self, message, related.as_ref()),
                Action::Forget(id) => client.forget(&id),
                Action::Hold { key, ticket } => {
                    let (client, link) = (Rc::downgrade(client), Rc::downgrade(self));
                    let judge = self.session.borrow().judge().clone();
                    self.held.borrow_mut().insert(key, ticket.clone());
                    spawn_local(async move {
                        let answer = spawn_blocking(move || judge.wait(&ticket)).await;
                        let answer = answer.unwrap_or(HoldAnswer::TimedOut);
                        if let (Some(client), Some(link)) = (client.upgrade(), link.upgrade()) {
                            link.act(&client, None, |session, now, todo| {
                                session.decided(key, answer, now, todo);
                            });
                        }
                    });
                }
            }
        }
    }

    fn send(self: &Rc<Self>, client: &Rc<Client>, message: Message) {
        match &self.way {
            Way::Nowhere => {}
            Way::Address(upstream) => upstream.send(client, self, message),
            Way::Pipe { lines, queued, .. } => {
                if queued.get() > MOST_QUEUED {
                    let (client, link) = (client.clone(), self.clone());
                    // Later: the session is at work.
                    spawn_local(async move {
                        link.act(&client, None, Session::server_is_deaf);
                    });
                    return;
                }
                let mut line = message.to_bytes();
                line.push(b'\n');
                queued.set(queued.get() + line.len());
                let _ = lines.send(line);
            }
        }
    }

    fn read_from(self: &Rc<Self>, client: &Rc<Client>, mut output: pipe::Receiver) {
        let (client, link) = (Rc::downgrade(client), Rc::downgrade(self));
        let mut lines = Lines::new(self.limits.from_server);
        spawn_local(async move {
            let mut chunk = vec![0; 64 << 10];
            loop {
                let count = output.read(&mut chunk).await.unwrap_or(0);
                let (Some(client), Some(link)) = (client.upgrade(), link.upgrade()) else {
                    return;
                };
                if count == 0 {
                    link.alive.set(false);
                    return link.act(&client, None, Session::server_ended);
                }
                lines.take(&chunk[..count], |line| match line {
                    Line::Whole(bytes) => {
                        link.heard(&client, bytes, None);
                    }
                    Line::TooLong => link.act(&client, None, Session::server_too_long),
                });
                client.breathe().await;
            }
        });
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.withdraw_held(|_, _| false);
        if let Way::Address(upstream) = &self.way {
            upstream.leave();
        }
    }
}

async fn start(program: Arc<dyn Start>) -> Result<(Way, pipe::Receiver), String> {
    let started = spawn_blocking(move || program.start()).await;
    let Started {
        input,
        output,
        hold,
    } = started.map_err(|_| "its start failed".to_owned())??;
    let trouble = |error: std::io::Error| error.to_string();
    let input = pipe::Sender::from_owned_fd(input).map_err(trouble)?;
    let output = pipe::Receiver::from_owned_fd(output).map_err(trouble)?;
    let (lines, waiting) = unbounded_channel();
    let queued = Rc::new(Cell::new(0));
    spawn_local(write_to(input, waiting, queued.clone()));
    let way = Way::Pipe {
        lines,
        queued,
        _hold: hold,
    };
    Ok((way, output))
}

async fn write_to(
    mut input: pipe::Sender,
    mut waiting: UnboundedReceiver<Vec<u8>>,
    queued: Rc<Cell<usize>>,
) {
    while let Some(line) = waiting.recv().await {
        // A server that closed its input may still say something; that it ended is heard on its output.
        let _ = input.write_all(&line).await;
        queued.set(queued.get().saturating_sub(line.len()));
    }
}
