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
            tokens,
            sessions: Sessions::new(&limits),
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
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
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
    let mut other_method = false;
    for route in WEB_ROUTES.iter().filter(|route| route.path == path) {
        if route.method.as_str() == method.as_str() {
            return Ok(Asked::Own(route.own, route.access));
        }
        other_method = true;
    }
    if !(other_method || path == "/v1" || path.starts_with("/v1/")) {
        return Ok(Asked::Page);
    }
    match OperatorCall::route(method.as_str(), path) {
        Ok(route) => Ok(Asked::Operator(route.asker)),
        Err((status, _)) if other_method && status == belljar_api::Status::NOT_FOUND => {
            Err(Refusal::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                &format!("{method} is not a method of this path"),
            ))
        }
        Err(refused) => Err(refused.into()),
    }
}
