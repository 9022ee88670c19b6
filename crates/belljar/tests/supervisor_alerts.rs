//! Agents that misbehave, the alerts they raise, and what rules do about it: with the real supervisor, over its web API too.

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};
use support::{AGENT, Supervised, Who, eventually, for_each_user, text};

/// Everything at the first cause; what lasts, lasts a second.
const QUICK: &str = "[supervisor]\nmax_agents = 20\nstop_grace_seconds = 1\n\
    [supervisor.alerts]\nmax_memory_mb = 50\n\
    [[supervisor.alerts.rules]]\nkind = \"HighResourceUsage\"\nfor_seconds = 1\nrespond = [\"freeze\"]\n\
    [[supervisor.alerts.rules]]\nkind = \"NetworkAnomaly\"\nthreshold = 3\nwindow_seconds = 60\nrespond = [\"kill\"]\n\
    [[supervisor.alerts.rules]]\nkind = \"PrivilegeEscalation\"\nrespond = [\"quarantine\"]\n\
    [[supervisor.alerts.rules]]\nkind = \"UnauthorizedAccess\"\nthreshold = 1\nwindow_seconds = 60\n\
    [[supervisor.alerts.rules]]\nkind = \"ReplicationDenied\"\nthreshold = 1\nwindow_seconds = 60\n";

#[track_caller]
fn await_alert(supervised: &Supervised, kind: &str, agent: Option<&str>) -> Value {
    eventually(&format!("{kind} about {agent:?}"), || {
        let said = supervised.belljar(&["monitor", "alerts", "--all", "--output", "json"]);
        // Whoever asks as often as this is told to wait now and then.
        let listed: Value = serde_json::from_str(&said.stdout()).ok()?;
        let alerts = listed["alerts"].as_array().expect("a list").clone();
        alerts.into_iter().find(|alert| {
            alert["kind"] == kind && agent.is_none_or(|agent| alert["agent"] == agent)
        })
    })
}

fn every_misdeed_raises_its_alert(who: Who) {
    let supervised = Supervised::start(who, QUICK);
    let crashed = supervised.agent("crashed", "exit 3");
    await_alert(&supervised, "AgentCrashed", Some(&crashed));

    // A rule freezes it, and lets it go on when a person resolves the alert.
    let busy = supervised.agent(
        "busy",
        "exec python3 -c 'import time; held = bytearray(90 << 20); time.sleep(3600)'",
    );
    let alert = await_alert(&supervised, "HighResourceUsage", Some(&busy));
    supervised.await_phase(&busy, "quarantined");
    let number = text(&alert["id"]);
    supervised.query(&["monitor", "alerts", "resolve", &number, "--reason", "known"]);
    supervised.await_phase(&busy, "running");
    supervised.query(&["supervisor", "kill", "busy"]);

    let climber = supervised.agent("climber", "while :; do unshare -m true; sleep 0.1; done");
    let first = await_alert(&supervised, "PrivilegeEscalation", Some(&climber));
    supervised.await_phase(&climber, "quarantined");
    await_alert(&supervised, "AgentQuarantined", Some(&climber));
    let bundle = eventually("an incident bundle", || {
        let files = support::files_below(&supervised.jail.state);
        let name = |file: &std::path::PathBuf| file.to_string_lossy().contains(&climber);
        files
            .into_iter()
            .find(|file| file.extension().is_some_and(|end| end == "tar") && name(file))
    });
    let listed = std::process::Command::new("tar")
        .arg("-tf")
        .arg(&bundle)
        .output()
        .expect("tar");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for file in [
        "MANIFEST.json",
        "policy.yaml",
        "manifests.jsonl",
        "processes.json",
        "open-files.txt",
    ] {
        assert!(listed.contains(file), "no {file} in {listed}");
    }

    // Whoever is released is not let off: what it tries next is answered like the first time.
    supervised.query(&["supervisor", "release", "climber", "--reason", "looked at"]);
    let alerts = || supervised.query(&["monitor", "alerts", "--all", "--agent", "climber"]);
    let of_kind = |listed: &Value| -> Vec<Value> {
        let all = listed["alerts"].as_array().expect("a list").clone();
        all.into_iter()
            .filter(|alert| alert["kind"] == "PrivilegeEscalation")
            .collect()
    };
    eventually("it is quarantined anew", || {
        let raised = of_kind(&alerts());
        (raised.len() >= 2).then_some(())
    });
    supervised.await_phase(&climber, "quarantined");
    let over = of_kind(&alerts())
        .into_iter()
        .find(|alert| alert["id"] == first["id"]);
    let over = over.expect("the first alert");
    assert_eq!(over["state"], "resolved");
    assert!(text(&over["reason"]).contains("looked at"), "{over}");
    supervised.query(&["supervisor", "kill", "climber"]);

    // A closed network is no reason not to be told of who tries to get out, each time.
    let shut = supervised.agent(
        "shut",
        "python3 -c 'import socket, time\nwhile True:\n s = socket.socket()\n try: s.connect((\"192.0.2.1\", 80))\n except OSError: pass\n s.close()\n time.sleep(0.05)'",
    );
    await_alert(&supervised, "NetworkAnomaly", Some(&shut));

    // It would read another process's memory.
    let curious = supervised.agent(
        "curious",
        "python3 -c 'import ctypes; ctypes.CDLL(None).process_vm_readv(1, 0, 0, 0, 0, 0)'; while :; do sleep 0.1; done",
    );
    await_alert(&supervised, "UnauthorizedAccess", Some(&curious));

    let spender = supervised.limited(
        "spender",
        "extends: moderate\nresource_limits: {max_tokens: 1000}\n",
        &format!("{AGENT} usage --tokens-in 5000; while :; do sleep 0.1; done"),
    );
    await_alert(&supervised, "BudgetExceeded", Some(&spender));
    assert_eq!(supervised.await_cause(&spender), "limit");

    // Names under `invalid` are nobody's, and the gateway asks nobody about them.
    let restless = supervised.limited(
        "restless",
        "extends: moderate\nnetwork_egress_rules: [{domain: known.invalid}]\n",
        "for n in 1 2 3 4 5; do getent hosts h$n.invalid; done; while :; do sleep 0.1; done",
    );
    let alert = await_alert(&supervised, "NetworkAnomaly", Some(&restless));
    assert_eq!(supervised.await_cause(&restless), "killed");
    eventually("the response is told", || {
        let alert = await_alert(&supervised, "NetworkAnomaly", Some(&restless));
        (alert["responses"][0]["response"] == "kill").then_some(())
    });
    assert_eq!(alert["agent_name"], "restless");

    let fertile = supervised.agent(
        "fertile",
        &format!("{AGENT} replicate --reason more; while :; do sleep 0.1; done"),
    );
    await_alert(&supervised, "ReplicationDenied", Some(&fertile));

    supervised.query(&["supervisor", "kill-all"]);
    await_alert(&supervised, "KillSwitchEngaged", None);
    // What was raised outlives the supervisor.
    let mut supervised = supervised;
    supervised.murder();
    supervised.start_again();
    await_alert(&supervised, "AgentCrashed", Some(&crashed));
}

/// An agent that asks again and again for what it was refused, and one that calls more than anybody reads: each is told of by
/// the gateway in its keeper.
fn suspicious_use_of_tools_raises_an_alert_about_the_agent(who: Who) {
    let supervised = Supervised::start(
        who,
        "[supervisor]\nmax_agents = 20\n\
         [[supervisor.alerts.rules]]\nkind = \"SuspiciousToolUsage\"\nrespond = [\"quarantine\"]\n",
    );
    for (name, text) in [
        ("server.py", include_str!("tools/server.py")),
        ("client.py", include_str!("tools/client.py")),
    ] {
        supervised.jail.put(&supervised.jail.work.join(name), text);
    }
    let policy = "extends: moderate\nmcp:\n  servers:\n    tools: {command: [python3, -B, server.py]}\n  \
                  blocked_tools: [\"*:secret\"]\n";
    let wait = "while :; do sleep 0.1; done";
    let stubborn = supervised.limited(
        "stubborn",
        policy,
        &format!(
            "python3 -B client.py 'secret={{\"n\":1}}' 'secret={{\"n\":2}}' 'secret={{\"n\":3}}' 'secret={{\"n\":4}}' 'secret={{\"n\":5}}'; {wait}"
        ),
    );
    let alert = await_alert(&supervised, "SuspiciousToolUsage", Some(&stubborn));
    assert_eq!(alert["agent_name"], "stubborn", "{alert}");
    supervised.await_phase(&stubborn, "quarantined");

    let hasty = supervised.limited(
        "hasty",
        policy,
        &format!("python3 -B client.py $(yes echo | head -n 300) > /dev/null; {wait}"),
    );
    await_alert(&supervised, "SuspiciousToolUsage", Some(&hasty));
    supervised.await_phase(&hasty, "quarantined");
    let said = supervised.said(&[
        "monitor",
        "events",
        "--kind",
        "tool_refused",
        "--output",
        "json",
    ]);
    for code in ["tool_retried_with_other_arguments", "tool_burst"] {
        assert!(said.contains(code), "{said}");
    }

    // One that calls what it may raises none.
    let honest = supervised.limited("honest", policy, "python3 -B client.py echo echo > done");
    assert_eq!(supervised.await_cause(&honest), "finished");
    let alerts = supervised.query(&["monitor", "alerts", "--all"]);
    let about = alerts["alerts"].as_array().expect("a list").iter();
    assert!(about.clone().all(|alert| alert["agent"] != honest.as_str()));
}

/// A request to the web server, as a browser or a script would make it; its status and body.
fn ask(
    supervised: &Supervised,
    token: &str,
    method: &str,
    path: &str,
    body: &Value,
) -> (u16, String) {
    let output = supervised.output();
    let (_, rest) = output
        .split_once("dashboard at http://")
        .expect("a dashboard");
    let address = rest
        .split_whitespace()
        .next()
        .expect("an address")
        .trim_end_matches('/');
    let mut stream = TcpStream::connect(address).expect("the web server");
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let bearer = match token {
        "" => String::new(),
        token => format!("Authorization: Bearer {token}\r\n"),
    };
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{bearer}Content-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .expect("ask");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok());
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    (status.expect("a status"), body.to_owned())
}

fn the_web_serves_what_the_socket_does_to_whoever_has_a_token(who: Who) {
    let supervised = Supervised::start(who, QUICK);
    let token = |role: &str| {
        let said = supervised.said(&["token", "create", "--role", role, "--name", role]);
        let word = said.split_whitespace().find(|word| word.starts_with("bj_"));
        word.expect("a token").to_owned()
    };
    let (viewer, operator) = (token("viewer"), token("operator"));
    let id = supervised.agent("quiet", "echo hello; while :; do sleep 0.1; done");
    let get = |token: &str, path: &str| ask(&supervised, token, "GET", path, &Value::Null);
    assert_eq!(get("", "/v1/agents").0, 401);
    let (status, agents) = get(&viewer, "/v1/agents");
    assert_eq!(status, 200);
    assert!(agents.contains(&id), "{agents}");
    for path in [
        "/v1/ledger",
        "/v1/ledger/entries",
        "/v1/ledger/proof?index=0",
        "/v1/alerts",
        "/v1/events",
        "/v1/status",
        "/metrics",
    ] {
        assert_eq!(get(&viewer, path).0, 200, "{path}");
    }
    eventually("what it used is kept", || {
        let (_, metrics) = get(&viewer, &format!("/v1/metrics?agent={id}"));
        metrics.contains("cpu_percent").then_some(())
    });
    eventually("its output is there", || {
        let (_, output) = get(&viewer, &format!("/v1/agents/{id}/output"));
        output.contains("hello").then_some(())
    });
    let quarantine = format!("/v1/workers/{id}/quarantine");
    let because = json!({"reason": "look"});
    assert_eq!(
        ask(&supervised, &viewer, "POST", &quarantine, &because).0,
        403
    );
    assert_eq!(supervised.view(&id)["phase"], "running");
    assert_eq!(
        ask(&supervised, &operator, "POST", &quarantine, &because).0,
        200
    );
    supervised.await_phase(&id, "quarantined");
    let (status, report) = ask(
        &supervised,
        &operator,
        "POST",
        "/v1/ledger/verify",
        &json!({}),
    );
    assert_eq!(status, 200);
    assert!(report.contains("\"verified\":\"whole\""), "{report}");
    // Who did it is on record.
    let log = supervised.log();
    let is_by_token = |entry: &&Value| {
        let by = &entry["what"]["by"];
        by["type"] == "token" && by["name"] == "operator" && by["id"].is_string()
    };
    let acts = log.iter().filter(is_by_token);
    assert!(acts.count() > 0, "nobody is named in the log");
}

/// From inside, the loopback is the box's own.
fn no_agent_reaches_the_web(who: Who) {
    let supervised = Supervised::start(who, QUICK);
    let output = supervised.output();
    let (_, rest) = output
        .split_once("dashboard at http://127.0.0.1:")
        .expect("a dashboard");
    let port = rest
        .split_whitespace()
        .next()
        .expect("a port")
        .trim_end_matches('/');
    let script = format!(
        "for host in 127.0.0.1 localhost ::1; do (exec 3<>/dev/tcp/$host/{port}) 2>/dev/null && echo reached $host; done; echo done > tried"
    );
    let id = supervised.query(&["sandbox", "--name", "curious", "--", "bash", "-c", &script]);
    supervised.await_file("tried");
    let id = text(&id["id"]);
    supervised.await_cause(&id);
    let said = supervised.said(&["supervisor", "logs", "curious"]);
    assert_eq!(said, "", "the agent reached the supervisor's web server");
    // The same outside does.
    assert!(TcpStream::connect(("127.0.0.1", port.parse().expect("a port"))).is_ok());
}

for_each_user!(
    suspicious_use_of_tools_raises_an_alert_about_the_agent,
    every_misdeed_raises_its_alert,
    the_web_serves_what_the_socket_does_to_whoever_has_a_token,
    no_agent_reaches_the_web,
);
