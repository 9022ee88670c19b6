//! The connections to the server behind one connection from the box.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::body::Passing;
use super::redact::Needles;
use super::trust::{Offer, Trust};
use crate::contain::{self, ContainedExecutor};
use crate::dial::Dialer;
use crate::gate::{Admission, Refused};
use crate::record::{RefusalCode, Way};

/// Connections to the server for one from the box: more are needed only when it speaks HTTP/2 and the server does not.
const MOST_LANES: usize = 32;
const LARGEST_HEAD: usize = 64 * 1024;
/// What a server may send before the agent takes it. Servers are far away, so this is what flows in one round trip; it is
/// also what a connection holds when the agent does not read.
const WINDOW: u32 = 1024 * 1024;
const SEND_BUFFER: usize = 64 * 1024;

/// Whether the agent spoke TLS, and so whether the server is spoken TLS to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    Tls(Offer),
    Plain,
}

/// Sends requests to one server.
pub(super) struct Upstream {
    admission: Arc<Admission>,
    wire: Wire,
    lanes: Mutex<Lanes>,
    room: Arc<Semaphore>,
    needles: Mutex<Option<Known>>,
}

/// What the host must not send back, and how often its secrets were replaced by then.
struct Known {
    replaced: u64,
    needles: Option<Arc<Needles>>,
}

#[derive(Default)]
struct Lanes {
    two: Option<http2::SendRequest<Passing>>,
    one: Vec<Lane>,
    /// A connection that was made before it was known to be HTTP.
    ready: Option<TcpStream>,
}

/// A connection that takes one request at a time.
struct Lane {
    sender: http1::SendRequest<Passing>,
    /// The first lane is the box's own connection; the others are counted by themselves.
    _counted: Option<Admission>,
    _place: OwnedSemaphorePermit,
}

enum Sender {
    One(Lane),
    Two(http2::SendRequest<Passing>),
}

/// Which version the server is spoken to in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoken {
    One,
    Two,
}

/// Why there is no answer.
pub(super) enum Unsent {
    /// The request was not sent.
    Before(Refused),
    /// It was, or in part.
    After(Refused),
}

/// What a request needs to go out.
pub(super) struct Means<'a> {
    pub(super) dialer: &'a Dialer,
    pub(super) trust: &'a Trust,
    pub(super) handshake: Duration,
    pub(super) response: Duration,
}

impl Upstream {
    pub(super) fn new(admission: Arc<Admission>, wire: Wire, ready: Option<TcpStream>) -> Self {
        let lanes = Lanes {
            ready,
            ..Lanes::default()
        };
        Self {
            admission,
            wire,
            lanes: Mutex::new(lanes),
            room: Arc::new(Semaphore::new(MOST_LANES)),
            needles: Mutex::default(),
        }
    }

    pub(super) fn admission(&self) -> &Arc<Admission> {
        &self.admission
    }

    /// What the host must not send back, worked out once for as long as its secrets are what they were.
    pub(super) fn needles(
        &self,
        replaced: u64,
        find: impl FnOnce() -> Option<Needles>,
    ) -> Option<Arc<Needles>> {
        let mut known = self.needles.lock().unwrap_or_else(PoisonError::into_inner);
        match known.as_ref().filter(|known| known.replaced == replaced) {
            Some(known) => known.needles.clone(),
            None => {
                let needles = find().map(Arc::new);
                *known = Some(Known {
                    replaced,
                    needles: needles.clone(),
                });
                needles
            }
        }
    }

    pub(super) fn wire(&self) -> Wire {
        self.wire
    }

    /// Sends one request; `shape` gives it the form of the version that is spoken.
    pub(super) async fn send(
        &self,
        means: &Means<'_>,
        mut request: Request<Passing>,
        shape: impl Fn(&mut Request<Passing>, Spoken),
    ) -> Result<Response<Incoming>, Unsent> {
        let mut fresh = false;
        loop {
            let idle = if fresh { None } else { self.idle() };
            let sender = match idle {
                Some(sender) => sender,
                None => {
                    fresh = true;
                    self.connect(means).await.map_err(Unsent::Before)?
                }
            };
            let sent = match sender {
                Sender::Two(mut sender) => {
                    shape(&mut request, Spoken::Two);
                    timeout(means.response, sender.try_send_request(request)).await
                }
                Sender::One(mut lane) => {
                    shape(&mut request, Spoken::One);
                    let sent = timeout(means.response, lane.sender.try_send_request(request)).await;
                    self.put_back(lane);
                    sent
                }
            };
            match sent {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(mut error)) => match error.take_message() {
                    // The server had closed an idle connection. Nothing was sent; a new one may do.
                    Some(message) if !fresh => {
                        request = message;
                        fresh = true;
                    }
                    Some(_) => {
                        return Err(Unsent::Before(self.unreachable(error.error().to_string())));
                    }
                    // The agent's own body broke off or was not well formed.
                    None if error.error().is_user() => {
                        let detail = Some("the body of the request broke off".to_owned());
                        let refused = self
                            .admission
                            .refuse_request(RefusalCode::Malformed, detail);
                        return Err(Unsent::After(refused));
                    }
                    None => return Err(Unsent::After(self.unreachable(error.error().to_string()))),
                },
                Err(_) => {
                    return Err(Unsent::After(
                        self.unreachable("no answer in time".to_owned()),
                    ));
                }
            }
        }
    }

    fn unreachable(&self, detail: String) -> Refused {
        self.admission
            .refuse_request(RefusalCode::Unreachable, Some(detail))
    }

    fn lanes(&self) -> std::sync::MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle(&self) -> Option<Sender> {
        let mut lanes = self.lanes();
        if let Some(two) = lanes.two.clone().filter(http2::SendRequest::is_ready) {
            return Some(Sender::Two(two));
        }
        lanes.two = None;
        lanes.one.retain(|lane| !lane.sender.is_closed());
        let ready = lanes.one.iter().position(|lane| lane.sender.is_ready())?;
        Some(Sender::One(lanes.one.swap_remove(ready)))
    }

    fn put_back(&self, lane: Lane) {
        if !lane.sender.is_closed() {
            self.lanes().one.push(lane);
        }
    }

    async fn connect(&self, means: &Means<'_>) -> Result<Sender, Refused> {
        let Ok(place) = Arc::clone(&self.room).try_acquire_owned() else {
            return Err(self
                .admission
                .refuse_request(RefusalCode::Connections, None));
        };
        let (host, port) = (self.admission.host(), self.admission.port());
        let counted = match self.room.available_permits().saturating_add(1) < MOST_LANES {
            true => Some(self.admission.gate().admit(Way::Http, host, port)?),
            false => None,
        };
        let ready = self.lanes().ready.take();
        let stream = match ready {
            Some(stream) => stream,
            None => means.dialer.dial(&self.admission).await?,
        };
        let Wire::Tls(offer) = self.wire else {
            return self.speak_one(stream, counted, place).await;
        };
        let name = match host.address() {
            Some(address) => ServerName::from(address),
            None => ServerName::try_from(host.to_string())
                .map_err(|_| self.unreachable("a name TLS can't carry".to_owned()))?,
        };
        let config = means
            .trust
            .config(offer)
            .map_err(|error| self.unreachable(error.to_string()))?;
        let stream = match timeout(
            means.handshake,
            TlsConnector::from(config).connect(name, stream),
        )
        .await
        {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(self.unreachable(format!("TLS: {error}"))),
            Err(_) => return Err(self.unreachable("TLS: no answer in time".to_owned())),
        };
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            self.speak_two(stream).await
        } else {
            self.speak_one(stream, counted, place).await
        }
    }

    async fn speak_one<S>(
        &self,
        stream: S,
        counted: Option<Admission>,
        place: OwnedSemaphorePermit,
    ) -> Result<Sender, Refused>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(LARGEST_HEAD)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.unreachable(error.to_string()))?;
        // It ends when its senders and bodies are gone; how, the request that was on it sees.
        let serving = async move {
            let _ = connection.with_upgrades().await;
        };
        contain::spawn(serving, drop);
        Ok(Sender::One(Lane {
            sender,
            _counted: counted,
            _place: place,
        }))
    }

    async fn speak_two<S>(&self, stream: S) -> Result<Sender, Refused>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http2::Builder::new(ContainedExecutor)
            .max_header_list_size(LARGEST_HEAD as u32)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.unreachable(error.to_string()))?;
        let serving = async move {
            let _ = connection.await;
        };
        contain::spawn(serving, drop);
        self.lanes().two = Some(sender.clone());
        Ok(Sender::Two(sender))
    }
}
