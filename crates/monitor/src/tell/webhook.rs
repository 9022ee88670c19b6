//! One POST of JSON. Redirects are not followed: what was configured is what is told.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::url::{InvalidUrl, Url};

/// Bytes of an answer that are read.
const MOST_ANSWER: usize = 16 * 1024;

/// Why a webhook did not take it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("{0}")]
    Url(#[from] InvalidUrl),
    #[error("it can't be reached: {0}")]
    Unreachable(#[from] io::Error),
    #[error("it is not who it should be: {0}")]
    Tls(String),
    #[error("it answers {0}")]
    Status(u16),
    #[error("it does not answer in HTTP")]
    Protocol,
}

impl Refused {
    /// Whether another attempt may help.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Protocol => true,
            Self::Status(code) => *code >= 500 || *code == 429,
            Self::Url(_) | Self::Tls(_) => false,
        }
    }
}

/// Sends it, within that time.
pub(crate) fn post(url: &str, body: &str, patience: Duration) -> Result<(), Refused> {
    let url = Url::parse(url)?;
    let until = Instant::now() + patience;
    let stream = connect(&url, until)?;
    let request = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nUser-Agent: belljar\r\nConnection: close\r\n\r\n{body}",
        url.path,
        url.authority(),
        body.len()
    );
    let mut timed = Timed { stream, until };
    let status = if url.is_tls {
        let name = ServerName::try_from(url.host.clone()).map_err(|_| InvalidUrl::Host)?;
        let connection = ClientConnection::new(trust()?, name)
            .map_err(|error| Refused::Tls(error.to_string()))?;
        exchange(&mut StreamOwned::new(connection, timed), &request)
    } else {
        exchange(&mut timed, &request)
    }?;
    match status {
        200..300 => Ok(()),
        other => Err(Refused::Status(other)),
    }
}

fn connect(url: &Url, until: Instant) -> Result<TcpStream, Refused> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in (url.host.as_str(), url.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(until)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last.into())
}

fn exchange(stream: &mut (impl Read + Write), request: &str) -> Result<u16, Refused> {
    let sent = stream
        .write_all(request.as_bytes())
        .and_then(|()| stream.flush());
    if let Err(error) = sent {
        return Err(failure(error));
    }
    let mut answer = Vec::new();
    let mut piece = [0; 1024];
    while answer.len() < MOST_ANSWER {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut headers);
        match response.parse(&answer) {
            Ok(httparse::Status::Complete(_)) => {
                return response.code.ok_or(Refused::Protocol);
            }
            Ok(httparse::Status::Partial) => {}
            Err(_) => return Err(Refused::Protocol),
        }
        match stream.read(&mut piece) {
            Ok(0) => return Err(Refused::Protocol),
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) => return Err(failure(error)),
        }
    }
    Err(Refused::Protocol)
}

/// A certificate that is no good comes as an error of reading or writing.
fn failure(error: io::Error) -> Refused {
    match error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>())
    {
        Some(tls) => Refused::Tls(tls.to_string()),
        None => Refused::Unreachable(error),
    }
}

/// Whom this host trusts, read once.
fn trust() -> Result<Arc<ClientConfig>, Refused> {
    static TRUST: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(known) = TRUST.get() {
        return Ok(Arc::clone(known));
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Refused::Tls(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::clone(TRUST.get_or_init(|| Arc::new(config))))
}

/// A connection that ends at a deadline, however slowly its other end goes on.
struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.until)?))?;
        self.stream.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(left(self.until)?))?;
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// What is left of the time; never zero, which would mean "for ever".
fn left(until: Instant) -> io::Result<Duration> {
    match until.checked_duration_since(Instant::now()) {
        Some(left) if !left.is_zero() => Ok(left),
        _ => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    /// A server that takes one request and says this.
    fn server(answer: &'static str) -> (String, thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook?k=v", listener.local_addr().unwrap());
        let thread = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut piece = [0; 4096];
            while !request.ends_with(b"{\"x\":1}") {
                match stream.read(&mut piece).unwrap() {
                    0 => break,
                    count => request.extend_from_slice(&piece[..count]),
                }
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(request).unwrap()
        });
        (url, thread)
    }

    const BODY: &str = "{\"x\":1}";
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_alert_is_posted_as_json() {
        let (url, thread) = server("HTTP/1.1 204 No Content\r\n\r\n");
        post(&url, BODY, LONG).unwrap();
        let request = thread.join().unwrap();
        assert!(
            request.starts_with("POST /hook?k=v HTTP/1.1\r\nHost: 127.0.0.1:"),
            "{request}"
        );
        assert!(request.contains("\r\nContent-Type: application/json\r\nContent-Length: 7\r\n"));
        assert!(request.ends_with("\r\n\r\n{\"x\":1}"));
    }

    #[test]
    fn answers_that_are_no_success_are_told_apart() {
        for (answer, again, words) in [
            (
                "HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\n\r\n",
                false,
                "302",
            ),
            ("HTTP/1.1 503 Busy\r\n\r\n", true, "503"),
            ("HTTP/1.1 404 No\r\n\r\n", false, "404"),
            ("SSH-2.0-x\r\n\r\n", true, "HTTP"),
            ("", true, "HTTP"),
        ] {
            let (url, thread) = server(answer);
            let refused = post(&url, BODY, LONG).unwrap_err();
            thread.join().unwrap();
            assert!(refused.to_string().contains(words), "{refused}");
            assert_eq!(refused.may_pass(), again, "{refused}");
        }
    }

    #[test]
    fn one_that_never_answers_costs_no_more_than_its_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let refused = post(&url, BODY, Duration::from_millis(50)).unwrap_err();
        assert!(matches!(refused, Refused::Unreachable(_)), "{refused}");
    }

    #[test]
    fn a_certificate_that_nobody_vouches_for_is_refused() {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key =
            rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!(
            "https://localhost:{}/",
            listener.local_addr().unwrap().port()
        );
        let thread = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let connection = rustls::ServerConnection::new(Arc::new(config)).unwrap();
            let mut text = Vec::new();
            let _ = StreamOwned::new(connection, stream).read_to_end(&mut text);
            text
        });
        let refused = post(&url, BODY, LONG).unwrap_err();
        assert!(matches!(refused, Refused::Tls(_)), "{refused:?}");
        assert!(
            thread.join().unwrap().is_empty(),
            "it was told to a stranger"
        );
    }
}
