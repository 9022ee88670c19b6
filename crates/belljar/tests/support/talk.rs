//! A client of MCP on a program's standard input and output, as rude as a test wants it.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Longer than anything takes that does not hang.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Talk {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Vec<u8>>,
    next: i64,
    /// What came that nobody asked for.
    pub(crate) aside: Vec<Value>,
}

impl Talk {
    /// Starts the program and shakes hands.
    #[track_caller]
    pub(crate) fn start(command: Command) -> Talk {
        let mut talk = Talk::silent(command);
        let hello = talk.ask(
            "initialize",
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}),
        );
        assert!(hello["result"]["serverInfo"].is_object(), "{hello}");
        talk.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        talk
    }

    pub(crate) fn silent(mut command: Command) -> Talk {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("start the server");
        let output = child.stdout.take().expect("a pipe");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n') {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Talk {
            child,
            input,
            lines,
            next: 100,
            aside: Vec::new(),
        }
    }

    /// Sends a line as it is.
    pub(crate) fn send(&mut self, line: impl AsRef<[u8]>) {
        let input = self.input.as_mut().expect("an open input");
        input.write_all(line.as_ref()).expect("send");
        input.write_all(b"\n").expect("send");
    }

    /// The next message; `None` when there will be none.
    #[track_caller]
    pub(crate) fn hear(&mut self) -> Option<Value> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(
                serde_json::from_slice(&line)
                    .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&line))),
            ),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => None,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("no answer in {PATIENCE:?}"),
        }
    }

    /// The answer to `id`; what else comes is put aside.
    #[track_caller]
    pub(crate) fn answer(&mut self, id: &Value) -> Value {
        loop {
            let message = self.hear().expect("an answer before the end");
            if message["id"] == *id && message.get("method").is_none() {
                return message;
            }
            self.aside.push(message);
        }
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = json!(self.next);
        self.send(
            json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string(),
        );
        self.answer(&id)
    }

    #[track_caller]
    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Everything it said until now: a question is asked and all that came before its answer is told.
    #[track_caller]
    pub(crate) fn all_so_far(&mut self) -> Vec<Value> {
        self.ask("ping", json!({}));
        std::mem::take(&mut self.aside)
    }

    /// Leaves; the program's exit code.
    #[track_caller]
    pub(crate) fn leave(mut self) -> Option<i32> {
        drop(self.input.take());
        while self.hear().is_some() {}
        self.child.wait().expect("wait for the server").code()
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        drop(self.input.take());
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The text of a tool's answer.
#[track_caller]
pub(crate) fn text_of(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("no text in {answer}"))
}
