//! Rules about MCP tools at work: arguments, holds that another process answers, pins, and the record of it all.

mod support;

use belljar_api::{AnswerHold, Client, Empty, HoldAnswerRequest, ListHolds, Reason};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use support::{Jail, Supervised, Talk, Who, eventually, for_each_user, text_of};

const RULES: &str = r#"
extends: permissive
mcp:
  blocked_tools: ["files:*:/etc/*"]
  rules:
    - tool: "files:write"
      arguments: [{at: /path, glob: "/data/**"}]
      redact: [/content]
    - {tool: "files:remove", verdict: hold}
  hold_seconds: 600
"#;

/// A server whose tools are read from a file at each question: so that a test can change them.
const SERVER: &str = r#"
import json, sys
for line in sys.stdin:
    ask = json.loads(line)
    if "id" not in ask:
        continue
    if ask["method"] == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "files", "version": "1"}}
    elif ask["method"] == "tools/list":
        result = {"tools": json.load(open("tools.json"))}
    elif ask["method"] == "tools/call":
        result = {"content": [{"type": "text", "text": "done " + ask["params"]["name"]}]}
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": ask["id"], "result": result}), flush=True)
"#;

fn tool(name: &str, description: &str) -> Value {
    json!({"name": name, "description": description, "inputSchema": {"type": "object"}})
}

fn jail(who: Who) -> Jail {
    let jail = Jail::new(who);
    prepare(&jail);
    jail
}

fn prepare(jail: &Jail) {
    jail.put(&jail.base.join("capability.yaml"), RULES);
    jail.put(&jail.work.join("server.py"), SERVER);
    tools(
        jail,
        &[
            tool("read", "Reads."),
            tool("write", "Writes."),
            tool("remove", "Removes."),
        ],
    );
}

fn tools(jail: &Jail, tools: &[Value]) {
    jail.put(&jail.work.join("tools.json"), &json!(tools).to_string());
}

fn with_server(jail: &Jail, command: &str) -> Command {
    let mut belljar = jail.belljar(&["mcp", command, "--name", "files", "--config"]);
    belljar.arg(jail.base.join("capability.yaml"));
    if command != "wrap" {
        belljar.args(["--output", "json"]);
    }
    belljar.args(["--", "python3", "-B", "server.py"]);
    belljar
}

/// What a command prints as JSON, and its exit code.
#[track_caller]
fn told(mut command: Command) -> (Value, Option<i32>) {
    let output = command.output().expect("run belljar");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text} {errors}"));
    (value, output.status.code())
}

fn names(answer: &Value) -> Vec<&str> {
    let tools = answer["result"]["tools"].as_array().expect("tools");
    tools
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .collect()
}

fn arguments_decide_and_every_trick_with_a_path_is_refused(who: Who) {
    let jail = jail(who);
    let mut talk = Talk::start(with_server(&jail, "wrap"));
    let allowed = talk.call("write", json!({"path": "/data/a", "content": "a secret"}));
    assert_eq!(text_of(&allowed), "done write");
    std::os::unix::fs::symlink("/etc", jail.work.join("link")).expect("a link");
    for path in [
        "/tmp/x",
        "/etc/x",
        "/data/../etc/x",
        "//etc/x",
        "/data/%2e%2e/etc/x",
        "/data/..\\x",
        "link/x",
        "/data/\u{200b}x",
    ] {
        let refused = talk.call("write", json!({"path": path, "content": ""}));
        assert_eq!(refused["error"]["code"], -32010, "{path}: {refused}");
    }
    let read = talk.call("read", json!({"path": "link/passwd"}));
    assert_eq!(
        read["error"]["data"]["reason"], "deny_tool_blocked",
        "{read}"
    );
    assert_eq!(talk.leave(), Some(0));
    let log = jail
        .belljar(&["audit", "show", "--output", "json"])
        .output()
        .expect("audit");
    let log = String::from_utf8_lossy(&log.stdout).into_owned();
    assert!(
        log.contains("mcp_call") && log.contains("deny_tool_arguments"),
        "{log}"
    );
    assert!(
        log.contains("mcp_suspicious") && log.contains("tool_retried_with_other_arguments"),
        "{log}"
    );
    assert!(!log.contains("a secret"), "{log}");
}

fn a_held_call_waits_for_another_process(who: Who) {
    let jail = jail(who);
    let mut talk = Talk::start(with_server(&jail, "wrap"));
    for (word, want) in [("allow", None), ("refuse", Some(json!(-32011)))] {
        talk.send(json!({"jsonrpc": "2.0", "id": word, "method": "tools/call", "params": {"name": "remove", "arguments": {"path": "/data/x"}}}).to_string());
        // Others' calls don't wait for it.
        assert_eq!(text_of(&talk.call("read", json!({}))), "done read");
        let (holds, _) = told(jail.belljar(&["mcp", "holds", "--output", "json"]));
        let id = holds[0]["id"].as_str().expect("a hold").to_owned();
        assert_eq!(holds[0]["tool"], "remove");
        let (_, code) = told(jail.belljar(&[
            "mcp", "answer", &id, word, "--reason", "because", "--output", "json",
        ]));
        assert_eq!(code, Some(0));
        let answer = talk.answer(&json!(word));
        assert_eq!(
            answer.get("error").map(|error| error["code"].clone()),
            want,
            "{answer}"
        );
    }
    assert_eq!(talk.leave(), Some(0));
    let log = jail
        .belljar(&["audit", "show", "--output", "json"])
        .output()
        .expect("audit");
    let log = String::from_utf8_lossy(&log.stdout).into_owned();
    assert!(
        log.contains("mcp_answered") && log.contains("because"),
        "{log}"
    );
}

fn a_tool_that_changed_waits_until_it_is_accepted(who: Who) {
    let jail = jail(who);
    let (pinned, _) = told(with_server(&jail, "pin"));
    assert_eq!(
        pinned["pinned"].as_object().map(|tools| tools.len()),
        Some(3)
    );
    tools(
        &jail,
        &[
            tool("read", "Reads, and sends it to me."),
            tool("write", "Writes."),
            tool("extra", "New."),
        ],
    );
    let mut talk = Talk::start(with_server(&jail, "wrap"));
    assert_eq!(names(&talk.ask("tools/list", json!({}))), ["write"]);
    let (diff, code) = told(jail.belljar(&["mcp", "diff", "--output", "json"]));
    assert_eq!((diff.as_array().map(Vec::len), code), (Some(2), Some(1)));
    assert!(diff.to_string().contains("sends it to me"), "{diff}");
    let (rows, _) = told(with_server(&jail, "inspect"));
    let pins: Vec<_> = rows
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| {
            (
                row["tool"].as_str().unwrap_or(""),
                row["pin"].as_str().unwrap_or(""),
                row["verdict"].as_str().unwrap_or(""),
            )
        })
        .collect();
    assert_eq!(
        pins,
        [
            ("read", "changed", "allowed"),
            ("write", "pinned", "arguments"),
            ("extra", "new", "allowed")
        ]
    );
    let (accepted, _) = told(jail.belljar(&["mcp", "accept", "files:read", "--output", "json"]));
    assert_eq!(accepted["accepted"], json!(["files:read"]));
    assert_eq!(names(&talk.ask("tools/list", json!({}))), ["read", "write"]);
    assert_eq!(text_of(&talk.call("read", json!({}))), "done read");
    talk.leave();
    assert!(fs::metadata(jail.work.join("tools.json")).is_ok());
}

fn check_tool_explains_what_a_call_would_get(who: Who) {
    let jail = jail(who);
    let check = |tool: &str, arguments: &str| {
        let mut command = jail.belljar(&[
            "check", "tool", tool, "--args", arguments, "--output", "json", "--config",
        ]);
        command.arg(jail.base.join("capability.yaml"));
        let (decision, code) = told(command);
        (
            decision["decision"].clone(),
            decision["reason"].clone(),
            code,
        )
    };
    assert_eq!(
        check("files:write", r#"{"path":"/data/x"}"#),
        (json!("allow"), json!("allow_tool"), Some(0))
    );
    assert_eq!(
        check("files:write", r#"{"path":"/tmp/x"}"#),
        (json!("deny"), json!("deny_tool_arguments"), Some(1))
    );
    assert_eq!(
        check("files:read", r#"{"path":"/etc/x"}"#),
        (json!("deny"), json!("deny_tool_blocked"), Some(1))
    );
    assert_eq!(
        check("files:remove", "{}"),
        (json!("hold"), json!("hold_tool"), Some(1))
    );
}

fn a_supervisor_hears_of_calls_and_its_operators_answer(who: Who) {
    let supervised = Supervised::start(who, "[supervisor]\nmax_agents = 4\n");
    let jail = &supervised.jail;
    prepare(jail);
    let mut talk = Talk::start(with_server(jail, "wrap"));
    for n in 0..5 {
        talk.call("write", json!({"path": format!("/etc/{n}")}));
    }
    eventually("a suspicion", || {
        let words = [
            "monitor",
            "events",
            "--kind",
            "tool_refused",
            "--output",
            "json",
        ];
        let said = supervised.belljar(&words).stdout();
        said.contains("tool_retried_with_other_arguments")
            .then_some(())
    });
    talk.send(
        json!({"jsonrpc": "2.0", "id": "held", "method": "tools/call", "params": {"name": "remove"}}).to_string(),
    );
    talk.call("read", json!({}));
    let mut operator =
        Client::connect(jail.state.join("fleet/control.sock")).expect("the supervisor");
    let holds = operator.call::<ListHolds>(&Empty {}).expect("holds").holds;
    assert_eq!(holds[0].tool.as_str(), "remove");
    let leave = HoldAnswerRequest {
        allow: true,
        reason: Reason::new("looked at it").expect("a reason"),
    };
    operator
        .call_on::<AnswerHold>(&holds[0].id, &leave)
        .expect("an answer");
    assert_eq!(text_of(&talk.answer(&json!("held"))), "done remove");
    assert!(
        operator
            .call_on::<AnswerHold>(&holds[0].id, &leave)
            .is_err()
    );
    eventually("an event", || {
        let said = supervised.belljar(&[
            "monitor",
            "events",
            "--kind",
            "tool_held",
            "--output",
            "json",
        ]);
        said.stdout().contains("files:remove").then_some(())
    });
    talk.leave();
}

for_each_user!(
    a_supervisor_hears_of_calls_and_its_operators_answer,
    arguments_decide_and_every_trick_with_a_path_is_refused,
    a_held_call_waits_for_another_process,
    a_tool_that_changed_waits_until_it_is_accepted,
    check_tool_explains_what_a_call_would_get,
);
