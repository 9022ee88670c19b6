//! Many servers as one: `server__tool` finds its server, lists are put together.

use super::Hub;
use super::client::Client;
use super::link::Link;
use super::post::note_about;
use super::tasks;
use crate::message::{Id, Kind, Message, is_name};
use crate::versions::{KNOWN, LAST_WITH_HANDSHAKE, SERVER_KEY, STATELESS};
use serde_json::{Map, Value, json};
use std::rc::Rc;

/// Where a question goes.
pub(super) enum Route {
    To(Rc<Link>, Message),
    Answer(Message),
}

/// Between a server's name and its tool's.
pub(super) const SEAM: &str = "__";

/// Lists of servers that never end are cut here.
const MOST_PAGES: usize = 100;

pub(super) const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;

/// Passes on what wants no answer, or is one.
pub(super) fn tell(client: &Rc<Client>, message: Message) {
    let links = client.links.borrow().clone();
    if let Kind::Response(id) = message.kind() {
        let waiting = links
            .iter()
            .find(|link| link.waits_for(id))
            .or(links.first());
        if let Some(link) = waiting {
            let mut message = message;
            if links.len() > 1 {
                tasks::own(&link.name, &mut message);
            }
            link.client_says(client, message);
        }
        return;
    }
    // A task of the client's own is for the server that asked for it, and nobody can tell which that is.
    if links.len() > 1 && message.method().starts_with("notifications/tasks") {
        return;
    }
    let is_ready = message.method() == "notifications/initialized";
    for link in links {
        link.client_says(client, message.clone());
        if is_ready {
            let version = link.about.borrow()["protocolVersion"]
                .as_str()
                .map(str::to_owned);
            link.settled(client, version.as_deref().unwrap_or(LAST_WITH_HANDSHAKE));
        }
    }
}

/// Shakes hands with every server, and says in one answer what they can do together.
pub(super) async fn initialize(client: &Rc<Client>, id: &Id, params: Value) -> Message {
    let links = client.links.borrow().clone();
    for link in &links {
        let answer = client.ask_for(link, "initialize", params.clone()).await;
        note_about(link, &answer);
    }
    let wanted = params.get("protocolVersion").and_then(Value::as_str);
    let version = wanted
        .filter(|version| KNOWN.contains(version) && *version != STATELESS)
        .unwrap_or(LAST_WITH_HANDSHAKE);
    let mut result = together(&links);
    result["protocolVersion"] = version.into();
    result["serverInfo"] = this();
    Message::answer(id, result)
}

/// The same for a client without handshakes.
pub(super) fn discover(hub: &Hub, client: &Rc<Client>, id: &Id) -> Message {
    let links = client.links.borrow().clone();
    let mut result = together(&links);
    if hub.is_plain()
        && let Some(info) = links
            .first()
            .and_then(|link| link.about.borrow().get("serverInfo").cloned())
    {
        result["_meta"] = json!({SERVER_KEY: info});
    } else {
        result["_meta"] = json!({SERVER_KEY: this()});
    }
    result["supportedVersions"] = KNOWN.as_slice().into();
    let mut answer = Message::answer(id, result);
    super::client::complete(&mut answer, "server/discover");
    answer
}

fn this() -> Value {
    json!({"name": "belljar", "version": env!("CARGO_PKG_VERSION")})
}

fn together(links: &[Rc<Link>]) -> Value {
    let mut capabilities = Map::new();
    let mut instructions = String::new();
    for link in links {
        let about = link.about.borrow();
        let theirs = about.get("capabilities").and_then(Value::as_object);
        for (name, value) in theirs.into_iter().flatten() {
            // Nobody knows what is in experiments.
            if links.len() > 1 && ["experimental", "extensions"].contains(&name.as_str()) {
                continue;
            }
            let known = capabilities
                .entry(name.clone())
                .or_insert_with(|| json!({}));
            if let (Some(known), Some(more)) = (known.as_object_mut(), value.as_object()) {
                known.extend(more.clone());
            }
        }
        if let Some(text) = about.get("instructions").and_then(Value::as_str) {
            instructions.push_str(&format!("# {}\n{text}\n", link.name));
        }
    }
    let mut result = json!({"capabilities": capabilities});
    if !instructions.is_empty() {
        result["instructions"] = instructions.into();
    }
    result
}

/// Finds the server that a question is for, or answers it for all.
pub(super) async fn route(client: &Rc<Client>, mut message: Message, id: &Id) -> Route {
    let refuse = |code, what: &str| Route::Answer(Message::error(Some(id), code, what, None));
    match message.method() {
        "ping" => Route::Answer(Message::answer(id, json!({}))),
        "tools/list" => list(client, id, "tools/list", "tools", Some("name"), "tools").await,
        "prompts/list" => {
            list(
                client,
                id,
                "prompts/list",
                "prompts",
                Some("name"),
                "prompts",
            )
            .await
        }
        "resources/list" => {
            list(client, id, "resources/list", "resources", None, "resources").await
        }
        "resources/templates/list" => {
            let method = "resources/templates/list";
            list(client, id, method, "resourceTemplates", None, "resources").await
        }
        "tools/call" | "prompts/get" => {
            let name = message
                .param("name")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let Some((link, own)) = split(client, name) else {
                return refuse(
                    INVALID_PARAMS,
                    "no server has that: names are `server__name`",
                );
            };
            let own = own.to_owned();
            if let Some(params) = message.params_mut() {
                params.insert("name".into(), own.into());
            }
            Route::To(link, message)
        }
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => {
            let uri = message
                .param("uri")
                .and_then(Value::as_str)
                .unwrap_or_default();
            match owner(client, uri) {
                Some(link) => Route::To(link, message),
                None => refuse(
                    INVALID_PARAMS,
                    "no server has listed that resource: list resources first",
                ),
            }
        }
        "tasks/list" => list(client, id, "tasks/list", "tasks", None, "tasks/list").await,
        "tasks/get" | "tasks/result" | "tasks/cancel" | "tasks/update" => {
            let task = message
                .param("taskId")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let Some((link, own)) = split(client, task) else {
                return refuse(
                    INVALID_PARAMS,
                    "no server has that task: ids are `server__id`",
                );
            };
            let own = own.to_owned();
            message.set_param("taskId", own.into());
            Route::To(link, message)
        }
        "completion/complete" => complete_of(client, message, id),
        "logging/setLevel" => {
            let links = client.links.borrow().clone();
            for link in links.iter().filter(|link| can(link, "logging")) {
                let params = message.param_object();
                client.ask_for(link, "logging/setLevel", params).await;
            }
            Route::Answer(Message::answer(id, json!({})))
        }
        _ => refuse(
            METHOD_NOT_FOUND,
            "not known for several servers at one address",
        ),
    }
}

fn complete_of(client: &Rc<Client>, mut message: Message, id: &Id) -> Route {
    let reference = message.param("ref").cloned().unwrap_or_default();
    let found = match reference.get("type").and_then(Value::as_str) {
        Some("ref/prompt") => {
            let name = reference
                .get("name")
                .and_then(Value::as_str)
                .unwrap_or_default();
            split(client, name).map(|(link, own)| (link, Some(own.to_owned())))
        }
        _ => {
            let uri = reference
                .get("uri")
                .and_then(Value::as_str)
                .unwrap_or_default();
            owner(client, uri).map(|link| (link, None))
        }
    };
    let Some((link, own)) = found else {
        let what = "no server has that";
        return Route::Answer(Message::error(Some(id), INVALID_PARAMS, what, None));
    };
    if let (Some(own), Some(params)) = (own, message.params_mut()) {
        params["ref"]["name"] = own.into();
    }
    Route::To(link, message)
}

/// Whether a server said that it can: a capability, or a part of one after a `/`.
fn can(link: &Link, what: &str) -> bool {
    let about = link.about.borrow();
    let said = &about["capabilities"];
    what.split('/')
        .try_fold(said, |said, part| said.get(part))
        .is_some()
}

/// The server and its own name for what is called `server__name`. Servers' names have no `__` in them.
fn split<'a>(client: &Client, name: &'a str) -> Option<(Rc<Link>, &'a str)> {
    let (server, own) = name.split_once(SEAM)?;
    let links = client.links.borrow();
    let link = links.iter().find(|link| link.name == server)?;
    Some((link.clone(), own))
}

fn owner(client: &Client, uri: &str) -> Option<Rc<Link>> {
    let links = client.links.borrow();
    let listed = client
        .resources
        .borrow()
        .get(uri)
        .and_then(|index| links.get(*index).cloned());
    listed.or_else(|| {
        // Made from a template, perhaps: where only one server has resources, it is that one's.
        let mut with = links.iter().filter(|link| can(link, "resources"));
        match (with.next(), with.next()) {
            (Some(link), None) => Some(link.clone()),
            _ => None,
        }
    })
}

/// Everything of one kind that all servers list.
async fn list(
    client: &Rc<Client>,
    id: &Id,
    method: &str,
    key: &str,
    renamed: Option<&str>,
    capability: &str,
) -> Route {
    let links = client.links.borrow().clone();
    let mut all = Vec::new();
    for (index, link) in links
        .iter()
        .enumerate()
        .filter(|(_, link)| can(link, capability))
    {
        for mut thing in pages(client, link, method, key).await {
            if let Some(name) = renamed {
                let own = thing.get(name).and_then(Value::as_str).unwrap_or_default();
                let exposed = format!("{}{SEAM}{own}", link.name);
                if !is_name(&exposed) {
                    continue;
                }
                // What is no object has no name, and is none of what was asked for.
                let Some(fields) = thing.as_object_mut() else {
                    continue;
                };
                fields.insert(name.to_owned(), exposed.into());
            } else if let Some(uri) = thing.get("uri").and_then(Value::as_str) {
                // Two servers with one resource: the first that the operator named has it.
                let mut resources = client.resources.borrow_mut();
                if *resources.entry(uri.to_owned()).or_insert(index) != index {
                    continue;
                }
            }
            all.push(thing);
        }
    }
    let mut result = Map::new();
    result.insert(key.to_owned(), Value::Array(all));
    Route::Answer(Message::answer(id, Value::Object(result)))
}

async fn pages(client: &Rc<Client>, link: &Rc<Link>, method: &str, key: &str) -> Vec<Value> {
    let mut all = Vec::new();
    let mut params = json!({});
    for _ in 0..MOST_PAGES {
        let mut answer = client.ask_for(link, method, params).await;
        let Some(result) = answer.result_mut() else {
            break;
        };
        if let Some(Value::Array(page)) = result.get_mut(key) {
            all.append(page);
        }
        match result.get("nextCursor").and_then(Value::as_str) {
            Some(cursor) => params = json!({"cursor": cursor}),
            None => break,
        }
    }
    all
}
