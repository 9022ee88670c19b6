//! What a supervisor tells whoever watches it, and what it answers to a server that carries requests to it.

mod support;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use belljar_api::{AgentView, EventKind, NewEvent, OperatorCall};
use belljar_supervisor::StateDir;
use belljar_supervisor::daemon::{AgentSpec, Daemon, DaemonSettings, Observer, OperatorIdentity};
use serde_json::{Value, json};
use support::{AGENT, belljar, eventually};

#[derive(Default)]
struct Notebook {
    events: Mutex<Vec<NewEvent>>,
    samples: Mutex<Vec<AgentView>>,
}

impl Observer for Notebook {
    fn happened(&self, event: NewEvent) {
        self.events.lock().expect("the notes").push(event);
    }

    fn sampled(&self, view: &AgentView) {
        self.samples.lock().expect("the notes").push(view.clone());
    }
}

impl Notebook {
    #[track_caller]
    fn await_event(&self, kind: EventKind, words: &str) -> NewEvent {
        eventually(&format!("{kind:?} {words}"), || {
            let events = self.events.lock().expect("the notes");
            let mut found = events.iter().filter(|event| event.kind == kind);
            found
                .find(|event| event.text.as_str().contains(words))
                .cloned()
        })
    }
}

struct Watched {
    daemon: Option<Daemon>,
    notes: Arc<Notebook>,
    base: tempfile::TempDir,
}

impl Watched {
    fn start() -> Self {
        let base = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(base.path().join("work")).expect("a workspace");
        let state = StateDir::at(base.path().join("state")).expect("a state directory");
        let notes = Arc::new(Notebook::default());
        let settings = DaemonSettings::new(belljar());
        let daemon = Daemon::open(&state, settings, notes.clone()).expect("a daemon");
        Self {
            daemon: Some(daemon),
            notes,
            base,
        }
    }

    fn work(&self) -> PathBuf {
        self.base.path().join("work")
    }

    #[track_caller]
    fn agent(&self, name: &str, script: &str, capability: Option<&str>) {
        let spec = AgentSpec {
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            workdir: Some(self.work()),
            capability: capability.map(str::to_owned),
            ..AgentSpec::named(name)
        };
        let daemon = self.daemon.as_ref().expect("a daemon");
        daemon.start(spec).expect("a start");
    }

    /// Asks as a web server would.
    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let carried = OperatorCall::carried(
            method,
            path,
            body.as_bytes(),
            1 << 20,
            move |status, body| {
                send.send((status, body)).expect("somebody waits");
            },
        );
        let (_, call) = carried.expect("a good request");
        let daemon = self.daemon.as_ref().expect("a daemon");
        assert!(
            daemon.answer(&OperatorIdentity::Owner, call).is_none(),
            "{path} is the daemon's"
        );
        let (status, body) = receive.recv().expect("an answer");
        let body = serde_json::from_slice(&body).expect("JSON");
        (status.code(), body)
    }

    #[track_caller]
    fn id(&self, name: &str) -> String {
        let (_, list) = self.ask("GET", "/v1/agents?ended=true", &Value::Null);
        let agents = list["agents"].as_array().expect("a list").clone();
        let found = agents.iter().find(|agent| agent["name"] == name);
        found.expect("the agent")["id"]
            .as_str()
            .expect("an id")
            .to_owned()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            assert_eq!(daemon.shut_down(Some(std::time::Duration::ZERO)), 0);
        }
    }
}

#[test]
fn whatever_happens_is_told() {
    let watched = Watched::start();
    let notes = &watched.notes;
    notes.await_event(EventKind::Daemon, "started");
    let idle = "while :; do sleep 0.05; done";
    watched.agent("idle", idle, None);
    notes.await_event(EventKind::Started, "idle");
    eventually("samples come", || {
        let samples = notes.samples.lock().expect("the notes");
        let count = samples
            .iter()
            .filter(|view| view.name.as_str() == "idle")
            .count();
        (count >= 2).then_some(())
    });

    let id = watched.id("idle");
    let because = json!({"reason": "look"});
    let (status, _) = watched.ask("POST", &format!("/v1/workers/{id}/quarantine"), &because);
    assert_eq!(status, 200);
    notes.await_event(EventKind::Quarantined, "idle");
    watched.ask("POST", &format!("/v1/workers/{id}/release"), &because);
    notes.await_event(EventKind::Released, "idle");

    // Walls that are run against.
    watched.agent(
        "prying",
        "unshare --mount true; mount -t tmpfs none /tmp; exit 3",
        None,
    );
    let tried = notes.await_event(EventKind::SystemCallRefused, "prying");
    assert!(tried.code.is_some());
    notes.await_event(
        EventKind::Ended,
        "prying ended: it crashed with exit code 3",
    );
    let prying = watched.id("prying");
    let (_, detail) = watched.ask("GET", &format!("/v1/agents/{prying}"), &Value::Null);
    assert_eq!(detail["denials"][0]["kind"], "system_call", "{detail}");
    assert!(
        detail["policy"]
            .as_str()
            .is_some_and(|policy| !policy.is_empty())
    );

    // Hosts that nobody allowed.
    let rules =
        "extends: moderate\nnetwork_egress_rules:\n  - {domain: allowed.example, ports: [443]}\n";
    watched.agent(
        "calling",
        "curl -m 5 http://refused.example/ || true",
        Some(rules),
    );
    let refused = notes.await_event(EventKind::EgressRefused, "refused.example");
    assert!(
        refused
            .hint
            .is_some_and(|hint| hint.as_str().contains("refused.example"))
    );

    // No contract, no replicas.
    watched.agent(
        "growing",
        &format!("{AGENT} replicate --reason test; true"),
        None,
    );
    let denied = notes.await_event(EventKind::ReplicationDenied, "growing");
    assert!(
        denied
            .code
            .is_some_and(|code| code.as_str().starts_with("deny_"))
    );

    let kill = json!({"reason": "enough", "subtree": false});
    let (status, report) = watched.ask("POST", &format!("/v1/workers/{id}/kill"), &kill);
    assert_eq!((status, &report["survivors"]), (200, &json!(0)));
    notes.await_event(EventKind::Killed, "idle");
    let ended = notes.await_event(EventKind::Ended, "idle");
    assert!(ended.text.as_str().contains("killed"));
    watched.ask("POST", "/v1/kill-switch", &json!({"reason": "drill"}));
    notes.await_event(EventKind::KillSwitchEngaged, "drill");
    watched.ask("POST", "/v1/kill-switch/reset", &json!({"reason": "over"}));
    notes.await_event(EventKind::KillSwitchReset, "over");
}

#[test]
fn an_agent_can_be_looked_into() {
    let watched = Watched::start();
    let script = "echo one; echo oops >&2; head -c 3000000 /dev/zero > big; sync big; while :; do sleep 5; done";
    watched.agent("open", script, None);
    let id = watched.id("open");
    let text = |stream: &str| {
        let path = format!("/v1/agents/{id}/output?stream={stream}");
        watched.ask("GET", &path, &Value::Null).1
    };
    eventually("it has written", || {
        (text("stdout")["text"] == "one\n").then_some(())
    });
    eventually("it has complained", || {
        (text("stderr")["text"] == "oops\n").then_some(())
    });
    assert_eq!(text("stdout")["is_end"], false);
    let processes = eventually("it sleeps", || {
        let path = format!("/v1/agents/{id}/processes");
        let (_, list) = watched.ask("GET", &path, &Value::Null);
        let processes = list["processes"].as_array()?.clone();
        let sleeps = processes
            .iter()
            .any(|process| process["command"] == "sleep 5");
        sleeps.then_some(processes)
    });
    assert!(processes.iter().any(|process| {
        process["command"]
            .as_str()
            .is_some_and(|line| line.starts_with("sh -c"))
    }));
    let (_, detail) = watched.ask("GET", &format!("/v1/agents/{id}"), &Value::Null);
    assert!(detail["keeper_pid"].as_u64().is_some_and(|pid| pid > 1));
    assert_eq!(detail["agent"]["phase"], "running");

    // What is not an agent's is nobody's.
    let (status, problem) = watched.ask(
        "GET",
        "/v1/agents/00000000000000000000000000000000",
        &Value::Null,
    );
    assert_eq!(
        (status, &problem["code"]),
        (404, &json!("not_found")),
        "{problem}"
    );
    // And what is not the daemon's is given back.
    let carried = OperatorCall::carried("GET", "/v1/metrics", b"", 1 << 20, |_, _| {});
    let (_, call) = carried.expect("a good request");
    let daemon = watched.daemon.as_ref().expect("a daemon");
    assert!(matches!(
        daemon.answer(&OperatorIdentity::Owner, call),
        Some(OperatorCall::ReadMetrics(_))
    ));
    let (_, stopped) = watched.ask(
        "POST",
        &format!("/v1/agents/{id}/stop"),
        &json!({"reason": "done", "grace_ms": 100}),
    );
    assert_eq!(stopped["phase"], "stopping");
    eventually("it has ended", || {
        (text("stdout")["is_end"] == true).then_some(())
    });
}
