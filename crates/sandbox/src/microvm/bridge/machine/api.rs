//! Firecracker's control: JSON by HTTP, on a socket in the box.

use crate::microvm::SLOWEST_START;
use serde_json::Value;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// More than any answer has.
const LONGEST_HEAD: usize = 8 << 10;
const LONGEST_BODY: usize = 64 << 10;
const MOST_HEADERS: usize = 32;
/// Between two looks whether its socket is there.
const PAUSE: Duration = Duration::from_micros(500);

pub(super) struct Api {
    stream: UnixStream,
    /// What was heard and belongs to no answer yet.
    rest: Vec<u8>,
}

impl Api {
    /// Waits for the socket as long as `lives` says that somebody is there to make it.
    pub(super) fn connect(path: &Path, mut lives: impl FnMut() -> bool) -> io::Result<Self> {
        let deadline = Instant::now() + SLOWEST_START;
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(error) if !lives() || Instant::now() >= deadline => return Err(error),
                // It is not there yet, or nobody listens yet.
                Err(error)
                    if [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused]
                        .contains(&error.kind()) =>
                {
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(error),
            }
        };
        stream.set_read_timeout(Some(SLOWEST_START))?;
        stream.set_write_timeout(Some(SLOWEST_START))?;
        Ok(Self {
            stream,
            rest: Vec::new(),
        })
    }

    pub(super) fn put(&mut self, path: &str, body: &Value) -> io::Result<()> {
        self.ask("PUT", path, body)
    }

    pub(super) fn patch(&mut self, path: &str, body: &Value) -> io::Result<()> {
        self.ask("PATCH", path, body)
    }

    fn ask(&mut self, method: &str, path: &str, body: &Value) -> io::Result<()> {
        let body = body.to_string();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.write_all(request.as_bytes())?;
        let (status, answer) = self.answer()?;
        match status {
            200..=299 => Ok(()),
            _ => Err(io::Error::other(format!(
                "{method} {path}: {}",
                fault_in(&answer).unwrap_or_else(|| format!("answered with {status}"))
            ))),
        }
    }

    fn answer(&mut self) -> io::Result<(u16, Vec<u8>)> {
        loop {
            if let Some(head) = read_head(&self.rest)? {
                let end = head.length + head.body;
                while self.rest.len() < end {
                    self.hear()?;
                }
                let whole: Vec<u8> = self.rest.drain(..end).collect();
                let body = whole.get(head.length..).unwrap_or_default();
                return Ok((head.status, body.to_vec()));
            }
            if self.rest.len() >= LONGEST_HEAD {
                return Err(nonsense("an answer without an end"));
            }
            self.hear()?;
        }
    }

    fn hear(&mut self) -> io::Result<()> {
        let mut bytes = [0; 4096];
        match self.stream.read(&mut bytes)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.rest.extend(bytes.iter().take(count));
                Ok(())
            }
        }
    }
}

fn nonsense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it gave {what}"))
}

struct Head {
    status: u16,
    length: usize,
    body: usize,
}

/// The head of an answer, once it is whole.
fn read_head(bytes: &[u8]) -> io::Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut answer = httparse::Response::new(&mut headers);
    let parsed = answer.parse(bytes);
    let httparse::Status::Complete(length) = parsed.map_err(|_| nonsense("no answer of HTTP's"))?
    else {
        return Ok(None);
    };
    let status = answer.code.ok_or_else(|| nonsense("no status"))?;
    let given = answer
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let body = match given {
        None => 0,
        Some(header) => std::str::from_utf8(header.value)
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .filter(|length| *length <= LONGEST_BODY)
            .ok_or_else(|| nonsense("a length that can't be"))?,
    };
    Ok(Some(Head {
        status,
        length,
        body,
    }))
}

/// What it says is wrong, in one line that can be printed.
fn fault_in(answer: &[u8]) -> Option<String> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let text = answer.get("fault_message")?.as_str()?;
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    Some(plain.take(500).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What becomes of a question that is answered so.
    fn asked(answer: &[u8]) -> io::Result<()> {
        let (stream, mut other) = UnixStream::pair().unwrap();
        let answer = answer.to_vec();
        let server = std::thread::spawn(move || {
            let mut question = vec![0; 4096];
            let count = other.read(&mut question).unwrap();
            let _ = other.write_all(&answer);
            question.truncate(count);
            String::from_utf8(question).unwrap()
        });
        let mut api = Api {
            stream,
            rest: Vec::new(),
        };
        let outcome = api.put("/vsock", &json!({"guest_cid": 3}));
        let question = server.join().unwrap();
        assert!(
            question.starts_with("PUT /vsock HTTP/1.1\r\n"),
            "{question}"
        );
        assert!(
            question.ends_with("\r\n\r\n{\"guest_cid\":3}"),
            "{question}"
        );
        assert!(question.contains("Content-Length: 15\r\n"), "{question}");
        outcome
    }

    #[test]
    fn what_is_done_and_what_is_wrong_are_told_apart() {
        // As Firecracker writes them: no reason behind the number.
        let done = b"HTTP/1.1 204 \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n\r\n";
        asked(done).unwrap();
        let fault = "{\"fault_message\":\"no\\nsuch\\u001b\"}";
        let wrong = format!(
            "HTTP/1.1 400 \r\nContent-Length: {}\r\n\r\n{fault}",
            fault.len()
        );
        let error = asked(wrong.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "PUT /vsock: no such ");
        let error = asked(b"HTTP/1.1 500 Oh\r\n\r\n").unwrap_err().to_string();
        assert_eq!(error, "PUT /vsock: answered with 500");
    }

    #[test]
    fn answers_that_are_none_end_it_and_are_bounded() {
        let long = [
            b"HTTP/1.1 204 \r\nX: ".as_slice(),
            &[b'a'; 2 * LONGEST_HEAD],
        ]
        .concat();
        let many = format!(
            "HTTP/1.1 200 \r\n{}\r\n",
            "A: b\r\n".repeat(MOST_HEADERS + 1)
        );
        for answer in [
            b"".as_slice(),
            b"\x00\x01\x02",
            b"HTTP/1.1 204 \r\n",
            b"HTTP/1.1 200 \r\nContent-Length: 5\r\n\r\n{}",
            b"HTTP/1.1 200 \r\nContent-Length: 99999999999\r\n\r\n",
            b"HTTP/1.1 200 \r\nContent-Length: -1\r\n\r\n",
            &long,
            many.as_bytes(),
        ] {
            let text = String::from_utf8_lossy(answer).into_owned();
            assert!(asked(answer).is_err(), "{text:.60}");
        }
    }

    #[test]
    fn a_socket_that_nobody_makes_is_not_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let mut looks = 3;
        let lives = || {
            looks -= 1;
            looks > 0
        };
        assert!(Api::connect(&place.path().join("api"), lives).is_err());
    }
}
