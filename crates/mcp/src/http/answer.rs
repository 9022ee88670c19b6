//! What goes back over HTTP: one JSON text, or a stream of events.

use crate::message::{Id, Message};
use bytes::Bytes;
use hyper::body::Frame;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// A body.
pub(super) enum Body {
    /// All there is.
    Whole(Option<Bytes>),
    /// Messages as they come.
    Events {
        /// One that came already.
        first: Option<Message>,
        rest: mpsc::Receiver<Message>,
    },
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Events { first, rest } => {
                let next = match first.take() {
                    Some(message) => Poll::Ready(Some(message)),
                    None => rest.poll_recv(context),
                };
                next.map(|message| message.map(|message| Ok(Frame::data(event(&message)))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Self::Whole(bytes) => hyper::body::SizeHint::with_exact(
                bytes.as_ref().map_or(0, |bytes| bytes.len() as u64),
            ),
            Self::Events { .. } => hyper::body::SizeHint::default(),
        }
    }
}

fn event(message: &Message) -> Bytes {
    let mut bytes = b"event: message\ndata: ".to_vec();
    message.write(&mut bytes);
    bytes.extend_from_slice(b"\n\n");
    bytes.into()
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");

fn response(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

/// Nothing but a status.
pub(super) fn bare(status: StatusCode) -> Response<Body> {
    response(status, Body::Whole(None))
}

/// One message.
pub(super) fn json(status: StatusCode, message: &Message) -> Response<Body> {
    let mut response = response(status, Body::Whole(Some(message.to_bytes().into())));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// What is wrong with the request itself.
pub(super) fn wrong(status: StatusCode, id: Option<&Id>, code: i64, what: &str) -> Response<Body> {
    json(status, &Message::error(id, code, what, None))
}

/// Messages as they come.
pub(super) fn events(first: Option<Message>, rest: mpsc::Receiver<Message>) -> Response<Body> {
    let mut response = response(StatusCode::OK, Body::Events { first, rest });
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, EVENTS);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
