//! Replies, and what every one of them carries.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use belljar_api::{Problem, Status};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use tokio::sync::mpsc::Receiver;

use super::places::Busy;

/// The body of a reply. It holds the connection's place until it is sent.
#[derive(Debug)]
pub(crate) struct Body {
    content: Content,
    busy: Option<Busy>,
}

#[derive(Debug)]
enum Content {
    Whole(Bytes),
    Stream(Receiver<Bytes>),
}

impl Body {
    pub(super) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self {
            content: Content::Whole(bytes.into()),
            busy: None,
        }
    }

    pub(super) fn stream(parts: Receiver<Bytes>) -> Self {
        Self {
            content: Content::Stream(parts),
            busy: None,
        }
    }

    pub(super) fn holding(mut self, busy: Busy) -> Self {
        self.busy = Some(busy);
        self
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.content {
            Content::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Content::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Content::Stream(parts) => parts
                .poll_recv(cx)
                .map(|part| part.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.content, Content::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Stream(_) => SizeHint::default(),
        }
    }
}

/// A request that is not granted.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    problem: Problem,
    /// The methods that the path has, where it was asked with another.
    allow: Option<&'static str>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, code: &'static str, message: &str) -> Self {
        Self {
            status,
            problem: Problem::new(code, message),
            allow: None,
        }
    }

    /// A path that is there, and not by this method.
    pub(super) fn other_method(method: &hyper::Method, allow: &'static str) -> Self {
        let message = format!("{method} is not a method of this path");
        let refusal = Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            &message,
        );
        Self {
            allow: Some(allow),
            ..refusal
        }
        .hint(&format!("it takes {allow}"))
    }

    pub(super) fn hint(mut self, hint: &str) -> Self {
        self.problem = self.problem.hint(hint);
        self
    }

    pub(super) fn retry_after(mut self, time: std::time::Duration) -> Self {
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.problem = self.problem.retry_after_ms(milliseconds);
        self
    }

    /// Without a token that is good. It is the same for one that is wrong, over, revoked or was never there.
    pub(super) fn unknown() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthenticated",
            "this needs a token that is good",
        )
        .hint(
            "`belljar token create` makes one; send it as `Authorization: Bearer TOKEN`, or log in",
        )
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = json(self.status, &self.problem);
        let headers = response.headers_mut();
        if let Some(wait) = self.problem.retry_after_ms {
            headers.insert(
                header::RETRY_AFTER,
                HeaderValue::from(wait.div_ceil(1000).max(1)),
            );
        }
        if let Some(allow) = self.allow {
            headers.insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let how = HeaderValue::from_static("Bearer realm=\"belljar\"");
            headers.insert(header::WWW_AUTHENTICATE, how);
        }
        // Whoever is not understood, or has no token, starts anew: trying costs a connection each time.
        let closes = [
            StatusCode::BAD_REQUEST,
            StatusCode::UNAUTHORIZED,
            StatusCode::MISDIRECTED_REQUEST,
            StatusCode::PAYLOAD_TOO_LARGE,
            StatusCode::REQUEST_TIMEOUT,
        ];
        if closes.contains(&self.status) {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl From<(Status, Problem)> for Refusal {
    fn from((status, problem): (Status, Problem)) -> Self {
        Self {
            status: code(status),
            problem,
            allow: None,
        }
    }
}

/// hyper's form of a status.
pub(super) fn code(status: Status) -> StatusCode {
    StatusCode::from_u16(status.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Response<Body> {
    // Strings, numbers and lists of our own: JSON can say all of it.
    json_bytes(status, serde_json::to_vec(body).unwrap_or_default())
}

pub(super) fn json_bytes(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    of_kind(status, "application/json", body)
}

pub(super) fn of_kind(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = Response::new(Body::whole(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Only what we serve runs in our pages, nothing written into a page does, and no other page may hold ours.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
    connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What every reply carries.
pub(super) fn secure(headers: &mut HeaderMap, is_tls: bool) {
    let always = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // With it a browser says `Origin: null` in forms and in `fetch` with `mode: "same-origin"`; our page uses neither.
        (header::REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("permissions-policy"),
            "camera=(), geolocation=(), microphone=()",
        ),
    ];
    for (name, value) in always {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if is_tls {
        let year = HeaderValue::from_static("max-age=31536000");
        headers.insert(header::STRICT_TRANSPORT_SECURITY, year);
    }
    // Pages say how long they are good for; all else is for one reader and one moment.
    let entry = headers.entry(header::CACHE_CONTROL);
    entry.or_insert(HeaderValue::from_static("no-store"));
}
