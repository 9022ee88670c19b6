//! What the client says.

use super::methods::is_told_by_clients;
use super::pending::What;
use super::{Action, Held, Question, Session, TOO_MANY, Towards, denied, question};
use crate::judge::{DENIED, Denial, Finished, Ruling};
use crate::message::{INVALID_PARAMS, INVALID_REQUEST, Id, Kind, Message};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

impl Session {
    /// Takes one message of the client's that was read already.
    pub fn client_says(&mut self, message: Message, now: Instant, todo: &mut Vec<Action>) {
        match message.kind().clone() {
            Kind::Request(id) => self.client_asks(message, id, now, todo),
            Kind::Notification => self.client_tells(message, now, todo),
            Kind::Response(id) => self.client_answers(message, &id, now, todo),
            Kind::ErrorToNobody => self.judge.malformed(&self.server, "an answer to nobody"),
        }
    }

    fn client_asks(&mut self, message: Message, id: Id, now: Instant, todo: &mut Vec<Action>) {
        if self.asked.has(&id) || self.held.values().any(|held| held.is_of_client(&id)) {
            let why = format!("the id {id} is in use: its answer could not be told from another's");
            return todo.push(Action::ToClient(self.bad(&id, INVALID_REQUEST, &why)));
        }
        if self.asked.len() >= self.limits.most_pending {
            let why = format!("{} questions wait for an answer", self.asked.len());
            return todo.push(Action::ToClient(self.bad(&id, TOO_MANY, &why)));
        }
        let question = match question(&message) {
            Ok(question) => question,
            Err(why) => return todo.push(Action::ToClient(self.bad(&id, INVALID_PARAMS, why))),
        };
        if let Question::Unknown(method) = question {
            return todo.push(Action::ToClient(self.unknown(&id, method)));
        }
        let tool = match question {
            Question::Task { task, .. } => task.and_then(|task| self.tasks.tool(task, now)),
            _ => None,
        };
        let ruling = question
            .ask(&self.server, tool)
            .map_or(Ruling::Allow, |ask| self.judge.judge(&ask));
        let what = match question {
            Question::Call { tool, arguments } => What::Call {
                tool: tool.to_owned(),
                arguments: arguments.clone(),
                verdict: "allow",
            },
            Question::Task { method, task } => What::Task {
                method: method.to_owned(),
                arguments: json!({"taskId": task, "tool": tool}),
            },
            Question::ListTools => What::ListTools,
            Question::List(listed) => What::List(listed),
            _ => What::Other,
        };
        match ruling {
            Ruling::Allow => self.ask_server(message, id, what, now, now, todo),
            Ruling::Deny(denial) => {
                self.tell_denied(&what, &denial);
                todo.push(Action::ToClient(denied(&id, &denial)));
            }
            Ruling::Hold(ticket) => {
                let held = Held {
                    message,
                    towards: Towards::Server,
                    what,
                    since: now,
                    id,
                };
                self.hold(ticket, held, todo);
            }
        }
    }

    /// What a method of no known meaning gets: no rule could say anything about it.
    fn unknown(&self, id: &Id, method: &str) -> Message {
        self.judge.finished(Finished {
            server: &self.server,
            tool: method,
            arguments: &Value::Null,
            verdict: "deny",
            duration: Duration::ZERO,
            result_bytes: 0,
            is_error: true,
        });
        let denial = Denial {
            code: DENIED,
            reason: "deny_method_unknown".into(),
            message: format!(
                "denied: {}: `{}` is no method of MCP that goes from a client to a server",
                self.server,
                method.escape_default().take(128).collect::<String>()
            ),
            rule: "built-in".into(),
            hint: Some("offer it as a tool: rules are about tools, resources and prompts".into()),
        };
        denied(id, &denial)
    }

    fn tell_denied(&self, what: &What, _denial: &Denial) {
        if let What::Call {
            tool, arguments, ..
        } = what
        {
            self.judge.finished(Finished {
                server: &self.server,
                tool,
                arguments,
                verdict: "deny",
                duration: Duration::ZERO,
                result_bytes: 0,
                is_error: true,
            });
        }
    }

    pub(super) fn ask_server(
        &mut self,
        mut message: Message,
        id: Id,
        what: What,
        since: Instant,
        now: Instant,
        todo: &mut Vec<Action>,
    ) {
        if let Some(answer) = self.bridge.answer(&id, &message) {
            return todo.push(Action::ToClient(answer));
        }
        let token = message
            .param("_meta")
            .and_then(|meta| meta.get("progressToken"))
            .filter(|token| token.is_string() || token.is_number())
            .cloned();
        let deadline = self.deadline(now);
        let asker = id.clone();
        let ours = self.asked.put(id, what, token, since, deadline);
        self.bridge.passes(&asker, &mut message, &ours);
        message.set_id(ours);
        todo.push(Action::ToServer(message));
    }

    fn client_tells(&mut self, mut message: Message, now: Instant, todo: &mut Vec<Action>) {
        let method = message.method();
        if !method.starts_with("notifications/") {
            let why =
                format!("{method} without an id: nothing would be answered, and it would be done");
            return self.judge.malformed(&self.server, &why);
        }
        if !is_told_by_clients(method) {
            let why = format!("the client tells {method}, which is nothing that a client tells");
            return self.judge.malformed(&self.server, &why);
        }
        if self.bridge.drops(method) {
            return;
        }
        match method {
            "notifications/cancelled" => {
                let Some(id) = message.param("requestId").and_then(Id::of) else {
                    return self
                        .judge
                        .malformed(&self.server, "a cancellation of nothing");
                };
                self.bridge.forget(&id);
                let before = self.held.len();
                self.held.retain(|_, held| !held.is_of_client(&id));
                if self.held.len() < before {
                    return todo.push(Action::Forget(id));
                }
                // Answered meanwhile: both sides expect that.
                let Some((ours, asked)) = self.asked.take_theirs(&id) else {
                    return;
                };
                self.finished(&asked, 0, true, now);
                if let Some(params) = message.params_mut() {
                    params.insert("requestId".into(), ours.to_value());
                }
                todo.push(Action::ToServer(message));
                todo.push(Action::Forget(id));
            }
            "notifications/initialized"
            | "notifications/progress"
            | "notifications/roots/list_changed" => {
                todo.push(Action::ToServer(message));
            }
            // Those above are all that a client may tell.
            _ => {}
        }
    }

    fn client_answers(
        &mut self,
        mut message: Message,
        id: &Id,
        now: Instant,
        todo: &mut Vec<Action>,
    ) {
        if self.client_fulfils(&message, id, now, todo) {
            return;
        }
        match self.server_asked.remove(id) {
            Some(theirs) => {
                message.set_id(theirs);
                todo.push(Action::ToServer(message));
            }
            None => {
                let why = format!("an answer to {id}, which nobody asked or which is answered");
                self.judge.malformed(&self.server, &why);
            }
        }
    }

    fn bad(&self, id: &Id, code: i64, why: &str) -> Message {
        self.judge.malformed(&self.server, why);
        let data: Value = json!({"reason": "malformed"});
        Message::error(Some(id), code, &format!("refused: {why}"), Some(data))
    }
}

impl Held {
    fn is_of_client(&self, id: &Id) -> bool {
        self.towards != Towards::Client && self.id == *id
    }
}
