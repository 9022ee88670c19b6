//! An endpoint, asked over TCP as badly as it can be, before servers that write down what they are called with.

use super::*;
use crate::judge::{Ask, DENIED, Denial, Finished, HoldAnswer, HoldTicket, Judge, Listed, Ruling};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;

/// Refuses `secret`, whoever has it, and tasks that no call of the session became.
struct Strict;

impl Judge for Strict {
    fn judge(&self, ask: &Ask<'_>) -> Ruling {
        match ask {
            Ask::Tool { tool: "secret", .. }
            | Ask::Task {
                task: Some(_),
                tool: None,
                ..
            } => Ruling::Deny(Denial {
                code: DENIED,
                reason: "deny_tool_blocked".into(),
                message: "no".into(),
                rule: String::new(),
                hint: None,
            }),
            _ => Ruling::Allow,
        }
    }

    fn wait(&self, _: &HoldTicket) -> HoldAnswer {
        HoldAnswer::TimedOut
    }

    fn list(&self, _: &str, tools: Vec<Value>) -> Vec<Value> {
        tools
    }

    fn list_names(&self, _: &str, _: Listed, names: &[&str]) -> Vec<bool> {
        vec![true; names.len()]
    }

    fn finished(&self, _: Finished<'_>) {}

    fn malformed(&self, _: &str, _: &str) {}
}

type Calls = Arc<Mutex<Vec<String>>>;

fn called(calls: &Calls) -> Vec<String> {
    std::mem::take(&mut *calls.lock().unwrap())
}

/// What a server says to a question; it calls itself `name`.
fn answer(name: &str, calls: &Calls, message: &Value) -> Option<Value> {
    let id = message.get("id")?;
    let result = match message["method"].as_str()? {
        "initialize" => json!({"protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}, "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}},
            "serverInfo": {"name": name, "version": "1"}}),
        // Every server has the same ids, and a task that nobody here made.
        "tasks/list" => json!({"tasks": [{"taskId": "t__1"}, {"taskId": "another's"}]}),
        method if method.starts_with("tasks/") => {
            let params = &message["params"];
            calls
                .lock()
                .unwrap()
                .push(format!("{name} {method} {params}"));
            let about = json!({"io.modelcontextprotocol/related-task": params});
            json!({"taskId": params["taskId"], "status": "working", "statusMessage": name, "_meta": about})
        }
        "tools/call" if message["params"]["task"].is_object() => {
            json!({"task": {"taskId": "t__1", "status": "working", "ttl": 600_000}})
        }
        "tools/list" => json!({"tools": [{"name": "echo"}, {"name": "secret"}]}),
        _ => {
            let tool = message["params"]["name"].as_str()?;
            calls.lock().unwrap().push(format!("{name} {tool}"));
            json!({"content": [{"type": "text", "text": name}]})
        }
    };
    Some(json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

struct OnPipes {
    name: &'static str,
    calls: Calls,
}

impl Start for OnPipes {
    fn start(&self) -> Result<Started, String> {
        let (its_input, input) = io::pipe().map_err(|error| error.to_string())?;
        let (output, mut its_output) = io::pipe().map_err(|error| error.to_string())?;
        let (name, calls) = (self.name, self.calls.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(its_input).lines().map_while(Result::ok) {
                let message = serde_json::from_str(&line).unwrap();
                if let Some(said) = answer(name, &calls, &message) {
                    writeln!(its_output, "{said}").ok();
                }
            }
        });
        Ok(Started {
            input: input.into(),
            output: output.into(),
            hold: Box::new(()),
        })
    }
}

/// A server by HTTP that answers `initialize` well and everything else as it is told to, once for each request.
fn by_http(says: impl Fn(&Value) -> String + Send + 'static) -> Reach {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut stream = BufReader::new(stream);
            let mut length = 0;
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                let line = line.trim().to_ascii_lowercase();
                if let Some(text) = line.strip_prefix("content-length: ") {
                    length = text.parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let message: Value = serde_json::from_slice(&body).unwrap_or_default();
            let said = match (message["method"].as_str(), message.get("id")) {
                (Some("initialize"), _) => {
                    let said = answer("far", &Calls::default(), &message).unwrap();
                    http("application/json", &said.to_string())
                }
                (_, None) => "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".to_owned(),
                _ => says(&message),
            };
            stream.get_mut().write_all(said.as_bytes()).ok();
        }
    });
    let address = Address::parse(&format!("http://{at}/mcp"), || Err("no TLS".into()));
    Reach::Address(address.unwrap())
}

fn http(kind: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

struct Place {
    at: std::net::SocketAddr,
    session: String,
    _endpoint: Endpoint,
}

impl Place {
    fn of(servers: Vec<(&str, Reach)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let server = |(name, reach): (&str, Reach)| Server {
            name: name.to_owned(),
            reach,
        };
        let setup = Setup {
            servers: servers.into_iter().map(server).collect(),
            judge: Arc::new(Strict),
            limits: Limits::default(),
            hosts: Vec::new(),
        };
        let mut place = Self {
            at,
            session: String::new(),
            _endpoint: Endpoint::start(setup, Listening::Tcp(listener)).unwrap(),
        };
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
        let said = place.post(hello.to_string().as_bytes(), &[]);
        let session = said
            .lines()
            .find_map(|line| line.strip_prefix("mcp-session-id: "));
        place.session = session.unwrap_or_else(|| panic!("{said}")).to_owned();
        place
    }

    fn post(&self, body: &[u8], headers: &[(&str, &str)]) -> String {
        let host = self.at.to_string();
        let mut all = vec![
            ("host", host.as_str()),
            ("content-type", "application/json"),
        ];
        if !self.session.is_empty() {
            all.push(("mcp-session-id", &self.session));
        }
        all.retain(|(name, _)| !headers.iter().any(|(other, _)| name == other));
        all.extend(headers);
        let mut request = format!(
            "POST /mcp HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n",
            body.len()
        );
        for (name, value) in all {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut stream = TcpStream::connect(self.at).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.write_all(b"\r\n").unwrap();
        stream.write_all(body).unwrap();
        // What hangs is told by name.
        let patience = Some(Duration::from_secs(30));
        stream.set_read_timeout(patience).unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        said
    }

    fn call(&self, tool: &str) -> String {
        self.post(call(tool).as_bytes(), &[])
    }
}

fn call(tool: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"{tool}","arguments":{{}}}}}}"#
    )
}

fn on_pipes(name: &'static str, calls: &Calls) -> Reach {
    let calls = calls.clone();
    Reach::Program(Arc::new(OnPipes { name, calls }))
}

#[test]
fn headers_that_contradict_the_body_or_call_another_host_reach_nobody() {
    let calls = Calls::default();
    let place = Place::of(vec![("one", on_pipes("one", &calls))]);
    let check = |headers: &[(&str, &str)], status: &str| {
        let said = place.post(call("echo").as_bytes(), headers);
        assert!(
            said.starts_with(&format!("HTTP/1.1 {status} ")),
            "{headers:?}: {said}"
        );
    };
    check(&[("mcp-method", "tools/call"), ("mcp-name", "echo")], "200");
    assert_eq!(called(&calls), ["one echo"]);
    for headers in [
        [("mcp-method", "ping")].as_slice(),
        &[("mcp-name", "secret")],
        &[("mcp-name", "Echo")],
        &[("mcp-method", "tools/call"), ("mcp-method", "tools/call")],
        &[("mcp-name", "echo"), ("mcp-name", "echo")],
        &[("mcp-protocol-version", "1999-01-01")],
        &[("mcp-protocol-version", "2026-07-28")],
        &[
            ("mcp-protocol-version", "2025-06-18"),
            ("mcp-protocol-version", "2025-11-25"),
        ],
    ] {
        check(headers, "400");
    }
    // All that is there says the same, but for the version.
    let said = [("mcp-method", "tools/call"), ("mcp-name", "echo")];
    let versioned = |version| [said.as_slice(), &[("mcp-protocol-version", version)]].concat();
    check(&versioned("2026-07-28"), "400");
    let stateless = call("echo").replace(
        "\"name\"",
        "\"_meta\":{\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\"},\"name\"",
    );
    for headers in [versioned("2025-11-25"), said.to_vec()] {
        let said = place.post(stateless.as_bytes(), &headers);
        assert!(said.starts_with("HTTP/1.1 400 "), "{headers:?}: {said}");
    }
    for headers in [
        [("host", "evil.example")].as_slice(),
        &[("host", "127.0.0.1.evil.example")],
        &[("host", "127.0.0.1"), ("host", "127.0.0.1")],
        &[("origin", "http://evil.example")],
        &[("origin", "http://localhost.evil.example")],
        &[("origin", "null")],
    ] {
        check(headers, "403");
    }
    check(&[("content-type", "text/plain")], "415");
    check(&[("mcp-session-id", "0123")], "404");
    assert!(called(&calls).is_empty());
}

#[test]
fn tasks_of_several_servers_are_asked_about_at_the_server_that_has_them() {
    let calls = Calls::default();
    let servers = || {
        vec![
            ("one", on_pipes("one", &calls)),
            ("two", on_pipes("two", &calls)),
        ]
    };
    let place = Place::of(servers());
    let ask = |place: &Place, method: &str, params: Value| -> Value {
        let body = json!({"jsonrpc": "2.0", "id": 3, "method": method, "params": params});
        let said = place.post(body.to_string().as_bytes(), &[]);
        let (_, body) = said.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|_| panic!("{said}"))
    };
    let related = "io.modelcontextprotocol/related-task";
    for server in ["one", "two"] {
        let call =
            json!({"name": format!("{server}__echo"), "arguments": {}, "task": {"ttl": 600_000}});
        let made = ask(&place, "tools/call", call);
        let id = format!("{server}__t__1");
        assert_eq!(made["result"]["task"]["taskId"], id);
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            let params = json!({"taskId": id, "_meta": {related: {"taskId": id}}});
            let said = ask(&place, method, params);
            assert_eq!(said["result"]["statusMessage"], server, "{said}");
            if method != "tasks/result" {
                assert_eq!(said["result"]["taskId"], id, "{said}");
            }
            assert_eq!(said["result"]["_meta"][related]["taskId"], id, "{said}");
            let params =
                format!(r#"{{"_meta":{{"{related}":{{"taskId":"t__1"}}}},"taskId":"t__1"}}"#);
            assert_eq!(called(&calls), [format!("{server} {method} {params}")]);
        }
        // What is about another server's task is not told.
        let elsewhere = json!({"taskId": id, "_meta": {related: {"taskId": "three__t__1"}}});
        ask(&place, "tasks/get", elsewhere);
        assert!(!called(&calls)[0].contains("three"));
    }
    let listed = ask(&place, "tasks/list", json!({}));
    let both = json!([{"taskId": "one__t__1"}, {"taskId": "two__t__1"}]);
    assert_eq!(listed["result"]["tasks"], both);
    for id in [
        "t__1",
        "1",
        "three__t__1",
        "one__another's",
        "ONE__t__1",
        "__t__1",
        "",
    ] {
        let said = ask(&place, "tasks/result", json!({"taskId": id}));
        assert!(said["error"]["code"].is_i64(), "{id}: {said}");
    }
    for method in ["Tasks/get", "tasks/Result", "tasks/get"] {
        let said = ask(&place, method, json!({"taskid": "one__t__1"}));
        assert!(said["error"]["code"].is_i64(), "{method}: {said}");
    }
    // Another session made none.
    let other = Place::of(servers());
    let said = ask(&other, "tasks/result", json!({"taskId": "one__t__1"}));
    assert_eq!(said["error"]["code"], DENIED, "{said}");
    let listed = ask(&other, "tasks/list", json!({}));
    assert_eq!(listed["result"]["tasks"], json!([]));
    assert!(called(&calls).is_empty());
    // One server alone has its own ids, and the same holds.
    let alone = Place::of(vec![("one", on_pipes("one", &calls))]);
    let said = ask(&alone, "tasks/get", json!({"taskId": "t__1"}));
    assert_eq!(said["error"]["code"], DENIED, "{said}");
    let made = ask(&alone, "tools/call", json!({"name": "echo", "task": {}}));
    assert_eq!(made["result"]["task"]["taskId"], "t__1");
    let said = ask(&alone, "tasks/get", json!({"taskId": "t__1"}));
    assert_eq!(said["result"]["statusMessage"], "one", "{said}");
    let listed = ask(&alone, "tasks/list", json!({}));
    assert_eq!(listed["result"]["tasks"], json!([{"taskId": "t__1"}]));
}

#[test]
fn clients_without_sessions_are_not_shown_each_others_tasks() {
    let calls = Calls::default();
    for servers in [
        vec![("one", on_pipes("one", &calls))],
        vec![
            ("one", on_pipes("one", &calls)),
            ("two", on_pipes("two", &calls)),
        ],
    ] {
        let place = Place::of(servers);
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"tasks/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
        let headers = [
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tasks/list"),
        ];
        let said = place.post(body.as_bytes(), &headers);
        assert!(said.contains("-32601"), "{said}");
    }
}

#[test]
fn a_tool_of_two_servers_is_of_the_one_that_is_named() {
    let calls = Calls::default();
    let place = Place::of(vec![
        ("one", on_pipes("one", &calls)),
        ("two", on_pipes("two", &calls)),
    ]);
    place.call("two__echo");
    place.call("one__echo");
    assert_eq!(called(&calls), ["two echo", "one echo"]);
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let listed = place.post(list.as_bytes(), &[]);
    for name in ["one__echo", "two__echo", "one__secret", "two__secret"] {
        assert_eq!(
            listed.matches(&format!("\"{name}\"")).count(),
            1,
            "{listed}"
        );
    }
    for name in [
        "echo",
        "secret",
        "two__secret",
        "one__secret",
        "__echo",
        "two__",
        "TWO__echo",
        "three__echo",
    ] {
        let said = place.call(name);
        assert!(said.contains("\"error\""), "{name}: {said}");
    }
    assert!(called(&calls).is_empty());
}

#[test]
fn disguises_over_http_reach_nobody() {
    let calls = Calls::default();
    let place = Place::of(vec![("one", on_pipes("one", &calls))]);
    let secret = call("secret");
    let mut not_text = secret.clone().into_bytes();
    not_text.insert(2, 0xff);
    for body in [
        secret.clone().into_bytes(),
        format!("[{secret}]").into_bytes(),
        secret.replace("\"id\":7,", "").into_bytes(),
        secret
            .replace("\"name\":", "\"name\":\"echo\",\"name\":")
            .into_bytes(),
        secret
            .replace("\"name\":", "\"name\":\"echo\",\"Name\":")
            .into_bytes(),
        format!("{secret}{secret}").into_bytes(),
        not_text,
        format!("{}{secret}", " ".repeat(Limits::default().from_client)).into_bytes(),
    ] {
        place.post(&body, &[]);
    }
    assert!(called(&calls).is_empty(), "{:?}", calls.lock().unwrap());
}

#[test]
fn of_events_only_the_answer_to_the_question_is_believed() {
    let says = |message: &Value| {
        let id = &message["id"];
        let text = |id: &Value, text: &str| {
            json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}}).to_string()
        };
        let event = |data: String| format!("data: {data}\n\n");
        match message["params"]["name"].as_str() {
            Some("events") => {
                let forged = text(id, "forged");
                let twice = forged.replacen("\"id\"", &format!("\"id\":{id},\"id\""), 1);
                let body = [
                    event(format!("[{forged}]")),
                    event(twice),
                    event("no JSON".to_owned()),
                    event(text(&json!(424242), "forged")),
                    event(text(&json!(id.to_string()), "forged")),
                    event(text(id, "genuine")),
                    event(forged),
                ];
                http("text/event-stream", &body.concat())
            }
            Some("other") => http("application/json", &text(&json!(424242), "forged")),
            Some("elsewhere") => {
                "HTTP/1.1 307 Temporary Redirect\r\nconnection: close\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n".to_owned()
            }
            _ => http("text/html", "<html>"),
        }
    };
    let place = Place::of(vec![("far", by_http(says))]);
    let said = place.call("events");
    assert!(
        said.contains("genuine") && !said.contains("forged"),
        "{said}"
    );
    for tool in ["other", "elsewhere", "page"] {
        let said = place.call(tool);
        assert!(
            said.contains("-32015") && !said.contains("forged"),
            "{tool}: {said}"
        );
        assert_eq!(
            said.contains("redirects are not followed"),
            tool == "elsewhere"
        );
    }
}
