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

use super::redact::{Needles, Redactor};
use crate::contain::{Contained, Panicked, contain};
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
    #[error("something that can't be here was found")]
    Internal,
}

/// A body that is all there.
pub(super) fn whole(bytes: impl Into<Bytes>) -> Passing {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A body that is counted while it streams through.
pub(super) struct Metered {
    /// Taken out when it goes on without the agent.
    inner: Option<Incoming>,
    admission: Arc<Admission>,
    direction: Direction,
    patience: Duration,
    /// How long an answer is read on when the agent left.
    reading_on: Duration,
    silence: Pin<Box<Sleep>>,
    observer: Option<Observer>,
    redactor: Option<Redactor>,
    /// What comes after all that was held back.
    last: Option<Frame<Bytes>>,
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
            inner: Some(inner),
            admission,
            direction,
            patience,
            reading_on: Duration::ZERO,
            silence: Box::pin(tokio::time::sleep(patience)),
            observer: None,
            redactor: None,
            last: None,
            over: false,
        }
    }

    /// Shows every byte to the meter of a call.
    pub(super) fn observed_by(mut self, observer: Option<Observer>, rest: Duration) -> Self {
        self.observer = observer;
        self.reading_on = rest;
        self
    }

    /// Takes out what the agent must not see.
    pub(super) fn without(mut self, needles: Option<Arc<Needles>>) -> Self {
        self.redactor = needles.map(Redactor::new);
        self
    }

    /// Counts a chunk; what the meter makes of it goes on.
    fn pass(&mut self, data: Bytes) -> Result<Passed, BodyError> {
        if self.admission.take_bytes(self.direction, data.len()) < data.len() {
            self.admission.refuse_request(RefusalCode::Bytes, None);
            return Err(BodyError::Bytes);
        }
        match &mut self.observer {
            None => Ok(Passed::On(self.redacted(data))),
            Some(observer) => match observer.see(data) {
                Ok(data) => Ok(Passed::On(self.redacted(data))),
                Err(Cut { denial, last_words }) => {
                    self.admission
                        .refuse_request(denial.code(), denial.detail());
                    // Settles the call.
                    self.observer = None;
                    Ok(Passed::Last(self.ending(last_words)))
                }
            },
        }
    }

    fn redacted(&mut self, data: Bytes) -> Bytes {
        match &mut self.redactor {
            Some(redactor) => redactor.push(data),
            None => data,
        }
    }

    /// The last bytes, after what was held back.
    fn ending(&mut self, rest: Bytes) -> Bytes {
        let Some(redactor) = &mut self.redactor else {
            return rest;
        };
        let mut bytes = redactor.push(rest).to_vec();
        bytes.extend_from_slice(&redactor.finish());
        Bytes::from(bytes)
    }

    fn next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(last) = self.last.take() {
            return Poll::Ready(Some(Ok(last)));
        }
        if self.over {
            return Poll::Ready(None);
        }
        loop {
            let Some(inner) = &mut self.inner else {
                return Poll::Ready(None);
            };
            let outcome = match Pin::new(inner).poll_frame(cx) {
                Poll::Pending => {
                    return match self.silence.as_mut().poll(cx) {
                        Poll::Ready(()) => {
                            self.over = true;
                            Poll::Ready(Some(Err(BodyError::Silent)))
                        }
                        Poll::Pending => Poll::Pending,
                    };
                }
                Poll::Ready(None) => {
                    self.over = true;
                    let rest = self
                        .observer
                        .as_mut()
                        .map(Observer::finish)
                        .unwrap_or_default();
                    let rest = self.ending(rest);
                    return Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest))));
                }
                Poll::Ready(Some(Err(error))) => Err(BodyError::Broken(error)),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => match self.pass(data) {
                        Ok(Passed::On(data)) => Ok(Frame::data(data)),
                        Ok(Passed::Last(data)) => {
                            self.over = true;
                            return Poll::Ready(Some(Ok(Frame::data(data))));
                        }
                        Err(error) => Err(error),
                    },
                    // A server could take the agent's for headers that were never looked at.
                    Err(_) if self.direction == Direction::FromAgent => continue,
                    Err(trailers) => {
                        let trailers = self.trailers(trailers);
                        let held = self.ending(Bytes::new());
                        if held.is_empty() {
                            Ok(trailers)
                        } else {
                            self.last = Some(trailers);
                            Ok(Frame::data(held))
                        }
                    }
                },
            };
            if let Some(next) = Instant::now().checked_add(self.patience) {
                self.silence.as_mut().reset(next);
            }
            self.over = outcome.is_err();
            match outcome {
                // The meter held it back: there is nothing to send yet.
                Ok(frame) if frame.data_ref().is_some_and(Bytes::is_empty) => {}
                outcome => return Poll::Ready(Some(outcome)),
            }
        }
    }

    fn trailers(&self, frame: Frame<Bytes>) -> Frame<Bytes> {
        match (frame.into_trailers(), &self.redactor) {
            (Ok(mut trailers), Some(redactor)) => {
                redactor.needles().mask_headers(&mut trailers);
                Frame::trailers(trailers)
            }
            (Ok(trailers), None) => Frame::trailers(trailers),
            // There is no third kind of frame.
            (Err(other), _) => other,
        }
    }

    /// Lets go of everything; a call is settled by it.
    fn give_up(&mut self) {
        self.over = true;
        self.last = None;
        self.inner = None;
        // What it knew may be half of it.
        if let Some(mut observer) = self.observer.take() {
            observer.distrust();
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
        match contain(|| this.next(cx)) {
            Ok(polled) => polled,
            Err(Panicked(place)) => {
                this.give_up();
                let admission = &this.admission;
                // The recorder may be what failed.
                let _ = contain(|| admission.refuse_request(RefusalCode::Internal, Some(place)));
                Poll::Ready(Some(Err(BodyError::Internal)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_idle = self.redactor.as_ref().is_none_or(Redactor::is_idle);
        let is_done = self.over || self.inner.as_ref().is_none_or(Incoming::is_end_stream);
        self.last.is_none() && is_done && (self.over || (self.observer.is_none() && is_idle))
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.observer, &self.redactor, &self.inner) {
            (None, None, Some(inner)) => inner.size_hint(),
            // The meter may take something out, and something may be held back.
            _ => SizeHint::default(),
        }
    }
}

/// The most that is read of an answer that the agent left.
const LONGEST_REST: u64 = 16 * 1024 * 1024;

impl Drop for Metered {
    /// An agent that hangs up before it is told what a call used does not make it cheaper: the rest is read for it.
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let (Some(inner), Some(observer)) = (self.inner.take(), self.observer.take()) else {
            return;
        };
        let Some(room) = observer.read_on() else {
            return;
        };
        // Where the engine is ending there is nobody to read on, and all that was set aside is charged.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let rest = Rest {
            inner,
            observer,
            admission: Arc::clone(&self.admission),
            patience: self.patience,
        };
        let latest = self.reading_on;
        let reading = async move {
            // Late: it is settled when it is dropped.
            let _ = tokio::time::timeout(latest, rest.read()).await;
            drop(room);
        };
        runtime.spawn(async move {
            let _ = Contained::new(reading).await;
        });
    }
}

/// An answer that nobody waits for any more.
struct Rest {
    inner: Incoming,
    observer: Observer,
    admission: Arc<Admission>,
    patience: Duration,
}

impl Rest {
    async fn read(mut self) {
        let mut read = 0_u64;
        loop {
            let frame = tokio::time::timeout(self.patience, self.inner.frame()).await;
            let data = match frame {
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                Ok(None) => {
                    self.observer.finish();
                    return;
                }
                Ok(Some(Err(_))) | Err(_) => return,
            };
            read = read.saturating_add(data.len() as u64);
            let granted = self.admission.take_bytes(Direction::ToAgent, data.len());
            if granted < data.len() || read > LONGEST_REST || self.observer.see(data).is_err() {
                return;
            }
        }
    }
}
