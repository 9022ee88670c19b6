//! The box's only name server.
//!
//! A name that some rule allows gets an address that stands for it; any other name does not exist. Nothing asked here is
//! ever passed on, so a lookup carries nothing out of the box.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use belljar_policy::{Host, Outcome};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use super::codec::{BadQuery, Query, RecordType, ResponseCode, bare_answer};
use crate::contain::{self, contain};
use crate::gate::Gate;
use crate::record::{RefusalCode, Way, printable};

/// A name keeps its address until the box ends; asking again now and then costs little.
const TTL_SECONDS: u32 = 60;
const LARGEST_QUERY: usize = 1232;
const MOST_TCP_CLIENTS: usize = 64;
const TCP_IDLE: Duration = Duration::from_secs(10);
const INTERNET: u16 = 1;

/// Answers over UDP until the socket fails.
pub(crate) async fn serve_udp(socket: UdpSocket, gate: Arc<Gate>) -> io::Result<()> {
    let mut buffer = [0; LARGEST_QUERY];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            // An earlier answer could not be delivered: the asker's loss.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return Err(error),
        };
        let query = buffer.get(..length).unwrap_or_default();
        let answer = contain(|| reply(&gate, query)).unwrap_or_else(|panicked| {
            // The recorder may be what failed.
            let _ = contain(|| gate.failed("", None, panicked));
            None
        });
        if let Some(answer) = answer {
            // UDP may lose it anyway.
            let _ = socket.send_to(&answer, from).await;
        }
    }
}

/// Answers over TCP until the listener fails.
pub(crate) async fn serve_tcp(listener: TcpListener, gate: Arc<Gate>) -> io::Result<()> {
    let room = Arc::new(Semaphore::new(MOST_TCP_CLIENTS));
    loop {
        let (stream, _) = listener.accept().await?;
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            continue;
        };
        let (gate, kept) = (Arc::clone(&gate), Arc::clone(&gate));
        let serving = async move {
            // The client's own errors are its own affair.
            let _ = serve_client(stream, &gate).await;
            drop(place);
        };
        contain::spawn(serving, move |panicked| {
            kept.failed("", None, panicked);
        });
    }
}

async fn serve_client(mut stream: TcpStream, gate: &Gate) -> io::Result<()> {
    loop {
        let answer = tokio::time::timeout(TCP_IDLE, async {
            let length = usize::from(stream.read_u16().await?);
            if length > LARGEST_QUERY {
                return Ok(None);
            }
            let mut query = vec![0; length];
            stream.read_exact(&mut query).await?;
            io::Result::Ok(reply(gate, &query))
        })
        .await;
        let Ok(Ok(Some(answer))) = answer else {
            return Ok(());
        };
        let mut framed = (answer.len() as u16).to_be_bytes().to_vec();
        framed.extend_from_slice(&answer);
        tokio::time::timeout(TCP_IDLE, stream.write_all(&framed)).await??;
    }
}

/// The answer to one message, if it deserves one.
fn reply(gate: &Gate, bytes: &[u8]) -> Option<Vec<u8>> {
    let query = match Query::parse(bytes) {
        Ok(query) => query,
        Err(BadQuery::Ignore) => return None,
        Err(BadQuery::Answer { id, code }) => {
            let detail = "a query that can't be read".to_owned();
            gate.refuse(
                Way::Dns,
                "",
                None,
                None,
                RefusalCode::DnsQuery,
                Some(detail),
            );
            return Some(bare_answer(id, code));
        }
    };
    let refuse = |code, detail| {
        let rule = None;
        gate.refuse(Way::Dns, &printable(&query.name), None, rule, code, detail);
    };
    let Some(host) = readable(&query) else {
        refuse(RefusalCode::InvalidHost, None);
        return Some(query.answer(ResponseCode::NoSuchName, None, TTL_SECONDS));
    };
    match gate.rules().decide_any_port(&host) {
        Outcome::Allow(_) => {}
        outcome => {
            gate.refuse_outcome(Way::Dns, &host, None, outcome);
            return Some(query.answer(ResponseCode::NoSuchName, None, TTL_SECONDS));
        }
    }
    let known = [
        RecordType::A,
        RecordType::AAAA,
        RecordType::HTTPS,
        RecordType::SVCB,
    ];
    if query.class != INTERNET || !known.contains(&query.kind) {
        refuse(
            RefusalCode::DnsQuery,
            Some(format!("record type {}", query.kind.0)),
        );
        return Some(query.answer(ResponseCode::Refused, None, TTL_SECONDS));
    }
    let Ok(synthetic) = gate.names().assign(&host) else {
        refuse(RefusalCode::TooManyNames, None);
        return Some(query.answer(ResponseCode::ServerFailure, None, TTL_SECONDS));
    };
    let address = match query.kind {
        RecordType::A => Some(synthetic.v4.into()),
        RecordType::AAAA => Some(synthetic.v6.into()),
        // Known, but there are none: clients then use the address, and hide no names.
        _ => None,
    };
    Some(query.answer(ResponseCode::NoError, address, TTL_SECONDS))
}

/// The name asked for, when it is a host's. An address is not a name: nobody has to look it up.
fn readable(query: &Query) -> Option<Host> {
    if query.ambiguous {
        return None;
    }
    let text = std::str::from_utf8(&query.name).ok()?;
    Host::parse(text).ok().filter(|host| host.name().is_some())
}
