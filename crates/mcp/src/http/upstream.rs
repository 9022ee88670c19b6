//! A server at an address: streamable HTTP, from the client's side.

use super::address::{Address, Place};
use super::client::Client;
use super::link::Link;
use super::sse::Events;
use crate::gateway::{SERVER_BROKEN, SERVER_GONE};
use crate::message::{Id, Kind, Message};
use crate::stdio::Line;
use crate::versions::{LAST_WITH_HANDSHAKE, STATELESS, VERSION_KEY};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::spawn_local;
use tokio_rustls::TlsConnector;

type Sender = SendRequest<Full<Bytes>>;

/// The way to a server at an address.
pub(super) struct Upstream {
    address: Address,
    idle: RefCell<Vec<Sender>>,
    session: RefCell<Option<HeaderValue>>,
    version: RefCell<String>,
    limit: usize,
}

/// How long a connection may take.
const CONNECTING: Duration = Duration::from_secs(10);

/// The most connections kept for the next request.
const MOST_IDLE: usize = 8;

/// How trouble begins when there is no connection.
const UNREACHED: &str = "can't connect";

/// Whatever went wrong on the way.
type Trouble = String;

impl Upstream {
    pub(super) fn new(address: Address, limit: usize) -> Self {
        Self {
            address,
            idle: RefCell::default(),
            session: RefCell::default(),
            version: RefCell::new(LAST_WITH_HANDSHAKE.into()),
            limit,
        }
    }

    /// Which version to say from now on.
    pub(super) fn speak(&self, version: &str) {
        version.clone_into(&mut self.version.borrow_mut());
    }

    /// Sends a message, and hands what is answered to the link.
    pub(super) fn send(self: &Rc<Self>, client: &Rc<Client>, link: &Rc<Link>, message: Message) {
        let (this, client, link) = (self.clone(), Rc::downgrade(client), Rc::downgrade(link));
        spawn_local(async move {
            let asked = match message.kind() {
                Kind::Request(id) => Some(id.clone()),
                _ => None,
            };
            let result = this
                .exchange(&client, &link, &message, asked.as_ref())
                .await;
            let (Some(client), Some(link)) = (client.upgrade(), link.upgrade()) else {
                return;
            };
            if let (Err(trouble), Some(id)) = (result, asked) {
                // If it was answered already, this is a second answer, and dropped.
                let code = match trouble.starts_with(UNREACHED) {
                    true => SERVER_GONE,
                    false => SERVER_BROKEN,
                };
                let what = format!("the server {} gave no answer: {trouble}", link.name);
                let data = serde_json::json!({"reason": "server_trouble", "server": link.name});
                let answer = Message::error(Some(&id), code, &what, Some(data));
                link.server_says(&client, answer);
            }
        });
    }

    /// Listens to what the server says by itself, as long as it lets us.
    pub(super) fn listen(self: &Rc<Self>, client: &Rc<Client>, link: &Rc<Link>) {
        let (this, client, link) = (self.clone(), Rc::downgrade(client), Rc::downgrade(link));
        spawn_local(async move {
            let mut last_id = None;
            while client.strong_count() > 0 {
                let Ok((response, _sender)) = this.get(last_id.as_deref()).await else {
                    return;
                };
                if response.status() != StatusCode::OK || !is_events(&response) {
                    return;
                }
                let mut events = Events::new(this.limit);
                let heard =
                    read_events(response.into_body(), &mut events, &client, &link, None).await;
                if heard.is_err() {
                    return;
                }
                last_id = events.last_id.or(last_id);
                let wait = events.retry.unwrap_or(1000).clamp(50, 60_000);
                tokio::time::sleep(Duration::from_millis(wait)).await;
            }
        });
    }

    async fn get(&self, last_id: Option<&str>) -> Result<(Response<Incoming>, Sender), Trouble> {
        let mut request = self.request(Method::GET, Bytes::new())?;
        request
            .headers_mut()
            .insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(id) = last_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            request.headers_mut().insert("last-event-id", id);
        }
        let mut sender = self.connect().await?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| error.to_string())?;
        Ok((response, sender))
    }

    /// Tells the server that its session is over.
    pub(super) fn leave(self: &Rc<Self>) {
        if self.session.borrow().is_none() {
            return;
        }
        let this = self.clone();
        spawn_local(async move {
            if let (Ok(request), Ok(mut sender)) = (
                this.request(Method::DELETE, Bytes::new()),
                this.connect().await,
            ) {
                let _ = tokio::time::timeout(CONNECTING, sender.send_request(request)).await;
            }
        });
    }

    async fn exchange(
        &self,
        client: &Weak<Client>,
        link: &Weak<Link>,
        message: &Message,
        asked: Option<&Id>,
    ) -> Result<(), Trouble> {
        let request = self.post(message)?;
        let (response, sender) = self.carry(request).await?;
        if message.method() == "initialize" {
            let session = response.headers().get("mcp-session-id").cloned();
            *self.session.borrow_mut() = session;
        }
        let status = response.status();
        if status.is_redirection() {
            // Where it leads was not agreed to, and what we say is for this server alone.
            return Err(format!("HTTP {status}: redirects are not followed"));
        }
        if status == StatusCode::ACCEPTED || (asked.is_none() && status.is_success()) {
            let _ = response.into_body().collect().await;
            self.keep(sender);
            return Ok(());
        }
        if is_events(&response) {
            return self.follow(response, client, link, asked).await;
        }
        // An error of JSON-RPC comes with any status.
        let body = self.whole(response.into_body()).await?;
        self.keep(sender);
        let answer =
            Message::read(&body, self.limit).map_err(|why| format!("HTTP {status}, {why}"))?;
        match answer.kind() {
            Kind::Response(id) if Some(id) == asked => {}
            // It could not say to whom.
            _ if !status.is_success() => return Err(format!("HTTP {status}")),
            _ => return Err("an answer to something else".into()),
        }
        if let (Some(client), Some(link)) = (client.upgrade(), link.upgrade()) {
            link.heard(&client, &body, asked);
        }
        Ok(())
    }

    /// Reads events until the answer has come, going on where a stream broke off.
    async fn follow(
        &self,
        response: Response<Incoming>,
        client: &Weak<Client>,
        link: &Weak<Link>,
        asked: Option<&Id>,
    ) -> Result<(), Trouble> {
        let mut events = Events::new(self.limit);
        let mut response = response;
        loop {
            let answered =
                read_events(response.into_body(), &mut events, client, link, asked).await?;
            if answered || asked.is_none() || client.strong_count() == 0 {
                return Ok(());
            }
            let Some(last) = events.last_id.clone() else {
                return Err("its stream ended before the answer".into());
            };
            let wait = events.retry.unwrap_or(1000).clamp(10, 60_000);
            tokio::time::sleep(Duration::from_millis(wait)).await;
            let (again, _sender) = self.get(Some(&last)).await?;
            if again.status() != StatusCode::OK || !is_events(&again) {
                return Err("its stream ended before the answer".into());
            }
            response = again;
        }
    }

    async fn whole(&self, mut body: Incoming) -> Result<Vec<u8>, Trouble> {
        let mut all = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| error.to_string())?;
            if let Some(data) = frame.data_ref() {
                if all.len() + data.len() > self.limit {
                    return Err(format!("an answer of more than {} bytes", self.limit));
                }
                all.extend_from_slice(data);
            }
        }
        Ok(all)
    }

    /// On a connection that is there, or on a new one.
    async fn carry(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, Sender), Trouble> {
        let idle = self.idle.borrow_mut().pop();
        let mut request = request;
        if let Some(mut sender) = idle
            && sender.ready().await.is_ok()
        {
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, sender)),
                // Closed meanwhile, and nothing of it was sent.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(error.into_error().to_string()),
                },
            }
        }
        let mut sender = self.connect().await?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| error.to_string())?;
        Ok((response, sender))
    }

    fn keep(&self, sender: Sender) {
        let mut idle = self.idle.borrow_mut();
        if !sender.is_closed() && idle.len() < MOST_IDLE {
            idle.push(sender);
        }
    }

    async fn connect(&self) -> Result<Sender, Trouble> {
        let connecting = async {
            match &self.address.place {
                Place::Tcp { host, port, tls } => {
                    let stream = TcpStream::connect((host.as_str(), *port)).await?;
                    let _ = stream.set_nodelay(true);
                    match tls {
                        None => shake(TokioIo::new(stream)).await,
                        Some(tls) => {
                            let connector = TlsConnector::from(tls.config.clone());
                            let stream = connector.connect(tls.name.clone(), stream).await?;
                            shake(TokioIo::new(stream)).await
                        }
                    }
                }
                Place::Unix(path) => shake(TokioIo::new(UnixStream::connect(path).await?)).await,
            }
        };
        match tokio::time::timeout(CONNECTING, connecting).await {
            Ok(Ok(sender)) => Ok(sender),
            Ok(Err(error)) => Err(format!("{UNREACHED}: {error}")),
            Err(_) => Err(format!("{UNREACHED} in time")),
        }
    }

    fn request(&self, method: Method, body: Bytes) -> Result<Request<Full<Bytes>>, Trouble> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = self
            .address
            .path
            .parse()
            .map_err(|_| "a path that is none")?;
        let headers = request.headers_mut();
        let host = HeaderValue::from_str(&self.address.host).map_err(|_| "a host that is none")?;
        headers.insert(HOST, host);
        for (name, value) in &self.address.headers {
            headers.insert(name.clone(), value.clone());
        }
        let both = HeaderValue::from_static("application/json, text/event-stream");
        headers.insert(ACCEPT, both);
        if let Some(session) = &*self.session.borrow() {
            headers.insert("mcp-session-id", session.clone());
        }
        if let Ok(version) = HeaderValue::from_str(&self.version.borrow()) {
            headers.insert("mcp-protocol-version", version);
        }
        Ok(request)
    }

    fn post(&self, message: &Message) -> Result<Request<Full<Bytes>>, Trouble> {
        let mut request = self.request(Method::POST, message.to_bytes().into())?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if message.method() == "initialize" {
            headers.remove("mcp-protocol-version");
        }
        let meta = message.param("_meta");
        let version = meta
            .and_then(|meta| meta.get(VERSION_KEY))
            .and_then(Value::as_str);
        if version == Some(STATELESS) {
            headers.insert("mcp-protocol-version", HeaderValue::from_static(STATELESS));
            if let Ok(method) = HeaderValue::from_str(message.method()) {
                headers.insert("mcp-method", method);
            }
            let name =
                super::envelope::named(message).and_then(|name| HeaderValue::from_str(name).ok());
            if let Some(name) = name {
                headers.insert("mcp-name", name);
            }
        }
        Ok(request)
    }
}

async fn shake<S>(stream: TokioIo<S>) -> std::io::Result<Sender>
where
    TokioIo<S>: hyper::rt::Read + hyper::rt::Write + Unpin + 'static,
{
    let (sender, connection) = handshake(stream).await.map_err(std::io::Error::other)?;
    spawn_local(async move {
        let _ = connection.await;
    });
    Ok(sender)
}

fn is_events(response: &Response<Incoming>) -> bool {
    let kind = response.headers().get(CONTENT_TYPE);
    kind.and_then(|kind| kind.to_str().ok())
        .is_some_and(|kind| kind.starts_with("text/event-stream"))
}

/// Hands every event to the link. Whether the question was answered.
async fn read_events(
    mut body: Incoming,
    events: &mut Events,
    client: &Weak<Client>,
    link: &Weak<Link>,
    asked: Option<&Id>,
) -> Result<bool, Trouble> {
    while let Some(frame) = body.frame().await {
        // A stream that breaks off may go on.
        let Ok(frame) = frame else { return Ok(false) };
        let Some(data) = frame.data_ref() else {
            continue;
        };
        let (Some(client), Some(link)) = (client.upgrade(), link.upgrade()) else {
            return Ok(true);
        };
        let mut answered = false;
        events.take(data, |line| match line {
            Line::Whole(data) => answered |= link.heard(&client, data, asked),
            Line::TooLong => link.act(&client, None, |session, now: Instant, todo| {
                session.server_too_long(now, todo);
            }),
        });
        client.breathe().await;
        if answered {
            return Ok(true);
        }
    }
    Ok(false)
}
