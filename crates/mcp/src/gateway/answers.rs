//! What the server says.

use super::methods::is_told_by_servers;
use super::pending::{Asked, What};
use super::{Action, Held, SERVER_BROKEN, Session, Towards, denied};
use crate::judge::{Ask, Denial, HoldTicket, Listed, Ruling};
use crate::message::{Id, Kind, Message, is_name};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::time::Instant;

/// What a server may ask its client for.
pub(super) const FROM_SERVER: [&str; 3] =
    ["sampling/createMessage", "elicitation/create", "roots/list"];

impl Session {
    /// Takes one message of the server's that was read already, from so many bytes.
    pub fn server_says(
        &mut self,
        message: Message,
        bytes: usize,
        now: Instant,
        todo: &mut Vec<Action>,
    ) {
        match message.kind().clone() {
            Kind::Response(id) => match self.asked.take(&id) {
                Some(asked) => {
                    if let Some((asked, message)) = self.bridge(&id, asked, message, now, todo) {
                        self.server_answers(message, asked, bytes, now, todo);
                    }
                }
                None => {
                    let why = format!("the server answered {id}, which waits for no answer");
                    self.judge.malformed(&self.server, &why);
                }
            },
            Kind::Request(id) => self.server_asks(message, id, now, todo),
            Kind::Notification => self.server_tells(message, now, todo),
            Kind::ErrorToNobody => {
                let why = "the server answered nobody with an error";
                self.judge.malformed(&self.server, why);
            }
        }
    }

    fn server_answers(
        &mut self,
        mut message: Message,
        asked: Asked,
        bytes: usize,
        now: Instant,
        todo: &mut Vec<Action>,
    ) {
        message.set_id(asked.id.clone());
        let wants_input = self.is_for_us(&asked.id, &message);
        if !wants_input {
            self.bridge.forget(&asked.id);
            self.finished(&asked, bytes, message.is_error(), now);
        }
        let whole = match (&asked.what, message.result_mut()) {
            (_, None) => true,
            (What::ListTools, Some(result)) => self.show_tools(result),
            (What::List(listed), Some(result)) => self.show_names(*listed, result),
            (What::Task { method, .. }, Some(result)) if method == "tasks/list" => {
                self.tasks.show(result, now)
            }
            (What::Call { tool, .. }, Some(result)) => {
                self.tasks.note(tool, result, now);
                true
            }
            _ => true,
        };
        if !whole {
            let why = format!("the server {} answered a list with none", self.server);
            self.judge.malformed(&self.server, &why);
            let answer = self.trouble(&asked.id, SERVER_BROKEN, "server_broken", &why);
            return todo.push(Action::ToClient(answer));
        }
        match self.judge_wishes(&message) {
            Ok(None) if wants_input => self.gather(&message, asked, now, todo),
            Ok(None) => todo.push(Action::ToClient(message)),
            Ok(Some(ticket)) => {
                let held = Held {
                    message,
                    towards: Towards::Answer,
                    // On record already, unless the call is not over.
                    what: if wants_input { asked.what } else { What::Other },
                    since: asked.since,
                    id: asked.id,
                };
                self.hold(ticket, held, todo);
            }
            Err(denial) => {
                if wants_input {
                    self.bridge.forget(&asked.id);
                    self.finished(&asked, bytes, true, now);
                }
                todo.push(Action::ToClient(denied(&asked.id, &denial)));
            }
        }
    }

    /// Leaves of a list of tools what may be seen. Whether it was one.
    fn show_tools(&self, result: &mut Value) -> bool {
        let Some(Value::Array(tools)) = result.get_mut("tools") else {
            return false;
        };
        let mut seen = HashSet::new();
        let plain = std::mem::take(tools).into_iter().filter(|tool| {
            let name = tool.get("name").and_then(Value::as_str).unwrap_or_default();
            if !is_name(name) {
                let why = format!("a tool with the name {name:?}");
                self.judge.malformed(&self.server, &why);
                return false;
            }
            let is_new = seen.insert(name.to_owned());
            if !is_new {
                let why = format!("the tool {name} is there twice");
                self.judge.malformed(&self.server, &why);
            }
            is_new
        });
        let plain = plain.collect();
        *tools = self.judge.list(&self.server, plain);
        true
    }

    fn show_names(&self, listed: Listed, result: &mut Value) -> bool {
        let (list, key) = match listed {
            Listed::Resources => ("resources", "uri"),
            Listed::ResourceTemplates => ("resourceTemplates", "uriTemplate"),
            Listed::Prompts => ("prompts", "name"),
        };
        let Some(Value::Array(things)) = result.get_mut(list) else {
            return false;
        };
        let has_name = |thing: &Value| thing.get(key).is_some_and(Value::is_string);
        things.retain(has_name);
        let names: Vec<&str> = things
            .iter()
            .filter_map(|thing| thing.get(key).and_then(Value::as_str))
            .collect();
        let shown = self.judge.list_names(&self.server, listed, &names);
        // One answer for each; what there is none for is not shown.
        let mut shown = shown.into_iter();
        things.retain(|_| shown.next().unwrap_or(false));
        true
    }

    /// Since 2026-07-28 a server asks its client by an answer that wants input.
    fn judge_wishes(&self, message: &Message) -> Result<Option<HoldTicket>, Denial> {
        let wishes = message
            .result()
            .and_then(|result| result.get("inputRequests"));
        let Some(wishes) = wishes.and_then(Value::as_object) else {
            return Ok(None);
        };
        let mut ticket = None;
        for wish in wishes.values() {
            let method = wish.get("method").and_then(Value::as_str).unwrap_or("?");
            match self.judge.judge(&self.ask_of_server(method)) {
                Ruling::Allow => {}
                Ruling::Deny(denial) => return Err(denial),
                Ruling::Hold(wait) => ticket = ticket.or(Some(wait)),
            }
        }
        Ok(ticket)
    }

    fn ask_of_server<'a>(&'a self, method: &'a str) -> Ask<'a> {
        let server = &self.server;
        Ask::FromServer { server, method }
    }

    fn server_asks(&mut self, message: Message, id: Id, now: Instant, todo: &mut Vec<Action>) {
        let method = message.method();
        // A sign of life is asked for and given by both sides.
        if method == "ping" {
            let answer = Message::answer(&id, Value::Object(Map::new()));
            return todo.push(Action::ToServer(answer));
        }
        let is_known = |method: &str| FROM_SERVER.contains(&method) || method.starts_with("tasks/");
        if !is_known(method) || self.server_asked.values().any(|theirs| *theirs == id) {
            let why = format!("refused: the server asks {method} with the id {id}");
            self.judge.malformed(&self.server, &why);
            let answer = Message::error(Some(&id), -32601, &why, None);
            return todo.push(Action::ToServer(answer));
        }
        if self.server_asked.len() >= self.limits.most_pending {
            let why = "too many questions wait for the client";
            let answer = Message::error(Some(&id), super::TOO_MANY, why, None);
            return todo.push(Action::ToServer(answer));
        }
        match self.judge.judge(&self.ask_of_server(method)) {
            Ruling::Allow => self.ask_client(message, &id, todo),
            Ruling::Deny(denial) => todo.push(Action::ToServer(denied(&id, &denial))),
            Ruling::Hold(ticket) => {
                let held = Held {
                    message,
                    towards: Towards::Client,
                    what: What::Other,
                    since: now,
                    id,
                };
                self.hold(ticket, held, todo);
            }
        }
    }

    pub(super) fn ask_client(&mut self, mut message: Message, id: &Id, todo: &mut Vec<Action>) {
        let ours = self.fresh_ask();
        self.server_asked.insert(ours.clone(), id.clone());
        message.set_id(ours);
        todo.push(Action::ToClient(message));
    }

    fn server_tells(&mut self, mut message: Message, now: Instant, todo: &mut Vec<Action>) {
        let method = message.method();
        if !method.starts_with("notifications/") {
            let why = format!("the server asks {method} without an id");
            return self.judge.malformed(&self.server, &why);
        }
        if !is_told_by_servers(method) {
            let why = format!("the server tells {method}, which is nothing that a server tells");
            return self.judge.malformed(&self.server, &why);
        }
        if method == "notifications/progress"
            && let Some(token) = message.param("progressToken")
        {
            self.asked.progressed(token, now, self.limits.patience);
        }
        if method == "notifications/cancelled" {
            let theirs = message.param("requestId").and_then(Id::of);
            let ours = self
                .server_asked
                .iter()
                .find(|(_, id)| Some(*id) == theirs.as_ref())
                .map(|(ours, _)| ours.clone());
            let Some(ours) = ours else {
                self.held.retain(|_, held| {
                    held.towards != Towards::Client || Some(&held.id) != theirs.as_ref()
                });
                return;
            };
            self.server_asked.remove(&ours);
            if let Some(params) = message.params_mut() {
                params.insert("requestId".into(), ours.to_value());
            }
        }
        todo.push(Action::ToClient(message));
    }
}
