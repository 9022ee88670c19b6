//! One request from its head to its reply.

mod accept;
mod admission;
mod calls;
mod frames;
mod login;
mod names;
mod numbers;
mod openapi;
mod own;
mod patient;
mod places;
mod reply;
mod stream;
mod visit;

pub(crate) use accept::accept;
pub use login::SessionView;
pub use openapi::openapi;
pub use own::{Access, WEB_ROUTES, WebRoute};

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use belljar_api::{Asker, OperatorCall};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode, Version};
use tokio::sync::Semaphore;

use crate::attempts::Attempts;
use crate::backend::Backend;
use crate::kept_sessions::SessionFile;
use crate::sessions::Sessions;
use crate::tokens::LiveTokens;
use crate::{Limits, Settings};
use names::Names;
use numbers::Numbers;
use own::Own;
use places::{Place, Places};
use reply::{Body, Refusal};

/// Everything that requests share.
pub(crate) struct Site {
    limits: Limits,
    pages: crate::Pages,
    is_tls: bool,
    names: Names,
    cookie: String,
    tokens: Arc<LiveTokens>,
    sessions: Sessions,
    attempts: Attempts,
    backend: Arc<dyn Backend>,
    /// What is read, and what is changed: an order to kill waits for no list.
    reads: Arc<Semaphore>,
    changes: Arc<Semaphore>,
    streams: stream::Streams,
    frames: frames::Frames,
    places: Arc<Places>,
    numbers: Numbers,
    readiness: calls::Readiness,
}

impl Site {
    pub(crate) fn new(
        settings: &Settings,
        bound: SocketAddr,
        tokens: Arc<LiveTokens>,
        backend: Arc<dyn Backend>,
    ) -> Self {
        let limits = settings.limits.clone();
        let is_tls = settings.tls.is_some();
        // The port is in the name: browsers send cookies to every port of a host, and two servers would overwrite each other's.
        let prefix = if is_tls { "__Secure-" } else { "" };
        let calls = limits.calls.max(1);
        Self {
            pages: settings.pages.clone(),
            is_tls,
            names: Names::new(bound, &settings.names, is_tls),
            cookie: format!("{prefix}belljar_{}", bound.port()),
            sessions: Sessions::kept(&limits, SessionFile::beside(&tokens.path())),
            tokens,
            attempts: Attempts::new(&limits, Instant::now()),
            backend,
            reads: Arc::new(Semaphore::new(calls)),
            changes: Arc::new(Semaphore::new(calls)),
            streams: stream::Streams::new(limits.streams, limits.streams_of_one),
            frames: frames::Frames::default(),
            places: Places::new(limits.connections),
            numbers: Numbers::default(),
            readiness: calls::Readiness::default(),
            limits,
        }
    }

    /// The reply to a request, whatever comes of it.
    async fn reply(
        self: Arc<Self>,
        from: IpAddr,
        place: Arc<Place>,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let busy = place.busy();
        let reply = self.answer(from, &place, request).await;
        let mut response = reply.unwrap_or_else(Refusal::into_response);
        reply::secure(response.headers_mut(), self.is_tls);
        self.numbers.replied(response.status());
        response.map(|body| body.holding(busy))
    }

    async fn answer(
        self: &Arc<Self>,
        from: IpAddr,
        place: &Place,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
        as_get(&mut request);
        let uri = request.uri();
        let plain =
            uri.scheme().is_none() && uri.authority().is_none() && uri.path().starts_with('/');
        if request.version() != Version::HTTP_11 || !plain {
            return Err(Refusal::new(
                StatusCode::BAD_REQUEST,
                "bad_http",
                "this server takes HTTP/1.1 requests for a path",
            ));
        }
        self.check_place(request.headers())?;
        let asked = find(request.method(), uri.path());
        if let Ok(Asked::Page) = asked {
            return visit::visit(self, &request);
        }
        if let Ok(Asked::Own(own, own::Access::Open)) = asked {
            return match own {
                Own::BeginSession => self.begin_session(from, place, request).await,
                _ => self.answer_own(own, None, request).await,
            };
        }
        // What is there is told to those alone who may look.
        let admitted = self.admit(request.headers(), Instant::now())?;
        place.is_known_now();
        match asked? {
            Asked::Own(own, access) => {
                let own::Access::Role(asker) = access else {
                    return Err(Refusal::unknown());
                };
                admitted.check_role(asker)?;
                self.check_page(&admitted, request.method(), request.headers())?;
                self.answer_own(own, Some(admitted), request).await
            }
            Asked::Operator(asker) => {
                admitted.check_role(asker)?;
                self.check_page(&admitted, request.method(), request.headers())?;
                self.call(admitted, request).await
            }
            Asked::Page => visit::visit(self, &request),
        }
    }

    async fn answer_own(
        self: &Arc<Self>,
        own: Own,
        admitted: Option<admission::Admitted>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
        calls::check_bodiless(&request)?;
        match (own, admitted) {
            (Own::Health, _) => Ok(reply::json_bytes(StatusCode::OK, "{\"ok\":true}")),
            (Own::Readiness, _) => Ok(self.read_readiness().await),
            (Own::ReadSession, Some(admitted)) => Ok(self.read_session(&admitted)),
            (Own::EndSession, Some(admitted)) => self.end_session(&admitted),
            (Own::Stream, Some(admitted)) => self.stream(admitted).await,
            (Own::Openapi, Some(_)) => Ok(reply::json_bytes(StatusCode::OK, openapi::served())),
            (Own::Prometheus, Some(_)) => self.read_numbers().await,
            (_, None) | (Own::BeginSession, Some(_)) => Err(Refusal::unknown()),
        }
    }
}

/// What a request is for.
enum Asked {
    Own(Own, own::Access),
    Operator(Asker),
    Page,
}

fn find(method: &Method, path: &str) -> Result<Asked, Refusal> {
    let is_api = path == "/v1" || path.starts_with("/v1/");
    let own = |method: &str| {
        let mut routes = WEB_ROUTES.iter().filter(|route| route.path == path);
        routes.find(|route| route.method.as_str() == method)
    };
    if let Some(route) = own(method.as_str()) {
        return Ok(Asked::Own(route.own, route.access));
    }
    let has = |method: &str| {
        own(method).is_some() || (is_api && OperatorCall::route(method, path).is_ok())
    };
    if !is_api && !has("GET") && !has("POST") {
        return Ok(Asked::Page);
    }
    match OperatorCall::route(method.as_str(), path) {
        Ok(route) if is_api => Ok(Asked::Operator(route.asker)),
        Err((status, problem)) if !(has("GET") || has("POST")) => Err((status, problem).into()),
        _ => {
            let allow = match (has("GET"), has("POST")) {
                (true, false) => "GET, HEAD",
                (true, true) => "GET, HEAD, POST",
                (false, _) => "POST",
            };
            Err(Refusal::other_method(method, allow))
        }
    }
}

/// A `HEAD` is answered as the `GET` would be; hyper leaves the body out. The live stream has no end to be told beforehand.
fn as_get(request: &mut Request<Incoming>) {
    if request.method() == Method::HEAD
        && find(&Method::GET, request.uri().path()).is_ok_and(is_short)
    {
        *request.method_mut() = Method::GET;
    }
}

fn is_short(asked: Asked) -> bool {
    match asked {
        Asked::Own(own, _) => !matches!(own, Own::Stream),
        Asked::Operator(_) => true,
        Asked::Page => false,
    }
}
