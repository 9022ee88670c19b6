//! What stands between one client and one server: reads both, has each question judged, passes on what may pass.
//!
//! A [`Session`] does no input and no output and has no clock: its driver hands it bytes and the time, and carries its
//! [`Action`]s out. Questions go on under ids of the session's own, so that an answer belongs to one question or to none.

#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::string_slice,
        clippy::unwrap_used,
        clippy::expect_used
    )
)]

mod answers;
mod asks;
mod bridge;
mod methods;
mod pending;
mod tasks;

pub use methods::{Question, question};

use crate::judge::{Denial, Finished, HOLD_REFUSED, HoldAnswer, HoldTicket, Judge};
use crate::message::{Id, Malformed, Message};
use bridge::Bridge;
use pending::{Asked, Pending, What};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tasks::Tasks;

/// The server did not answer in time.
pub const SERVER_TIMEOUT: i64 = -32013;
/// The server ended.
pub const SERVER_GONE: i64 = -32014;
/// The server's answer is none that may be passed on.
pub const SERVER_BROKEN: i64 = -32015;
/// More is asked at once than is kept in mind.
pub const TOO_MANY: i64 = -32016;

/// What a session puts up with.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The longest message of the client's, in bytes.
    pub from_client: usize,
    /// The longest message of the server's, in bytes.
    pub from_server: usize,
    /// How long a server may take for an answer, since it was asked or last told of progress.
    pub patience: Duration,
    /// The most questions that wait at once, in each direction.
    pub most_pending: usize,
    /// The most that wait for an operator at once.
    pub most_held: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            from_client: 4 << 20,
            from_server: 16 << 20,
            patience: Duration::from_secs(300),
            most_pending: 4096,
            most_held: 64,
        }
    }
}

/// What is to be done, in order.
#[derive(Debug)]
pub enum Action {
    /// Send it to the server.
    ToServer(Message),
    /// Send it to the client.
    ToClient(Message),
    /// Ask [`Judge::wait`] on a thread, and hand what it says to [`Session::decided`].
    Hold {
        /// Which.
        key: u64,
        /// What to wait for.
        ticket: HoldTicket,
    },
    /// The client takes no answer to this any more.
    Forget(Id),
}

/// Something that waits for an operator.
struct Held {
    message: Message,
    towards: Towards,
    what: What,
    since: Instant,
    /// The asker's id.
    id: Id,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Towards {
    Server,
    /// A question of the server's.
    Client,
    /// An answer of the server's that asks something.
    Answer,
}

/// One client and one server.
pub struct Session {
    server: String,
    judge: Arc<dyn Judge>,
    limits: Limits,
    /// What the client asked.
    asked: Pending,
    /// What the server asked: our id, and its own.
    server_asked: HashMap<Id, Id>,
    next_server_ask: u64,
    held: HashMap<u64, Held>,
    next_hold: u64,
    bridge: Bridge,
    tasks: Tasks,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("server", &self.server)
            .field("asked", &self.asked.len())
            .finish_non_exhaustive()
    }
}

impl Session {
    /// A session with the server that the operator calls `server`.
    #[must_use]
    pub fn new(server: &str, judge: Arc<dyn Judge>, limits: Limits) -> Self {
        Self {
            server: server.to_owned(),
            judge,
            limits,
            asked: Pending::default(),
            server_asked: HashMap::new(),
            next_server_ask: 0,
            held: HashMap::new(),
            next_hold: 0,
            bridge: Bridge::default(),
            tasks: Tasks::default(),
        }
    }

    /// Who gives the verdicts.
    #[must_use]
    pub fn judge(&self) -> &Arc<dyn Judge> {
        &self.judge
    }

    /// What it puts up with.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Takes one message of the client's.
    pub fn from_client(&mut self, bytes: &[u8], now: Instant, todo: &mut Vec<Action>) {
        match Message::read(bytes, self.limits.from_client) {
            Ok(message) => self.client_says(message, now, todo),
            Err(malformed) => todo.push(Action::ToClient(self.refuse(None, &malformed))),
        }
    }

    /// Takes one message of the server's.
    pub fn from_server(&mut self, bytes: &[u8], now: Instant, todo: &mut Vec<Action>) {
        match Message::read(bytes, self.limits.from_server) {
            Ok(message) => self.server_says(message, bytes.len(), now, todo),
            Err(malformed) => self
                .judge
                .malformed(&self.server, &format!("from the server: {malformed}")),
        }
    }

    /// Whose question it is that goes on under this id.
    #[must_use]
    pub fn asker(&self, ours: &Id) -> Option<&Id> {
        self.asked.asker(ours)
    }

    /// Whether the server waits for the client's answer to this.
    #[must_use]
    pub fn waits_for(&self, id: &Id) -> bool {
        self.server_asked.contains_key(id) || self.bridge.waits_for(id)
    }

    /// The client said more than may be said at once.
    pub fn client_too_long(&mut self, todo: &mut Vec<Action>) {
        let limit = self.limits.from_client;
        let refusal = self.refuse(None, &Malformed::TooLong { limit });
        todo.push(Action::ToClient(refusal));
    }

    /// The server said more than may be said at once. If one question waits, this was its answer.
    pub fn server_too_long(&mut self, now: Instant, todo: &mut Vec<Action>) {
        let limit = self.limits.from_server;
        let why = Malformed::TooLong { limit };
        self.judge
            .malformed(&self.server, &format!("from the server: {why}"));
        if let Some(asked) = self.asked.take_only() {
            let message = format!("the server {} answered with {why}", self.server);
            self.fail(asked, SERVER_BROKEN, "server_broken", &message, now, todo);
        }
    }

    /// The server takes nothing: what was to go to it is answered for it.
    pub fn server_is_deaf(&mut self, now: Instant, todo: &mut Vec<Action>) {
        let message = format!("the server {} does not read what it is sent", self.server);
        for asked in self.asked.take_all() {
            self.fail(asked, SERVER_TIMEOUT, "server_timeout", &message, now, todo);
        }
    }

    /// The server's program ended while somebody uses it: whoever keeps the record is told.
    pub fn server_ended(&mut self, now: Instant, todo: &mut Vec<Action>) {
        self.judge.server_ended(&self.server);
        self.server_gone(now, todo);
    }

    /// The server ended: every question that waits gets its one answer.
    pub fn server_gone(&mut self, now: Instant, todo: &mut Vec<Action>) {
        let message = format!("the server {} ended before it answered", self.server);
        for asked in self.asked.take_all() {
            self.fail(asked, SERVER_GONE, "server_gone", &message, now, todo);
        }
        self.server_asked.clear();
        self.bridge.clear();
        for (_, held) in std::mem::take(&mut self.held) {
            if held.towards != Towards::Client {
                let answer = self.trouble(&held.id, SERVER_GONE, "server_gone", &message);
                todo.push(Action::ToClient(answer));
            }
        }
    }

    /// Whether something still waits for an operator under this key.
    #[must_use]
    pub fn is_held(&self, key: u64) -> bool {
        self.held.contains_key(&key)
    }

    fn deadline(&self, now: Instant) -> Instant {
        now.checked_add(self.limits.patience)
            .unwrap_or_else(|| now + Duration::from_secs(86_400))
    }

    /// An id for a question to the client: with the server's name, so that no two servers of one client ask under one id.
    fn fresh_ask(&mut self) -> Id {
        self.next_server_ask += 1;
        Id::Text(format!("{}-{}", self.server, self.next_server_ask))
    }

    /// When [`Session::expire`] has something to do.
    pub fn next_deadline(&mut self) -> Option<Instant> {
        self.asked.next_deadline()
    }

    /// Answers what the server did not answer in time, and tells it so.
    pub fn expire(&mut self, now: Instant, todo: &mut Vec<Action>) {
        while let Some((ours, asked)) = self.asked.take_late(now) {
            let seconds = self.limits.patience.as_secs_f64();
            let message = format!(
                "the server {} did not answer within {seconds} s",
                self.server
            );
            todo.push(Action::ToServer(Message::cancelled(&ours, &message)));
            self.fail(asked, SERVER_TIMEOUT, "server_timeout", &message, now, todo);
        }
    }

    /// What an operator said about something held.
    pub fn decided(&mut self, key: u64, answer: HoldAnswer, now: Instant, todo: &mut Vec<Action>) {
        // Cancelled, or the server is gone.
        let Some(held) = self.held.remove(&key) else {
            return;
        };
        let (by, why) = match answer {
            HoldAnswer::Allowed => return self.let_go(held, now, todo),
            HoldAnswer::Refused { by, reason } => (by, reason),
            HoldAnswer::TimedOut => ("nobody".to_owned(), "nobody answered in time".to_owned()),
        };
        self.bridge.forget(&held.id);
        let denial = Denial {
            code: HOLD_REFUSED,
            reason: "hold_refused".into(),
            message: format!("held for an operator, and refused by {by}: {why}"),
            rule: String::new(),
            hint: None,
        };
        if let What::Call {
            tool, arguments, ..
        } = &held.what
        {
            self.judge.finished(Finished {
                server: &self.server,
                tool,
                arguments,
                verdict: "hold_refused",
                duration: now.saturating_duration_since(held.since),
                result_bytes: 0,
                is_error: true,
            });
        }
        let refusal = denied(&held.id, &denial);
        todo.push(match held.towards {
            Towards::Client => Action::ToServer(refusal),
            Towards::Server | Towards::Answer => Action::ToClient(refusal),
        });
    }

    fn let_go(&mut self, held: Held, now: Instant, todo: &mut Vec<Action>) {
        match held.towards {
            Towards::Server => {
                let what = match held.what {
                    What::Call {
                        tool, arguments, ..
                    } => What::Call {
                        tool,
                        arguments,
                        verdict: "hold_allowed",
                    },
                    other => other,
                };
                self.ask_server(held.message, held.id, what, held.since, now, todo);
            }
            Towards::Client => self.ask_client(held.message, &held.id, todo),
            Towards::Answer if self.is_for_us(&held.id, &held.message) => {
                let asked = Asked::again(held.id, held.what, held.since, now);
                self.gather(&held.message, asked, now, todo);
            }
            Towards::Answer => todo.push(Action::ToClient(held.message)),
        }
    }

    fn hold(&mut self, ticket: HoldTicket, held: Held, todo: &mut Vec<Action>) {
        if self.held.len() >= self.limits.most_held {
            let denial = Denial {
                code: HOLD_REFUSED,
                reason: "hold_full".into(),
                message: format!("{} others wait for an operator", self.held.len()),
                rule: String::new(),
                hint: Some("try again when they are answered".into()),
            };
            let refusal = denied(&held.id, &denial);
            todo.push(match held.towards {
                Towards::Client => Action::ToServer(refusal),
                Towards::Server | Towards::Answer => Action::ToClient(refusal),
            });
            return;
        }
        let key = self.next_hold;
        self.next_hold += 1;
        self.held.insert(key, held);
        todo.push(Action::Hold { key, ticket });
    }

    fn refuse(&self, id: Option<&Id>, malformed: &Malformed) -> Message {
        self.judge.malformed(&self.server, &malformed.to_string());
        let data = json!({
            "reason": "malformed",
            "hint": "send one JSON-RPC request, with each key once and spelled as MCP spells it",
        });
        let message = format!("refused: {malformed}");
        Message::error(id, malformed.code(), &message, Some(data))
    }

    /// The one error that a question gets whose answer will not come.
    fn fail(
        &mut self,
        asked: Asked,
        code: i64,
        reason: &str,
        message: &str,
        now: Instant,
        todo: &mut Vec<Action>,
    ) {
        self.bridge.forget(&asked.id);
        self.finished(&asked, 0, true, now);
        let answer = self.trouble(&asked.id, code, reason, message);
        todo.push(Action::ToClient(answer));
    }

    fn trouble(&self, id: &Id, code: i64, reason: &str, message: &str) -> Message {
        let data = json!({"reason": reason, "server": self.server});
        Message::error(Some(id), code, message, Some(data))
    }

    fn finished(&self, asked: &Asked, result_bytes: usize, is_error: bool, now: Instant) {
        let (tool, arguments, verdict) = match &asked.what {
            What::Call {
                tool,
                arguments,
                verdict,
            } => (tool, arguments, *verdict),
            What::Task { method, arguments } => (method, arguments, "allow"),
            _ => return,
        };
        self.judge.finished(Finished {
            server: &self.server,
            tool,
            arguments,
            verdict,
            duration: now.saturating_duration_since(asked.since),
            result_bytes,
            is_error,
        });
    }
}

/// A denial as the answer to `id`.
#[must_use]
pub fn denied(id: &Id, denial: &Denial) -> Message {
    let mut data = json!({"reason": denial.reason, "rule": denial.rule});
    if let (Some(hint), Some(fields)) = (&denial.hint, data.as_object_mut()) {
        fields.insert("hint".to_owned(), hint.as_str().into());
    }
    Message::error(Some(id), denial.code, &denial.message, Some(data))
}

#[cfg(test)]
mod tests;
