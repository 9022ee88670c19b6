//! MCP tools of supervised agents as operators see them: held calls that appear, are answered and vanish, and metrics.

mod support;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};
use support::{Supervised, Who, eventually, for_each_user, text};

const POLICY: &str = "extends: moderate\nmcp:\n  servers:\n    tools: {command: [python3, -B, server.py], capability: server.yaml}\n  \
    blocked_tools: [\"*:secret\"]\n  rules: [{tool: \"tools:remove\", verdict: hold}]\n  hold_seconds: 600\n";

struct Scene {
    supervised: Supervised,
    token: String,
}

impl Scene {
    fn start(who: Who) -> Scene {
        let supervised = Supervised::start(who, "[supervisor]\nmax_agents = 20\n");
        let jail = &supervised.jail;
        jail.put(&jail.base.join("server.yaml"), "extends: moderate\n");
        jail.put(
            &jail.work.join("server.py"),
            include_str!("tools/server.py"),
        );
        jail.put(
            &jail.work.join("client.py"),
            include_str!("tools/client.py"),
        );
        let said = supervised.said(&["token", "create", "--role", "operator", "--name", "ann"]);
        let token = said.split_whitespace().find(|word| word.starts_with("bj_"));
        let token = token.expect("a token").to_owned();
        Scene { supervised, token }
    }

    fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let output = self.supervised.output();
        let (_, rest) = output
            .split_once("dashboard at http://")
            .expect("a dashboard");
        let address = rest.split_whitespace().next().expect("an address");
        let address = address.trim_end_matches('/');
        let mut stream = TcpStream::connect(address).expect("the web server");
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.token,
            body.len()
        )
        .expect("ask");
        stream
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut answer = String::new();
        let mut stream = self.send(method, path, body);
        stream.read_to_string(&mut answer).expect("an answer");
        let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok());
        let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        (status.expect("a status"), body.to_owned())
    }

    /// The live stream, line by line.
    fn stream(&self) -> Box<dyn Iterator<Item = String>> {
        let stream = self.send("GET", "/v1/stream", "");
        let patience = std::time::Duration::from_secs(60);
        stream.set_read_timeout(Some(patience)).expect("a timeout");
        Box::new(BufReader::new(stream).lines().map_while(Result::ok))
    }

    /// Starts an agent that calls these tools one after the other and keeps what it hears in a file.
    fn agent(&self, name: &str, words: &str) -> String {
        let script = format!("python3 -B client.py {words} > {name}.new; mv {name}.new {name}");
        self.supervised.limited(name, POLICY, &script)
    }

    #[track_caller]
    fn heard(&self, name: &str) -> Vec<Value> {
        let text = self.supervised.await_file(name);
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("an answer"))
            .collect()
    }

    /// Entries of one kind in the log of runs.
    #[track_caller]
    fn recorded(&self, kind: &str) -> Vec<Value> {
        let text = self.supervised.said(&["audit", "export", "--log", "runs"]);
        let entries = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("an entry"));
        entries
            .map(|entry| entry["what"].clone())
            .filter(|what| what["kind"] == kind)
            .collect()
    }
}

/// The next message of held calls that is as wanted.
#[track_caller]
fn await_holds(
    stream: &mut dyn Iterator<Item = String>,
    wanted: impl Fn(&[Value]) -> bool,
) -> Vec<Value> {
    let mut is_holds = false;
    for line in stream {
        match line.strip_prefix("data: ") {
            Some(data) if is_holds => {
                let holds: Vec<Value> = serde_json::from_str(data).expect("held calls");
                if wanted(&holds) {
                    return holds;
                }
            }
            _ => {}
        }
        if let Some(name) = line.strip_prefix("event: ") {
            is_holds = name == "holds";
        }
    }
    panic!("the stream ended");
}

fn held_calls_appear_in_the_stream_are_answered_and_vanish(who: Who) {
    let scene = Scene::start(who);
    let mut stream = scene.stream();
    await_holds(&mut stream, <[Value]>::is_empty);
    let removed = scene.supervised.jail.work_file("removed");
    let remove = format!("'remove={{\"file\":\"{removed}\"}}'");

    // Answered over the web.
    let first = scene.agent("first", &remove);
    let holds = await_holds(&mut stream, |holds| !holds.is_empty());
    assert_eq!(holds[0]["run"], first.as_str(), "{holds:?}");
    assert_eq!(holds[0]["tool"], "remove");
    let path = format!("/v1/holds/{}/answer", text(&holds[0]["id"]));
    let body = json!({"allow": true, "reason": "agreed"}).to_string();
    assert_eq!(scene.ask("POST", &path, &body).0, 200);
    await_holds(&mut stream, <[Value]>::is_empty);
    let heard = scene.heard("first");
    assert_eq!(heard[0]["result"]["content"][0]["text"], "done remove");

    // Answered by a person at this machine.
    let second = scene.agent("second", &remove);
    let holds = await_holds(&mut stream, |holds| !holds.is_empty());
    let id = text(&holds[0]["id"]);
    let said = scene.supervised.said(&["mcp", "holds"]);
    assert!(said.contains(&second), "{said}");
    let words = ["mcp", "answer", &id, "refuse", "--reason", "not today"];
    scene.supervised.said(&words);
    await_holds(&mut stream, <[Value]>::is_empty);
    let heard = scene.heard("second");
    assert_eq!(heard[0]["error"]["code"], -32011, "{heard:?}");
    let called = std::fs::read_to_string(&removed).expect("one call");
    assert_eq!(called, "remove\n");

    // Nobody is left who waits: a client that goes away, an agent that is killed.
    let leaving = "& sleep 0; client=$!; while [ ! -e go ]; do sleep 0.05; done; kill -9 $client; while :; do sleep 0.1; done #";
    let third = scene.agent("third", &format!("{remove} {leaving}"));
    await_holds(&mut stream, |holds| !holds.is_empty());
    scene
        .supervised
        .jail
        .put(&scene.supervised.jail.work.join("go"), "");
    await_holds(&mut stream, <[Value]>::is_empty);
    let fourth = scene.agent("fourth", &remove);
    await_holds(&mut stream, |holds| !holds.is_empty());
    scene.supervised.query(&["supervisor", "kill", "fourth"]);
    await_holds(&mut stream, <[Value]>::is_empty);

    let held = scene.recorded("mcp_held");
    let of = |agent: &str| held.iter().any(|what| what["run"] == agent);
    assert!(
        of(&first) && of(&second) && of(&third) && of(&fourth),
        "{held:?}"
    );
    let answered = scene.recorded("mcp_answered");
    let said = |agent: &str, answer: &str, by: &str| {
        let is_it = |what: &&Value| {
            what["run"] == agent && what["answer"] == answer && text(&what["by"]).contains(by)
        };
        assert!(answered.iter().any(|what| is_it(&what)), "{answered:?}");
    };
    said(&first, "allowed", "ann (token");
    said(&second, "refused", "uid ");
    said(&third, "withdrawn", "");
}

fn metrics_count_calls_by_tool_and_an_agent_can_t_flood_them(who: Who) {
    let scene = Scene::start(who);
    let invented: Vec<String> = (0..100).map(|n| format!("invented{n}")).collect();
    let words = format!("echo echo echo secret {}", invented.join(" "));
    let agent = scene.agent("agent", &words);
    assert_eq!(scene.heard("agent").len(), 104);
    assert_eq!(scene.supervised.await_cause(&agent), "finished");
    let series = |page: &str, name: &str, tool: &str, verdict: &str| {
        let start = format!("{name}{{server=\"tools\",tool=\"{tool}\",verdict=\"{verdict}\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&start));
        line.and_then(|value| value.parse::<f64>().ok())
    };
    // What was called last is told with the agent's end.
    let page = eventually("metrics", || {
        let (status, page) = scene.ask("GET", "/metrics", "");
        assert_eq!(status, 200);
        (series(&page, "belljar_tool_calls_total", "echo", "allow") == Some(3.0)).then_some(page)
    });
    let calls =
        |tool: &str, verdict: &str| series(&page, "belljar_tool_calls_total", tool, verdict);
    assert_eq!(calls("secret", "deny"), Some(1.0), "{page}");
    assert_eq!(calls("other", "deny"), Some(100.0), "{page}");
    assert!(!page.contains("invented"), "{page}");
    let seconds = series(&page, "belljar_tool_seconds_total", "echo", "allow");
    assert!(seconds.is_some_and(|seconds| seconds > 0.0), "{page}");
}

fn a_server_that_dies_is_told_of_and_a_new_session_has_another(who: Who) {
    let scene = Scene::start(who);
    let again = "python3 -B client.py die >first; python3 -B client.py echo";
    let script = format!("{again} >second.new; mv second.new second; while :; do sleep 0.1; done");
    let agent = scene.supervised.limited("agent", POLICY, &script);
    let heard = scene.heard("second");
    assert!(heard[0]["result"].is_object(), "{heard:?}");
    let first = scene.supervised.await_file("first");
    assert!(first.contains("-32014"), "{first}");
    eventually("an alert", || {
        let alerts = scene.supervised.query(&["monitor", "alerts"]);
        let mut alerts = alerts["alerts"].as_array().into_iter().flatten();
        alerts
            .any(|it| it["agent"] == agent && it.to_string().contains("the MCP server tools"))
            .then_some(())
    });
    // An agent that ends takes its servers along; that is no server's death.
    let events = |scene: &Scene| {
        let events = scene.supervised.query(&["monitor", "events"]).to_string();
        events.matches("the MCP server tools").count()
    };
    let before = events(&scene);
    scene.supervised.said(&["supervisor", "stop", "agent"]);
    scene.supervised.await_phase(&agent, "ended");
    assert_eq!(events(&scene), before);
}

for_each_user!(
    a_server_that_dies_is_told_of_and_a_new_session_has_another,
    held_calls_appear_in_the_stream_are_answered_and_vanish,
    metrics_count_calls_by_tool_and_an_agent_can_t_flood_them,
);
