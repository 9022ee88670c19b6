//! Heads that could be read two ways.
//!
//! A request that gives its length twice is how one request is hidden in another. What goes out of here is written anew and has
//! one length, so nothing is hidden from the server; but whoever sends such a thing means harm, and hyper reads it without a word:
//! it takes one length and drops the other. So the bytes are followed on their way to it. Where they are not understood
//! here, nothing is said: hyper refuses what it does not understand itself.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{LARGEST_HEAD, MOST_HEADERS};

/// The longest line that tells a chunk's length.
const LONGEST_SIZE: usize = 64;

/// What was seen of a connection's requests.
#[derive(Debug, Default)]
pub(super) struct Framing {
    is_ambiguous: AtomicBool,
}

impl Framing {
    /// Whether a request gave its length twice.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.is_ambiguous.load(Ordering::Relaxed)
    }
}

/// A connection whose requests are followed as they are read.
pub(super) struct Followed<S> {
    inner: S,
    follower: Follower,
    framing: Arc<Framing>,
}

impl<S> Followed<S> {
    pub(super) fn new(inner: S) -> (Self, Arc<Framing>) {
        let framing = Arc::new(Framing::default());
        let followed = Self {
            inner,
            follower: Follower::Head(Vec::new()),
            framing: Arc::clone(&framing),
        };
        (followed, framing)
    }
}

/// Where in a request we are.
#[derive(Debug, PartialEq, Eq)]
enum Follower {
    /// In a head, of which this much has come.
    Head(Vec<u8>),
    /// In a body with so many bytes to come.
    Body(u64),
    /// In the line that tells a chunk's length.
    ChunkSize(Vec<u8>),
    /// In a chunk, with so many bytes to come and the end of its line.
    Chunk(u64),
    /// Behind the last chunk: the line so far.
    Trailer(Vec<u8>),
    /// Lost, or done: what comes is no request.
    Off,
}

/// What a head says of what comes after it.
enum Told {
    Next(Follower),
    Ambiguous,
}

impl Follower {
    /// Follows some bytes; says whether a head among them gives its length twice.
    fn follow(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match self {
                Self::Off => return false,
                Self::Head(head) => {
                    let had = head.len();
                    head.extend_from_slice(bytes);
                    let Some((length, told)) = read_head(head) else {
                        if head.len() > LARGEST_HEAD {
                            *self = Self::Off;
                        }
                        return false;
                    };
                    bytes = bytes.get(length.saturating_sub(had)..).unwrap_or(&[]);
                    match told {
                        Told::Next(next) => *self = next,
                        Told::Ambiguous => {
                            *self = Self::Off;
                            return true;
                        }
                    }
                }
                Self::Body(left) | Self::Chunk(left) => {
                    let count = (bytes.len() as u64).min(*left);
                    *left -= count;
                    bytes = bytes.get(count as usize..).unwrap_or(&[]);
                    if *left == 0 {
                        *self = match self {
                            Self::Body(_) => Self::Head(Vec::new()),
                            _ => Self::ChunkSize(Vec::new()),
                        };
                    }
                }
                Self::ChunkSize(line) => {
                    bytes = take_line(line, bytes);
                    if line.ends_with(b"\r\n") {
                        *self = after_size(line);
                    } else if line.len() > LONGEST_SIZE {
                        *self = Self::Off;
                    }
                }
                Self::Trailer(line) => {
                    bytes = take_line(line, bytes);
                    if line == b"\r\n" {
                        *self = Self::Head(Vec::new());
                    } else if line.ends_with(b"\n") {
                        line.clear();
                    } else if line.len() > LARGEST_HEAD {
                        *self = Self::Off;
                    }
                }
            }
        }
        false
    }
}

/// Adds up to the end of a line; gives the rest back.
fn take_line<'b>(line: &mut Vec<u8>, bytes: &'b [u8]) -> &'b [u8] {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let (taken, rest) = bytes.split_at(end.map_or(bytes.len(), |at| at + 1));
    line.extend_from_slice(taken);
    rest
}

/// What comes after the line that tells a chunk's length.
fn after_size(line: &[u8]) -> Follower {
    let digits = line.split(|byte| matches!(byte, b';' | b'\r' | b' ' | b'\t'));
    let digits = digits.map(str::from_utf8).next().and_then(Result::ok);
    match digits.map(|digits| u64::from_str_radix(digits, 16)) {
        Some(Ok(0)) => Follower::Trailer(Vec::new()),
        // Its bytes, and the end of its last line.
        Some(Ok(size)) => size.checked_add(2).map_or(Follower::Off, Follower::Chunk),
        _ => Follower::Off,
    }
}

/// The length of a head that has come whole, and what it says.
fn read_head(bytes: &[u8]) -> Option<(usize, Told)> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return None,
        Err(_) => return Some((bytes.len(), Told::Next(Follower::Off))),
    };
    let named = |name: &'static str| {
        let headers = request.headers.iter();
        headers.filter(move |header| header.name.eq_ignore_ascii_case(name))
    };
    let lengths = named("content-length").count();
    let is_encoded = named("transfer-encoding").next().is_some();
    if lengths > 1 || lengths == 1 && is_encoded {
        return Some((length, Told::Ambiguous));
    }
    let given = named("content-length").next().map(|header| {
        let text = str::from_utf8(header.value).unwrap_or_default();
        text.trim().parse()
    });
    // What follows on an upgrade is no request; where it is refused after all, nothing more is followed.
    let next = match (named("upgrade").next(), is_encoded, given) {
        (Some(_), ..) | (_, _, Some(Err(_))) => Follower::Off,
        (None, true, _) => Follower::ChunkSize(Vec::new()),
        (None, false, Some(Ok(0)) | None) => Follower::Head(Vec::new()),
        (None, false, Some(Ok(length))) => Follower::Body(length),
    };
    Some((length, Told::Next(next)))
}

impl<S: AsyncRead + Unpin> AsyncRead for Followed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let had = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        let new = buffer.filled().get(had..).unwrap_or(&[]);
        if self.follower.follow(new) {
            self.framing.is_ambiguous.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Followed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMBIGUOUS: &str =
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n";

    /// Whether the bytes are found out, whole and one by one.
    fn is_found(bytes: &str) -> bool {
        let whole = Follower::Head(Vec::new()).follow(bytes.as_bytes());
        let mut follower = Follower::Head(Vec::new());
        let singly = bytes.bytes().any(|byte| follower.follow(&[byte]));
        assert_eq!(whole, singly, "{bytes:?}");
        whole
    }

    #[test]
    fn two_lengths_are_found_wherever_they_stand() {
        assert!(is_found(AMBIGUOUS));
        assert!(is_found(
            "POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n"
        ));
        assert!(is_found(
            "POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc"
        ));
        for before in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n",
        ] {
            assert!(is_found(&format!("{before}{AMBIGUOUS}")), "{before:?}");
        }
    }

    #[test]
    fn what_only_looks_like_it_is_let_pass() {
        let body = AMBIGUOUS;
        let length = body.len();
        assert!(!is_found(&format!(
            "POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{body}GET / HTTP/1.1\r\n\r\n"
        )));
        assert!(!is_found(&format!(
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"
        )));
        assert!(!is_found("GET / HTTP/1.1\r\nX: y\r\n\r\n"));
        assert!(!is_found(&format!("\u{1}\r\n\r\n{AMBIGUOUS}")));
    }
}
