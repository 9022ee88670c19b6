//! `belljar mcp wrap`: servers of others' in boxes, clients of others' in front of them, and nothing between them that a
//! rule refuses.

mod support;

use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use support::{Jail, NODE_MODULES, PYTHON, Talk, Who, finish, for_each_user_in_a_world, text_of};

const RULES: &str = r#"
[sandbox]
mode = "permissive"
[sandbox.mcp]
blocked_tools = ["everything:get-env", "rude:secret"]
"#;

fn world_home() -> std::path::PathBuf {
    std::env::var_os("BELLJAR_TEST_WORLD_HOME")
        .expect("a world")
        .into()
}

fn jail(who: Who) -> Jail {
    let mut jail = Jail::below(who, &world_home());
    // What get-env would give away.
    jail.variable("TERM", "the-secret-of-the-test");
    jail.put(&jail.base.join("sandbox.toml"), RULES);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/world/mcp/misbehaving.py");
    let text = fs::read_to_string(source).expect("the server that misbehaves");
    jail.put(&jail.work.join("misbehaving.py"), &text);
    jail
}

fn everything(transport: &str) -> Vec<String> {
    vec![
        "node".into(),
        format!("{NODE_MODULES}/@modelcontextprotocol/server-everything/dist/index.js"),
        transport.into(),
    ]
}

fn wrapped(jail: &Jail, name: &str, options: &[&str], server: &[String]) -> Command {
    let config = jail.base.join("sandbox.toml");
    let mut command = jail.belljar(&["mcp", "wrap", "--name", name, "--config"]);
    command.arg(config).args(options).arg("--").args(server);
    command
}

fn rude(jail: &Jail, options: &[&str]) -> Talk {
    let server = [PYTHON, "-B", "misbehaving.py"].map(str::to_owned);
    Talk::start(wrapped(jail, "rude", options, &server))
}

/// What the misbehaving server was called with.
fn called(jail: &Jail) -> Vec<String> {
    let text = fs::read_to_string(jail.work.join("called")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Every way to say `tools/call get-env` that some reader takes for it.
fn disguises(tool: &str) -> Vec<Vec<u8>> {
    let call = |id: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{{}}}}}}"#
        )
    };
    let with = |front: &str| {
        format!(r#"{{"jsonrpc":"2.0",{front},"params":{{"name":"{tool}","arguments":{{}}}}}}"#)
    };
    let named = |name: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{{name},"arguments":{{}}}}}}"#
        )
    };
    let deep = "[".repeat(200) + &"]".repeat(200);
    let long = "x".repeat(5 << 20);
    let mut all: Vec<String> = vec![
        call("1"),
        format!("[{}]", call("2")),
        format!(
            r#"[{{"jsonrpc":"2.0","id":3,"method":"ping"}},{}]"#,
            call("4")
        ),
        with(r#""method":"tools/call""#),
        with(r#""id":null,"method":"tools/call""#),
        with(r#""id":5,"method":"ping","method":"tools/call""#),
        with(r#""id":6,"method":"tools/call","method":"ping""#),
        with(r#""id":7,"method":"ping","Method":"tools/call""#),
        with(r#""id":7,"METHOD":"tools/call""#),
        with(r#""id":8,"method":"Tools/Call""#),
        with(r#""id":9,"method":"ping","method\u0000":"tools/call""#),
        with(r#""id":10,"m\u0065thod":"ping","method":"tools/call""#),
        with(r#""id":1.5,"method":"tools/call""#),
        with(r#""id":{"a":1},"method":"tools/call""#),
        named(&format!(r#""name":"echo","name":"{tool}""#)),
        named(&format!(r#""name":"{tool}","name":"echo""#)),
        named(&format!(r#""name":"echo","Name":"{tool}""#)),
        named(&format!(r#""NAME":"{tool}""#)),
        named(&format!(r#""name":["{tool}"]"#)),
        named(&format!(r#""name":"{tool}\u200b""#)),
        named(&format!(r#""name":" {tool}""#)),
        named(&format!(r#""name":"{tool}\u0000""#)),
        named(&format!(r#""name":"{}""#, tool.replace('e', "\u{435}"))),
        named(&format!(r#""name":"{}""#, tool.replace('-', "\u{2010}"))),
        named(&format!(r#""name":"{tool}","x":{deep}"#)),
        named(&format!(r#""name":"{tool}","x":"{long}""#)),
        format!("\u{feff}{}", call("11")),
        format!("{}{}", call("12"), call("13")),
        format!("{} garbage", call("14")),
    ];
    all.push(all[0].replace(r#""jsonrpc":"2.0","#, ""));
    let mut bytes: Vec<Vec<u8>> = all.into_iter().map(String::into_bytes).collect();
    let mut invalid = call("15").into_bytes();
    let place = invalid.len() - 2;
    invalid.splice(place..place, b",\"x\":\"\xff\"".iter().copied());
    bytes.push(invalid);
    bytes
}

fn no_disguise_of_a_refused_call_reaches_a_real_server(who: Who) {
    let jail = jail(who);
    // Without the rule it is reached: what follows can't pass for another reason.
    let open = jail.base.join("open.toml");
    jail.put(&open, "[sandbox]\nmode = \"permissive\"\n");
    let mut command = jail.belljar(&["mcp", "wrap", "--name", "everything", "--config"]);
    command.arg(&open).arg("--").args(everything("stdio"));
    let mut talk = Talk::start(command);
    let answer = talk.call("get-env", json!({}));
    assert!(text_of(&answer).contains("PATH"), "{answer}");
    assert_eq!(talk.leave(), Some(0));

    let mut talk = Talk::start(wrapped(&jail, "everything", &[], &everything("stdio")));
    let tools = talk.ask("tools/list", json!({}))["result"]["tools"].clone();
    let names: Vec<&str> = tools
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    assert!(
        names.contains(&"echo") && !names.contains(&"get-env"),
        "{names:?}"
    );
    for disguise in disguises("get-env") {
        talk.send(&disguise);
        let said = talk.all_so_far();
        let shown = String::from_utf8_lossy(&disguise[..disguise.len().min(200)]).into_owned();
        for answer in said.iter().filter(|answer| answer.get("method").is_none()) {
            assert!(answer["error"]["code"].is_i64(), "{shown}: {answer}");
        }
        assert!(!format!("{said:?}").contains("PATH="), "{shown}: {said:?}");
    }
    let denied = talk.call("get-env", json!({}));
    assert_eq!(denied["error"]["code"], -32010, "{denied}");
    assert_eq!(
        denied["error"]["data"]["reason"], "deny_tool_blocked",
        "{denied}"
    );
    let answer = talk.call("echo", json!({"message": "still here"}));
    assert_eq!(text_of(&answer), "Echo: still here");
    assert_eq!(talk.leave(), Some(0));
    jail.assert_nothing_left(None);
}

/// This one reads arrays, NULs and any case: what it was called with is what got through.
fn no_disguise_reaches_a_server_that_reads_carelessly(who: Who) {
    let jail = jail(who);
    let mut talk = rude(&jail, &[]);
    for disguise in disguises("secret") {
        talk.send(&disguise);
    }
    assert_eq!(text_of(&talk.call("echo", json!({"a": 1}))), r#"{"a": 1}"#);
    assert_eq!(called(&jail), ["echo"]);
    talk.leave();
}

fn a_server_that_misbehaves_costs_one_answer_each(who: Who) {
    let jail = jail(who);
    // Long enough for all it floods with to be carried on a busy machine.
    let mut talk = rude(&jail, &["--deadline", "20"]);
    assert_eq!(text_of(&talk.call("twice", json!({}))), "first");
    assert!(talk.all_so_far().is_empty(), "a second answer came through");
    assert_eq!(text_of(&talk.call("garbage", json!({}))), "after garbage");
    assert_eq!(text_of(&talk.call("wrong_id", json!({}))), "genuine");
    assert!(talk.all_so_far().is_empty(), "a forged answer came through");
    assert_eq!(talk.call("huge", json!({}))["error"]["code"], -32015);
    let asked = talk.call("ask", json!({}));
    assert!(
        text_of(&asked).contains("-32010"),
        "the server was not refused: {asked}"
    );
    assert_eq!(text_of(&talk.call("flood", json!({}))), "flooded");
    assert_eq!(talk.all_so_far().len(), 20_000, "what is no fault passes");
    // Others are answered while one hangs.
    talk.send(r#"{"jsonrpc":"2.0","id":"h","method":"tools/call","params":{"name":"hang"}}"#);
    assert_eq!(text_of(&talk.call("echo", json!({}))), "{}");
    let late = talk.answer(&json!("h"));
    assert_eq!(late["error"]["code"], -32013, "{late}");
    assert_eq!(late["error"]["data"]["reason"], "server_timeout", "{late}");
    // Two wait when it ends; both hear of it.
    talk.send(r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"hang"}}"#);
    talk.send(r#"{"jsonrpc":"2.0","id":"b","method":"tools/call","params":{"name":"crash"}}"#);
    for id in ["a", "b"] {
        let gone = talk.answer(&json!(id));
        assert_eq!(gone["error"]["code"], -32014, "{gone}");
    }
    assert_eq!(talk.hear(), None);
    assert_eq!(talk.leave(), Some(9), "its exit code passes through");
    jail.assert_nothing_left(None);
}

fn cancelling_and_progress_pass_through(who: Who) {
    let jail = jail(who);
    let mut talk = rude(&jail, &[]);
    let meta = json!({"name": "progress", "_meta": {"progressToken": "t"}});
    let answer = talk.ask("tools/call", meta);
    assert_eq!(text_of(&answer), "done");
    assert_eq!(talk.aside[0]["params"]["progressToken"], "t");
    talk.aside.clear();
    talk.send(r#"{"jsonrpc":"2.0","id":"h","method":"tools/call","params":{"name":"hang"}}"#);
    talk.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"h"}}"#);
    assert!(talk.all_so_far().is_empty());
    assert_eq!(called(&jail), ["progress", "hang", "cancelled True"]);
    talk.leave();
}

fn an_id_in_use_is_refused_and_the_first_is_answered(who: Who) {
    let jail = jail(who);
    let mut talk = rude(&jail, &["--deadline", "2"]);
    talk.send(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang"}}"#);
    talk.send(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}"#);
    let second = talk.answer(&json!(1));
    assert_eq!(second["error"]["code"], -32600, "{second}");
    let first = talk.answer(&json!(1));
    assert_eq!(first["error"]["code"], -32013, "{first}");
    assert_eq!(called(&jail)[0], "hang");
    assert!(!called(&jail).contains(&"echo".to_owned()));
    talk.leave();
}

fn the_server_is_in_a_box(who: Who) {
    let jail = jail(who);
    let program = format!("{NODE_MODULES}/@modelcontextprotocol/server-filesystem/dist/index.js");
    let home = jail.home.to_string_lossy().into_owned();
    let server = vec!["node".to_owned(), program, home];
    let mut command = jail.belljar(&[
        "mcp",
        "wrap",
        "--name",
        "files",
        "--profile",
        "moderate",
        "--",
    ]);
    command.args(&server);
    let mut talk = Talk::start(command);
    let mut read = |path: &str| talk.call("read_text_file", json!({"path": jail.home_file(path)}));
    assert!(text_of(&read("project/main.txt")).contains("the agent's work"));
    let secret = read(".ssh/id_ed25519");
    assert_eq!(secret["result"]["isError"], json!(true), "{secret}");
    assert!(
        !secret.to_string().contains(support::SSH_SECRET),
        "{secret}"
    );
    assert_eq!(talk.leave(), Some(0));
}

/// Clients of others, told nothing but another command: (program, arguments).
fn sdk_clients(jail: &Jail) -> Vec<(&'static str, Command)> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/world/mcp");
    let put = |name: &str| {
        let text = fs::read_to_string(sources.join(name)).expect(name);
        jail.put(&jail.work.join(name), &text);
        jail.work_file(name)
    };
    let mut python = jail.outside(PYTHON);
    python.arg("-B").arg(put("client.py"));
    let mut node = jail.outside("node");
    node.arg(put("client.mjs")).env("MODULES", NODE_MODULES);
    vec![("python", python), ("typescript", node)]
}

fn the_official_clients_work_and_are_refused_alike(who: Who) {
    let jail = jail(who);
    for (name, mut client) in sdk_clients(&jail) {
        let wrap = wrapped(&jail, "everything", &[], &everything("stdio"));
        client.arg(wrap.get_program()).args(wrap.get_args());
        let finished = finish(client.spawn().expect("start a client"));
        let said: Value = serde_json::from_str(finished.stdout().trim())
            .unwrap_or_else(|_| panic!("{name}: {}\n{}", finished.stdout(), finished.stderr()));
        assert_eq!(said["echo"], "Echo: hello", "{name}: {said}");
        assert_eq!(said["lists_get_env"], json!(false), "{name}: {said}");
        assert_eq!(said["denied_code"], -32010, "{name}: {said}");
        assert_eq!(said["after"], "Echo: again", "{name}: {said}");
        assert!(said["progress"].as_u64() >= Some(1), "{name}: {said}");
    }
}

fn the_inspector_works_and_is_refused(who: Who) {
    let jail = jail(who);
    let wrap = wrapped(&jail, "everything", &[], &everything("stdio"));
    let inspect = |arguments: &[&str]| {
        let mut command = jail.outside("/mnt/clients/newer/node_modules/.bin/node");
        command
            .arg(format!("{NODE_MODULES}/.bin/mcp-inspector"))
            .arg("--cli")
            .args(arguments)
            .arg("--")
            .arg(wrap.get_program())
            .args(wrap.get_args());
        finish(command.spawn().expect("start the inspector"))
    };
    let listed = inspect(&["--method", "tools/list"]);
    assert!(
        listed.stdout().contains("\"echo\""),
        "{}{}",
        listed.stdout(),
        listed.stderr()
    );
    assert!(!listed.stdout().contains("get-env"));
    let call = ["--method", "tools/call", "--tool-name"];
    let echoed = inspect(&[
        call[0],
        call[1],
        call[2],
        "echo",
        "--tool-arg",
        "message=hi",
    ]);
    assert!(
        echoed.stdout().contains("Echo: hi"),
        "{}{}",
        echoed.stdout(),
        echoed.stderr()
    );
    let denied = inspect(&[call[0], call[1], call[2], "get-env"]);
    assert!(!denied.stdout().contains("PATH"), "{}", denied.stdout());
}

for_each_user_in_a_world!(
    no_disguise_of_a_refused_call_reaches_a_real_server,
    no_disguise_reaches_a_server_that_reads_carelessly,
    a_server_that_misbehaves_costs_one_answer_each,
    cancelling_and_progress_pass_through,
    an_id_in_use_is_refused_and_the_first_is_answered,
    the_server_is_in_a_box,
    the_official_clients_work_and_are_refused_alike,
    the_inspector_works_and_is_refused,
);
