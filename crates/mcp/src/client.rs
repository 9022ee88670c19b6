//! A client that asks a server what tools it has, and nothing else.

use std::io::{self, BufRead, BufReader, Read, Write};

use serde_json::{Value, json};

/// The version asked for; a server that speaks another says which.
const VERSION: &str = "2025-11-25";
/// The most bytes of one message.
const LONGEST: u64 = 16 << 20;
/// The most pages of a list, and the most messages between a question and its answer.
const MOST: usize = 1000;

/// Why a server's tools are not known.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server can't be read or written to.
    #[error("the server can't be spoken to")]
    Io(#[from] io::Error),
    /// It ended, or closed its output.
    #[error("the server ended before it answered")]
    Ended,
    /// It answered with an error.
    #[error("the server answered with an error: {0}")]
    Refused(String),
    /// It said something that is no answer.
    #[error("the server does not speak the protocol: {0}")]
    Protocol(&'static str),
}

/// Asks for all tools over a server's standard input and output.
///
/// # Errors
/// See [`ClientError`].
pub fn list_tools(from: impl Read, to: impl Write) -> Result<Vec<Value>, ClientError> {
    let mut session = Session {
        from: BufReader::new(from),
        to,
        next: 1,
    };
    session.ask(
        "initialize",
        json!({
            "protocolVersion": VERSION,
            "capabilities": {},
            "clientInfo": {"name": "belljar", "version": env!("CARGO_PKG_VERSION")},
        }),
    )?;
    session.tell(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
    let mut tools = Vec::new();
    let mut cursor = Value::Null;
    for _ in 0..MOST {
        let parameters = if cursor.is_null() {
            json!({})
        } else {
            json!({"cursor": cursor})
        };
        let mut page = session.ask("tools/list", parameters)?;
        match page.get_mut("tools").map(Value::take) {
            Some(Value::Array(list)) => tools.extend(list),
            _ => return Err(ClientError::Protocol("a list of tools without tools")),
        }
        cursor = page.get("nextCursor").cloned().unwrap_or(Value::Null);
        if cursor.is_null() {
            return Ok(tools);
        }
    }
    Err(ClientError::Protocol("a list of tools without end"))
}

struct Session<R, W> {
    from: BufReader<R>,
    to: W,
    next: u64,
}

impl<R: Read, W: Write> Session<R, W> {
    fn ask(&mut self, method: &str, params: Value) -> Result<Value, ClientError> {
        let id = self.next;
        self.next += 1;
        self.tell(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))?;
        for _ in 0..MOST {
            let mut message = self.hear()?;
            let is_answer =
                message.get("method").is_none() && message.get("id") == Some(&json!(id));
            if is_answer {
                if let Some(error) = message.get("error") {
                    let words = error
                        .get("message")
                        .and_then(Value::as_str)
                        .unwrap_or("no words");
                    return Err(ClientError::Refused(words.chars().take(256).collect()));
                }
                return Ok(message
                    .get_mut("result")
                    .map(Value::take)
                    .unwrap_or_default());
            }
            // What the server asks of us it does not get; what it tells us we need not know.
            if let (Some(method), Some(asked)) = (message.get("method"), message.get("id")) {
                let answer = match method.as_str() {
                    Some("ping") => json!({"jsonrpc": "2.0", "id": asked, "result": {}}),
                    _ => {
                        json!({"jsonrpc": "2.0", "id": asked, "error": {"code": -32601, "message": "not offered"}})
                    }
                };
                self.tell(&answer)?;
            }
        }
        Err(ClientError::Protocol("many messages and no answer"))
    }

    fn tell(&mut self, message: &Value) -> Result<(), ClientError> {
        let mut line = message.to_string();
        line.push('\n');
        self.to.write_all(line.as_bytes())?;
        Ok(self.to.flush()?)
    }

    fn hear(&mut self) -> Result<Value, ClientError> {
        let mut line = Vec::new();
        let read = (&mut self.from)
            .take(LONGEST)
            .read_until(b'\n', &mut line)?;
        match (read, line.ends_with(b"\n")) {
            (0, _) => Err(ClientError::Ended),
            (_, false) => Err(ClientError::Protocol("a message without end")),
            _ => serde_json::from_slice(&line)
                .map_err(|_| ClientError::Protocol("a line that is no JSON")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(lines: &[Value]) -> Vec<u8> {
        lines
            .iter()
            .flat_map(|line| format!("{line}\n").into_bytes())
            .collect()
    }

    #[test]
    fn every_page_is_asked_for_and_servers_that_ask_back_are_answered() {
        let server = told(&[
            json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}),
            json!({"jsonrpc": "2.0", "id": 1, "result": {}}),
            json!({"jsonrpc": "2.0", "id": "x", "method": "sampling/createMessage"}),
            json!({"jsonrpc": "2.0", "id": 2, "result": {"tools": [{"name": "a"}], "nextCursor": "c"}}),
            json!({"jsonrpc": "2.0", "id": 3, "result": {"tools": [{"name": "b"}]}}),
        ]);
        let mut said = Vec::new();
        let tools = list_tools(server.as_slice(), &mut said).unwrap();
        assert_eq!(tools, [json!({"name": "a"}), json!({"name": "b"})]);
        let said = String::from_utf8(said).unwrap();
        assert!(
            said.contains(r#""cursor":"c""#) && said.contains("not offered"),
            "{said}"
        );
    }

    #[test]
    fn a_server_that_ends_lies_or_floods_is_an_error() {
        let ask = |lines: &[Value]| list_tools(told(lines).as_slice(), io::sink()).unwrap_err();
        assert!(matches!(ask(&[]), ClientError::Ended));
        let error = json!({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "no"}});
        assert!(matches!(ask(&[error]), ClientError::Refused(_)));
        let noise = vec![json!({"jsonrpc": "2.0", "method": "n"}); MOST + 1];
        assert!(matches!(ask(&noise), ClientError::Protocol(_)));
        assert!(matches!(
            list_tools(&b"nonsense\n"[..], io::sink()),
            Err(ClientError::Protocol(_))
        ));
    }
}
