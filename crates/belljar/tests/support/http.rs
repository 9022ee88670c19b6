//! Servers that say when they are ready, and a client that speaks streamable HTTP as badly as it is told to.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

/// A program that says one line when it is ready, and ends when this is dropped.
pub(crate) struct Ready {
    pub(crate) child: Child,
    pub(crate) line: String,
}

impl Ready {
    #[track_caller]
    pub(crate) fn start(mut command: Command) -> Ready {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("start a server");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        output.read_line(&mut line).expect("read a line");
        assert!(!line.is_empty(), "it ended");
        // Whatever it says later must not stop it.
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        let line = line.trim().to_owned();
        Ready { child, line }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).ok();
        drop(self.child.stdin.take());
        self.child.wait().ok();
    }
}

/// An answer over HTTP: its status, its headers, and the last JSON in it.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let data = |line: &str| line.strip_prefix("data: ").map(str::to_owned);
        let last = self.body.lines().filter_map(data).next_back();
        let text = last.unwrap_or_else(|| self.body.clone());
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{} {}", self.status, self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// A client that says whatever it is told to.
pub(crate) struct Http {
    pub(crate) at: String,
    pub(crate) session: Option<String>,
}

impl Http {
    pub(crate) fn at(url: &str) -> Http {
        let at = url.strip_prefix("http://").expect("a URL");
        let at = at.strip_suffix("/mcp").expect("its path").to_owned();
        Http { at, session: None }
    }

    #[track_caller]
    pub(crate) fn begun(url: &str) -> Http {
        let mut http = Http::at(url);
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
        let answer = http.post(hello.to_string(), &[]);
        http.session = answer.header("mcp-session-id").map(str::to_owned);
        assert!(http.session.is_some(), "{}", answer.body);
        let ready = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert_eq!(http.post(ready, &[]).status, 202);
        http
    }

    #[track_caller]
    pub(crate) fn raw(&self, request: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(&self.at).expect("connect");
        stream.write_all(request).expect("send");
        let text = std::io::read_to_string(&mut stream).expect("an answer in UTF-8");
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let chunked = head
            .to_ascii_lowercase()
            .contains("transfer-encoding: chunked");
        let body = match chunked {
            true => unchunked(body),
            false => body.to_owned(),
        };
        Answer {
            status: status.unwrap_or(0),
            head: head.to_owned(),
            body,
        }
    }

    /// A header that is given replaces the usual one.
    #[track_caller]
    pub(crate) fn post(&self, body: impl AsRef<[u8]>, headers: &[(&str, &str)]) -> Answer {
        let body = body.as_ref();
        let length = body.len().to_string();
        let mut all = vec![
            ("host", self.at.as_str()),
            ("connection", "close"),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("content-length", &length),
        ];
        all.extend(
            self.session
                .iter()
                .map(|session| ("mcp-session-id", session.as_str())),
        );
        all.retain(|(name, _)| !headers.iter().any(|(other, _)| name == other));
        all.extend(headers);
        let mut request = b"POST /mcp HTTP/1.1\r\n".to_vec();
        for (name, value) in all {
            request.extend(format!("{name}: {value}\r\n").bytes());
        }
        request.extend(b"\r\n");
        request.extend(body);
        self.raw(&request)
    }

    #[track_caller]
    pub(crate) fn ask(&self, method: &str, params: Value) -> Value {
        let question = json!({"jsonrpc": "2.0", "id": 5, "method": method, "params": params});
        let answer = self.post(question.to_string(), &[]);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    }

    #[track_caller]
    pub(crate) fn call(&self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": tool, "arguments": arguments}))
    }
}

pub(crate) fn unchunked(mut body: &str) -> String {
    let mut all = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).unwrap_or(0);
        if length == 0 || rest.len() < length {
            break;
        }
        all.push_str(&rest[..length]);
        body = rest[length..].trim_start_matches("\r\n");
    }
    all
}
