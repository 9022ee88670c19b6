//! The way to a supervisor elsewhere: a socket here whose other end is a connection there.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::TlsError;
use crate::tls;

/// How long a connection may take to come about.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where a supervisor's web server is, and how to trust it.
#[derive(Clone)]
pub struct Remote {
    host: String,
    port: u16,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

/// The files that TLS with a supervisor needs.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// Whom to trust; the authorities of the host where nothing is said.
    pub authorities: Option<PathBuf>,
    /// Who we are: a certificate and its key.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// Why a supervisor can't be asked that way.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The address is none.
    #[error("{0} is no address of a supervisor")]
    Address(String),
    /// A token would travel in the clear.
    #[error("{0} is not this machine, and its connection would not be encrypted")]
    InTheClear(String),
    /// A file for TLS can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// They don't go together.
    #[error("TLS can't be set up")]
    Setup(#[from] rustls::Error),
    /// The host trusts nobody.
    #[error("this host has no certificates to trust")]
    NobodyTrusted,
}

impl RemoteError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Address(_) => {
                "write https://HOST[:PORT], http://127.0.0.1[:PORT], or unix:PATH for its socket"
            }
            Self::InTheClear(_) => {
                "give the supervisor a certificate and write https://, or tunnel: ssh -L 8080:127.0.0.1:8080 HOST"
            }
            Self::Tls(error) => error.hint(),
            Self::Setup(_) => "the certificate file and the key file must belong together",
            Self::NobodyTrusted => {
                "install ca-certificates, or name the supervisor's authority with BELLJAR_CA"
            }
        }
    }
}

impl Remote {
    /// Reads `https://host[:port]` or `http://loopback[:port]`.
    pub fn parse(
        url: &str,
        credentials: &Credentials,
        of_host: impl FnOnce() -> Arc<RootCertStore>,
    ) -> Result<Self, RemoteError> {
        let wrong = || RemoteError::Address(url.to_owned());
        let parsed: hyper::Uri = url.parse().map_err(|_| wrong())?;
        let is_tls = match parsed.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong()),
        };
        let authority = parsed.authority().ok_or_else(wrong)?;
        let is_plain = matches!(parsed.path(), "" | "/") && parsed.query().is_none();
        if !is_plain || authority.as_str().contains('@') {
            return Err(wrong());
        }
        let host = authority.host().to_owned();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let address = bare.parse::<std::net::IpAddr>().ok();
        let is_loopback = bare == "localhost" || address.is_some_and(|ip| ip.is_loopback());
        if !is_tls && !is_loopback {
            return Err(RemoteError::InTheClear(host));
        }
        let port = authority
            .port_u16()
            .unwrap_or(if is_tls { 443 } else { 80 });
        let tls = match is_tls {
            false => None,
            true => {
                let name = ServerName::try_from(bare.to_owned()).map_err(|_| wrong())?;
                Some((configure(credentials, of_host)?, name))
            }
        };
        Ok(Self { host, port, tls })
    }

    /// What requests name as their host.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// A socket that leads there.
    pub fn connect(&self) -> io::Result<UnixStream> {
        let (near, far) = UnixStream::pair()?;
        let (said, heard) = std::sync::mpsc::sync_channel(1);
        let remote = self.clone();
        std::thread::Builder::new()
            .name("belljar-remote".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                match runtime {
                    Ok(runtime) => runtime.block_on(remote.carry(far, &said)),
                    Err(error) => drop(said.send(Err(error))),
                }
            })?;
        heard.recv().map_err(|_| io::ErrorKind::BrokenPipe)??;
        Ok(near)
    }

    /// Carries bytes both ways until either end is closed.
    async fn carry(self, far: UnixStream, said: &std::sync::mpsc::SyncSender<io::Result<()>>) {
        let opened = async {
            far.set_nonblocking(true)?;
            let far = tokio::net::UnixStream::from_std(far)?;
            let host = self.host.trim_start_matches('[').trim_end_matches(']');
            let there = TcpStream::connect((host, self.port)).await?;
            there.set_nodelay(true)?;
            let there: Box<dyn Way> = match self.tls {
                None => Box::new(there),
                Some((config, name)) => {
                    Box::new(TlsConnector::from(config).connect(name, there).await?)
                }
            };
            Ok((far, there))
        };
        let opened = tokio::time::timeout(PATIENCE, opened).await;
        match opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok((mut far, mut there)) => {
                if said.send(Ok(())).is_ok() {
                    // Whoever asks notices a connection that broke by what it does not get.
                    let _ = copy_bidirectional(&mut far, &mut there).await;
                }
            }
            Err(error) => drop(said.send(Err(error))),
        }
    }
}

trait Way: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Way for T {}

fn configure(
    credentials: &Credentials,
    of_host: impl FnOnce() -> Arc<RootCertStore>,
) -> Result<Arc<ClientConfig>, RemoteError> {
    let roots = match &credentials.authorities {
        None => of_host(),
        Some(path) => Arc::new(tls::authorities(path)?),
    };
    if roots.is_empty() {
        return Err(RemoteError::NobodyTrusted);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match &credentials.own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            builder.with_client_auth_cert(tls::certificates(certificate)?, tls::key(key)?)?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Remote, RemoteError> {
        Remote::parse(url, &Credentials::default(), || {
            Arc::new(RootCertStore::empty())
        })
    }

    #[test]
    fn a_token_travels_in_the_clear_on_this_machine_alone() {
        for url in [
            "http://127.0.0.1:8080",
            "http://[::1]:8080/",
            "http://localhost",
        ] {
            assert!(parse(url).is_ok(), "{url}");
        }
        for url in [
            "http://10.0.0.1:8080",
            "http://example.com",
            "http://[2001:db8::1]",
        ] {
            assert!(
                matches!(parse(url), Err(RemoteError::InTheClear(_))),
                "{url}"
            );
        }
    }

    #[test]
    fn what_is_no_address_is_told() {
        for url in [
            "",
            "x",
            "ftp://127.0.0.1",
            "http://",
            "http://127.0.0.1/v1",
            "http://a@127.0.0.1",
            "http://127.0.0.1/?a",
            "https://",
            "https://a b",
        ] {
            assert!(matches!(parse(url), Err(RemoteError::Address(_))), "{url}");
        }
        assert!(matches!(
            parse("https://example.com"),
            Err(RemoteError::NobodyTrusted)
        ));
    }
}
