//! A client with a handshake and a server without one.
//!
//! Since 2026-07-28 there is no `initialize`, each request says in `_meta` what a handshake said before, and a server asks its
//! client by an answer that wants input. A session whose server refuses the handshake asks it what it can do instead, and
//! from then on says and hears for its client what only the newer side knows.

use super::answers::FROM_SERVER;
use super::pending::{Asked, What};
use super::{Action, SERVER_BROKEN, SERVER_GONE, Session};
use crate::message::{Id, Message};
use crate::versions::{
    CAPABILITIES_KEY, CLIENT_KEY, LAST_WITH_HANDSHAKE, LOG_LEVEL_KEY, SERVER_KEY, STATELESS,
    VERSION_KEY, is_known,
};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::time::Instant;

/// How often a server may want more input before it answers.
const MOST_ROUNDS: u8 = 10;

/// What a server may want input for.
const WITH_INPUT: [&str; 3] = ["tools/call", "prompts/get", "resources/read"];

/// What there is to a handshake.
#[derive(Debug, Default)]
pub(super) struct Bridge {
    era: Era,
    /// What the client asked of a server without handshakes, by the client's id, to ask it again with more input.
    originals: HashMap<Id, Original>,
    /// What the client was asked for such a server: the question's id at the server, and the server's word for it.
    wishes: HashMap<Id, (Id, String)>,
}

#[derive(Debug, Default)]
enum Era {
    /// One side spoke of none, or the server shook hands: nothing is bridged.
    #[default]
    Alike,
    /// The client began a handshake, which is at the server under this id.
    Shaking { ours: Id, params: Value },
    /// The server refused it so, and was asked what it can do.
    Discovering {
        ours: Id,
        params: Value,
        refusal: Message,
    },
    /// The server has no handshake: what each request says in `_meta`.
    Stateless(Map<String, Value>),
}

#[derive(Debug)]
struct Original {
    message: Message,
    rounds: u8,
    /// What the client has said to the server's wishes so far.
    responses: Map<String, Value>,
    state: Option<Value>,
}

impl Bridge {
    /// Whether the client was asked this.
    pub(super) fn waits_for(&self, id: &Id) -> bool {
        self.wishes.contains_key(id)
    }

    /// The client's question is over.
    pub(super) fn forget(&mut self, asker: &Id) {
        self.originals.remove(asker);
    }

    /// The server is gone.
    pub(super) fn clear(&mut self) {
        self.originals.clear();
        self.wishes.clear();
    }

    fn is_over(&self) -> bool {
        matches!(self.era, Era::Stateless(_))
    }

    /// Whether a server without handshakes knows nothing of this.
    pub(super) fn drops(&self, notification: &str) -> bool {
        self.is_over() && notification != "notifications/cancelled"
    }

    /// What a server without handshakes is not asked, answered for it.
    pub(super) fn answer(&mut self, id: &Id, message: &Message) -> Option<Message> {
        let Era::Stateless(envelope) = &mut self.era else {
            return None;
        };
        match message.method() {
            "ping" => {}
            "logging/setLevel" => {
                let level = message.param("level").cloned().unwrap_or_default();
                envelope.insert(LOG_LEVEL_KEY.into(), level);
            }
            _ => return None,
        }
        Some(Message::answer(id, json!({})))
    }

    /// Takes note of a question on its way to the server, and completes it.
    pub(super) fn passes(&mut self, asker: &Id, message: &mut Message, ours: &Id) {
        if message.method() == "initialize" {
            self.era = Era::Shaking {
                ours: ours.clone(),
                params: message.param_object(),
            };
            return;
        }
        let Era::Stateless(envelope) = &self.era else {
            return;
        };
        // A client without handshakes says it all itself, and takes what such a server answers.
        let meta = message.param("_meta");
        if meta.is_some_and(|meta| meta.get(VERSION_KEY).is_some()) {
            return;
        }
        if WITH_INPUT.contains(&message.method()) {
            let original = Original {
                message: message.clone(),
                rounds: 0,
                responses: Map::new(),
                state: None,
            };
            self.originals.insert(asker.clone(), original);
        }
        say(message, envelope);
    }
}

fn say(message: &mut Message, envelope: &Map<String, Value>) {
    let meta = message.param("_meta").and_then(Value::as_object);
    let mut meta = meta.cloned().unwrap_or_default();
    meta.extend(envelope.clone());
    message.set_param("_meta", Value::Object(meta));
}

/// What each request says for a client that said this in its handshake.
fn envelope(hello: &Value) -> Map<String, Value> {
    let mut all = Map::new();
    all.insert(VERSION_KEY.into(), STATELESS.into());
    let capabilities = hello.get("capabilities").filter(|it| it.is_object());
    let capabilities = capabilities.cloned().unwrap_or_else(|| json!({}));
    all.insert(CAPABILITIES_KEY.into(), capabilities);
    if let Some(info) = hello.get("clientInfo") {
        all.insert(CLIENT_KEY.into(), info.clone());
    }
    all
}

/// What the client hears as the end of its handshake, if the server can be spoken with.
fn welcome(hello: &Value, found: &Value) -> Option<Value> {
    let versions = found.get("supportedVersions")?.as_array()?;
    if !versions.iter().any(|version| version == STATELESS) {
        return None;
    }
    let wanted = hello.get("protocolVersion").and_then(Value::as_str);
    let version = wanted.filter(|version| is_known(version) && *version != STATELESS);
    let mut capabilities = found.get("capabilities").cloned().unwrap_or_default();
    if let Value::Object(all) = &mut capabilities {
        // Nothing is told by itself any more, and extensions are agreed on in each request.
        all.remove("extensions");
        for one in all.values_mut().filter_map(Value::as_object_mut) {
            one.remove("subscribe");
            one.remove("listChanged");
        }
    } else {
        capabilities = json!({});
    }
    let info = found.get("_meta").and_then(|meta| meta.get(SERVER_KEY));
    let nameless = || json!({"name": "server", "version": "0"});
    let mut result = json!({
        "protocolVersion": version.unwrap_or(LAST_WITH_HANDSHAKE),
        "capabilities": capabilities,
        "serverInfo": info.cloned().unwrap_or_else(nameless),
    });
    if let (Some(text), Some(fields)) = (found.get("instructions"), result.as_object_mut()) {
        fields.insert("instructions".to_owned(), text.clone());
    }
    Some(result)
}

fn code_of(message: &Message) -> Option<i64> {
    message.error_object()?.get("code")?.as_i64()
}

impl Session {
    /// Takes the server's answer if it is the handshake's, or wants input; gives it back if it is for the client as it is.
    pub(super) fn bridge(
        &mut self,
        ours: &Id,
        asked: Asked,
        mut message: Message,
        now: Instant,
        todo: &mut Vec<Action>,
    ) -> Option<(Asked, Message)> {
        match &self.bridge.era {
            Era::Shaking {
                ours: hello,
                params,
            } if hello == ours => {
                let params = params.clone();
                self.bridge.era = Era::Alike;
                let refused = code_of(&message).is_some_and(|code| code != SERVER_GONE);
                if refused {
                    self.discover(asked, params, message, now, todo);
                    return None;
                }
            }
            Era::Discovering { ours: sent, .. } if sent == ours => {
                let era = std::mem::take(&mut self.bridge.era);
                if let Era::Discovering {
                    params, refusal, ..
                } = era
                {
                    let found = message.result().and_then(|found| welcome(&params, found));
                    message = match found {
                        Some(result) => {
                            self.bridge.era = Era::Stateless(envelope(&params));
                            Message::answer(&asked.id, result)
                        }
                        None => refusal,
                    };
                }
            }
            _ => {}
        }
        Some((asked, message))
    }

    fn discover(
        &mut self,
        asked: Asked,
        params: Value,
        refusal: Message,
        now: Instant,
        todo: &mut Vec<Action>,
    ) {
        let deadline = self.deadline(now);
        let ours = self
            .asked
            .put(asked.id, What::Other, None, asked.since, deadline);
        let mut question = Message::request(&ours, "server/discover", json!({}));
        say(&mut question, &envelope(&params));
        self.bridge.era = Era::Discovering {
            ours,
            params,
            refusal,
        };
        todo.push(Action::ToServer(question));
    }

    /// Whether this answer wants input that the session gets from the client itself.
    pub(super) fn is_for_us(&self, asker: &Id, message: &Message) -> bool {
        let kind = message.result().and_then(|result| result.get("resultType"));
        kind.is_some_and(|kind| kind == "input_required")
            && self.bridge.originals.contains_key(asker)
    }

    /// Asks the client what the server wants to know. It may: that was judged.
    pub(super) fn gather(
        &mut self,
        message: &Message,
        asked: Asked,
        now: Instant,
        todo: &mut Vec<Action>,
    ) {
        let Some(original) = self.bridge.originals.get_mut(&asked.id) else {
            return;
        };
        original.rounds += 1;
        original.responses = Map::new();
        let part = |key: &str| message.result().and_then(|result| result.get(key));
        original.state = part("requestState").cloned();
        let wishes = part("inputRequests").and_then(Value::as_object);
        let method = |wish: &Value| {
            wish.get("method")
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        let is_known = |wish: &Value| method(wish).is_some_and(|it| FROM_SERVER.contains(&&*it));
        let is_plain = wishes.is_none_or(|wishes| wishes.values().all(is_known));
        if original.rounds > MOST_ROUNDS || !is_plain {
            let what = format!(
                "the server {} wants input that nobody can give",
                self.server
            );
            return self.fail(asked, SERVER_BROKEN, "server_broken", &what, now, todo);
        }
        let asker = asked.id.clone();
        let deadline = self.deadline(now);
        let ours = self
            .asked
            .put(asked.id, asked.what, None, asked.since, deadline);
        for (key, wish) in wishes.into_iter().flatten() {
            let params = wish.get("params").cloned().unwrap_or_else(|| json!({}));
            let id = self.fresh_ask();
            let wanted = (ours.clone(), key.clone());
            self.bridge.wishes.insert(id.clone(), wanted);
            let question = Message::request(&id, &method(wish).unwrap_or_default(), params);
            todo.push(Action::ToClient(question));
        }
        self.ask_again(&ours, &asker, todo);
    }

    /// Takes what the client answered to a wish of the server's. Whether it was such an answer.
    pub(super) fn client_fulfils(
        &mut self,
        message: &Message,
        id: &Id,
        now: Instant,
        todo: &mut Vec<Action>,
    ) -> bool {
        let Some((ours, key)) = self.bridge.wishes.remove(id) else {
            return false;
        };
        // Given up, or late.
        let Some(asker) = self.asked.asker(&ours).cloned() else {
            return true;
        };
        match message.result() {
            Some(result) => {
                if let Some(original) = self.bridge.originals.get_mut(&asker) {
                    original.responses.insert(key, result.clone());
                }
                self.ask_again(&ours, &asker, todo);
            }
            None => {
                if let Some(asked) = self.asked.take(&ours) {
                    self.bridge.wishes.retain(|_, (of, _)| *of != ours);
                    let what = "the client did not say what the server wants to know";
                    self.fail(asked, SERVER_BROKEN, "input_refused", what, now, todo);
                }
            }
        }
        true
    }

    /// Asks the server once more, when the client has said all that it wants to know.
    fn ask_again(&mut self, ours: &Id, asker: &Id, todo: &mut Vec<Action>) {
        let is_waited_for = self.bridge.wishes.values().any(|(of, _)| of == ours);
        let (false, Some(original), Era::Stateless(envelope)) = (
            is_waited_for,
            self.bridge.originals.get_mut(asker),
            &self.bridge.era,
        ) else {
            return;
        };
        let mut message = original.message.clone();
        let responses = std::mem::take(&mut original.responses);
        if !responses.is_empty() {
            message.set_param("inputResponses", Value::Object(responses));
        }
        if let Some(state) = original.state.take() {
            message.set_param("requestState", state);
        }
        say(&mut message, envelope);
        message.set_id(ours.clone());
        todo.push(Action::ToServer(message));
    }
}
