//! `belljar monitor` with the real binary, against a real monitor behind the operator's socket.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use belljar_api::{
    AgentId, AgentList, AgentPhase, AgentView, BudgetView, Call, EventKind, Limits, LimitsView,
    NewEvent, OperatorCall, Problem, Running, Server, Severity, Shown, Side, Status, Tag, UsageNow,
};
use belljar_monitor::{Monitor, Settings};
use serde_json::Value;

/// A supervisor, as far as `belljar monitor` sees one.
struct Supervisor {
    state: tempfile::TempDir,
    monitor: Arc<Monitor>,
    _running: Running,
}

fn agent() -> AgentView {
    AgentView {
        id: AgentId::new("a1b2c3d4e5f6").unwrap(),
        name: Shown::new("worker"),
        parent: None,
        depth: 0,
        phase: AgentPhase::Running,
        since_ms: 0,
        started_at_ms: 0,
        restarts: 0,
        restart_at_ms: None,
        command: Shown::new("sh"),
        capability: Shown::new("moderate"),
        usage: UsageNow {
            cpu_percent: 12.5,
            memory_bytes: 64 << 20,
            processes: 3,
            ..UsageNow::default()
        },
        limits: LimitsView::default(),
        budget: BudgetView::default(),
        open_alerts: 1,
        end: None,
    }
}

impl Supervisor {
    fn start() -> Self {
        let state = tempfile::tempdir().unwrap();
        let monitor = Monitor::open(&state.path().join("monitor"), Settings::default()).unwrap();
        let monitor = Arc::new(monitor);
        std::fs::create_dir_all(state.path().join("fleet")).unwrap();
        let listener = UnixListener::bind(state.path().join("fleet/control.sock")).unwrap();
        let (server, handle) = Server::new(Limits::default()).unwrap();
        let answers = Arc::clone(&monitor);
        let running = server.spawn(move |request| {
            let Call::Operator(call) = request.call else {
                return;
            };
            match answers.answer("local", call) {
                Some(OperatorCall::ListAgents(asked)) => asked.responder.reply(&AgentList {
                    not_running: Vec::new(),
                    agents: vec![agent()],
                    max_agents: 10,
                    at_ms: 1_000,
                }),
                Some(other) => {
                    other.refuse(Status::NOT_FOUND, &Problem::new("not_found", "not here"))
                }
                None => {}
            }
        });
        handle
            .add_listener(listener, Tag(0), Side::Operator)
            .unwrap();
        Self {
            state,
            monitor,
            _running: running.unwrap(),
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        belljar(self.state.path(), words)
    }

    fn output(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    #[track_caller]
    fn text(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.text(words)).unwrap()
    }

    fn happened(&self, kind: EventKind, text: &str) {
        self.monitor.happened(NewEvent {
            agent: Some(agent().id),
            kind,
            severity: Severity::Warning,
            text: Shown::new(text),
            code: None,
            hint: None,
        });
    }
}

fn belljar(state: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command
        .args(words)
        .env("BELLJAR_STATE_DIR", state)
        .stdin(Stdio::null());
    command
}

#[test]
fn without_a_supervisor_it_says_so() {
    let state = tempfile::tempdir().unwrap();
    let output = belljar(state.path(), &["monitor", "alerts"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("no supervisor runs") && said.contains("belljar supervisor start"),
        "{said}"
    );
}

#[test]
fn events_are_listed_filtered_searched_and_followed() {
    let supervisor = Supervisor::start();
    supervisor.happened(EventKind::Started, "it runs");
    supervisor.happened(
        EventKind::EgressRefused,
        "example.com:443 \u{1b}[2J refused",
    );
    let text = supervisor.text(&["monitor", "events"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].contains("started") && lines[1].contains("egress_refused"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'));
    let one = supervisor.json(&["monitor", "events", "-n", "1", "--output", "json"]);
    assert_eq!(one["events"].as_array().unwrap().len(), 1);
    let kind = supervisor.text(&["monitor", "events", "--kind", "started"]);
    assert_eq!(kind.lines().count(), 1);
    assert_eq!(
        supervisor
            .text(&["monitor", "events", "--search", "EXAMPLE"])
            .lines()
            .count(),
        1
    );
    let nobody = supervisor.output(&["monitor", "events", "--agent-id", "nobody"]);
    assert_eq!(nobody.status.code(), Some(121), "{nobody:?}");
    let wrong = supervisor.output(&["monitor", "events", "--kind", "nonsense"]);
    assert!(
        String::from_utf8_lossy(&wrong.stderr).contains("egress_refused"),
        "{wrong:?}"
    );

    let mut command =
        supervisor.command(&["monitor", "events", "-f", "-n", "1", "--output", "json"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("example.com"));
    supervisor.happened(EventKind::Released, "while you watch");
    assert!(lines.next().unwrap().unwrap().contains("while you watch"));
    drop(lines);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn alerts_are_listed_acknowledged_and_resolved_with_a_reason() {
    let supervisor = Supervisor::start();
    assert_eq!(
        supervisor.text(&["monitor", "alerts"]),
        "nothing needs attention\n"
    );
    supervisor.happened(EventKind::SystemCallRefused, "mount: changes the view");
    let text = supervisor.text(&["monitor", "alerts"]);
    assert!(
        text.contains("critical  PrivilegeEscalation") && text.contains("hint: quarantine it"),
        "{text}"
    );
    assert_eq!(
        supervisor.text(&["monitor", "alerts", "ack", "1"]),
        "alert 1 (PrivilegeEscalation) is acknowledged\n"
    );
    assert!(
        !supervisor
            .output(&["monitor", "alerts", "resolve", "1"])
            .status
            .success(),
        "a reason is needed"
    );
    let done = supervisor.json(&[
        "monitor", "alerts", "resolve", "1", "--reason", "a test", "--output", "json",
    ]);
    assert_eq!(
        (&done["state"], &done["by"]),
        (&"resolved".into(), &"local".into())
    );
    assert_eq!(
        supervisor.text(&["monitor", "alerts"]),
        "nothing needs attention\n"
    );
    assert!(
        supervisor
            .text(&["monitor", "alerts", "--all"])
            .contains("resolved")
    );
    let again = supervisor.output(&["monitor", "alerts", "resolve", "1", "--reason", "x"]);
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("resolved already"));
    assert!(
        supervisor
            .text(&["monitor", "events", "--search", "a test"])
            .contains("resolved by local: a test")
    );
}

#[test]
fn metrics_are_told_to_people_and_to_programs() {
    let supervisor = Supervisor::start();
    assert_eq!(
        supervisor.text(&["monitor", "metrics"]),
        "nothing was recorded in that time\n"
    );
    let mut view = agent();
    // Samples until a second is over and can be told; the clock is the real one.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let reply = loop {
        view.usage.tokens += 1;
        supervisor.monitor.sampled(&view);
        let reply = supervisor.json(&[
            "monitor",
            "metrics",
            "--agent-id",
            view.id.as_str(),
            "--output",
            "json",
        ]);
        if reply["samples"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
        {
            break reply;
        }
        assert!(std::time::Instant::now() < deadline, "no sample");
    };
    assert_eq!(reply["every_ms"], 1_000);
    let text = supervisor.text(&["monitor", "metrics", "--since", "1h"]);
    assert!(
        text.contains("MEAN") && text.contains("64.0 MiB") && text.contains('█'),
        "{text}"
    );
    let wrong = supervisor.output(&["monitor", "metrics", "--since", "soon"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("such as 10m"));
}

#[test]
fn top_prints_once_into_a_pipe() {
    let supervisor = Supervisor::start();
    let text = supervisor.text(&["monitor", "top"]);
    assert!(text.starts_with("1 agents of 10, 1 running"), "{text}");
    assert!(
        text.contains("worker         a1b2c3d4 running       12.5"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'));
    assert_eq!(
        supervisor.json(&["monitor", "top", "--output", "json"])["max_agents"],
        10
    );
}

/// On a terminal of its own, which `script` makes. What it ends with is what `stty` then finds.
#[test]
fn top_gives_the_terminal_back_however_it_ends() {
    let supervisor = Supervisor::start();
    let belljar = env!("CARGO_BIN_EXE_belljar");
    for (command, keys) in [
        (format!("{belljar} monitor top; stty -a"), Some("mq")),
        (format!("{belljar} monitor top; stty -a"), Some("\u{3}")),
        (
            format!("timeout --foreground 1 {belljar} monitor top; stty -a"),
            None,
        ),
    ] {
        let mut child = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .env("BELLJAR_STATE_DIR", supervisor.state.path())
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script, of util-linux");
        let mut stdin = child.stdin.take().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let mut screen = String::new();
        // Keys are typed once there is something to see.
        let mut piece = [0; 4096];
        while !screen.contains("q quit") {
            let count = stdout.read(&mut piece).unwrap();
            assert_ne!(count, 0, "{screen}");
            screen.push_str(&String::from_utf8_lossy(&piece[..count]));
        }
        if let Some(keys) = keys {
            stdin.write_all(keys.as_bytes()).unwrap();
        }
        let mut rest = Vec::new();
        stdout.read_to_end(&mut rest).unwrap();
        drop(stdin);
        child.wait().unwrap();
        screen.push_str(&String::from_utf8_lossy(&rest));
        let after = screen
            .split("\u{1b}[?25h\u{1b}[?1049l")
            .nth(1)
            .unwrap_or_else(|| panic!("{screen:?}"));
        for mode in ["icanon", "echo", "isig"] {
            assert!(
                after.split_whitespace().any(|word| word == mode),
                "{mode}: {after}"
            );
        }
    }
}

#[test]
fn the_record_is_exported_to_a_file_of_its_own() {
    let state = tempfile::tempdir().unwrap();
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("audit.json");
    let words = ["monitor", "audit", "--export", out.to_str().unwrap()];
    let none = belljar(state.path(), &words).output().unwrap();
    assert!(
        none.status.success() && String::from_utf8_lossy(&none.stderr).contains("no log yet"),
        "{none:?}"
    );
    let ran = belljar(state.path(), &["run", "-q", "--", "/bin/true"])
        .current_dir(work.path())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let some = belljar(state.path(), &words).output().unwrap();
    assert!(some.status.success(), "{some:?}");
    let exported = std::fs::read(&out).unwrap();
    let printed = belljar(state.path(), &["audit", "export"])
        .output()
        .unwrap();
    assert!(!exported.is_empty());
    assert_eq!(exported, printed.stdout);
    assert!(
        exported
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .all(|line| serde_json::from_slice::<Value>(line).is_ok())
    );
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(
        std::fs::metadata(&out).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let nowhere = belljar(
        state.path(),
        &["monitor", "audit", "--export", "/nonexistent/x"],
    )
    .output()
    .unwrap();
    assert!(!nowhere.status.success());
    assert_eq!(
        std::fs::read_dir(work.path()).unwrap().count(),
        1,
        "nothing half-made is left"
    );
}
