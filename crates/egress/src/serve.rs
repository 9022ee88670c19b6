//! One connection from the box, from its first byte to its last.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use belljar_policy::{Host, Outcome};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::{EncryptedHello, ProtocolPorts};
use crate::dial::Dialer;
use crate::dns::Meaning;
use crate::gate::{Admission, Gate, Refused};
use crate::hello::{ClientHello, FirstBytes, LARGEST_HELLO, classify};
use crate::inspect::Inspector;
use crate::record::{RefusalCode, Way, printable};
use crate::relay::{Patience, relay};

/// What every connection needs.
pub(crate) struct Shared {
    pub(crate) gate: Arc<Gate>,
    pub(crate) dialer: Dialer,
    pub(crate) inspector: Inspector,
    pub(crate) patience: Patience,
    pub(crate) greeting: Duration,
    pub(crate) encrypted_hello: EncryptedHello,
    pub(crate) ports: ProtocolPorts,
}

/// Serves a connection that was led here, and wanted to go to `destination`.
pub(crate) async fn serve_transparent(
    shared: Arc<Shared>,
    client: TcpStream,
    destination: SocketAddr,
) {
    let (address, port) = (destination.ip(), destination.port());
    let host = match shared.gate.names().meaning(address) {
        Meaning::Name(host) => host,
        Meaning::Itself => literal(&shared.gate, address, port),
        Meaning::Nothing => {
            let shown = address.to_string();
            shared.gate.refuse(
                Way::Tcp,
                &shown,
                Some(port),
                None,
                RefusalCode::UnknownAddress,
                None,
            );
            return;
        }
    };
    if let Ok(admission) = shared.gate.admit(Way::Tcp, &host, port) {
        serve(shared, client, Vec::new(), admission).await;
    }
}

/// An address stands for itself. The host's own may be meant by a rule for `localhost`.
fn literal(gate: &Gate, address: IpAddr, port: u16) -> Host {
    let host = Host::from(address);
    let unnamed =
        address.to_canonical().is_loopback() && gate.rules().decide(&host, port) == Outcome::NoRule;
    match Host::parse("localhost") {
        Ok(localhost) if unnamed && gate.rules().decide(&localhost, port) != Outcome::NoRule => {
            localhost
        }
        _ => host,
    }
}

/// Serves a connection that was admitted. `first` is what was read from it already.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    client: TcpStream,
    first: Vec<u8>,
    admission: Admission,
) {
    let _ = client.set_nodelay(true);
    let port = admission.port();
    let inspected = shared.inspector.must_inspect(&admission);
    // Every refusal on the way is recorded where it is made, and closes the connection.
    let speaks_first = shared.ports.tls.contains(&port) || shared.ports.http.contains(&port);
    let _ = if inspected || speaks_first {
        greeted(shared, client, first, admission, inspected).await
    } else {
        dialled(shared, client, first, admission).await
    };
}

/// Where the client speaks first: what it says decides before anything is dialled.
async fn greeted(
    shared: Arc<Shared>,
    mut client: TcpStream,
    first: Vec<u8>,
    admission: Admission,
    inspected: bool,
) -> Result<(), Refused> {
    let greeting = timeout(shared.greeting, read_first(&mut client, first)).await;
    let Ok(Ok((first, kind))) = greeting else {
        return Ok(());
    };
    match kind {
        FirstBytes::Tls(hello) => {
            check_hello(&shared, &hello, &admission, inspected)?;
            if inspected {
                shared
                    .inspector
                    .serve_tls(&shared, client, first, admission)
                    .await;
                return Ok(());
            }
            admission.charge_rate()?;
            let server = shared.dialer.dial(&admission).await?;
            relay(client, server, first, &admission, shared.patience).await;
            Ok(())
        }
        FirstBytes::Http if !shared.ports.tls.contains(&admission.port()) => {
            shared
                .inspector
                .serve_plain(&shared, client, first, None, admission)
                .await;
            Ok(())
        }
        FirstBytes::Unfinished if first.is_empty() => Ok(()),
        _ if shared.ports.http.contains(&admission.port()) => {
            Err(admission.refuse(RefusalCode::Malformed, None))
        }
        _ => Err(admission.refuse(RefusalCode::NotTls, None)),
    }
}

/// Where the server may speak first: dialled at once; if the client speaks first, what it says is looked at.
async fn dialled(
    shared: Arc<Shared>,
    mut client: TcpStream,
    first: Vec<u8>,
    admission: Admission,
) -> Result<(), Refused> {
    admission.charge_rate()?;
    let server = shared.dialer.dial(&admission).await?;
    let client_first = async {
        if first.is_empty() {
            // A socket nobody has read from yet may be called readable though it is not.
            client.peek(&mut [0]).await.map(drop)
        } else {
            Ok(())
        }
    };
    let speaks_first = tokio::select! {
        biased;
        ready = client_first => ready.is_ok(),
        _ = server.readable() => false,
        () = tokio::time::sleep(shared.patience.idle) => return Ok(()),
    };
    if !speaks_first {
        relay(client, server, first, &admission, shared.patience).await;
        return Ok(());
    }
    let Ok(Ok((first, kind))) = timeout(shared.greeting, read_first(&mut client, first)).await
    else {
        return Ok(());
    };
    match kind {
        FirstBytes::Tls(hello) => check_hello(&shared, &hello, &admission, false)?,
        FirstBytes::BadTls => return Err(admission.refuse(RefusalCode::NoServerName, None)),
        FirstBytes::Http => {
            shared
                .inspector
                .serve_plain(&shared, client, first, Some(server), admission)
                .await;
            return Ok(());
        }
        FirstBytes::Unfinished | FirstBytes::Other => {}
    }
    relay(client, server, first, &admission, shared.patience).await;
    Ok(())
}

/// Reads until the first bytes can be told, or the client has no more.
async fn read_first(
    client: &mut TcpStream,
    mut first: Vec<u8>,
) -> io::Result<(Vec<u8>, FirstBytes)> {
    loop {
        let kind = classify(&first);
        if kind != FirstBytes::Unfinished || first.len() > LARGEST_HELLO {
            return Ok((first, kind));
        }
        let mut chunk = [0; 4096];
        let count = client.read(&mut chunk).await?;
        if count == 0 {
            return Ok((first, kind));
        }
        first.extend_from_slice(chunk.get(..count).unwrap_or_default());
    }
}

/// TLS must be for the host that was admitted. For an address, it names nobody or someone a rule allows.
fn check_hello(
    shared: &Shared,
    hello: &ClientHello,
    admission: &Admission,
    inspected: bool,
) -> Result<(), Refused> {
    let host = admission.host();
    let encrypted = shared.encrypted_hello;
    // Inspected TLS ends here, and what is hidden in its greeting with it.
    if hello.encrypted && encrypted == EncryptedHello::Refuse && !inspected {
        let detail = Some("the greeting may hide another name (ECH)".to_owned());
        return Err(admission.refuse(RefusalCode::NoServerName, detail));
    }
    let Some(name) = &hello.server_name else {
        return match host.address() {
            Some(_) => Ok(()),
            None => Err(admission.refuse(RefusalCode::NoServerName, None)),
        };
    };
    let named = std::str::from_utf8(name)
        .ok()
        .and_then(|text| Host::parse(text).ok());
    let agrees = named.is_some_and(|named| {
        let (gate, port) = (admission.gate(), admission.port());
        // By its address, a host must not be spoken to in a way that it is not by its name.
        let allowed = || {
            matches!(gate.rules().decide(&named, port), Outcome::Allow(_))
                && !shared.inspector.must_inspect_host(gate, &named, port)
        };
        named == *host
            || (host.address().is_some() && named.name().is_some() && !inspected && allowed())
    });
    if agrees {
        Ok(())
    } else {
        let detail = format!("TLS is for {}", printable(name));
        Err(admission.refuse(RefusalCode::NameMismatch, Some(detail)))
    }
}
