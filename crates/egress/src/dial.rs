//! From a name to a connection: resolve on the host, check every address, dial what was checked.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use belljar_policy::{Host, ProxyResolution};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::dns::{Resolve, ResolveError};
use crate::gate::{Admission, Refused};
use crate::record::RefusalCode;

/// How many addresses of one name are tried.
const MOST_TRIES: usize = 4;
const LARGEST_PROXY_ANSWER: usize = 8 * 1024;

/// A proxy of the host's network that connections go through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamProxy {
    /// Where it is. It is the operator's own choice, so it may be at a private address.
    pub host: Host,
    /// Its port.
    pub port: u16,
    /// Who turns names into addresses.
    pub resolution: ProxyResolution,
    /// The value of `Proxy-Authorization`, for proxies that ask for one.
    pub authorization: Option<crate::secret::SecretText>,
}

/// Makes connections.
pub(crate) struct Dialer {
    pub(crate) resolver: Arc<dyn Resolve>,
    pub(crate) proxy: Option<UpstreamProxy>,
    pub(crate) resolve_timeout: Duration,
    pub(crate) connect_timeout: Duration,
}

impl Dialer {
    /// Connects to the host that was admitted.
    pub(crate) async fn dial(&self, admission: &Admission) -> Result<TcpStream, Refused> {
        let proxy = self
            .proxy
            .as_ref()
            .filter(|_| !is_loopback(admission.host()));
        match (proxy, admission.host().name()) {
            (Some(proxy), Some(name)) if proxy.resolution == ProxyResolution::AtProxy => {
                let target = format!("{name}:{}", admission.port());
                self.through(proxy, &target, admission).await
            }
            (Some(proxy), _) => {
                let addresses = self.addresses(admission).await?;
                // There is at least one, or it was refused.
                let first = addresses.first().copied();
                let first = first.ok_or_else(|| admission.refuse(RefusalCode::Unresolved, None))?;
                let address = SocketAddr::new(first, admission.port());
                self.through(proxy, &address.to_string(), admission).await
            }
            (None, _) => self.direct(admission).await,
        }
    }

    async fn direct(&self, admission: &Admission) -> Result<TcpStream, Refused> {
        let mut last = None;
        for address in self.addresses(admission).await? {
            let target = SocketAddr::new(address, admission.port());
            match timeout(self.connect_timeout, TcpStream::connect(target)).await {
                Ok(Ok(stream)) => {
                    // Small writes go at once; failing to say so costs only time.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => last = Some(format!("{target}: {error}")),
                Err(_) => last = Some(format!("{target}: no answer in {:?}", self.connect_timeout)),
            }
        }
        Err(admission.refuse(RefusalCode::Unreachable, last))
    }

    /// The host's addresses that a rule reaches: never none.
    async fn addresses(&self, admission: &Admission) -> Result<Vec<IpAddr>, Refused> {
        let host = admission.host();
        let found = match (host.address(), host.name()) {
            (Some(address), _) => vec![address],
            (None, Some(name)) => self.resolve(name, admission).await?,
            (None, None) => Vec::new(),
        };
        let rules = admission.gate().rules();
        let reached = |address: &IpAddr| rules.reaches(host, admission.port(), *address);
        let (mut reached, beyond): (Vec<IpAddr>, Vec<IpAddr>) =
            found.into_iter().partition(reached);
        if reached.is_empty() {
            let shown = beyond
                .iter()
                .map(IpAddr::to_string)
                .collect::<Vec<_>>()
                .join(", ");
            return Err(admission.refuse(
                RefusalCode::PrivateAddress,
                Some(format!("it is at {shown}")),
            ));
        }
        reached.truncate(MOST_TRIES);
        Ok(reached)
    }

    async fn resolve(&self, name: &str, admission: &Admission) -> Result<Vec<IpAddr>, Refused> {
        let answer = timeout(self.resolve_timeout, self.resolver.resolve(name)).await;
        let unresolved = |error: ResolveError| {
            admission.refuse(RefusalCode::Unresolved, Some(error.to_string()))
        };
        match answer {
            Ok(Ok(addresses)) if addresses.is_empty() => Err(unresolved(ResolveError::NoAddress)),
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(error)) => Err(unresolved(error)),
            Err(_) => Err(unresolved(ResolveError::NoAnswer)),
        }
    }

    async fn through(
        &self,
        proxy: &UpstreamProxy,
        target: &str,
        admission: &Admission,
    ) -> Result<TcpStream, Refused> {
        let place = format!("the proxy {}:{}", proxy.host, proxy.port);
        let connecting = async {
            let address = self.proxy_address(proxy).await?;
            connect_through(proxy, address, target).await
        };
        let detail = match timeout(self.connect_timeout, connecting).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => format!("{place}: {error}"),
            Err(_) => format!("{place} did not answer"),
        };
        Err(admission.refuse(RefusalCode::Unreachable, Some(detail)))
    }

    async fn proxy_address(&self, proxy: &UpstreamProxy) -> io::Result<SocketAddr> {
        let address = match (proxy.host.address(), proxy.host.name()) {
            (Some(address), _) => Some(address),
            (None, Some(name)) => {
                let found = self.resolver.resolve(name).await;
                found.map_err(io::Error::other)?.first().copied()
            }
            (None, None) => None,
        };
        let address = address.ok_or_else(|| io::Error::other(ResolveError::NoAddress))?;
        Ok(SocketAddr::new(address, proxy.port))
    }
}

/// The host itself: no proxy of its network leads there.
fn is_loopback(host: &Host) -> bool {
    let address = host.address().map(|address| address.to_canonical());
    host.name() == Some("localhost") || address.is_some_and(|address| address.is_loopback())
}

async fn connect_through(
    proxy: &UpstreamProxy,
    address: SocketAddr,
    target: &str,
) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    let _ = stream.set_nodelay(true);
    let mut request =
        zeroize::Zeroizing::new(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"));
    if let Some(value) = &proxy.authorization {
        request.push_str("Proxy-Authorization: ");
        request.push_str(value.expose());
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    // Byte by byte, as what follows the answer is the host's.
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= LARGEST_PROXY_ANSWER {
            return Err(io::Error::other("its answer is too long"));
        }
        answer.push(stream.read_u8().await?);
    }
    let status = answer.split(|b| *b == b' ').nth(1);
    if status.is_some_and(|status| status.len() == 3 && status.first() == Some(&b'2')) {
        return Ok(stream);
    }
    // Its words may be the request's, and that has a password in it.
    let code = status.and_then(|status| std::str::from_utf8(status).ok());
    let code = code.and_then(|status| status.parse::<u16>().ok());
    Err(io::Error::other(match code {
        Some(code @ 100..=599) => format!("it answered {code}"),
        _ => "it answered what is no HTTP".to_owned(),
    }))
}
