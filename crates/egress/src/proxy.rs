//! The proxy listener, for programs that insist on one: HTTP `CONNECT` and SOCKS5 on one port.
//!
//! It opens nothing that a plain connection would not: the same rules, the same checks.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use belljar_policy::Host;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::gate::{Admission, Refused};
use crate::record::{RefusalCode, Way, printable};
use crate::serve::{Shared, serve};

const LARGEST_HEAD: usize = 16 * 1024;
const SOCKS5: u8 = 5;

/// Serves one client of the proxy.
pub(crate) async fn serve_proxy(shared: Arc<Shared>, mut client: TcpStream) {
    let _ = client.set_nodelay(true);
    let asked = timeout(shared.greeting, ask(&shared, &mut client)).await;
    match asked {
        Ok(Ok(Some(Asked::Tunnel(admission, first)))) => {
            serve(shared, client, first, admission).await
        }
        Ok(Ok(Some(Asked::Forward(first)))) => {
            shared.inspector.serve_forward(&shared, client, first).await;
        }
        // Refused and recorded, or the client's own failure.
        _ => {}
    }
}

enum Asked {
    /// A connection to a host, and what the client sent for it already.
    Tunnel(Admission, Vec<u8>),
    /// A request for a host: what was read of it so far.
    Forward(Vec<u8>),
}

async fn ask(shared: &Shared, client: &mut TcpStream) -> io::Result<Option<Asked>> {
    let mut first = [0];
    if client.peek(&mut first).await? == 0 {
        return Ok(None);
    }
    match first {
        [SOCKS5] => {
            let admission = socks(shared, client).await?;
            Ok(admission.map(|admission| Asked::Tunnel(admission, Vec::new())))
        }
        [b'A'..=b'Z'] => http(shared, client).await,
        _ => {
            let detail = Some("neither SOCKS5 nor HTTP".to_owned());
            shared.gate.refuse(
                Way::HttpProxy,
                "",
                None,
                None,
                RefusalCode::Malformed,
                detail,
            );
            Ok(None)
        }
    }
}

async fn http(shared: &Shared, client: &mut TcpStream) -> io::Result<Option<Asked>> {
    const TUNNEL: &[u8] = b"CONNECT ";
    let mut head = Vec::new();
    loop {
        let mut chunk = [0; 2048];
        let count = client.read(&mut chunk).await?;
        if count == 0 {
            return Ok(None);
        }
        head.extend_from_slice(chunk.get(..count).unwrap_or_default());
        if head.iter().zip(TUNNEL).any(|(byte, tunnel)| byte != tunnel) {
            return Ok(Some(Asked::Forward(head)));
        }
        if let Some(end) = end_of_head(&head) {
            let first = head.split_off(end);
            let admission = connect(shared, client, &head).await?;
            return Ok(admission.map(|admission| Asked::Tunnel(admission, first)));
        }
        if head.len() > LARGEST_HEAD {
            let detail = Some("the head is too long".to_owned());
            shared.gate.refuse(
                Way::HttpProxy,
                "",
                None,
                None,
                RefusalCode::Malformed,
                detail,
            );
            return Ok(None);
        }
    }
}

fn end_of_head(bytes: &[u8]) -> Option<usize> {
    bytes
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .map(|at| at + 4)
}

async fn connect(
    shared: &Shared,
    client: &mut TcpStream,
    head: &[u8],
) -> io::Result<Option<Admission>> {
    let admitted = match parse_connect(head) {
        Ok((host, port)) => shared.gate.admit(Way::HttpProxy, &host, port),
        Err((target, code)) => {
            Err(shared
                .gate
                .refuse(Way::HttpProxy, &printable(&target), None, None, code, None))
        }
    };
    match admitted {
        Ok(admission) => {
            client
                .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
                .await?;
            Ok(Some(admission))
        }
        Err(Refused(code)) => {
            let body = format!("Belljar refused this connection: {}\n", code.code());
            let answer = format!(
                "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            client.write_all(answer.as_bytes()).await?;
            client.shutdown().await?;
            Ok(None)
        }
    }
}

/// The host and port of a `CONNECT`, and that its `Host`, if any, says the same.
fn parse_connect(head: &[u8]) -> Result<(Host, u16), (Vec<u8>, RefusalCode)> {
    let malformed = |part: &[u8]| (part.to_vec(), RefusalCode::Malformed);
    let text = std::str::from_utf8(head).map_err(|_| malformed(head.get(..64).unwrap_or(head)))?;
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap_or_default();
    let mut words = line.split(' ');
    let (method, target, version) = (words.next(), words.next().unwrap_or_default(), words.next());
    let well_formed = method == Some("CONNECT")
        && matches!(version, Some("HTTP/1.1" | "HTTP/1.0"))
        && words.next().is_none();
    if !well_formed {
        return Err(malformed(line.as_bytes()));
    }
    let authority = parse_authority(target).map_err(|code| (target.as_bytes().to_vec(), code))?;
    for header in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = header
            .split_once(':')
            .ok_or_else(|| malformed(header.as_bytes()))?;
        // A bare line feed or carriage return would be a line to some and not to others.
        if name.is_empty() || name.contains([' ', '\t']) || header.contains(['\r', '\n', '\0']) {
            return Err(malformed(header.as_bytes()));
        }
        if name.eq_ignore_ascii_case("host") {
            let value = value.trim_matches([' ', '\t']);
            let host = Host::parse(value.rsplit_once(':').map_or(value, |(host, _)| host)).ok();
            if host.or_else(|| Host::parse(value).ok()).as_ref() != Some(&authority.0) {
                return Err((target.as_bytes().to_vec(), RefusalCode::NameMismatch));
            }
        }
    }
    Ok(authority)
}

/// `host:port`, both given.
pub(crate) fn parse_authority(text: &str) -> Result<(Host, u16), RefusalCode> {
    let (host, port) = text.rsplit_once(':').ok_or(RefusalCode::Malformed)?;
    let decimal = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let port: u16 = port
        .parse()
        .ok()
        .filter(|_| decimal)
        .ok_or(RefusalCode::Malformed)?;
    // An IPv6 address without brackets could be cut anywhere.
    if host.contains(':') && !host.starts_with('[') {
        return Err(RefusalCode::InvalidHost);
    }
    let host = Host::parse(host).map_err(|_| RefusalCode::InvalidHost)?;
    Ok((host, port))
}

async fn socks(shared: &Shared, client: &mut TcpStream) -> io::Result<Option<Admission>> {
    const NO_AUTHENTICATION: u8 = 0;
    const CONNECT: u8 = 1;
    // The version was looked at, not taken.
    client.read_u8().await?;
    let count = client.read_u8().await?;
    let mut methods = vec![0; usize::from(count)];
    client.read_exact(&mut methods).await?;
    if !methods.contains(&NO_AUTHENTICATION) {
        client.write_all(&[SOCKS5, 0xff]).await?;
        return Ok(None);
    }
    client.write_all(&[SOCKS5, NO_AUTHENTICATION]).await?;
    let mut request = [0; 4];
    client.read_exact(&mut request).await?;
    let target = socks_target(client, request[3]).await?;
    let port = client.read_u16().await?;
    let refuse = |code, detail: Option<String>| {
        let shown = printable(&target.shown);
        shared
            .gate
            .refuse(Way::Socks, &shown, Some(port), None, code, detail)
    };
    let admitted = match (&target.host, request) {
        (_, [SOCKS5, CONNECT, 0, 1 | 3 | 4]) => match &target.host {
            Some(host) => shared.gate.admit(Way::Socks, host, port),
            None => Err(refuse(RefusalCode::InvalidHost, None)),
        },
        _ => Err(refuse(
            RefusalCode::Malformed,
            Some("only CONNECT is offered".to_owned()),
        )),
    };
    let status = match &admitted {
        Ok(_) => 0,
        Err(_) if request[1] != CONNECT => 7,
        Err(_) => 2,
    };
    client
        .write_all(&[SOCKS5, status, 0, 1, 0, 0, 0, 0, 0, 0])
        .await?;
    Ok(admitted.ok())
}

struct SocksTarget {
    host: Option<Host>,
    shown: Vec<u8>,
}

async fn socks_target(client: &mut TcpStream, kind: u8) -> io::Result<SocksTarget> {
    let address = |address: IpAddr| SocksTarget {
        host: Some(Host::from(address)),
        shown: address.to_string().into_bytes(),
    };
    match kind {
        1 => Ok(address(
            Ipv4Addr::from_bits(client.read_u32().await?).into(),
        )),
        4 => Ok(address(
            Ipv6Addr::from_bits(client.read_u128().await?).into(),
        )),
        3 => {
            let mut name = vec![0; usize::from(client.read_u8().await?)];
            client.read_exact(&mut name).await?;
            let host = std::str::from_utf8(&name)
                .ok()
                .and_then(|text| Host::parse(text).ok());
            Ok(SocksTarget { host, shown: name })
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_connect_names_one_host() {
        let check = |head: &str, expect: Result<&str, RefusalCode>| {
            let parsed = parse_connect(head.as_bytes());
            let shown = parsed
                .map(|(host, port)| format!("{host} {port}"))
                .map_err(|(_, code)| code);
            assert_eq!(shown, expect.map(str::to_owned), "{head:?}");
        };
        check("CONNECT A.com:443 HTTP/1.1\r\n\r\n", Ok("a.com 443"));
        check(
            "CONNECT a.com:443 HTTP/1.1\r\nHost: a.com:443\r\nX: y\r\n\r\n",
            Ok("a.com 443"),
        );
        check(
            "CONNECT a.com:443 HTTP/1.1\r\nHost: a.com\r\n\r\n",
            Ok("a.com 443"),
        );
        check(
            "CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]\r\n\r\n",
            Ok("::1 443"),
        );
        check("CONNECT 0x7f.1:443 HTTP/1.1\r\n\r\n", Ok("127.0.0.1 443"));
        check(
            "CONNECT a.com:443 HTTP/1.1\r\nHost: b.com\r\n\r\n",
            Err(RefusalCode::NameMismatch),
        );
        check(
            "CONNECT a.com:443 HTTP/1.1\r\nHost: a.com\r\nHost: b.com\r\n\r\n",
            Err(RefusalCode::NameMismatch),
        );
        check(
            "CONNECT x@a.com:443 HTTP/1.1\r\n\r\n",
            Err(RefusalCode::InvalidHost),
        );
        check(
            "CONNECT a.com\0:443 HTTP/1.1\r\n\r\n",
            Err(RefusalCode::InvalidHost),
        );
        check(
            "CONNECT ::1:443 HTTP/1.1\r\n\r\n",
            Err(RefusalCode::InvalidHost),
        );
        check(
            "CONNECT a.com HTTP/1.1\r\n\r\n",
            Err(RefusalCode::Malformed),
        );
        check(
            "CONNECT a.com:+443 HTTP/1.1\r\n\r\n",
            Err(RefusalCode::Malformed),
        );
        check(
            "CONNECT a.com:443 b HTTP/1.1\r\n\r\n",
            Err(RefusalCode::Malformed),
        );
        check(
            "CONNECT a.com:443 HTTP/2.0\r\n\r\n",
            Err(RefusalCode::Malformed),
        );
        check(
            "CONNECT a.com:443 HTTP/1.1\r\nX\nHost: b.com\r\n\r\n",
            Err(RefusalCode::Malformed),
        );
        check(
            "CONNECT a.com:443 HTTP/1.1\r\nX: y\nHost: b.com\r\n\r\n",
            Err(RefusalCode::Malformed),
        );
        check(
            "CONNECT a.com:443 HTTP/1.1\r\nHost : b.com\r\n\r\n",
            Err(RefusalCode::Malformed),
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn no_bytes_break_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_connect(&bytes);
            let _ = parse_connect(&[b"CONNECT ", bytes.as_slice()].concat());
        }
    }
}
