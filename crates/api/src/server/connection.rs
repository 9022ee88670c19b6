//! One connection: its bytes and where it is between a request and its reply.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::listening::Expected;
use crate::http::{self, Rejection, RequestHead};

/// Bytes of a reply written in one turn of the loop.
const WRITE_AT_ONCE: usize = 256 * 1024;

/// Where a connection is. One request at a time: what else the peer sends stays in its socket until the reply is out.
#[derive(Debug)]
pub(super) enum Phase {
    /// Between requests.
    Idle,
    /// Some of a head has come.
    Head,
    /// The head is accepted, and some of the body has come.
    Body(Expected),
    /// Somebody decides.
    UnderWay { request: u64, persistent: bool },
    /// The reply is on its way out.
    Reply(After),
    /// Refused; what the peer still sends is thrown away, so that it comes to reading why.
    Drain { left: usize },
}

/// What follows a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Next,
    Close,
    Drain,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) listener: u64,
    pub(super) phase: Phase,
    /// When the phase began.
    pub(super) since: Instant,
    pub(super) deadline: Instant,
    /// What epoll was told.
    pub(super) interest: EventFlags,
    pub(super) stream: UnixStream,
    /// Bytes booked with the listener.
    pub(super) request_bytes: usize,
    pub(super) reply_bytes: usize,
    input: Vec<u8>,
    /// Where the next attempt at the head is worth it.
    try_head_at: usize,
    output: Vec<u8>,
    written: usize,
}

/// What a read gave.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Got {
    Bytes(usize),
    Nothing,
    /// The peer will send no more.
    End,
    /// The connection is broken.
    Broken,
}

impl Connection {
    pub(super) fn new(listener: u64, stream: UnixStream, now: Instant, deadline: Instant) -> Self {
        Self {
            listener,
            phase: Phase::Idle,
            since: now,
            deadline,
            interest: EventFlags::IN,
            stream,
            request_bytes: 0,
            reply_bytes: 0,
            input: Vec::new(),
            try_head_at: 0,
            output: Vec::new(),
            written: 0,
        }
    }

    /// Whether nothing of a request has come, not even to the kernel.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
            && self.input.is_empty()
            && rustix::io::ioctl_fionread(&self.stream).is_ok_and(|waiting| waiting == 0)
    }

    /// Whether nobody decides anything for it.
    pub(super) fn may_be_evicted(&self) -> bool {
        !matches!(self.phase, Phase::UnderWay { .. })
    }

    pub(super) fn has_input(&self) -> bool {
        !self.input.is_empty()
    }

    /// Reads once, and no more than what is wanted now: one busy peer must not hold up the others.
    pub(super) fn read(&mut self, scratch: &mut [u8], most_head: usize) -> Got {
        let wanted = match &self.phase {
            Phase::Idle | Phase::Head => (most_head + 1).saturating_sub(self.input.len()),
            Phase::Body(expected) => expected.length.saturating_sub(self.input.len()),
            Phase::Drain { .. } => scratch.len(),
            Phase::UnderWay { .. } | Phase::Reply(_) => 0,
        };
        let room = wanted.min(scratch.len());
        let room = scratch.get_mut(..room).unwrap_or_default();
        if room.is_empty() {
            return Got::Nothing;
        }
        match recv(&self.stream, &mut *room, RecvFlags::empty()) {
            Ok((_, 0)) => Got::End,
            Ok((_, count)) => {
                if !matches!(self.phase, Phase::Drain { .. }) {
                    let got = room.get(..count).unwrap_or_default();
                    self.input.extend_from_slice(got);
                }
                Got::Bytes(count)
            }
            Err(Errno::AGAIN | Errno::INTR) => Got::Nothing,
            Err(_) => Got::Broken,
        }
    }

    /// Takes the head off the input once it is whole.
    pub(super) fn take_head(&mut self, most: usize) -> Result<Option<RequestHead>, Rejection> {
        // A head that comes byte by byte would otherwise be read from its start with each byte.
        let start = self.try_head_at.saturating_sub(3).min(self.input.len());
        let may_wait = self.input.len() < self.try_head_at * 2 && self.input.len() <= most;
        let news = self.input.get(start..).unwrap_or_default();
        if may_wait && !has_blank_line(news) {
            return Ok(None);
        }
        let head = http::read_request_head(&self.input)?;
        let length = head.as_ref().map_or(self.input.len(), |head| head.bytes);
        if length > most {
            return Err(http::too_long_a_head());
        }
        if let Some(head) = &head {
            self.input.drain(..head.bytes);
            self.try_head_at = 0;
        } else {
            self.try_head_at = self.input.len();
        }
        Ok(head)
    }

    /// Takes a whole body off the input.
    pub(super) fn take_body(&mut self, length: usize) -> Option<Vec<u8>> {
        if self.input.len() < length {
            return None;
        }
        let rest = self.input.split_off(length);
        Some(std::mem::replace(&mut self.input, rest))
    }

    pub(super) fn queue(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    /// Replaces what has not begun to go out, and follows what has.
    pub(super) fn queue_last(&mut self, bytes: Vec<u8>) {
        if self.output.is_empty() {
            self.output = bytes;
        } else {
            self.output.extend_from_slice(&bytes);
        }
    }

    /// Writes what the peer takes now, up to a bound: a long reply must not hold up the others. `Ok(true)` when all is out.
    pub(super) fn flush(&mut self) -> Result<bool, Errno> {
        let end = self.output.len().min(self.written + WRITE_AT_ONCE);
        while self.written < end {
            let part = self.output.get(self.written..end).unwrap_or_default();
            match send(&self.stream, part, SendFlags::NOSIGNAL) {
                Ok(count) => self.written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        if end < self.output.len() {
            return Ok(false);
        }
        self.output = Vec::new();
        self.written = 0;
        Ok(true)
    }

    /// What epoll should watch for in this phase. A closed peer is always told.
    pub(super) fn wants(&self) -> EventFlags {
        let output = if self.output.is_empty() {
            EventFlags::empty()
        } else {
            EventFlags::OUT
        };
        match self.phase {
            Phase::Idle | Phase::Head | Phase::Body(_) | Phase::Drain { .. } => {
                EventFlags::IN | output
            }
            Phase::UnderWay { .. } => output,
            Phase::Reply(_) => EventFlags::OUT,
        }
    }

    pub(super) fn stop_writing(&self) {
        // A peer that is gone needs no telling.
        let _gone = self.stream.shutdown(Shutdown::Write);
    }

    /// Ends the connection even where a forked process holds a copy of the socket.
    pub(super) fn shut(&self) {
        let _gone = self.stream.shutdown(Shutdown::Both);
    }
}

fn has_blank_line(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|two| two == b"\n\n") || bytes.windows(3).any(|three| three == b"\n\r\n")
}
