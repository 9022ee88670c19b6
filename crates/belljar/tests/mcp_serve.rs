//! `belljar mcp serve`: one address for MCP servers, and no way around its rules.

mod support;

use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use support::{Jail, NODE_MODULES, PYTHON, Who, finish, for_each_user_in_a_world};

const RULES: &str = r#"
[sandbox]
mode = "permissive"
[sandbox.mcp]
blocked_tools = ["everything:get-env", "web:get-env", "rude:secret"]
"#;

/// Nothing is refused, and tools that no server has are asked for at once.
const OPEN: &str = r#"
[sandbox]
mode = "permissive"
[sandbox.mcp]
on_new_tool = "allow"
"#;

fn jail(who: Who) -> Jail {
    let home: PathBuf = std::env::var_os("BELLJAR_TEST_WORLD_HOME")
        .expect("a world")
        .into();
    let jail = Jail::below(who, &home);
    jail.put(&jail.base.join("sandbox.toml"), RULES);
    for name in ["misbehaving.py", "upstream.py", "client.py", "client.mjs"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/world/mcp");
        let text = fs::read_to_string(source.join(name)).expect(name);
        jail.put(&jail.work.join(name), &text);
    }
    jail
}

/// A program that says one line when it is ready, and ends when this is dropped.
struct Ready {
    child: Child,
    line: String,
}

impl Ready {
    #[track_caller]
    fn start(mut command: Command) -> Ready {
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

fn everything(transport: &str) -> [String; 3] {
    let path = format!("{NODE_MODULES}/@modelcontextprotocol/server-everything/dist/index.js");
    ["node".into(), path, transport.into()]
}

/// `belljar mcp serve` with these words; its URL is its line.
fn serve(jail: &Jail, words: &[&str]) -> Ready {
    let config = jail.base.join("sandbox.toml");
    let mut command = jail.belljar(&["mcp", "serve", "--config"]);
    command.arg(config).args(words);
    Ready::start(command)
}

fn serve_program(jail: &Jail, name: &str, program: &[String]) -> Ready {
    let mut words = vec!["--name", name, "--"];
    words.extend(program.iter().map(String::as_str));
    serve(jail, &words)
}

fn upstream(jail: &Jail) -> Ready {
    let mut command = jail.outside(PYTHON);
    command.args(["-B", "upstream.py", "called"]);
    Ready::start(command)
}

fn called(jail: &Jail) -> Vec<String> {
    let text = fs::read_to_string(jail.work.join("called")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// An answer over HTTP: its status, its headers, and the last JSON in it.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    #[track_caller]
    fn json(&self) -> Value {
        let data = |line: &str| line.strip_prefix("data: ").map(str::to_owned);
        let last = self.body.lines().filter_map(data).next_back();
        let text = last.unwrap_or_else(|| self.body.clone());
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{} {}", self.status, self.body))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// A client that says whatever it is told to.
struct Http {
    at: String,
    session: Option<String>,
}

impl Http {
    fn at(url: &str) -> Http {
        let at = url.strip_prefix("http://").expect("a URL");
        let at = at.strip_suffix("/mcp").expect("its path").to_owned();
        Http { at, session: None }
    }

    #[track_caller]
    fn begun(url: &str) -> Http {
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
    fn raw(&self, request: &[u8]) -> Answer {
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
    fn post(&self, body: impl AsRef<[u8]>, headers: &[(&str, &str)]) -> Answer {
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
    fn ask(&self, method: &str, params: Value) -> Value {
        let question = json!({"jsonrpc": "2.0", "id": 5, "method": method, "params": params});
        let answer = self.post(question.to_string(), &[]);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    }

    #[track_caller]
    fn call(&self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": tool, "arguments": arguments}))
    }
}

fn unchunked(mut body: &str) -> String {
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

fn text_of(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("no text in {answer}"))
}

/// Runs the official clients against an address; what is refused is refused to both.
#[track_caller]
fn drive(jail: &Jail, url: &str, prefix: &str) {
    for (program, file) in [(PYTHON, "client.py"), ("node", "client.mjs")] {
        let mut client = jail.outside(program);
        client
            .arg(jail.work_file(file))
            .env("MODULES", NODE_MODULES)
            .env("URL_OF_SERVER", url)
            .env("PREFIX", prefix);
        let finished = finish(client.spawn().expect("start a client"));
        let said: Value = serde_json::from_str(finished.stdout().trim())
            .unwrap_or_else(|_| panic!("{file}: {}\n{}", finished.stdout(), finished.stderr()));
        assert_eq!(said["echo"], "Echo: hello", "{file}: {said}");
        assert_eq!(said["lists_get_env"], json!(false), "{file}: {said}");
        assert_eq!(said["denied_code"], -32010, "{file}: {said}");
        assert_eq!(said["after"], "Echo: again", "{file}: {said}");
        assert!(said["progress"].as_u64() >= Some(1), "{file}: {said}");
    }
}

/// server-everything by HTTP, on a port of its own choice that it can't be asked for: it wants one named.
fn everything_by_http(jail: &Jail) -> (Ready, String) {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("its address").port();
    drop(free);
    let [program, path, transport] = everything("streamableHttp");
    // It says that it listens on its error output.
    let mut command = jail.outside("/bin/sh");
    command
        .args(["-c", "exec \"$@\" 2>&1", "sh"])
        .args([program, path, transport])
        .env("PORT", port.to_string());
    let ready = Ready::start(command);
    let url = format!("http://127.0.0.1:{port}/mcp");
    let _ = support::eventually("server-everything listens", || {
        TcpStream::connect(("127.0.0.1", port)).ok()
    });
    (ready, url)
}

fn the_official_clients_use_programs_and_addresses_under_rules(who: Who) {
    let jail = jail(who);
    let program = serve_program(&jail, "everything", &everything("stdio"));
    drive(&jail, &program.line, "");
    let (_web, url) = everything_by_http(&jail);
    let by_address = serve(&jail, &["--server", &format!("web={url}")]);
    drive(&jail, &by_address.line, "");
    let stdio = everything("stdio");
    let both = serve(
        &jail,
        &[
            "--server",
            &format!("web={url}"),
            "--name",
            "everything",
            "--",
            &stdio[0],
            &stdio[1],
            &stdio[2],
        ],
    );
    drive(&jail, &both.line, "everything__");
    drive(&jail, &both.line, "web__");
    let http = Http::begun(&both.line);
    for name in ["get-env", "nobody__echo", "web__", "everything__get-env"] {
        let refused = http.call(name, json!({}));
        let failed =
            refused["error"]["code"].is_i64() || refused["result"]["isError"] == json!(true);
        assert!(
            failed && !refused.to_string().contains("PATH"),
            "{name}: {refused}"
        );
    }
}

fn no_disguise_reaches_a_program_behind_an_address(who: Who) {
    let jail = jail(who);
    let server = [PYTHON, "-B", "misbehaving.py"].map(str::to_owned);
    let serving = serve_program(&jail, "rude", &server);
    let http = Http::begun(&serving.line);
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"secret","arguments":{}}}"#;
    let bodies: Vec<Vec<u8>> = vec![
        format!("[{call}]").into(),
        call.replace(r#""id":1,"#, "").into(),
        call.replace(r#""name":"secret""#, r#""name":"echo","name":"secret""#)
            .into(),
        call.replace(r#""name":"secret""#, r#""name":"echo","NAME":"secret""#)
            .into(),
        call.replace("tools/call", "Tools/Call").into(),
        call.replace("\"method\"", "\"method\\u0000\"").into(),
        call.replace("secret", "secr\u{435}t").into(),
        call.replace("secret", "secret\\u200b").into(),
        format!("{call}{call}").into(),
        call.as_bytes()
            .iter()
            .map(|byte| if *byte == b't' { 0xff } else { *byte })
            .collect(),
    ];
    for body in bodies {
        let answer = http.post(&body, &[]);
        let shown = String::from_utf8_lossy(&body).into_owned();
        assert!(
            !answer.body.contains("the secret"),
            "{shown}: {}",
            answer.body
        );
    }
    let denied = http.post(call, &[]);
    assert_eq!(
        denied.status, 200,
        "a refusal is an answer: {}",
        denied.body
    );
    assert_eq!(denied.json()["error"]["code"], -32010);
    let echo = call.replace("secret", "echo");
    for headers in [
        [("mcp-method", "ping")].as_slice(),
        &[("mcp-name", "secret")],
        &[("mcp-method", "tools/call"), ("mcp-name", "secret")],
        &[("mcp-method", "tools/call"), ("mcp-method", "ping")],
        &[("mcp-protocol-version", "1999-01-01")],
        &[("mcp-protocol-version", "2026-07-28")],
        &[("host", "evil.example.com")],
        &[("origin", "http://evil.example.com")],
        &[("origin", "http://127.0.0.1.evil.example.com")],
        &[("origin", "null")],
        &[("content-type", "text/plain")],
        &[("mcp-session-id", "0123")],
        &[("mcp-session-id", "")],
    ] {
        let answer = http.post(&echo, headers);
        assert!(
            (400..500).contains(&answer.status),
            "{headers:?}: {} {}",
            answer.status,
            answer.body
        );
    }
    assert!(called(&jail).is_empty(), "{:?}", called(&jail));
    let names = [("mcp-method", "tools/call"), ("mcp-name", "echo")];
    assert_eq!(text_of(&http.post(&echo, &names).json()), "{}");
    assert_eq!(called(&jail), ["echo"], "and the session survived it all");
    // One that hangs keeps nobody waiting, one that ends is told of.
    let gone = http.call("crash", json!({}));
    assert_eq!(gone["error"]["code"], -32014, "{gone}");
    let gone = http.call("echo", json!({}));
    assert_eq!(gone["error"]["code"], -32014, "{gone}");
    assert_eq!(
        text_of(&Http::begun(&serving.line).call("echo", json!({}))),
        "{}"
    );
    drop(serving);
    jail.assert_nothing_left(None);
}

fn a_server_at_an_address_that_misbehaves_costs_one_answer_each(who: Who) {
    let jail = jail(who);
    let up = upstream(&jail);
    let target = format!("rude=http://127.0.0.1:{}/mcp", up.line);
    let serving = serve(&jail, &["--deadline", "5", "--server", &target]);
    let http = Http::begun(&serving.line);
    let answer = http.post(
        r#"{"jsonrpc":"2.0","id":"g","method":"tools/call","params":{"name":"garbage"}}"#,
        &[],
    );
    assert_eq!(text_of(&answer.json()), "genuine");
    for word in ["forged", "no JSON", "again", "424242", "sampling"] {
        assert!(!answer.body.contains(word), "{word}: {}", answer.body);
    }
    assert_eq!(text_of(&http.call("twice", json!({}))), "first");
    for tool in ["broken", "status"] {
        let answer = http.call(tool, json!({}));
        assert_eq!(answer["error"]["code"], -32015, "{tool}: {answer}");
    }
    assert_eq!(http.call("secret", json!({}))["error"]["code"], -32010);
    assert!(!called(&jail).contains(&"secret".to_owned()));
    assert_eq!(text_of(&http.call("echo", json!({}))), "echo");
    drop(up);
    let gone = http.call("echo", json!({}));
    assert!(
        [-32014, -32015]
            .map(Value::from)
            .contains(&gone["error"]["code"]),
        "{gone}"
    );
}

fn a_client_without_sessions_uses_a_server_that_wants_them(who: Who) {
    let jail = jail(who);
    let serving = serve_program(&jail, "everything", &everything("stdio"));
    let http = Http::at(&serving.line);
    let version = "2026-07-28";
    let ask = |id: i64, method: &str, name: Option<&str>, mut params: Value| {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let mut headers = vec![("mcp-protocol-version", version), ("mcp-method", method)];
        headers.extend(name.map(|name| ("mcp-name", name)));
        http.post(body.to_string(), &headers).json()
    };
    let found = ask(1, "server/discover", None, json!({}));
    assert_eq!(found["result"]["resultType"], "complete", "{found}");
    assert!(
        found["result"]["capabilities"]["tools"].is_object(),
        "{found}"
    );
    let listed = ask(1, "tools/list", None, json!({}));
    assert!(listed["result"]["ttlMs"].is_i64(), "{listed}");
    assert!(!listed.to_string().contains("get-env"), "{listed}");
    let echo = json!({"name": "echo", "arguments": {"message": "hi"}});
    let echoed = ask(1, "tools/call", Some("echo"), echo.clone());
    assert_eq!(text_of(&echoed), "Echo: hi");
    assert_eq!(echoed["id"], 1);
    let denied = ask(1, "tools/call", Some("get-env"), json!({"name": "get-env"}));
    assert_eq!(denied["error"]["code"], -32010, "{denied}");
    // The name that is checked by who stands between is the one that is called.
    for name in [None, Some("add"), Some("get-env")] {
        let refused = ask(1, "tools/call", name, echo.clone());
        assert_eq!(refused["error"]["code"], -32020, "{refused}");
    }
}

fn a_box_speaks_with_the_servers_of_its_policy_and_no_others(who: Who) {
    let jail = jail(who);
    let path = format!("{NODE_MODULES}/@modelcontextprotocol/server-everything/dist/index.js");
    jail.put(&jail.base.join("server.yaml"), "extends: moderate\n");
    let policy = format!(
        "extends: moderate\nmcp:\n  servers:\n    one: {{command: [node, {path}, stdio], capability: server.yaml}}\n    \
         two: {{command: [node, {path}, stdio], capability: server.yaml}}\n  blocked_tools: [\"*:get-env\"]\n"
    );
    let config = jail.base.join("policy.yaml");
    jail.put(&config, &policy);
    let belljar = jail.work.join("belljar");
    fs::copy(jail.belljar_path(), &belljar).expect("a belljar in the workspace");
    let client = jail.work_file("client.mjs");
    let script = format!(
        "MODULES={NODE_MODULES} PREFIX=two__ node {client} {} mcp connect",
        belljar.display()
    );
    let mut command = jail.belljar(&["run", "--quiet", "--config"]);
    command
        .arg(&config)
        .args(["--", "/bin/sh", "-euc", &script]);
    let finished = finish(command.spawn().expect("start a box"));
    let said: Value = serde_json::from_str(finished.stdout().trim())
        .unwrap_or_else(|_| panic!("{}\n{}", finished.stdout(), finished.stderr()));
    assert_eq!(said["echo"], "Echo: hello", "{said}");
    assert_eq!(said["lists_get_env"], json!(false), "{said}");
    assert_eq!(said["denied_code"], -32010, "{said}");
    jail.assert_nothing_left(None);
}

/// The verdicts of the conformance suite, by scenario.
#[track_caller]
fn verdicts(jail: &Jail, url: &str) -> Vec<(String, String)> {
    let mut command = jail.outside("/mnt/clients/newer/node_modules/.bin/node");
    command
        .arg(format!(
            "{NODE_MODULES}/@modelcontextprotocol/conformance/dist/index.js"
        ))
        .args(["server", "--url", url]);
    let said = finish(command.spawn().expect("start the suite")).stdout();
    let verdicts: Vec<(String, String)> = said
        .lines()
        .filter(|line| line.starts_with(['✓', '✗']))
        .filter_map(|line| {
            let (scenario, counts) = line.split_once(": ")?;
            let (mark, name) = scenario.split_once(' ')?;
            let failed = counts.split(", ").nth(1)?;
            Some((name.to_owned(), format!("{mark} {failed}")))
        })
        .collect();
    assert!(verdicts.len() > 20, "{said}");
    verdicts
}

fn the_conformance_suite_finds_no_difference(who: Who) {
    let jail = jail(who);
    let (_web, url) = everything_by_http(&jail);
    let direct = verdicts(&jail, &url);
    assert!(
        direct.iter().any(|(_, verdict)| verdict.starts_with('✓')),
        "{direct:?}"
    );
    let open = jail.base.join("sandbox.toml");
    jail.put(&open, OPEN);
    let by_address = serve(&jail, &["--server", &format!("everything={url}")]);
    let program = serve_program(&jail, "everything", &everything("stdio"));
    for through in [&by_address, &program] {
        let mut found = verdicts(&jail, &through.line);
        found.retain(|verdict| !direct.contains(verdict));
        // server-everything takes requests of other hosts' pages; the gateway does not.
        assert_eq!(
            found,
            [(
                "dns-rebinding-protection".to_owned(),
                "✓ 0 failed".to_owned()
            )]
        );
    }
}

for_each_user_in_a_world!(
    the_official_clients_use_programs_and_addresses_under_rules,
    no_disguise_reaches_a_program_behind_an_address,
    a_server_at_an_address_that_misbehaves_costs_one_answer_each,
    a_client_without_sessions_uses_a_server_that_wants_them,
    a_box_speaks_with_the_servers_of_its_policy_and_no_others,
    the_conformance_suite_finds_no_difference,
);
