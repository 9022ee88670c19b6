//! One client: what it waits for, and where it listens.

use super::link::Link;
use super::tasks;
use crate::message::{Id, Kind, Message};
use serde_json::{Map, Value};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Whether a client has a session, or says everything with each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    Session,
    Stateless,
}

pub(super) struct Client {
    id: String,
    manner: Manner,
    pub(super) links: RefCell<Vec<Rc<Link>>>,
    replies: RefCell<HashMap<Id, Reply>>,
    /// The stream for what nobody asked.
    stream: RefCell<Option<Sender<Message>>>,
    /// What waits for it.
    backlog: RefCell<VecDeque<Message>>,
    /// Which server has which resource, as it was listed.
    pub(super) resources: RefCell<HashMap<String, usize>>,
    spoke: Cell<Instant>,
    is_over: Cell<bool>,
    count: Cell<u64>,
}

/// A question that is not answered yet.
struct Reply {
    to: Sender<Message>,
    link: Option<String>,
    token: Option<Value>,
    order: u64,
    /// The client's own id, where it was given another.
    own_id: Option<Id>,
    method: String,
}

/// The most messages on the way to a client that reads slowly.
const ON_THE_WAY: usize = 4096;

/// The most that waits for a client that does not listen.
const BACKLOG: usize = 256;

impl Client {
    pub(super) fn new(id: String, manner: Manner) -> Self {
        Self {
            id,
            manner,
            links: RefCell::default(),
            replies: RefCell::default(),
            stream: RefCell::default(),
            backlog: RefCell::default(),
            resources: RefCell::default(),
            spoke: Cell::new(Instant::now()),
            is_over: Cell::new(false),
            count: Cell::new(0),
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn spoke(&self) {
        self.spoke.set(Instant::now());
    }

    /// How long it has said nothing and listened to nothing.
    pub(super) fn silence(&self) -> Duration {
        let listens = self
            .stream
            .borrow()
            .as_ref()
            .is_some_and(|stream| !stream.is_closed());
        match listens || !self.replies.borrow().is_empty() {
            true => Duration::ZERO,
            false => self.spoke.get().elapsed(),
        }
    }

    /// Its session is over: nobody waits for answers any more. Those who do hold it, so that otherwise it, its servers and
    /// what it waits for an operator's answer to would be there until the last answer.
    pub(super) fn leave(&self) {
        self.is_over.set(true);
        self.replies.borrow_mut().clear();
    }

    /// Whether what servers call things is told with their names.
    fn has_several(&self) -> bool {
        self.links.borrow().len() > 1
    }

    /// Whether it shares its session with others that say everything with each request.
    pub(super) fn is_stateless(&self) -> bool {
        self.manner == Manner::Stateless
    }

    pub(super) fn is_whole(&self) -> bool {
        self.links.borrow().iter().all(|link| link.is_alive())
    }

    pub(super) fn expire(self: &Rc<Self>) {
        let links = self.links.borrow().clone();
        for link in links {
            link.expire(self);
        }
    }

    fn next(&self) -> u64 {
        self.count.set(self.count.get() + 1);
        self.count.get()
    }

    /// An id that no other question of this client's has.
    pub(super) fn fresh_id(&self) -> Id {
        Id::Text(format!("belljar-{}", self.next()))
    }

    /// Asks a server, and gives everything that comes of it until the answer. `own_id` is what the answer is to be called.
    pub(super) fn ask(
        self: &Rc<Self>,
        link: &Rc<Link>,
        message: Message,
        own_id: Option<Id>,
    ) -> Receiver<Message> {
        let (to, from) = channel(ON_THE_WAY);
        if self.is_over.get() {
            return from;
        }
        if let Kind::Request(id) = message.kind() {
            let token = message
                .param("_meta")
                .and_then(|meta| meta.get("progressToken"));
            let reply = Reply {
                to,
                link: Some(link.name.clone()),
                token: token.cloned(),
                order: self.next(),
                own_id,
                method: message.method().to_owned(),
            };
            let id = id.clone();
            if self.replies.borrow().contains_key(&id) {
                // The session refuses it, and that answer must not be taken for the first one's.
                let why = "refused: the id is in use";
                let code = crate::message::INVALID_REQUEST;
                let _ = reply
                    .to
                    .try_send(Message::error(Some(&id), code, why, None));
                return from;
            }
            self.replies.borrow_mut().insert(id, reply);
        }
        link.client_says(self, message);
        from
    }

    /// Asks a server something of the gateway's own.
    pub(super) async fn ask_for(
        self: &Rc<Self>,
        link: &Rc<Link>,
        method: &str,
        params: Value,
    ) -> Message {
        let id = self.fresh_id();
        let mut answers = self.ask(link, Message::request(&id, method, params), None);
        loop {
            match answers.recv().await {
                Some(message) if matches!(message.kind(), Kind::Response(_)) => return message,
                Some(aside) => self.put_aside(aside),
                None => {
                    return Message::error(
                        Some(&id),
                        crate::gateway::SERVER_GONE,
                        "no answer",
                        None,
                    );
                }
            }
        }
    }

    pub(super) fn forget(&self, id: &Id) {
        self.replies.borrow_mut().remove(id);
    }

    /// Opens the stream for what nobody asked; nothing if there is one.
    pub(super) fn listen(&self) -> Option<Receiver<Message>> {
        let mut stream = self.stream.borrow_mut();
        if stream.as_ref().is_some_and(|stream| !stream.is_closed()) {
            return None;
        }
        let (to, from) = channel(ON_THE_WAY);
        for message in self.backlog.borrow_mut().drain(..) {
            let _ = to.try_send(message);
        }
        *stream = Some(to);
        Some(from)
    }

    /// Takes a message to where the client waits for it.
    pub(super) fn deliver(
        self: &Rc<Self>,
        link: &Rc<Link>,
        mut message: Message,
        related: Option<&Id>,
    ) {
        match message.kind() {
            Kind::ErrorToNobody => {}
            Kind::Response(id) => {
                let Some(reply) = self.replies.borrow_mut().remove(id) else {
                    return;
                };
                if let Some(own) = reply.own_id {
                    message.set_id(own);
                }
                if self.has_several() {
                    tasks::expose(&link.name, &mut message, Some(&reply.method));
                }
                if self.manner == Manner::Stateless {
                    complete(&mut message, &reply.method);
                }
                if let Err(error) = reply.to.try_send(message) {
                    // The stream is full: the answer waits its turn.
                    let message = error.into_inner();
                    tokio::task::spawn_local(async move {
                        let _ = reply.to.send(message).await;
                    });
                }
            }
            Kind::Request(id) if self.manner == Manner::Stateless => {
                let why = "the client takes no questions";
                let answer = Message::error(Some(id), -32601, why, None);
                let (client, link) = (self.clone(), link.clone());
                // Later: the session is at work.
                tokio::task::spawn_local(async move { link.client_says(&client, answer) });
            }
            Kind::Request(_) | Kind::Notification => {
                if self.has_several() {
                    tasks::expose(&link.name, &mut message, None);
                }
                let to = self.stream_for(link, &message, related);
                match to {
                    Some(to) => {
                        let _ = to.try_send(message);
                    }
                    None => self.put_aside(message),
                }
            }
        }
    }

    /// The stream of the question that it is about, or of one that it may be about.
    fn stream_for(
        &self,
        link: &Link,
        message: &Message,
        related: Option<&Id>,
    ) -> Option<Sender<Message>> {
        let replies = self.replies.borrow();
        let open = |reply: &&Reply| !reply.to.is_closed();
        if let Some(reply) = related.and_then(|id| replies.get(id)).filter(open) {
            return Some(reply.to.clone());
        }
        let token = message.param("progressToken");
        let told = |reply: &&Reply| token.is_some() && reply.token.as_ref() == token;
        if let Some(reply) = replies.values().filter(open).find(told) {
            return Some(reply.to.clone());
        }
        let aside = self
            .stream
            .borrow()
            .clone()
            .filter(|stream| !stream.is_closed());
        // What has changed is news for whoever listens; all else belongs to what is being done.
        let is_news =
            message.method().ends_with("list_changed") || message.method().ends_with("updated");
        if is_news && aside.is_some() {
            return aside;
        }
        let of_link = |reply: &&Reply| reply.link.as_deref() == Some(&link.name);
        let oldest = replies
            .values()
            .filter(open)
            .filter(of_link)
            .min_by_key(|reply| reply.order);
        oldest.map(|reply| reply.to.clone()).or(aside)
    }

    pub(super) fn put_aside(&self, message: Message) {
        if self.manner == Manner::Stateless {
            return;
        }
        if let Some(stream) = &*self.stream.borrow() {
            let _ = stream.try_send(message);
            return;
        }
        let mut backlog = self.backlog.borrow_mut();
        if backlog.len() < BACKLOG {
            backlog.push_back(message);
        }
    }

    /// Waits while a stream of the client's is full, so that a server that floods is held up and not the memory filled.
    pub(super) async fn breathe(&self) {
        const WAIT: Duration = Duration::from_millis(2);
        const ENOUGH: usize = ON_THE_WAY / 2;
        // A client that reads nothing at all loses what does not fit, and keeps nobody else waiting.
        for _ in 0..1000 {
            let is_full = |to: &Sender<Message>| !to.is_closed() && to.capacity() < ENOUGH;
            let full = self
                .replies
                .borrow()
                .values()
                .any(|reply| is_full(&reply.to))
                || self.stream.borrow().as_ref().is_some_and(is_full);
            if !full {
                return;
            }
            tokio::time::sleep(WAIT).await;
        }
    }
}

/// Adds to a result what stateless clients must find in it.
pub(super) fn complete(message: &mut Message, method: &str) {
    let Some(Value::Object(result)) = message.result_mut() else {
        return;
    };
    let add = |result: &mut Map<String, Value>, key: &str, value: Value| {
        result.entry(key).or_insert(value);
    };
    add(result, "resultType", "complete".into());
    if method.ends_with("/list") || method == "server/discover" || method == "resources/read" {
        add(result, "ttlMs", 0.into());
        add(result, "cacheScope", "private".into());
    }
}
