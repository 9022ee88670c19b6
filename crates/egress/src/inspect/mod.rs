//! Looking at requests, where a rule, a secret or a budget asks for it, or where they are in the clear anyway.
//!
//! The agent's connection ends here and another one begins, so what goes out was read and written anew: no two readers can
//! see two different requests in it. Bodies stream; nothing is kept whole but the calls to models that are metered.

mod authority;
mod body;
mod exchange;
mod frames;
mod framing;
mod java;
mod placeholders;
mod redact;
mod refusal;
mod request;
mod secrets;
mod stream;
mod trust;
mod tunnel;
mod upstream;

use std::convert::Infallible;
use std::sync::Arc;

use belljar_policy::Host;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

pub use authority::{Authority, AuthorityError};
pub use java::java_trust_store;
pub use secrets::HeaderSecret;
pub use trust::{Roots, TrustError, client_config, host_roots};

use body::Passing;
use exchange::{LARGEST_PROMPT, ROOM_UNIT, SMALL_PROMPT, exchange};
use framing::Followed;
use request::parse_authority;
use secrets::BoxSecrets;
use stream::Rewound;
use trust::{Offer, Trust};
use upstream::{Upstream, Wire};

use crate::config::Timeouts;
use crate::contain::ContainedExecutor;
use crate::gate::{Admission, Gate, Refused};
use crate::llm::{Llm, LlmPolicy, LlmUsage};
use crate::record::{RefusalCode, Way, printable};
use crate::serve::Shared;

const LARGEST_HEAD: usize = 64 * 1024;
const MOST_HEADERS: usize = 128;
const MOST_STREAMS: u32 = 64;
/// What a client in the box may send before it is passed on. It is near: more would not make it faster, only take memory
/// while a server is slow.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 128 * 1024;
const TWO_LENGTHS: &str = "a request that gives its length twice";
const HTTP2_PREFACE: &[u8] = b"PRI ";

/// Looks at requests.
pub(crate) struct Inspector {
    authority: Option<Arc<Authority>>,
    trust: Trust,
    secrets: BoxSecrets,
    llm: Option<Llm>,
    timeouts: Timeouts,
    /// Room for prompts that are read whole.
    small_prompts: Semaphore,
    large_prompts: Semaphore,
}

/// Which version a client in the box speaks.
#[derive(Clone, Copy)]
enum Speaks {
    One,
    Two,
}

impl Inspector {
    pub(crate) fn new(
        authority: Option<Arc<Authority>>,
        roots: Roots,
        secrets: Vec<HeaderSecret>,
        llm: Option<LlmPolicy>,
        timeouts: Timeouts,
    ) -> Result<Self, TrustError> {
        Ok(Self {
            authority,
            trust: Trust::new(roots)?,
            secrets: BoxSecrets::new(secrets),
            llm: llm.map(Llm::new),
            timeouts,
            small_prompts: Semaphore::new(16 * SMALL_PROMPT / ROOM_UNIT),
            large_prompts: Semaphore::new(LARGEST_PROMPT / ROOM_UNIT),
        })
    }

    /// Whether the requests of a connection must be looked at.
    pub(crate) fn must_inspect(&self, admission: &Admission) -> bool {
        self.must_inspect_host(admission.gate(), admission.host(), admission.port())
    }

    /// Whether the requests of connections to a host must be looked at.
    pub(crate) fn must_inspect_host(&self, gate: &Gate, host: &Host, port: u16) -> bool {
        gate.rules().looks_at_requests(host, port)
            || self.secrets.are_for(host, port)
            || self
                .llm
                .as_ref()
                .is_some_and(|llm| llm.is_about(host, port))
    }

    pub(crate) fn llm_usage(&self) -> LlmUsage {
        self.llm.as_ref().map(Llm::usage).unwrap_or_default()
    }

    /// Ends TLS here, in the host's name, and looks at what is inside.
    pub(crate) async fn serve_tls(
        &self,
        shared: &Arc<Shared>,
        client: TcpStream,
        first: Vec<u8>,
        admission: Admission,
    ) {
        let Some(authority) = &self.authority else {
            let detail = Some("the box has no certificate authority to look inside TLS".to_owned());
            admission.refuse(RefusalCode::NotTls, detail);
            return;
        };
        let config = match authority.server_config(admission.host()) {
            Ok(config) => config,
            Err(error) => {
                admission.refuse(RefusalCode::NotTls, Some(error.to_string()));
                return;
            }
        };
        let accepting = TlsAcceptor::from(config).accept(Rewound::new(first, client));
        let stream = match timeout(self.timeouts.greeting, accepting).await {
            Ok(Ok(stream)) => stream,
            // It went away, or was ended: that says nothing about what it spoke.
            Ok(Err(error)) if is_gone(&error) => return,
            Ok(Err(error)) => {
                // Most often a client that does not trust the box's own authority.
                admission.refuse(RefusalCode::NotTls, Some(format!("TLS: {error}")));
                return;
            }
            Err(_) => return,
        };
        let speaks = match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Speaks::Two,
            _ => Speaks::One,
        };
        let offer = match speaks {
            Speaks::One => Offer::One,
            Speaks::Two => Offer::Both,
        };
        let upstream = Upstream::new(Arc::new(admission), Wire::Tls(offer), None);
        self.serve_http(shared, stream, speaks, Arc::new(upstream))
            .await;
    }

    /// Looks at requests in the clear.
    pub(crate) async fn serve_plain(
        &self,
        shared: &Arc<Shared>,
        client: TcpStream,
        first: Vec<u8>,
        server: Option<TcpStream>,
        admission: Admission,
    ) {
        if first.starts_with(HTTP2_PREFACE) {
            let detail = Some("HTTP/2 without TLS".to_owned());
            admission.refuse(RefusalCode::Malformed, detail);
            return;
        }
        let upstream = Upstream::new(Arc::new(admission), Wire::Plain, server);
        let stream = Rewound::new(first, client);
        self.serve_http(shared, stream, Speaks::One, Arc::new(upstream))
            .await;
    }

    async fn serve_http<S>(
        &self,
        shared: &Arc<Shared>,
        stream: S,
        speaks: Speaks,
        upstream: Arc<Upstream>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let answer = |request: Request<Incoming>| {
            let (shared, upstream) = (Arc::clone(shared), Arc::clone(&upstream));
            async move { Ok::<_, Infallible>(exchange(&shared, &upstream, request).await) }
        };
        let served = match speaks {
            Speaks::One => {
                let (stream, framing) = Followed::new(stream);
                let refuse = || {
                    let detail = Some(TWO_LENGTHS.to_owned());
                    let admission = upstream.admission();
                    admission.refuse_request(RefusalCode::Malformed, detail)
                };
                let service = service_fn(|request| {
                    let refused = framing.is_ambiguous().then(refuse);
                    let answer = answer(request);
                    async move {
                        match refused {
                            Some(refused) => Ok(refusal::last_answer(refused)),
                            None => answer.await,
                        }
                    }
                });
                self.http1()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades()
                    .await
            }
            Speaks::Two => {
                let stream = TokioIo::new(stream);
                self.http2()
                    .serve_connection(stream, service_fn(answer))
                    .await
            }
        };
        if let Err(error) = served
            && error.is_parse()
        {
            let admission = upstream.admission();
            admission.refuse_request(RefusalCode::Malformed, Some(error.to_string()));
        }
    }

    /// Serves a client that uses the proxy without a tunnel: each request names its host.
    pub(crate) async fn serve_forward(
        &self,
        shared: &Arc<Shared>,
        client: TcpStream,
        first: Vec<u8>,
    ) {
        let (stream, framing) = Followed::new(Rewound::new(first, client));
        let refuse = || {
            let detail = Some(TWO_LENGTHS.to_owned());
            let code = RefusalCode::Malformed;
            shared
                .gate
                .refuse(Way::HttpProxy, "", None, None, code, detail)
        };
        let service = service_fn(|request: Request<Incoming>| {
            let refused = framing.is_ambiguous().then(refuse);
            let shared = Arc::clone(shared);
            async move {
                Ok::<_, Infallible>(match refused {
                    Some(refused) => refusal::last_answer(refused),
                    None => forward(&shared, request).await,
                })
            }
        });
        let served = self
            .http1()
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades()
            .await;
        if let Err(error) = served
            && error.is_parse()
        {
            let detail = Some(error.to_string());
            shared.gate.refuse(
                Way::HttpProxy,
                "",
                None,
                None,
                RefusalCode::Malformed,
                detail,
            );
        }
    }

    fn http1(&self) -> http1::Builder {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(self.timeouts.request)
            .max_buf_size(LARGEST_HEAD)
            .max_headers(MOST_HEADERS);
        builder
    }

    fn http2(&self) -> http2::Builder<ContainedExecutor> {
        let mut builder = http2::Builder::new(ContainedExecutor);
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(self.timeouts.idle)
            .keep_alive_timeout(self.timeouts.greeting)
            .max_concurrent_streams(MOST_STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(STREAM_WINDOW as usize)
            .max_header_list_size(LARGEST_HEAD as u32);
        builder
    }
}

/// Whether a client is simply no longer there.
fn is_gone(error: &std::io::Error) -> bool {
    use std::io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::BrokenPipe
            | Kind::NotConnected
            | Kind::UnexpectedEof
    )
}

/// A request to the proxy itself: `GET http://host/path`.
async fn forward(shared: &Arc<Shared>, request: Request<Incoming>) -> Response<Passing> {
    match admit_forward(shared, &request) {
        Err(refused) => refusal::answer(refused),
        Ok(admission) => {
            let upstream = Upstream::new(Arc::new(admission), Wire::Plain, None);
            exchange(shared, &upstream, request).await
        }
    }
}

fn admit_forward(shared: &Shared, request: &Request<Incoming>) -> Result<Admission, Refused> {
    let uri = request.uri();
    let shown = printable(
        uri.authority()
            .map_or("", |authority| authority.as_str())
            .as_bytes(),
    );
    let refuse = |code, detail: &str| {
        let detail = Some(detail.to_owned());
        shared
            .gate
            .refuse(Way::HttpProxy, &shown, None, None, code, detail)
    };
    if uri.scheme_str() != Some("http") {
        return Err(refuse(
            RefusalCode::Malformed,
            "only http:// goes without CONNECT",
        ));
    }
    let Some((host, port)) = parse_authority(&shown) else {
        return Err(refuse(RefusalCode::InvalidHost, "not a host"));
    };
    let port = port.unwrap_or(80);
    if shared.ports.tls.contains(&port) {
        return Err(refuse(RefusalCode::NotTls, "plain HTTP to a port for TLS"));
    }
    shared.gate.admit(Way::HttpProxy, &host, port)
}
