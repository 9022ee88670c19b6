//! HTTP/1.1 heads: the part of it that two protocols need, read strictly.

// What others send is read here: a panic would end whoever serves them.
#![deny(
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::unwrap_used,
    clippy::expect_used
)]

use crate::types::Problem;
use crate::{Method, Status};

/// Header lines in a head. curl sends five.
const MOST_HEADERS: usize = 64;

/// The head of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RequestHead {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Bytes of body that follow.
    pub(crate) length: usize,
    /// Whether another request may follow.
    pub(crate) persistent: bool,
    /// Whether the peer waits for `100 Continue` before it sends the body.
    pub(crate) waits: bool,
    /// Bytes of the head itself.
    pub(crate) bytes: usize,
}

/// A request that is answered with an error before anybody else sees it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) status: Status,
    pub(crate) problem: Problem,
    /// For 405: what would be allowed.
    pub(crate) allow: Vec<Method>,
}

impl Rejection {
    pub(crate) fn new(status: Status, problem: Problem) -> Self {
        Self {
            status,
            problem,
            allow: Vec::new(),
        }
    }

    fn bad(message: impl AsRef<str>) -> Self {
        Self::new(Status::BAD_REQUEST, Problem::new("bad_http", message))
    }
}

/// Reads a request's head; `None` while it is incomplete.
pub(crate) fn read_request_head(bytes: &[u8]) -> Result<Option<RequestHead>, Rejection> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let read = match request.parse(bytes) {
        Ok(httparse::Status::Complete(read)) => read,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(explain(error)),
    };
    let (Some(method), Some(path), Some(minor)) = (request.method, request.path, request.version)
    else {
        return Err(Rejection::bad("the request line is incomplete"));
    };
    let mut head = RequestHead {
        method: method.to_owned(),
        path: path.to_owned(),
        length: 0,
        persistent: minor == 1,
        waits: false,
        bytes: read,
    };
    read_headers(request.headers, &mut head)?;
    Ok(Some(head))
}

fn read_headers(headers: &[httparse::Header<'_>], head: &mut RequestHead) -> Result<(), Rejection> {
    let mut length = None;
    for header in headers {
        let value = header.value.trim_ascii();
        if header.name.eq_ignore_ascii_case("content-length") {
            // Two lengths are how requests are smuggled past one reader to another.
            if length.is_some() {
                return Err(Rejection::bad("there are two Content-Length headers"));
            }
            length =
                Some(whole_number(value).ok_or_else(|| {
                    Rejection::bad("Content-Length is not a whole number of bytes")
                })?);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            let problem = Problem::new("length_required", "bodies in chunks are not taken")
                .hint("send the body with a Content-Length");
            return Err(Rejection::new(Status::LENGTH_REQUIRED, problem));
        } else if header.name.eq_ignore_ascii_case("connection") {
            for word in value.split(|byte| *byte == b',') {
                if word.trim_ascii().eq_ignore_ascii_case(b"close") {
                    head.persistent = false;
                }
            }
        } else if header.name.eq_ignore_ascii_case("expect") {
            if !value.eq_ignore_ascii_case(b"100-continue") {
                let problem = Problem::new("bad_http", "only `Expect: 100-continue` is known");
                return Err(Rejection::new(Status::EXPECTATION_FAILED, problem));
            }
            head.waits = true;
        }
    }
    head.length = length.unwrap_or(0);
    Ok(())
}

/// Digits alone: no sign, no blank, no list.
fn whole_number(text: &[u8]) -> Option<usize> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    // More digits than fit is a body too long, which is said where lengths are compared.
    Some(text.parse().unwrap_or(usize::MAX))
}

fn explain(error: httparse::Error) -> Rejection {
    match error {
        httparse::Error::TooManyHeaders => too_long_a_head(),
        httparse::Error::Version => Rejection::new(
            Status::VERSION_NOT_SUPPORTED,
            Problem::new("bad_http", "only HTTP/1.1 and HTTP/1.0 are spoken here"),
        ),
        error => Rejection::bad(format!("this is not an HTTP request: {error}")),
    }
}

/// The rejection of a head that has too many bytes or lines.
pub(crate) fn too_long_a_head() -> Rejection {
    let problem = Problem::new("head_too_large", "the request's head is too long")
        .hint("send fewer or shorter headers");
    Rejection::new(Status::HEADERS_TOO_LARGE, problem)
}

/// What goes before a body that the peer waits to send.
pub(crate) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Whether the connection goes on after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    KeepAlive,
    Close,
}

/// Puts a whole response together.
pub(crate) fn write_response(status: Status, allow: &[Method], body: &[u8], then: Then) -> Vec<u8> {
    let mut text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
        body.len()
    );
    if !allow.is_empty() {
        let words: Vec<_> = allow.iter().map(|method| method.as_str()).collect();
        text += &format!("Allow: {}\r\n", words.join(", "));
    }
    if then == Then::Close {
        text += "Connection: close\r\n";
    }
    text += "\r\n";
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// The head of a response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ResponseHead {
    pub(crate) status: Status,
    pub(crate) length: usize,
    pub(crate) persistent: bool,
    pub(crate) bytes: usize,
}

/// Reads a response's head; `None` while it is incomplete.
pub(crate) fn read_response_head(bytes: &[u8]) -> Result<Option<ResponseHead>, String> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let read = match response.parse(bytes) {
        Ok(httparse::Status::Complete(read)) => read,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(format!("it is not an HTTP response: {error}")),
    };
    let status = response
        .code
        .map_or(Status::INTERNAL_ERROR, Status::from_wire);
    let informs = status.code() < 200;
    let (mut length, mut persistent) = (informs.then_some(0), response.version == Some(1));
    for header in response.headers.iter() {
        let value = header.value.trim_ascii();
        if header.name.eq_ignore_ascii_case("content-length") {
            length = Some(whole_number(value).ok_or("its Content-Length is no number")?);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return Err("it comes in chunks".to_owned());
        } else if header.name.eq_ignore_ascii_case("connection") {
            persistent &= !value.eq_ignore_ascii_case(b"close");
        }
    }
    let length = length.ok_or("it has no Content-Length")?;
    Ok(Some(ResponseHead {
        status,
        length,
        persistent,
        bytes: read,
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[track_caller]
    fn status(request: &str) -> u16 {
        read_request_head(request.as_bytes())
            .unwrap_err()
            .status
            .code()
    }

    #[test]
    fn a_head_is_read() {
        let text = "POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\nExpect: 100-continue\r\nConnection: x, Close\r\n\r\nabc";
        let head = read_request_head(text.as_bytes()).unwrap().unwrap();
        assert_eq!(
            (head.method.as_str(), head.path.as_str()),
            ("POST", "/v1/x")
        );
        assert_eq!((head.length, head.bytes), (12, text.len() - 3));
        assert!(head.waits && !head.persistent);
        assert_eq!(read_request_head(b"GET /v1").unwrap(), None);
        let old = read_request_head(b"GET / HTTP/1.0\r\n\r\n")
            .unwrap()
            .unwrap();
        assert!(!old.persistent);
    }

    #[test]
    fn doubtful_heads_are_refused() {
        let with = |header: &str| format!("POST / HTTP/1.1\r\n{header}\r\n\r\n");
        assert_eq!(status(&with("Content-Length: 1\r\nContent-Length: 1")), 400);
        for number in ["+1", "-1", "1,1", "", "0x1", "1 1"] {
            assert_eq!(
                status(&with(&format!("Content-Length: {number}"))),
                400,
                "{number}"
            );
        }
        assert_eq!(status(&with("Transfer-Encoding: chunked")), 411);
        assert_eq!(
            status(&with("Content-Length: 1\r\nTransfer-Encoding: identity")),
            411
        );
        assert_eq!(status(&with("Expect: miracles")), 417);
        assert_eq!(status(&with("A: b\r\n folded")), 400);
        assert_eq!(status(&with("A : b")), 400);
        assert_eq!(status(&with(&"A: b\r\n".repeat(65))), 431);
        assert_eq!(status("GET / HTTP/2.0\r\n\r\n"), 505);
        assert_eq!(status("\0\x01\x02"), 400);
        let huge = with(&format!("Content-Length: {}", "9".repeat(100)));
        let head = read_request_head(huge.as_bytes()).unwrap().unwrap();
        assert_eq!(head.length, usize::MAX);
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = write_response(Status::CREATED, &[], b"{}", Then::Close);
        let head = read_response_head(&bytes).unwrap().unwrap();
        assert_eq!(
            (head.status, head.length, head.persistent),
            (Status::CREATED, 2, false)
        );
        assert_eq!(bytes.len(), head.bytes + head.length);
        let between = read_response_head(CONTINUE).unwrap().unwrap();
        assert_eq!((between.status.code(), between.length), (100, 0));
        assert!(read_response_head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
