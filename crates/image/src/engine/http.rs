//! Asking an engine over HTTP. The answer's body is read as it comes, in step with whoever unpacks it.

use crate::error::ImageError;
use bytes::{Buf as _, Bytes};
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How long an engine may think: some write the whole image to a disk first.
const PATIENCE: Duration = Duration::from_secs(600);

/// A connection to an engine.
pub(super) struct Engine {
    runtime: Runtime,
    sender: SendRequest<Empty<Bytes>>,
}

impl Engine {
    pub(super) fn over(stream: UnixStream) -> Result<Self, ImageError> {
        let begin = || -> io::Result<Self> {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let sender = runtime.block_on(async {
                let stream = tokio::net::UnixStream::from_std(stream)?;
                let hands = handshake(TokioIo::new(stream)).await;
                let (sender, connection) = hands.map_err(io::Error::other)?;
                // It goes on whenever somebody waits for an answer.
                tokio::spawn(connection);
                Ok::<_, io::Error>(sender)
            })?;
            Ok(Self { runtime, sender })
        };
        begin().map_err(ImageError::read("the engine's answer"))
    }

    /// The status and the body of what is at that path.
    pub(super) fn ask(&mut self, path: &str) -> Result<(u16, Answer<'_>), ImageError> {
        let fail = || ImageError::read("the engine's answer");
        let request = Request::get(path)
            .header("host", "localhost")
            .body(Empty::new())
            .map_err(|error| fail()(io::Error::other(error)))?;
        let reply = self.sender.send_request(request);
        let reply = wait(&self.runtime, reply).map_err(gone)?;
        let status = reply.status().as_u16();
        let answer = Answer {
            runtime: &self.runtime,
            body: reply.into_body(),
            part: Bytes::new(),
            broke_off: None,
        };
        Ok((status, answer))
    }
}

/// The body of an answer.
pub(super) struct Answer<'e> {
    runtime: &'e Runtime,
    body: Incoming,
    part: Bytes,
    /// Why the engine did not send it to its end.
    broke_off: Option<io::Error>,
}

impl Answer<'_> {
    /// What to tell whoever could not make use of it: that it was not whole, if that was so.
    pub(super) fn blame(self, otherwise: ImageError) -> ImageError {
        self.broke_off.map_or(otherwise, gone)
    }

    fn next(&mut self) -> io::Result<Option<Bytes>> {
        let next = async { Ok(self.body.frame().await) };
        let frame = wait(self.runtime, next)?.transpose();
        let frame = frame.map_err(io::Error::other)?;
        Ok(frame.map(|frame| frame.into_data().unwrap_or_default()))
    }
}

/// The engine ended, or was ended, before it had answered.
fn gone(source: io::Error) -> ImageError {
    ImageError::Unavailable {
        what: format!("the engine broke off before it had answered: {source}"),
        hint: "nothing is left of this build; see whether the engine runs, and build again".into(),
    }
}

impl Read for Answer<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            self.part = match self.next() {
                Ok(Some(part)) => part,
                Ok(None) => return Ok(0),
                Err(error) => {
                    let kind = error.kind();
                    self.broke_off = Some(error);
                    return Err(kind.into());
                }
            };
        }
        let length = buffer.len().min(self.part.len());
        self.part
            .copy_to_slice(buffer.get_mut(..length).unwrap_or_default());
        Ok(length)
    }
}

/// Waits, but not for ever.
fn wait<T>(
    runtime: &Runtime,
    what: impl Future<Output = Result<T, hyper::Error>>,
) -> io::Result<T> {
    let bounded = async { tokio::time::timeout(PATIENCE, what).await };
    match runtime.block_on(bounded) {
        Ok(done) => done.map_err(io::Error::other),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}
