//! A connection that has become a WebSocket: its bytes pass, counted.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::frames::Frames;
use super::redact::Needles;
use crate::gate::{Admission, Direction};
use crate::record::RefusalCode;

const CHUNK: usize = 8 * 1024;

/// Passes bytes both ways until one side ends, fails or is silent for too long, or the rule's bytes are used up.
pub(super) async fn pass<A, B>(
    agent: A,
    server: B,
    admission: &Admission,
    idle: Duration,
    needles: Option<Arc<Needles>>,
) where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let frames = needles.map(Frames::new);
    let (agent_read, agent_write) = tokio::io::split(agent);
    let (server_read, server_write) = tokio::io::split(server);
    tokio::select! {
        // A WebSocket has no half-closed state: the end of one side is the end.
        _ = pump(agent_read, server_write, admission, Direction::FromAgent, idle, None) => {}
        _ = pump(server_read, agent_write, admission, Direction::ToAgent, idle, frames) => {}
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    admission: &Admission,
    direction: Direction,
    idle: Duration,
    mut frames: Option<Frames>,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = timeout(idle, from.read(&mut buffer)).await??;
        if count == 0 {
            return to.shutdown().await;
        }
        let granted = admission.take_bytes(direction, count);
        let bytes = buffer.get(..granted).unwrap_or_default();
        match &mut frames {
            None => timeout(idle, to.write_all(bytes)).await??,
            Some(frames) => {
                let Ok(bytes) = frames.push(bytes) else {
                    let detail =
                        "what it says on a WebSocket can't be searched for the secret of this host";
                    admission.refuse_request(RefusalCode::Encoded, Some(detail.to_owned()));
                    return Err(io::ErrorKind::InvalidData.into());
                };
                timeout(idle, to.write_all(&bytes)).await??;
            }
        }
        to.flush().await?;
        if granted < count {
            admission.refuse_request(RefusalCode::Bytes, None);
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
    }
}
