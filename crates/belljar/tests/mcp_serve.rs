//! `belljar mcp serve`: one address for MCP servers, and no way around its rules.

mod support;

use serde_json::{Value, json};
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use support::{
    Http, Jail, NODE_MODULES, PYTHON, Ready, Who, finish, for_each_user_in_a_world, text_of,
};

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
    for name in [
        "misbehaving.py",
        "upstream.py",
        "client.py",
        "client.mjs",
        "tasks.mjs",
    ] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/world/mcp");
        let text = fs::read_to_string(source.join(name)).expect(name);
        jail.put(&jail.work.join(name), &text);
    }
    jail
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

fn calls_that_become_tasks_are_found_again_at_the_server_that_has_them(who: Who) {
    let jail = jail(who);
    let [node, path, transport] = everything("stdio");
    let server = |name: &str| {
        format!("    {name}: {{command: [{node}, {path}, {transport}], capability: server.yaml}}\n")
    };
    jail.put(&jail.base.join("server.yaml"), "extends: permissive\n");
    let rules = format!(
        "extends: moderate\nmcp:\n  servers:\n{}{}  server_requests: {{elicitation: allow}}\n",
        server("one"),
        server("two")
    );
    let config = jail.base.join("tasks.yaml");
    jail.put(&config, &rules);
    let mut command = jail.belljar(&["mcp", "serve", "--config"]);
    command.arg(&config);
    let serving = Ready::start(command);
    let mut client = jail.outside("node");
    client
        .arg(jail.work_file("tasks.mjs"))
        .env("MODULES", NODE_MODULES)
        .env("URL_OF_SERVER", &serving.line);
    let finished = finish(client.spawn().expect("start a client"));
    let said: Value = serde_json::from_str(finished.stdout().trim())
        .unwrap_or_else(|_| panic!("{}\n{}", finished.stdout(), finished.stderr()));
    assert!(said["capability"]["list"].is_object(), "{said}");
    let [one, two] = ["one", "two"].map(|name| said["made"][name].as_str().unwrap_or_default());
    assert!(
        one.starts_with("one__") && two.starts_with("two__"),
        "{said}"
    );
    assert_eq!(said["asked"], json!([one]), "one task wanted to know more");
    assert_eq!(
        said["results"]["one"], "# Research Report: one (technical)",
        "{said}"
    );
    assert_eq!(said["results"]["two"], "# Research Report: two", "{said}");
    assert_eq!(
        (&said["cancelled"], &said["after"]),
        (&json!("cancelled"), &json!("cancelled"))
    );
    let mut listed: Vec<&str> = said["listed"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(Value::as_str)
        .collect();
    let mut made = vec![one, two, said["given"].as_str().unwrap_or_default()];
    listed.sort_unstable();
    made.sort_unstable();
    assert_eq!(listed, made, "{said}");
    assert_eq!(said["other"], json!([]), "{said}");
    assert_eq!(
        said["codes"],
        json!([-32010, -32010, -32010, -32010, -32602]),
        "{said}"
    );
    drop(serving);
    // What was asked about tasks is on record as calls are, with the tool that they are of.
    let exported = finish(
        jail.belljar(&["audit", "export"])
            .spawn()
            .expect("start belljar"),
    );
    let entries: Vec<Value> = exported
        .stdout()
        .lines()
        .map(|line| serde_json::from_str(line).expect("an entry"))
        .collect();
    let count = |tool: &str, verdict: &str| {
        let of = |entry: &&Value| {
            entry.to_string().contains(&format!("\"tool\":\"{tool}\""))
                && entry
                    .to_string()
                    .contains(&format!("\"verdict\":\"{verdict}\""))
        };
        entries.iter().filter(of).count()
    };
    assert_eq!(count("tasks/result", "allow"), 2, "{}", exported.stdout());
    assert!(count("tasks/get", "allow") >= 3);
    assert_eq!(
        (
            count("tasks/cancel", "allow"),
            count("tasks/cancel", "deny")
        ),
        (1, 1)
    );
    assert_eq!(
        (count("tasks/get", "deny"), count("tasks/result", "deny")),
        (2, 1)
    );
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

/// Asks without a session, as of 2026-07-28.
#[track_caller]
fn ask_alone(http: &Http, method: &str, name: Option<&str>, mut params: Value) -> Value {
    let version = "2026-07-28";
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let mut headers = vec![("mcp-protocol-version", version), ("mcp-method", method)];
    headers.extend(name.map(|name| ("mcp-name", name)));
    http.post(body.to_string(), &headers).json()
}

fn a_client_without_sessions_uses_several_servers_with_and_without_them(who: Who) {
    let jail = jail(who);
    let up = upstream(&jail);
    let server = [PYTHON, "-B", "misbehaving.py"];
    let far = format!("far=http://127.0.0.1:{}/mcp", up.line);
    let words = [
        &["--server", &far, "--name", "rude", "--"],
        server.as_slice(),
    ]
    .concat();
    let serving = serve(&jail, &words);
    let http = Http::at(&serving.line);
    let found = ask_alone(&http, "server/discover", None, json!({}));
    assert_eq!(
        found["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "belljar",
        "{found}"
    );
    let listed = ask_alone(&http, "tools/list", None, json!({}));
    let names: Vec<&str> = listed["result"]["tools"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    assert!(
        names.contains(&"far__echo") && names.contains(&"rude__echo"),
        "{names:?}"
    );
    assert!(!names.contains(&"rude__secret"), "{names:?}");
    for (name, expected) in [("far__echo", "echo"), ("rude__echo", "{}")] {
        let call = json!({"name": name, "arguments": {}});
        let answer = ask_alone(&http, "tools/call", Some(name), call);
        assert_eq!(text_of(&answer), expected, "{answer}");
        assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
        assert_eq!(answer["id"], 1);
    }
    // The name in the header is the one that clients know, of a server and its tool.
    for (header, name) in [
        ("rude__secret", "rude__secret"),
        ("far__echo", "rude__secret"),
        ("secret", "rude__secret"),
        ("rude__secret", "secret"),
    ] {
        let answer = ask_alone(&http, "tools/call", Some(header), json!({"name": name}));
        assert!(answer["error"]["code"].is_i64(), "{answer}");
    }
    assert!(!called(&jail).contains(&"secret".to_owned()));
}

fn a_held_call_waits_for_its_operator_and_keeps_nobody_else_waiting(who: Who) {
    let jail = jail(who);
    let rules = "[sandbox]\nmode = \"permissive\"\n[[sandbox.mcp.rules]]\ntool = \"rude:secret\"\nverdict = \"hold\"\n";
    jail.put(&jail.base.join("sandbox.toml"), rules);
    let server = [PYTHON, "-B", "misbehaving.py"].map(str::to_owned);
    let serving = serve_program(&jail, "rude", &server);
    for (answer, code) in [("allow", None), ("refuse", Some(-32011))] {
        let url = serving.line.clone();
        let waiting = std::thread::spawn(move || Http::begun(&url).call("secret", json!({})));
        let held = support::eventually("the call is held", || {
            let listed = finish(jail.belljar(&["mcp", "holds"]).spawn().ok()?).stdout();
            let id = listed.split_whitespace().next()?.to_owned();
            listed.contains("rude:secret").then_some(id)
        });
        assert_eq!(
            text_of(&Http::begun(&serving.line).call("echo", json!({}))),
            "{}",
            "others go on"
        );
        let mut answered = jail.belljar(&["mcp", "answer", &held, answer, "--reason", "a test"]);
        let answered = finish(answered.spawn().expect("start it"));
        assert!(answered.status.success(), "{}", answered.stderr());
        let heard = waiting.join().expect("a client");
        match code {
            None => assert_eq!(text_of(&heard), "the secret"),
            Some(code) => assert_eq!(heard["error"]["code"], code, "{heard}"),
        }
    }
    assert_eq!(called(&jail), ["echo", "secret", "echo"]);
}

fn whatever_a_server_does_costs_one_answer_and_holds_up_nobody(who: Who) {
    let jail = jail(who);
    jail.put(&jail.base.join("sandbox.toml"), OPEN);
    let up = upstream(&jail);
    let far = format!("far=http://127.0.0.1:{}/mcp", up.line);
    let server = [PYTHON, "-B", "misbehaving.py"];
    let serving = |deadline: &str| {
        let options = [
            "--deadline",
            deadline,
            "--server",
            &far,
            "--name",
            "near",
            "--",
        ];
        serve(&jail, &[options.as_slice(), &server].concat())
    };
    let impatient = serving("1");
    for tool in ["far__hang", "near__hang"] {
        let url = impatient.line.clone();
        let other = Http::begun(&url);
        let hanging = std::thread::spawn(move || Http::begun(&url).call(tool, json!({})));
        assert_eq!(text_of(&other.call("near__echo", json!({}))), "{}");
        let answer = hanging.join().expect("a client");
        assert_eq!(answer["error"]["code"], -32013, "{answer}");
    }
    drop(impatient);
    let serving = serving("300");
    let url = serving.line.clone();
    let http = Http::begun(&url);
    for (tool, text) in [
        ("near__twice", "first"),
        ("far__twice", "first"),
        ("near__wrong_id", "genuine"),
        ("near__garbage", "after garbage"),
        ("far__garbage", "genuine"),
        ("near__flood", "flooded"),
        ("far__flood", "flooded"),
    ] {
        let answer = http.post(
            json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": tool}})
                .to_string(),
            &[],
        );
        assert_eq!(text_of(&answer.json()), text, "{tool}");
        assert!(!answer.body.contains("forged"), "{tool}");
        let answers = answer.body.matches("\"result\"").count();
        assert_eq!(answers, 1, "{tool}: one answer");
    }
    for (tool, code) in [
        ("near__huge", -32015),
        ("far__huge", -32015),
        ("far__wrong_id", -32015),
        ("far__other_id", -32015),
        ("far__crash", -32015),
        ("near__crash", -32014),
        // It is gone for this session, and another's is another.
        ("near__echo", -32014),
    ] {
        let answer = http.call(tool, json!({}));
        assert_eq!(answer["error"]["code"], code, "{tool}: {answer}");
    }
    assert_eq!(text_of(&http.call("far__echo", json!({}))), "echo");
    let other = Http::begun(&url);
    assert_eq!(text_of(&other.call("near__echo", json!({}))), "{}");
}

fn a_client_without_sessions_uses_a_server_that_wants_them(who: Who) {
    let jail = jail(who);
    let serving = serve_program(&jail, "everything", &everything("stdio"));
    let http = Http::at(&serving.line);
    let ask =
        |method: &str, name: Option<&str>, params: Value| ask_alone(&http, method, name, params);
    let found = ask("server/discover", None, json!({}));
    assert_eq!(found["result"]["resultType"], "complete", "{found}");
    assert!(
        found["result"]["capabilities"]["tools"].is_object(),
        "{found}"
    );
    let listed = ask("tools/list", None, json!({}));
    assert!(listed["result"]["ttlMs"].is_i64(), "{listed}");
    assert!(!listed.to_string().contains("get-env"), "{listed}");
    let echo = json!({"name": "echo", "arguments": {"message": "hi"}});
    let echoed = ask("tools/call", Some("echo"), echo.clone());
    assert_eq!(text_of(&echoed), "Echo: hi");
    assert_eq!(echoed["id"], 1);
    let denied = ask("tools/call", Some("get-env"), json!({"name": "get-env"}));
    assert_eq!(denied["error"]["code"], -32010, "{denied}");
    // The name that is checked by who stands between is the one that is called.
    for name in [None, Some("add"), Some("get-env")] {
        let refused = ask("tools/call", name, echo.clone());
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
    calls_that_become_tasks_are_found_again_at_the_server_that_has_them,
    no_disguise_reaches_a_program_behind_an_address,
    a_server_at_an_address_that_misbehaves_costs_one_answer_each,
    a_client_without_sessions_uses_a_server_that_wants_them,
    a_client_without_sessions_uses_several_servers_with_and_without_them,
    a_held_call_waits_for_its_operator_and_keeps_nobody_else_waiting,
    whatever_a_server_does_costs_one_answer_and_holds_up_nobody,
    a_box_speaks_with_the_servers_of_its_policy_and_no_others,
    the_conformance_suite_finds_no_difference,
);
