//! Bodies that stream through, counted.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::gate::{Admission, Direction};
use crate::llm::{Cut, Observer};
use crate::record::RefusalCode;

/// A body on its way.
pub(super) type Passing = UnsyncBoxBody<Bytes, BodyError>;

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the other side broke off")]
    Broken(#[source] hyper::Error),
    #[error("the rule's bytes are used up")]
    Bytes,
    #[error("nothing came for too long")]
    Silent,
}

/// A body that is all there.
pub(super) fn whole(bytes: impl Into<Bytes>) -> Passing {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A body that is counted while it streams through.
pub(super) struct Metered {
    inner: Incoming,
    admission: Arc<Admission>,
    direction: Direction,
    patience: Duration,
    silence: Pin<Box<Sleep>>,
    observer: Option<Observer>,
    over: bool,
}

enum Passed {
    On(Bytes),
    /// The last there is.
    Last(Bytes),
}

impl Metered {
    pub(super) fn new(
        inner: Incoming,
        admission: Arc<Admission>,
        direction: Direction,
        patience: Duration,
    ) -> Self {
        Self {
            inner,
            admission,
            direction,
            patience,
            silence: Box::pin(tokio::time::sleep(patience)),
            observer: None,
            over: false,
        }
    }

    /// Shows every byte to the meter of a call.
    pub(super) fn observed_by(mut self, observer: Option<Observer>) -> Self {
        self.observer = observer;
        self
    }

    /// Counts a chunk; what the meter makes of it goes on.
    fn pass(&mut self, data: Bytes) -> Result<Passed, BodyError> {
        if self.admission.take_bytes(self.direction, data.len()) < data.len() {
            self.admission.refuse_request(RefusalCode::Bytes, None);
            return Err(BodyError::Bytes);
        }
        match &mut self.observer {
            None => Ok(Passed::On(data)),
            Some(observer) => match observer.see(data) {
                Ok(data) => Ok(Passed::On(data)),
                Err(Cut { denial, last_words }) => {
                    self.admission
                        .refuse_request(denial.code(), Some("the answer was cut".to_owned()));
                    // Settles the call.
                    self.observer = None;
                    Ok(Passed::Last(last_words))
                }
            },
        }
    }
}

impl Body for Metered {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if this.over {
            return Poll::Ready(None);
        }
        loop {
            let outcome = match Pin::new(&mut this.inner).poll_frame(cx) {
                Poll::Pending => {
                    return match this.silence.as_mut().poll(cx) {
                        Poll::Ready(()) => {
                            this.over = true;
                            Poll::Ready(Some(Err(BodyError::Silent)))
                        }
                        Poll::Pending => Poll::Pending,
                    };
                }
                Poll::Ready(None) => {
                    this.over = true;
                    let rest = this
                        .observer
                        .as_mut()
                        .map(Observer::finish)
                        .unwrap_or_default();
                    return Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest))));
                }
                Poll::Ready(Some(Err(error))) => Err(BodyError::Broken(error)),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => match this.pass(data) {
                        Ok(Passed::On(data)) => Ok(Frame::data(data)),
                        Ok(Passed::Last(data)) => {
                            this.over = true;
                            return Poll::Ready(Some(Ok(Frame::data(data))));
                        }
                        Err(error) => Err(error),
                    },
                    // A server could take the agent's for headers that were never looked at.
                    Err(_) if this.direction == Direction::FromAgent => continue,
                    Err(trailers) => Ok(trailers),
                },
            };
            let next = Instant::now() + this.patience;
            this.silence.as_mut().reset(next);
            this.over = outcome.is_err();
            match outcome {
                // The meter held it back: there is nothing to send yet.
                Ok(frame) if frame.data_ref().is_some_and(Bytes::is_empty) => {}
                outcome => return Poll::Ready(Some(outcome)),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over || (self.observer.is_none() && self.inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match self.observer {
            // The meter may take something out.
            Some(_) => SizeHint::default(),
            None => self.inner.size_hint(),
        }
    }
}
