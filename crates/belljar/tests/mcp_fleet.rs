//! MCP servers of supervised agents and of families: each agent has its own, they end and hold still with it, and what
//! an agent may call and see of them is what its policy says.

mod support;

use std::path::{Path, PathBuf};

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use support::{
    AGENT, Family, Host, Jail, Supervised, Who, eventually, files_below, for_each_user,
    supervised_pid as pid, text,
};

const SERVER: &str = include_str!("tools/server.py");
const CLIENT: &str = include_str!("tools/client.py");

const CONTRACT: &str = "max_depth: 2\nmax_replicas: 8\ncooldown_seconds: 0\n";

/// One server, which may write where its agents may not, and is told what they are not.
const POLICY: &str = r#"
extends: moderate
mcp:
  servers:
    tools: {command: [python3, -B, server.py], capability: server.yaml, env: {TOKEN: tulip}}
  blocked_tools: ["*:secret"]
  rules:
    - {tool: "tools:remove", verdict: hold}
  hold_seconds: 600
"#;

/// What a box is shown of its papers, made readable.
const DECODE: &str = r#"python3 -c '
import base64, json
for file in ("/belljar/manifest.json", "/belljar/chain.jsonl"):
    for line in open(file):
        print(base64.b64decode(json.loads(line)["payload"]).decode())
'"#;

/// Puts the policy, the server and the client where they belong.
fn furnish(jail: &Jail) {
    jail.put(&jail.base.join("capability.yaml"), POLICY);
    jail.put(&jail.base.join("server.yaml"), "extends: moderate\n");
    jail.put(&jail.work.join("server.py"), SERVER);
    jail.put(&jail.work.join("client.py"), CLIENT);
}

/// What a puppet hears from tools.
#[track_caller]
fn called(family: &Family, name: &str, words: &[&str]) -> Vec<Value> {
    let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let client = family.jail.work_file("client.py");
    let work = family.jail.work.display();
    let script = format!("cd {work} && python3 -B {client} {}", words.join(" "));
    let said = family.order(name, &script);
    assert_eq!(said.code, 0, "{said:?}");
    answers(&said.out)
}

fn answers(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("an answer"))
        .collect()
}

#[track_caller]
fn told(answer: &Value) -> &str {
    let text = answer["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("{answer}"))
}

/// Calls on record: whose, which tool, which verdict.
#[track_caller]
fn recorded(jail: &Jail) -> Vec<(String, String, String)> {
    let mut command = jail.belljar(&["audit", "export", "--log", "runs"]);
    let output = command.output().expect("belljar audit");
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let entries = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("an entry"));
    entries
        .map(|entry| entry["what"].clone())
        .filter(|what| what["kind"] == "mcp_call")
        .map(|what| {
            (
                text(&what["run"]),
                text(&what["tool"]),
                text(&what["verdict"]),
            )
        })
        .collect()
}

fn everybody_in_a_family_has_servers_of_its_own(family: Family) {
    let mut family = family;
    furnish(&family.jail);
    family.start_puppet();
    let root = family.root_id();
    let inside = family.jail.work_file("written-inside");
    let around = format!(r#"around={{"file":"{inside}"}}"#);
    let said = called(
        &family,
        "root",
        &[r#"echo={"text":"hi"}"#, "secret", &around],
    );
    assert_eq!(told(&said[0]), "hi");
    assert_eq!(said[1]["error"]["code"], -32010, "{said:?}");
    let seen: Value = serde_json::from_str(told(&said[2])).expect("what is around it");
    let work = family.jail.work.display().to_string();
    assert_eq!(seen, json!({"token": "tulip", "cwd": work, "wrote": true}));

    // What servers are given is in nothing that the agent is shown; that it is given something is.
    let shown = family.order(
        "root",
        &format!("cat /belljar/*.json*; {AGENT} manifest; env; {DECODE}"),
    );
    assert!(!shown.out.contains("tulip"), "{shown:?}");
    assert!(shown.out.contains("TOKEN"), "{shown:?}");

    // A file that changes meanwhile changes nothing for who comes later.
    let file = family.jail.base.join("server.yaml");
    family.jail.put(&file, "extends: nonsense\n");
    let child = family.replicate("root", "child", "").expect("a replica");
    let said = called(
        &family,
        "child",
        &[r#"echo={"text":"ho"}"#, "secret", &around],
    );
    assert_eq!(told(&said[0]), "ho");
    assert_eq!(said[1]["error"]["code"], -32010, "{said:?}");
    let seen: Value = serde_json::from_str(told(&said[2])).expect("what is around it");
    assert_eq!(seen["token"], "tulip");
    eventually("the record", || {
        let all = recorded(&family.jail);
        let of = |worker: &str, tool: &str, verdict: &str| {
            let call = (worker.to_owned(), tool.to_owned(), verdict.to_owned());
            all.contains(&call)
        };
        [&root, &child]
            .iter()
            .all(|worker| of(worker, "echo", "allow") && of(worker, "secret", "deny"))
            .then_some(())
    });

    // A server's box outlives a session of nobody, and no agent.
    let ticks = |name: &str| family.jail.work.join(format!("ticks-{name}"));
    for name in ["root", "child"] {
        start_ticking(&family, name, &ticks(name));
    }
    assert_eq!(server_boxes(&family.jail).len(), 2);
    family.operator(&["kill", &child, "--reason", "test"]);
    family.await_end(&child);
    eventually("the replica's server is gone", || {
        (server_boxes(&family.jail).len() == 1).then_some(())
    });
    assert!(server_boxes(&family.jail)[0].starts_with(&root));
    let count = read(&ticks("root"));
    eventually("the root's server goes on", || {
        (read(&ticks("root")) != count).then_some(())
    });
    family.operator(&["kill", &root, "--reason", "test"]);
    eventually("nothing is left", || {
        server_boxes(&family.jail).is_empty().then_some(())
    });
    if family.is_over() {
        family.assert_nothing_left(&[root, child]);
    }
}

/// A session that stays, with a server that does something by itself.
#[track_caller]
fn start_ticking(family: &Family, name: &str, file: &Path) {
    let work = family.jail.work.display();
    let script = format!(
        "cd {work} && (python3 -B -c 'import sys; sys.argv[1:] = sys.argv[1:]; exec(open(\"client.py\").read()); \
         import time; time.sleep(3600)' 'tick={{\"file\":\"{}\"}}' >/dev/null 2>&1 &)",
        file.display()
    );
    let said = family.order(name, &script);
    assert_eq!(said.code, 0, "{said:?}");
    eventually("a server that ticks", || {
        (!read(file).is_empty()).then_some(())
    });
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

/// The boxes of agents' servers that run, by name.
fn server_boxes(jail: &Jail) -> Vec<String> {
    let state = belljar_supervisor::StateDir::at(jail.state.clone()).expect("the state directory");
    let running = state.running().into_iter().map(|record| record.sandbox_id);
    running.filter(|id| id.contains("-mcp-")).collect()
}

fn a_family_of_a_run_has_servers(who: Who) {
    everybody_in_a_family_has_servers_of_its_own(Family::prepare(who, CONTRACT));
}

fn a_family_of_a_supervisor_has_servers(who: Who) {
    let family = Family::prepare(who, CONTRACT).host(Host::Supervisor);
    everybody_in_a_family_has_servers_of_its_own(family);
}

/// A supervisor with an agent whose server ticks; its id.
fn ticking(who: Who) -> (Supervised, String, PathBuf) {
    let supervised = Supervised::start(who, "[supervisor]\nmax_agents = 4\n");
    furnish(&supervised.jail);
    let ticks = supervised.jail.work.join("ticks");
    let script = format!(
        "exec python3 -B -c 'exec(open(\"client.py\").read()); import time; time.sleep(3600)' \
         'tick={{\"file\":\"{}\"}}'",
        ticks.display()
    );
    let id = supervised.limited("agent", POLICY, &script);
    eventually("a server that ticks", || {
        (!read(&ticks).is_empty()).then_some(())
    });
    assert_eq!(server_boxes(&supervised.jail).len(), 1);
    (supervised, id, ticks)
}

fn a_killed_keeper_takes_its_servers_along(who: Who) {
    let (supervised, id, _) = ticking(who);
    let keepers = supervised.keepers();
    let (_, keeper) = keepers
        .iter()
        .find(|(worker, _)| *worker == id)
        .expect("a keeper");
    // Servers' boxes are kept by the same process.
    assert!(keepers.iter().all(|(_, pid)| pid == keeper), "{keepers:?}");
    kill_process(pid(*keeper), Signal::KILL).expect("kill the keeper");
    supervised.await_cause(&id);
    eventually("no process is left", || {
        supervised.kept().is_empty().then_some(())
    });
    supervised.assert_nothing_left();
}

fn servers_outlive_a_killed_supervisor_and_end_with_their_agent(who: Who) {
    let (mut supervised, id, ticks) = ticking(who);
    supervised.murder();
    let count = read(&ticks);
    eventually("the server goes on", || {
        (read(&ticks) != count).then_some(())
    });
    supervised.start_again();
    supervised.await_phase(&id, "running");
    supervised.query(&["supervisor", "kill", "agent"]);
    supervised.await_cause(&id);
    eventually("no process is left", || {
        supervised.kept().is_empty().then_some(())
    });
    supervised.assert_nothing_left();
}

fn quarantine_stops_servers_and_calls_that_are_allowed_meanwhile(who: Who) {
    let (supervised, id, ticks) = ticking(who);
    let removed = supervised.jail.work.join("removed");
    let asker = supervised.limited(
        "asker",
        POLICY,
        &format!(
            "python3 -B client.py 'remove={{\"file\":\"{}\"}}' > answer",
            removed.display()
        ),
    );
    let hold = eventually("a held call", || {
        let held = supervised.query(&["mcp", "holds"]);
        held.as_array()?.first().cloned()
    });
    assert_eq!(hold["run"], asker.as_str(), "{hold}");
    for agent in ["agent", "asker"] {
        supervised.query(&["supervisor", "quarantine", agent, "--reason", "test"]);
    }
    supervised.await_phase(&id, "quarantined");
    let mut looks = vec![String::new()];
    let still = eventually("the server holds still", || {
        let now = read(&ticks);
        if looks.last() != Some(&now) {
            looks.clear();
        }
        looks.push(now.clone());
        (looks.len() >= 10).then_some(now)
    });
    let hold = text(&hold["id"]);
    supervised.said(&["mcp", "answer", &hold, "allow", "--reason", "too late"]);
    eventually("the refusal is on record", || {
        let call = (
            asker.clone(),
            "remove".to_owned(),
            "hold_refused".to_owned(),
        );
        recorded(&supervised.jail).contains(&call).then_some(())
    });
    assert_eq!(read(&ticks), still);
    for agent in ["agent", "asker"] {
        supervised.query(&["supervisor", "release", agent, "--reason", "test"]);
    }
    eventually("the server goes on", || {
        (read(&ticks) != still).then_some(())
    });
    let answer = supervised.await_file("answer");
    let answer: Value = serde_json::from_str(&answer).expect("an answer");
    assert_eq!(answer["error"]["code"], -32011, "{answer}");
    assert!(!removed.exists(), "the call was made");
}

fn declared_and_attached_agents_have_servers(who: Who) {
    let mut supervised = Supervised::prepare(
        who,
        "[supervisor]\nmax_agents = 4\n\
         [[agents]]\nname = \"declared\"\nworkdir = \"home/project\"\ncapability = \"capability.yaml\"\n\
         command = [\"sh\", \"-c\", \"python3 -B client.py 'echo={\\\"text\\\":\\\"declared\\\"}' > answer\"]\n",
    );
    furnish(&supervised.jail);
    let work = supervised.jail.work.strip_prefix(&supervised.jail.base);
    assert_eq!(work.expect("a path").display().to_string(), "home/project");
    supervised.start_again();
    let answer: Value = serde_json::from_str(&supervised.await_file("answer")).expect("an answer");
    assert_eq!(told(&answer), "declared");

    let policy = supervised.jail.base.join("capability.yaml");
    let policy = policy.display().to_string();
    let words = ["run", "--config", &policy, "--supervisor", "--"];
    let client = ["python3", "-B", "client.py", r#"echo={"text":"attached"}"#];
    let said = supervised.said(&[&words[..], &client].concat());
    assert_eq!(told(&answers(&said)[0]), "attached");

    // What can't be had is told before anything is started.
    let missing = supervised.jail.base.join("missing.yaml");
    supervised.jail.put(
        &missing,
        "extends: strict\nmcp: {servers: {x: {command: [/bin/cat], capability: nowhere.yaml}}}\n",
    );
    let missing = missing.display().to_string();
    let refused = supervised.belljar(&["sandbox", "--sandbox-config", &missing, "--", "true"]);
    assert_eq!(refused.code(), 121, "{}", refused.stderr());
    assert!(
        refused.stderr().contains("nowhere.yaml"),
        "{}",
        refused.stderr()
    );
    eventually("no process is left", || {
        supervised.kept().is_empty().then_some(())
    });
    assert_eq!(
        files_below(&supervised.jail.state.join("doors")),
        Vec::<PathBuf>::new()
    );
}

for_each_user!(
    a_family_of_a_run_has_servers,
    a_family_of_a_supervisor_has_servers,
    a_killed_keeper_takes_its_servers_along,
    servers_outlive_a_killed_supervisor_and_end_with_their_agent,
    quarantine_stops_servers_and_calls_that_are_allowed_meanwhile,
    declared_and_attached_agents_have_servers,
);
