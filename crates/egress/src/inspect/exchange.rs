//! One request and its answer.

use std::sync::Arc;

use belljar_policy::WebSocket;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, HOST, HeaderMap, HeaderValue,
    TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use super::body::{Metered, Passing, whole};
use super::redact::Needles;
use super::refusal;
use super::request::{
    Becoming, check_host, drop_other_targets, origin_form, other_methods, strip_connection,
};
use super::secrets::{Misdirected, Receiver};
use super::upstream::{Means, Spoken, Unsent, Upstream, Wire};
use super::{Inspector, tunnel};
use crate::contain::{self, Contained, Panicked, contain};
use crate::gate::{Admission, Direction, Refused};
use crate::llm::{Call, Denial, Metering};
use crate::record::RefusalCode;
use crate::serve::Shared;

/// The largest request to a model: prompts with pictures are large, and they are read whole to know what they may cost.
pub(super) const LARGEST_PROMPT: usize = 32 * 1024 * 1024;
/// What most prompts are smaller than. They have room of their own, so that they need not wait for large ones.
pub(super) const SMALL_PROMPT: usize = 1024 * 1024;
/// The unit in which room for prompts is counted.
pub(super) const ROOM_UNIT: usize = 1024;
/// What is agreed on for a WebSocket, such as to compress it.
const EXTENSIONS: &str = "sec-websocket-extensions";
/// Which parts of an answer a provider is to send.
const FIELD_MASK: &str = "x-goog-fieldmask";

/// Passes one request on and its answer back, or says why not.
pub(super) async fn exchange(
    shared: &Arc<Shared>,
    upstream: &Upstream,
    request: Request<Incoming>,
) -> Response<Passing> {
    match Contained::new(try_exchange(shared, upstream, request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(Failure::Refused(refused))) => refusal::answer(refused),
        Ok(Err(Failure::Budget(denial))) => {
            refusal::with_body(denial.status(), denial.code(), denial.body())
        }
        Err(Panicked(place)) => {
            let refuse = || {
                let admission = upstream.admission();
                admission.refuse_request(RefusalCode::Internal, Some(place))
            };
            // The recorder may be what failed.
            let refused = contain(refuse).unwrap_or(Refused(RefusalCode::Internal));
            refusal::answer(refused)
        }
    }
}

enum Failure {
    Refused(Refused),
    Budget(Denial),
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

async fn try_exchange(
    shared: &Arc<Shared>,
    upstream: &Upstream,
    mut request: Request<Incoming>,
) -> Result<Response<Passing>, Failure> {
    let inspector = &shared.inspector;
    let admission = upstream.admission();
    let agent_upgrade = hyper::upgrade::on(&mut request);
    let (mut parts, body) = request.into_parts();
    let (becoming, others) = check(inspector, upstream, &mut parts)?;
    put_secrets(inspector, upstream, &mut parts)?;
    let needles = needles(inspector, upstream);
    if needles.is_some() {
        ask_for_plain(&mut parts.headers);
    }
    let asking = Asking { becoming, others };
    let (body, call, room) = meter(inspector, upstream, &mut parts, asking, body).await?;
    let outgoing = build(parts, body, becoming, upstream);
    let means = Means {
        dialer: &shared.dialer,
        trust: &inspector.trust,
        handshake: inspector.timeouts.connect,
        response: inspector.timeouts.response,
    };
    let authority = authority(upstream);
    let shape = |request: &mut Request<Passing>, spoken| {
        shape(request, spoken, &authority, upstream.wire())
    };
    let mut response = match upstream.send(&means, outgoing, shape).await {
        Ok(response) => response,
        Err(unsent) => return Err(give_up(unsent, call)),
    };
    drop(room);
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        if becoming == Becoming::Nothing {
            let detail = Some("an upgrade nobody asked for".to_owned());
            return Err(admission
                .refuse_request(RefusalCode::Malformed, detail)
                .into());
        }
        if needles.is_some() && response.headers().contains_key(EXTENSIONS) {
            return Err(encoded(admission, "an extension of WebSockets nobody asked for").into());
        }
        let server_upgrade = hyper::upgrade::on(&mut response);
        let answer = switched(&response, needles.as_deref());
        let (admission, idle) = (Arc::clone(admission), inspector.timeouts.idle);
        let passing = async move {
            // Either side may give up on the upgrade; then there is nothing to pass.
            if let (Ok(agent), Ok(server)) = tokio::join!(agent_upgrade, server_upgrade) {
                let (agent, server) = (TokioIo::new(agent), TokioIo::new(server));
                tunnel::pass(agent, server, &admission, idle, needles).await;
            }
        };
        contain::spawn(passing, drop);
        return Ok(answer);
    }
    let (mut parts, body) = response.into_parts();
    // A server's own words beside its status could say anything.
    parts.extensions.clear();
    if let Some(needles) = &needles {
        if !body.is_end_stream() && is_encoded(&parts.headers) {
            return Err(encoded(
                admission,
                "it is compressed although that was not asked for",
            )
            .into());
        }
        needles.mask_headers(&mut parts.headers);
    }
    if parts.headers.contains_key(TRANSFER_ENCODING) {
        // The body was read by that; another length would be the wrong one.
        parts.headers.remove(CONTENT_LENGTH);
    }
    strip_connection(&mut parts.headers);
    parts.version = Version::HTTP_11;
    let observer = call.and_then(|call| call.answered(parts.status, &parts.headers));
    if observer.is_some() {
        // The meter may take a chunk out that the agent did not ask for.
        parts.headers.remove(CONTENT_LENGTH);
    }
    let body = Metered::new(
        body,
        Arc::clone(admission),
        Direction::ToAgent,
        inspector.timeouts.idle,
    );
    Ok(Response::from_parts(
        parts,
        body.observed_by(observer, inspector.timeouts.rest)
            .without(needles)
            .boxed_unsync(),
    ))
}

/// What the host must not send back: the secrets it gets.
fn needles(inspector: &Inspector, upstream: &Upstream) -> Option<Arc<Needles>> {
    let admission = upstream.admission();
    let (host, port) = (admission.host(), admission.port());
    // Asked first: what is replaced meanwhile is looked for, and worked out once more.
    let replaced = inspector.secrets.replaced(host, port);
    upstream.needles(replaced, || Needles::of(inspector.secrets.of(host, port)))
}

/// Asks for an answer that can be searched: whole, and as it is. From parts of it, asked for one by one, a value could be put
/// together again.
fn ask_for_plain(headers: &mut HeaderMap) {
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    for name in ["range", "if-range", "request-range", "a-im", EXTENSIONS] {
        headers.remove(name);
    }
}

fn is_encoded(headers: &HeaderMap) -> bool {
    let codings = [CONTENT_ENCODING, TRANSFER_ENCODING];
    let values = codings.iter().flat_map(|name| headers.get_all(name));
    let mut words = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    words.any(|word| {
        let word = word.trim_ascii().to_ascii_lowercase();
        !matches!(word.as_slice(), b"" | b"identity" | b"chunked")
    })
}

fn encoded(admission: &Admission, what: &str) -> Refused {
    let detail = format!("the answer can't be searched for the secret of this host: {what}");
    admission.refuse_request(RefusalCode::Encoded, Some(detail))
}

/// A call that was never sent costs nothing; one whose answer was lost may have cost all that was set aside.
fn give_up(unsent: Unsent, call: Option<Call>) -> Failure {
    match (unsent, call) {
        (Unsent::Before(refused), Some(call)) => {
            call.not_made();
            refused.into()
        }
        (Unsent::Before(refused) | Unsent::After(refused), _) => refused.into(),
    }
}

/// What a request asks for beside what its first line says.
struct Asking {
    becoming: Becoming,
    /// Methods that a server may take it for.
    others: Vec<Method>,
}

/// Host, rules, rate and upgrade.
fn check(
    inspector: &Inspector,
    upstream: &Upstream,
    parts: &mut Parts,
) -> Result<(Becoming, Vec<Method>), Refused> {
    let admission = upstream.admission();
    let (host, port) = (admission.host(), admission.port());
    check_host(parts, host, port)
        .map_err(|(code, detail)| admission.refuse_request(code, Some(detail)))?;
    let becoming = strip_connection(&mut parts.headers);
    let (method, path) = (parts.method.as_str(), parts.uri.path());
    let rules = admission.gate().rules();
    let Some(others) = other_methods(&parts.headers) else {
        let detail = Some("a header names a method that is none".to_owned());
        return Err(admission.refuse_request(RefusalCode::Malformed, detail));
    };
    let refuse = |method: &str| {
        let shown = crate::record::printable(path.as_bytes());
        admission.refuse_request(RefusalCode::Request, Some(format!("{method} {shown}")))
    };
    let Some(id) = rules.decide_request(host, port, method, path) else {
        return Err(refuse(method));
    };
    // A server may go by the method in a header, so that one must be permitted as well.
    for other in &others {
        if rules
            .decide_request(host, port, other.as_str(), path)
            .is_none()
        {
            return Err(refuse(other.as_str()));
        }
    }
    admission.charge_request(id)?;
    let websockets = rules
        .rule(id)
        .value
        .terms
        .http
        .as_ref()
        .map_or(WebSocket::Refuse, |http| http.websocket);
    // The meter has more to say about its own hosts, and refuses it too.
    let is_metered = inspector
        .llm
        .as_ref()
        .is_some_and(|llm| llm.is_limiting(host, port));
    if becoming == Becoming::WebSocket && websockets == WebSocket::Refuse && !is_metered {
        return Err(admission.refuse_request(RefusalCode::WebSocket, None));
    }
    let terms = rules.rule(id).value.terms.http.as_ref();
    if terms.is_some_and(|http| !http.paths.is_empty() || !http.methods.is_empty()) {
        drop_other_targets(&mut parts.headers);
    }
    Ok((becoming, others))
}

fn put_secrets(
    inspector: &Inspector,
    upstream: &Upstream,
    parts: &mut Parts,
) -> Result<(), Refused> {
    let admission = upstream.admission();
    let receiver = Receiver {
        host: admission.host(),
        port: admission.port(),
        is_tls: matches!(upstream.wire(), Wire::Tls(_)),
    };
    let Ok(misdirected) = inspector.secrets.put(parts, receiver) else {
        let detail = Some("the secret for this host does not fit in a header".to_owned());
        return Err(admission.refuse_request(RefusalCode::Malformed, detail));
    };
    for Misdirected { detail, hint } in misdirected {
        admission.withhold(RefusalCode::SecretHost, detail, hint);
    }
    Ok(())
}

/// The body to send, the call it makes to a model, if it does, and the room that takes until it is sent.
async fn meter<'a>(
    inspector: &'a Inspector,
    upstream: &Upstream,
    parts: &mut Parts,
    asking: Asking,
    body: Incoming,
) -> Result<(Passing, Option<Call>, Option<SemaphorePermit<'a>>), Failure> {
    let admission = upstream.admission();
    let idle = inspector.timeouts.idle;
    let metered = Metered::new(body, Arc::clone(admission), Direction::FromAgent, idle);
    let Some(llm) = &inspector.llm else {
        return Ok((metered.boxed_unsync(), None, None));
    };
    let refuse = |denial: Denial| {
        admission.refuse_request(denial.code(), denial.detail());
        Failure::Budget(denial)
    };
    let metering = llm.recognise(
        admission.host(),
        admission.port(),
        &parts.method,
        &parts.uri,
        asking.becoming == Becoming::WebSocket,
        !asking.others.is_empty(),
    );
    let call = match metering {
        Metering::None => return Ok((metered.boxed_unsync(), None, None)),
        Metering::Refuse(denial) => return Err(refuse(denial)),
        Metering::Meter(call) => call,
    };
    let room = room_for(inspector, &parts.headers).await;
    let limited = Limited::new(metered, LARGEST_PROMPT);
    // Room is not held for a prompt that never comes.
    let reading = timeout(inspector.timeouts.request, limited.collect());
    let Ok(Ok(collected)) = reading.await else {
        let detail = Some("the request to a model broke off, is late or is too large".to_owned());
        return Err(admission
            .refuse_request(RefusalCode::Malformed, detail)
            .into());
    };
    let (bytes, call) = llm
        .begin(call, &collected.to_bytes(), Arc::clone(admission.gate()))
        .await
        .map_err(refuse)?;
    // It has the provider leave out what it used.
    parts.headers.remove(FIELD_MASK);
    // What is compressed can't be counted while it streams.
    parts
        .headers
        .insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    parts.headers.remove(CONTENT_ENCODING);
    let length = HeaderValue::from(bytes.len());
    parts.headers.insert(CONTENT_LENGTH, length);
    Ok((whole(Bytes::from(bytes)), Some(call), room))
}

/// Waits until there is room to read a prompt whole. All connections of the box share it: what they could send at once is more
/// than the host has.
async fn room_for<'a>(
    inspector: &'a Inspector,
    headers: &HeaderMap,
) -> Option<SemaphorePermit<'a>> {
    let told = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let bytes = told.unwrap_or(LARGEST_PROMPT).min(LARGEST_PROMPT);
    let units = u32::try_from(bytes.div_ceil(ROOM_UNIT)).unwrap_or(u32::MAX);
    let room = match bytes <= SMALL_PROMPT {
        true => &inspector.small_prompts,
        false => &inspector.large_prompts,
    };
    // They are never closed.
    room.acquire_many(units).await.ok()
}

fn build(
    mut parts: Parts,
    body: Passing,
    becoming: Becoming,
    upstream: &Upstream,
) -> Request<Passing> {
    parts.extensions.clear();
    if becoming == Becoming::WebSocket {
        parts
            .headers
            .insert(CONNECTION, HeaderValue::from_static("upgrade"));
        parts
            .headers
            .insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
    parts.headers.remove(HOST);
    if let Ok(value) = HeaderValue::from_str(&authority(upstream)) {
        parts.headers.insert(HOST, value);
    }
    Request::from_parts(parts, body)
}

/// The host as a request names it: with its port, unless that goes without saying.
fn authority(upstream: &Upstream) -> String {
    let admission = upstream.admission();
    let host = match admission.host().address() {
        Some(std::net::IpAddr::V6(v6)) => format!("[{v6}]"),
        _ => admission.host().to_string(),
    };
    let usual = match upstream.wire() {
        Wire::Tls(_) => 443,
        Wire::Plain => 80,
    };
    if admission.port() == usual {
        host
    } else {
        format!("{host}:{}", admission.port())
    }
}

/// Gives a request the form of the version that is spoken to the server.
fn shape(request: &mut Request<Passing>, spoken: Spoken, authority: &str, wire: Wire) {
    let path = origin_form(request.uri()).unwrap_or_default();
    match spoken {
        Spoken::One => {
            *request.version_mut() = Version::HTTP_11;
            *request.uri_mut() = path;
        }
        Spoken::Two => {
            *request.version_mut() = Version::HTTP_2;
            request.headers_mut().remove(HOST);
            let scheme = if wire == Wire::Plain { "http" } else { "https" };
            let whole = Uri::builder()
                .scheme(scheme)
                .authority(authority)
                .path_and_query(path.path_and_query().map_or("/", |p| p.as_str()));
            if let Ok(whole) = whole.build() {
                *request.uri_mut() = whole;
            }
        }
    }
}

/// The answer that makes a connection a WebSocket.
fn switched<B>(response: &Response<B>, needles: Option<&Needles>) -> Response<Passing> {
    let mut answer = Response::new(whole(Bytes::new()));
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *answer.headers_mut() = response.headers().clone();
    strip_connection(answer.headers_mut());
    if let Some(needles) = needles {
        needles.mask_headers(answer.headers_mut());
    }
    answer
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("upgrade"));
    answer
        .headers_mut()
        .insert(UPGRADE, HeaderValue::from_static("websocket"));
    answer
}
