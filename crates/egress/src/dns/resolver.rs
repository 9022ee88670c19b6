//! How the host finds a name's addresses.
//!
//! The C library's resolver may load plug-ins, which a static program can't; so `/etc/hosts` and the name servers of
//! `/etc/resolv.conf` are asked directly.

use std::fs::File;
use std::future::Future;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use belljar_policy::Host;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::codec::{RecordType, Response, decode_response, encode_query};

const MOST_ADDRESSES: usize = 16;
const MOST_SERVERS: usize = 3;
const LARGEST_FILE: u64 = 1024 * 1024;
const LARGEST_UDP: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(3);
const ROUNDS: usize = 2;

/// The addresses of a name, once they are known.
pub type Resolving<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, ResolveError>> + Send + 'a>>;

/// Finds the addresses of a name, on the host.
pub trait Resolve: Send + Sync {
    /// The addresses of `name`, in the order to try them.
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a>;
}

/// Why a name came to no address.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// There is no such name.
    #[error("no such name")]
    NoSuchName,
    /// The name has no addresses.
    #[error("the name has no address")]
    NoAddress,
    /// No name server answered.
    #[error("no name server answered")]
    NoAnswer,
    /// The host names no name server.
    #[error("the host names no name server")]
    NoServer,
    /// The system gave nothing to wait with.
    #[error("the system gave no way to ask")]
    System(#[source] io::Error),
    /// A file could not be read.
    #[error("a file of the resolver could not be read")]
    File(#[source] io::Error),
}

/// The host's own configuration: its hosts file, then its name servers.
#[derive(Clone, Debug)]
pub struct SystemResolver {
    hosts: PathBuf,
    configuration: PathBuf,
    port: u16,
}

impl Default for SystemResolver {
    fn default() -> Self {
        Self {
            hosts: "/etc/hosts".into(),
            configuration: "/etc/resolv.conf".into(),
            port: 53,
        }
    }
}

impl SystemResolver {
    /// A resolver with files and a name server port of one's own.
    #[must_use]
    pub fn with_files(hosts: PathBuf, configuration: PathBuf, port: u16) -> Self {
        Self {
            hosts,
            configuration,
            port,
        }
    }

    /// The addresses of a name, for callers without a runtime. It waits for the name servers.
    ///
    /// # Errors
    /// When there is none, or nobody who would know.
    pub fn resolve_now(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ResolveError::System)?;
        runtime.block_on(self.look_up(name))
    }

    async fn look_up(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        // The query's writer counts on labels that fit.
        let host = Host::parse(name).map_err(|_| ResolveError::NoSuchName)?;
        let name = host.name().ok_or(ResolveError::NoSuchName)?;
        let listed = listed_addresses(&read_bounded(&self.hosts)?, name);
        if !listed.is_empty() {
            return Ok(listed);
        }
        let servers = name_servers(&read_bounded(&self.configuration)?, self.port);
        if servers.is_empty() {
            return Err(ResolveError::NoServer);
        }
        let (v4, v6) = tokio::join!(
            ask_all(&servers, name, RecordType::A),
            ask_all(&servers, name, RecordType::AAAA)
        );
        match (v4, v6) {
            (Ok(mut addresses), v6) => {
                addresses.extend(v6.unwrap_or_default());
                Some(addresses)
                    .filter(|found| !found.is_empty())
                    .ok_or(ResolveError::NoAddress)
            }
            (Err(_), Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
            (Err(error), _) => Err(error),
        }
    }
}

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a> {
        Box::pin(self.look_up(name))
    }
}

/// A missing file is an empty one, as it is for the C library.
fn read_bounded(path: &Path) -> Result<String, ResolveError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(ResolveError::File(error)),
    };
    let mut bytes = Vec::new();
    file.take(LARGEST_FILE)
        .read_to_end(&mut bytes)
        .map_err(ResolveError::File)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(['#', ';'])
        .next()
        .unwrap_or_default()
        .split_ascii_whitespace()
}

fn listed_addresses(hosts: &str, name: &str) -> Vec<IpAddr> {
    let listed = hosts.lines().filter_map(|line| {
        let mut words = words(line);
        let address = words.next()?.parse().ok()?;
        words
            .any(|own| own.trim_end_matches('.').eq_ignore_ascii_case(name))
            .then_some(address)
    });
    let found: Vec<IpAddr> = listed.take(MOST_ADDRESSES).collect();
    if found.is_empty() && (name == "localhost" || name.ends_with(".localhost")) {
        return vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    }
    found
}

fn name_servers(configuration: &str, port: u16) -> Vec<SocketAddr> {
    let servers = configuration.lines().filter_map(|line| {
        let mut words = words(line);
        let address = (words.next()? == "nameserver").then(|| words.next())??;
        Some(SocketAddr::new(address.parse().ok()?, port))
    });
    servers.take(MOST_SERVERS).collect()
}

async fn ask_all(
    servers: &[SocketAddr],
    name: &str,
    kind: RecordType,
) -> Result<Vec<IpAddr>, ResolveError> {
    for _ in 0..ROUNDS {
        for server in servers {
            match timeout(PATIENCE, ask(*server, name, kind)).await {
                Ok(Ok(Response::Addresses(addresses))) => return Ok(addresses),
                Ok(Ok(Response::NoSuchName)) => return Err(ResolveError::NoSuchName),
                _ => {}
            }
        }
    }
    Err(ResolveError::NoAnswer)
}

async fn ask(server: SocketAddr, name: &str, kind: RecordType) -> io::Result<Response> {
    let query = encode_query(random_id()?, name, kind);
    let own: IpAddr = if server.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    // Connected, so that only this server's packets arrive; the kernel chooses a random port.
    let socket = UdpSocket::bind(SocketAddr::new(own, 0)).await?;
    socket.connect(server).await?;
    socket.send(&query).await?;
    let mut buffer = vec![0; LARGEST_UDP];
    loop {
        let length = socket.recv(&mut buffer).await?;
        match decode_response(
            buffer.get(..length).unwrap_or_default(),
            &query,
            MOST_ADDRESSES,
        ) {
            None => {}
            Some(Response::Truncated) => return ask_again(server, &query).await,
            Some(response) => return Ok(response),
        }
    }
}

async fn ask_again(server: SocketAddr, query: &[u8]) -> io::Result<Response> {
    let mut stream = TcpStream::connect(server).await?;
    let mut framed = (query.len() as u16).to_be_bytes().to_vec();
    framed.extend_from_slice(query);
    stream.write_all(&framed).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(decode_response(&answer, query, MOST_ADDRESSES).unwrap_or(Response::Failed))
}

/// An id nobody on the way can guess.
fn random_id() -> io::Result<u16> {
    let mut bytes = [0; 2];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u16::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::codec::{Query, ResponseCode};

    #[test]
    fn files_are_read_as_the_c_library_does() {
        let hosts = "127.0.0.1 localhost # own\n10.0.0.9\tdb.internal db\n::1 db\nnonsense db\n";
        assert_eq!(
            listed_addresses(hosts, "db"),
            [
                "10.0.0.9".parse::<IpAddr>().unwrap(),
                "::1".parse().unwrap()
            ]
        );
        assert!(listed_addresses(hosts, "own").is_empty());
        assert_eq!(listed_addresses("", "localhost").len(), 2);
        let servers = name_servers(
            "search x\n nameserver 192.0.2.1\nnameserver ::1 ; x\n#nameserver 9.9.9.9\n",
            53,
        );
        assert_eq!(
            servers,
            ["192.0.2.1:53".parse().unwrap(), "[::1]:53".parse().unwrap()]
        );
    }

    #[tokio::test]
    async fn a_name_server_is_asked_over_udp_and_again_over_tcp() {
        let directory = tempfile::tempdir().unwrap();
        let (hosts, conf) = (
            directory.path().join("hosts"),
            directory.path().join("resolv.conf"),
        );
        std::fs::write(&conf, "nameserver 127.0.0.1\n").unwrap();
        // The same free port twice over: take TCP first, then UDP at its number, until both succeed.
        let (tcp, udp) = loop {
            let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
                break (tcp, udp);
            }
        };
        let port = udp.local_addr().unwrap().port();
        let answer = |bytes: &[u8]| {
            let query = Query::parse(bytes).unwrap();
            match (query.name.as_slice(), query.kind) {
                (b"a.test" | b"big.test", RecordType::A) => {
                    query.answer(ResponseCode::NoError, Some(IpAddr::from([192, 0, 2, 7])), 5)
                }
                (b"none.test", _) => query.answer(ResponseCode::NoSuchName, None, 5),
                _ => query.answer(ResponseCode::NoError, None, 5),
            }
        };
        let over_udp = tokio::spawn(async move {
            let mut buffer = [0; 512];
            loop {
                let (length, from) = udp.recv_from(&mut buffer).await.unwrap();
                let mut reply = answer(&buffer[..length]);
                if reply.windows(3).any(|w| w == b"big") {
                    reply[2] |= 2;
                }
                udp.send_to(&reply, from).await.unwrap();
            }
        });
        let over_tcp = tokio::spawn(async move {
            loop {
                let (mut stream, _) = tcp.accept().await.unwrap();
                let mut query = vec![0; usize::from(stream.read_u16().await.unwrap())];
                stream.read_exact(&mut query).await.unwrap();
                let reply = answer(&query);
                stream.write_u16(reply.len() as u16).await.unwrap();
                stream.write_all(&reply).await.unwrap();
            }
        });
        let resolver = SystemResolver::with_files(hosts, conf, port);
        let expect = vec![IpAddr::from([192, 0, 2, 7])];
        assert_eq!(resolver.resolve("a.test").await.unwrap(), expect);
        assert_eq!(resolver.resolve("big.test").await.unwrap(), expect);
        assert!(matches!(
            resolver.resolve("none.test").await,
            Err(ResolveError::NoSuchName)
        ));
        assert!(matches!(
            resolver.resolve("empty.test").await,
            Err(ResolveError::NoAddress)
        ));
        over_udp.abort();
        over_tcp.abort();
    }
}
