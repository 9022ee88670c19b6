//! Requests of clients.

use super::answer::{self, Body, bare, events, json, wrong};
use super::client::{Client, Manner, complete};
use super::envelope::{self, accepts, contradiction, is_meant, says_json, text};
use super::link::Link;
use super::{Came, Hub, MOST_CLIENTS, merge, tasks};
use crate::message::{INVALID_REQUEST, Id, Kind, Malformed, Message};
use crate::versions::LAST_WITH_HANDSHAKE;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::Duration;

/// A request that takes longer to arrive is none.
const ARRIVAL: Duration = Duration::from_secs(60);

pub(super) async fn handle(
    hub: &Rc<Hub>,
    request: Request<Incoming>,
    came: Came,
) -> Response<Body> {
    if came == Came::ByAddress && !is_meant(hub, request.headers()) {
        tell_malformed(hub, "a request for another host, or from another's page");
        let what = "the Host or Origin is none of this endpoint's";
        return wrong(StatusCode::FORBIDDEN, None, INVALID_REQUEST, what);
    }
    if !["/", "/mcp"].contains(&request.uri().path()) {
        return bare(StatusCode::NOT_FOUND);
    }
    match *request.method() {
        Method::POST => post(hub, request).await,
        Method::GET => get(hub, &request),
        Method::DELETE => delete(hub, &request),
        _ => bare(StatusCode::METHOD_NOT_ALLOWED),
    }
}

fn tell_malformed(hub: &Hub, why: &str) {
    hub.setup.judge.malformed("-", why);
}

fn get(hub: &Rc<Hub>, request: &Request<Incoming>) -> Response<Body> {
    if !accepts(request.headers(), "text/event-stream") {
        return bare(StatusCode::NOT_ACCEPTABLE);
    }
    let client = match client_of(hub, request) {
        Ok(client) => client,
        Err(response) => return *response,
    };
    client.spoke();
    match client.listen() {
        Some(stream) => events(None, stream),
        None => wrong(
            StatusCode::CONFLICT,
            None,
            INVALID_REQUEST,
            "there is a stream already",
        ),
    }
}

fn delete(hub: &Rc<Hub>, request: &Request<Incoming>) -> Response<Body> {
    match client_of(hub, request) {
        Ok(client) => {
            hub.clients.borrow_mut().remove(client.id());
            client.leave();
            bare(StatusCode::OK)
        }
        Err(response) => *response,
    }
}

fn client_of(hub: &Hub, request: &Request<Incoming>) -> Result<Rc<Client>, Box<Response<Body>>> {
    match text(request.headers(), "mcp-session-id") {
        None => Err(Box::new(wrong(
            StatusCode::BAD_REQUEST,
            None,
            INVALID_REQUEST,
            "no Mcp-Session-Id: begin with initialize",
        ))),
        Some(id) => {
            let known = hub
                .clients
                .borrow()
                .get(id)
                .filter(|_| !id.is_empty())
                .cloned();
            known.ok_or_else(|| {
                let what = "no such session: begin with initialize";
                Box::new(wrong(StatusCode::NOT_FOUND, None, INVALID_REQUEST, what))
            })
        }
    }
}

async fn post(hub: &Rc<Hub>, mut request: Request<Incoming>) -> Response<Body> {
    if !says_json(request.headers()) {
        return wrong(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            None,
            INVALID_REQUEST,
            "not application/json",
        );
    }
    let takes_json = accepts(request.headers(), "application/json");
    if !(takes_json || accepts(request.headers(), "text/event-stream")) {
        return wrong(
            StatusCode::NOT_ACCEPTABLE,
            None,
            INVALID_REQUEST,
            "takes no JSON and no events",
        );
    }
    let limit = hub.setup.limits.from_client;
    let arrived = tokio::time::timeout(ARRIVAL, body_of(request.body_mut(), limit)).await;
    let read = match arrived {
        Ok(Ok(bytes)) => Message::read(&bytes, limit),
        Ok(Err(malformed)) => Err(malformed),
        Err(_) => return bare(StatusCode::REQUEST_TIMEOUT),
    };
    let message = match read {
        Ok(message) => message,
        Err(malformed) => {
            tell_malformed(hub, &malformed.to_string());
            let what = format!("refused: {malformed}");
            return wrong(StatusCode::BAD_REQUEST, None, malformed.code(), &what);
        }
    };
    if let Some((code, what)) = contradiction(request.headers(), &message) {
        tell_malformed(hub, &what);
        let id = match message.kind() {
            Kind::Request(id) => Some(id),
            _ => None,
        };
        return wrong(StatusCode::BAD_REQUEST, id, code, &what);
    }
    let prefers_events = !takes_json;
    if envelope::is_stateless(request.headers(), &message) {
        return stateless(hub, message, prefers_events).await;
    }
    if message.method() == "initialize" {
        return begin(hub, message, prefers_events).await;
    }
    let client = match client_of(hub, &request) {
        Ok(client) => client,
        Err(response) => return *response,
    };
    client.spoke();
    converse(hub, &client, message, None, prefers_events).await
}

async fn body_of(body: &mut Incoming, limit: usize) -> Result<Vec<u8>, Malformed> {
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Err(Malformed::Json("a body that breaks off".into()));
        };
        if let Some(data) = frame.data_ref() {
            if all.len() + data.len() > limit {
                return Err(Malformed::TooLong { limit });
            }
            all.extend_from_slice(data);
        }
    }
    Ok(all)
}

/// A handshake, over HTTP.
async fn begin(hub: &Rc<Hub>, message: Message, prefers_events: bool) -> Response<Body> {
    let Kind::Request(id) = message.kind().clone() else {
        let what = "initialize without an id";
        return wrong(StatusCode::BAD_REQUEST, None, INVALID_REQUEST, what);
    };
    let (client, answer) = greet(hub, &message, &id).await;
    let mut response = match prefers_events {
        true => one_event(answer),
        false => json(StatusCode::OK, &answer),
    };
    if let Some(client) = client
        && let Ok(value) = HeaderValue::from_str(client.id())
    {
        response.headers_mut().insert("mcp-session-id", value);
    }
    response
}

/// A handshake: a client with connections of its own, if it succeeds, and the answer.
pub(super) async fn greet(
    hub: &Rc<Hub>,
    message: &Message,
    id: &Id,
) -> (Option<Rc<Client>>, Message) {
    if hub.clients.borrow().len() >= MOST_CLIENTS {
        let what = "too many sessions";
        return (
            None,
            Message::error(Some(id), crate::gateway::TOO_MANY, what, None),
        );
    }
    let Ok(name) = random_name() else {
        let what = "no randomness for a session's name";
        return (None, Message::error(Some(id), -32603, what, None));
    };
    let client = Rc::new(Client::new(name, Manner::Session));
    open_links(hub, &client).await;
    let params = message.param_object();
    let answer = match hub.is_plain() {
        true => {
            let link = client.links.borrow()[0].clone();
            let mut answer = client.ask_for(&link, "initialize", params).await;
            note_about(&link, &answer);
            answer.set_id(id.clone());
            answer
        }
        false => merge::initialize(&client, id, params).await,
    };
    if answer.result().is_none() {
        return (None, answer);
    }
    hub.clients
        .borrow_mut()
        .insert(client.id().to_owned(), client.clone());
    (Some(client), answer)
}

/// Keeps what a server said of itself in the handshake.
pub(super) fn note_about(link: &Link, answer: &Message) {
    if let Some(result) = answer.result() {
        if let Some(version) = result.get("protocolVersion").and_then(Value::as_str) {
            link.speak(version);
        }
        *link.about.borrow_mut() = result.clone();
    }
}

async fn open_links(hub: &Rc<Hub>, client: &Rc<Client>) {
    for server in &hub.setup.servers {
        let link = Link::open(client, server, &hub.setup.judge, hub.setup.limits).await;
        client.links.borrow_mut().push(link);
    }
}

/// A request that says all there is to know. Servers that want a handshake had one with us.
async fn stateless(hub: &Rc<Hub>, mut message: Message, prefers_events: bool) -> Response<Body> {
    let client = shared(hub).await;
    client.spoke();
    let Kind::Request(own_id) = message.kind().clone() else {
        // Nothing that a client says without asking means anything here.
        return bare(StatusCode::ACCEPTED);
    };
    if message.method() == "server/discover" {
        let answer = merge::discover(hub, &client, &own_id);
        return json(StatusCode::OK, &answer);
    }
    // Clients that know nothing of each other use the same ids.
    message.set_id(client.fresh_id());
    converse(hub, &client, message, Some(own_id), prefers_events).await
}

async fn shared(hub: &Rc<Hub>) -> Rc<Client> {
    let mut shared = hub.shared.lock().await;
    if let Some(client) = &*shared
        && client.is_whole()
    {
        return client.clone();
    }
    let client = Rc::new(Client::new(String::new(), Manner::Stateless));
    open_links(hub, &client).await;
    let links = client.links.borrow().clone();
    for link in links {
        let hello = json!({
            "protocolVersion": LAST_WITH_HANDSHAKE,
            "capabilities": {},
            "clientInfo": {"name": "belljar", "version": env!("CARGO_PKG_VERSION")},
        });
        let answer = client.ask_for(&link, "initialize", hello).await;
        if answer.result().is_some() {
            note_about(&link, &answer);
            link.client_says(
                &client,
                Message::notification("notifications/initialized", None),
            );
        }
    }
    // In the list too, so that what is late is seen to.
    hub.clients
        .borrow_mut()
        .insert(String::new(), client.clone());
    *shared = Some(client.clone());
    client
}

/// What came of something that was said.
pub(super) enum Spoken {
    /// It wanted no answer, or gave it up.
    Nothing,
    /// The answer.
    Answer(Message),
    /// More before the answer, which is the last.
    More(Message, tokio::sync::mpsc::Receiver<Message>),
}

/// Anything but a handshake, over HTTP.
async fn converse(
    hub: &Rc<Hub>,
    client: &Rc<Client>,
    message: Message,
    own_id: Option<Id>,
    prefers_events: bool,
) -> Response<Body> {
    match speak(hub, client, message, own_id).await {
        Spoken::Nothing => bare(StatusCode::ACCEPTED),
        Spoken::Answer(answer) if prefers_events => one_event(answer),
        Spoken::Answer(answer) => json(StatusCode::OK, &answer),
        Spoken::More(first, rest) => events(Some(first), rest),
    }
}

/// Anything but a handshake.
pub(super) async fn speak(
    hub: &Rc<Hub>,
    client: &Rc<Client>,
    message: Message,
    own_id: Option<Id>,
) -> Spoken {
    let method = message.method().to_owned();
    let Kind::Request(asked) = message.kind().clone() else {
        merge::tell(client, message);
        return Spoken::Nothing;
    };
    if method == "tasks/list" && client.is_stateless() {
        // They would be those of all clients without sessions.
        let why = "tasks are listed in sessions alone";
        let code = merge::METHOD_NOT_FOUND;
        let id = own_id.unwrap_or(asked);
        return Spoken::Answer(Message::error(Some(&id), code, why, None));
    }
    let (link, message) = match hub.is_plain() {
        true => (client.links.borrow()[0].clone(), message),
        false => match merge::route(client, message, &asked).await {
            merge::Route::To(link, mut message) => {
                tasks::own(&link.name, &mut message);
                (link, message)
            }
            merge::Route::Answer(mut answer) => {
                if let Some(own) = own_id {
                    answer.set_id(own);
                    complete(&mut answer, &method);
                }
                return Spoken::Answer(answer);
            }
        },
    };
    let mut stream = client.ask(&link, message, own_id);
    match stream.recv().await {
        Some(answer) if matches!(answer.kind(), Kind::Response(_)) => Spoken::Answer(answer),
        Some(first) => Spoken::More(first, stream),
        None => Spoken::Nothing,
    }
}

fn one_event(message: Message) -> Response<Body> {
    let (_, nothing) = tokio::sync::mpsc::channel(1);
    answer::events(Some(message), nothing)
}

fn random_name() -> Result<String, rustix::io::Errno> {
    let mut bytes = [0_u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
