//! HTTP on both sides of an engine: servers to be reached, and clients in the box.

use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex};

use belljar_egress::{Authority, Config, Roots};
use belljar_policy::{EgressRule, HttpTerms, PathPattern, WebSocket};
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{TestBox, allow, soon};

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

pub fn text(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed_unsync()
}

/// The host of most tests.
pub const NAME: &str = "api.test";

/// A rule that looks at requests.
pub fn looked_at(port: u16, methods: &[&str], paths: &[&str]) -> EgressRule {
    let mut rule = allow(NAME, &[port]);
    rule.terms.http = Some(HttpTerms {
        methods: methods.iter().map(|method| (*method).to_owned()).collect(),
        paths: paths
            .iter()
            .map(|path| PathPattern::parse(path).expect("a path"))
            .collect(),
        websocket: WebSocket::Refuse,
    });
    rule
}

pub async fn says_hello(_: Seen) -> Response<Body> {
    Response::new(text("hello"))
}

pub fn get(path: &str, host: &str) -> Request<Body> {
    Request::get(path)
        .header("host", host)
        .body(text(""))
        .expect("a request")
}

/// What a server saw of a request.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A server, with or without TLS, that keeps what it saw.
pub struct Server {
    pub port: u16,
    pub seen: Arc<Mutex<Vec<Seen>>>,
    pub root_pem: String,
    pub acceptor: TlsAcceptor,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Plain,
    Tls,
    TlsTwo,
}

impl Server {
    /// Starts a server for `name` that answers as `answer` says.
    pub async fn start<F, R>(name: &str, wire: Wire, answer: F) -> Self
    where
        F: Fn(Seen) -> R + Clone + Send + 'static,
        R: Future<Output = Response<Body>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (root_pem, acceptor) = trusted(name, wire);
        let kept = Arc::clone(&seen);
        let own = acceptor.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, answer, kept) =
                    (acceptor.clone(), answer.clone(), Arc::clone(&kept));
                tokio::spawn(async move {
                    let service = service_fn(move |request: Request<Incoming>| {
                        let (answer, kept) = (answer.clone(), Arc::clone(&kept));
                        async move {
                            let (parts, body) = request.into_parts();
                            let body = body
                                .collect()
                                .await
                                .map(|body| body.to_bytes())
                                .unwrap_or_default();
                            let seen = Seen {
                                method: parts.method,
                                uri: parts.uri,
                                headers: parts.headers,
                                body,
                            };
                            kept.lock().expect("a lock").push(seen.clone());
                            Ok::<_, Infallible>(answer(seen).await)
                        }
                    });
                    let one = hyper::server::conn::http1::Builder::new();
                    if wire == Wire::Plain {
                        let _ = one.serve_connection(TokioIo::new(stream), service).await;
                        return;
                    }
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                        let two = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        let _ = two.serve_connection(TokioIo::new(stream), service).await;
                    } else {
                        let _ = one.serve_connection(TokioIo::new(stream), service).await;
                    }
                });
            }
        });
        Self {
            port,
            seen,
            root_pem,
            acceptor: own,
            task,
        }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("a lock").clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A certificate for `name` and the authority that vouches for it.
fn trusted(name: &str, wire: Wire) -> (String, TlsAcceptor) {
    let root_key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = params.self_signed(&root_key).expect("a certificate");
    let issuer = Issuer::new(params, root_key);
    let key = KeyPair::generate().expect("a key");
    let leaf = CertificateParams::new(vec![name.to_owned()])
        .expect("a name")
        .signed_by(&key, &issuer)
        .expect("a certificate");
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], private)
        .expect("a certificate");
    config.alpn_protocols = match wire {
        Wire::TlsTwo => vec![b"h2".to_vec()],
        _ => vec![b"http/1.1".to_vec()],
    };
    (root.pem(), TlsAcceptor::from(Arc::new(config)))
}

/// Makes the engine look inside TLS, and trust a server.
pub fn inspecting(config: &mut Config, server: &Server) -> Arc<Authority> {
    let authority = Arc::new(Authority::generate().expect("an authority"));
    config.authority = Some(Arc::clone(&authority));
    config.roots = Roots::Pem(vec![server.root_pem.clone()]);
    authority
}

/// TLS from inside the box, trusting the box's own authority alone.
pub async fn tls(
    stream: TcpStream,
    name: &str,
    authority: &Authority,
    protocols: &[&[u8]],
) -> TlsStream<TcpStream> {
    tls_with(stream, name, authority.certificate_pem(), protocols).await
}

/// TLS without an engine between.
pub async fn tls_to(stream: TcpStream, name: &str, root_pem: &str) -> TlsStream<TcpStream> {
    tls_with(stream, name, root_pem, &[b"http/1.1"]).await
}

async fn tls_with(
    stream: TcpStream,
    name: &str,
    root_pem: &str,
    protocols: &[&[u8]],
) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(root_pem.as_bytes()).expect("a certificate");
    roots.add(root).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    soon(TlsConnector::from(Arc::new(config)).connect(name, stream))
        .await
        .expect("TLS")
}

/// A client in the box that speaks HTTP/1.1 over TLS.
pub async fn client_one(
    bx: &TestBox,
    name: &str,
    port: u16,
    authority: &Authority,
) -> http1::SendRequest<Body> {
    let stream = bx.tunnel(&format!("{name}:{port}")).await;
    let stream = tls(stream, name, authority, &[b"http/1.1"]).await;
    let (sender, connection) = soon(http1::handshake(TokioIo::new(stream)))
        .await
        .expect("HTTP");
    tokio::spawn(connection);
    sender
}

/// A client in the box that speaks HTTP/2.
pub async fn client_two(
    bx: &TestBox,
    name: &str,
    port: u16,
    authority: &Authority,
) -> http2::SendRequest<Body> {
    let stream = bx.tunnel(&format!("{name}:{port}")).await;
    let stream = tls(stream, name, authority, &[b"h2"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = soon(handshake).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

/// The status, the headers and the whole body of an answer.
pub async fn whole(response: Response<Incoming>) -> (u16, HeaderMap, String) {
    let (parts, body) = response.into_parts();
    let bytes = soon(body.collect()).await.expect("a body").to_bytes();
    let body = String::from_utf8_lossy(&bytes).into_owned();
    (parts.status.as_u16(), parts.headers, body)
}
