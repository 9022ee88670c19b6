//! The server that is reached, and a client: as little work as HTTP over TLS can be, so that what is between them shows.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::{NAME, runtime};

const BODY: usize = 850;

/// A server on a thread of its own, and the authority that vouches for it.
pub(crate) struct Origin {
    pub(crate) port: u16,
    pub(crate) root: PathBuf,
}

impl Origin {
    pub(crate) fn start(scratch: &Path) -> Self {
        let (root_pem, acceptor) = certified();
        let root = scratch.join("origin.pem");
        std::fs::write(&root, root_pem).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            runtime().block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    tokio::spawn(answer(stream, acceptor.clone()));
                }
            });
        });
        Self { port, root }
    }
}

/// Answers requests with JSON until the client ends.
async fn answer(stream: TcpStream, acceptor: TlsAcceptor) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut stream = acceptor.accept(stream).await.ok()?;
    let body = format!("{{\"text\":\"{}\"}}", "x".repeat(BODY - 11));
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
    let answer = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let (mut buffer, mut length) = ([0; 4096], 0);
    loop {
        let count = stream.read(&mut buffer[length..]).await.ok()?;
        if count == 0 {
            return None;
        }
        length += count;
        if buffer[..length].ends_with(b"\r\n\r\n") {
            length = 0;
            stream.write_all(answer.as_bytes()).await.ok()?;
            stream.flush().await.ok()?;
        }
    }
}

fn certified() -> (String, TlsAcceptor) {
    let root_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(DnType::CommonName, "bench root");
    let root = params.self_signed(&root_key).unwrap();
    let issuer = Issuer::new(params, root_key);
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, NAME);
    let leaf = params.signed_by(&key, &issuer).unwrap();
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], private)
        .unwrap();
    (root.pem(), TlsAcceptor::from(Arc::new(config)))
}

/// How a client gets to the server.
pub(crate) struct Route {
    /// The proxy to ask, if any.
    pub(crate) proxy: Option<SocketAddr>,
    pub(crate) port: u16,
    connector: TlsConnector,
}

impl Route {
    /// A route whose end is vouched for by the authority in a file.
    pub(crate) fn new(proxy: Option<SocketAddr>, port: u16, root: &Path, protocol: &str) -> Self {
        let mut roots = RootCertStore::empty();
        let pem = std::fs::read(root).unwrap();
        roots
            .add(CertificateDer::from_pem_slice(&pem).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        Self {
            proxy,
            port,
            connector: TlsConnector::from(Arc::new(config)),
        }
    }

    /// A connection through the proxy, or to the server itself.
    pub(crate) async fn connect(&self) -> TcpStream {
        connect(self.proxy, self.port).await
    }

    pub(crate) async fn connect_tls(&self) -> TlsStream<TcpStream> {
        let name = ServerName::try_from(NAME).unwrap();
        let stream = self.connect().await;
        self.connector.connect(name, stream).await.unwrap()
    }
}

pub(crate) async fn connect(proxy: Option<SocketAddr>, port: u16) -> TcpStream {
    let direct = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect(proxy.unwrap_or(direct)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    if proxy.is_some() {
        let ask = format!("CONNECT {NAME}:{port} HTTP/1.1\r\nHost: {NAME}:{port}\r\n\r\n");
        stream.write_all(ask.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 200"), "{}", head.escape_ascii());
    }
    stream
}

/// Asks once and takes the whole answer.
pub(crate) async fn ask(stream: &mut TlsStream<TcpStream>, port: u16, buffer: &mut Vec<u8>) {
    let request = format!("GET /v1/item HTTP/1.1\r\nHost: {NAME}:{port}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    buffer.clear();
    loop {
        let count = stream.read_buf(buffer).await.unwrap();
        assert!(count > 0, "{}", buffer.escape_ascii());
        let fine = b"HTTP/1.1 200 ";
        let common = buffer.len().min(fine.len());
        assert!(
            buffer[..common] == fine[..common],
            "{}",
            buffer.escape_ascii()
        );
        // Nothing but the body's last bytes ends like this.
        if buffer.ends_with(b"x\"}") {
            return;
        }
    }
}
