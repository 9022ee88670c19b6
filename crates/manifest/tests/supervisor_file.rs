//! `supervisor.toml`: what it says, and what is said of one that is wrong.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use belljar_manifest::{DeclaredRestart, parse_supervisor};

#[test]
fn a_whole_file_is_understood() {
    let file = parse_supervisor(
        "supervisor.toml",
        br#"
[supervisor]
max_agents = 20
web_port = 9000
orphan_grace_seconds = 2.5
stop_grace_seconds = 1
log_max_mb = 1
log_keep = 2
contract = "contract.yaml"

[supervisor.restart]
first_seconds = 0.1
crash_loop = 3

[supervisor.web]
bind = "0.0.0.0"
certificate = "certificate.pem"
key = "key.pem"
names = ["belljar.example.com"]
[supervisor.alerts]
max_cpu_percent = 80.0
anything = [{ at = "all" }]

[[agents]]
name = "crawler"
command = ["python3", "agent.py"]
workdir = "work"
profile = "strict"
restart = "on_failure"

[[agents]]
name = "idle"
command = ["sleep", "1"]
capability = "idle.yaml"
enabled = false
"#,
    )
    .unwrap();
    assert_eq!((file.max_agents, file.web_port), (Some(20), Some(9000)));
    assert_eq!(file.orphan_grace, Some(Duration::from_millis(2500)));
    assert_eq!(file.stop_grace, Some(Duration::from_secs(1)));
    assert_eq!((file.log_bytes, file.log_keep), (Some(1 << 20), Some(2)));
    assert_eq!(file.restart_first, Some(Duration::from_millis(100)));
    assert_eq!((file.crash_loop, file.crash_window), (Some(3), None));
    assert_eq!(file.web.bind, Some([0, 0, 0, 0].into()));
    assert_eq!(file.web.key, Some("key.pem".into()));
    assert_eq!(file.web.names, ["belljar.example.com"]);
    let [crawler, idle] = file.agents.as_slice() else {
        panic!("two agents");
    };
    assert_eq!(crawler.restart, DeclaredRestart::OnFailure);
    assert_eq!(crawler.command, ["python3", "agent.py"]);
    assert!(crawler.enabled && !idle.enabled);
}

#[test]
fn an_agent_may_be_many_and_run_from_the_releases_of_a_project() {
    let text =
        b"[[agents]]\nname = \"worker\"\ncount = 3\nproject = \"agent\"\ncommand = [\"x\"]\n";
    let file = parse_supervisor("supervisor.toml", text).unwrap();
    let names: Vec<&str> = file.agents.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["worker-1", "worker-2", "worker-3"]);
    assert!(
        file.agents
            .iter()
            .all(|one| one.project == Some("agent".into()))
    );
}

#[test]
fn what_is_wrong_is_told_with_its_place_and_what_to_do() {
    let cases = [
        ("", (1, "`[supervisor]` means all defaults"), ""),
        (
            "[supervisor]\nmax_agent = 3",
            (2, "unknown key"),
            "did you mean 'max_agents'?",
        ),
        (
            "[supervisor]\nmax_agents = 0",
            (2, "max_agents must be between"),
            "",
        ),
        (
            "[supervisor]\nweb_port = \"80\"",
            (2, "web_port must be a whole number"),
            "remove the quotes",
        ),
        (
            "[supervisor]\nalerts = 3",
            (2, "alerts must be a mapping"),
            "",
        ),
        (
            "[[agents]]\nname = \"a\"",
            (1, "the key 'command' is missing"),
            "",
        ),
        (
            "[[agents]]\nname = \"a\"\ncommand = []",
            (3, "the command is empty"),
            "command = [",
        ),
        (
            "[[agents]]\nname = \"a\"\ncommand = [\"x\"]\nrestart = \"sometimes\"",
            (4, "restart must be"),
            "",
        ),
        (
            "[[agents]]\nname = \"a\"\ncommand = [\"x\"]\nworkdir = \"w\"\nproject = \"p\"",
            (5, "a workdir and a project"),
            "remove one of them",
        ),
        (
            "[[agents]]\nname = \"a-2\"\ncommand = [\"x\"]\n[[agents]]\nname = \"a\"\ncount = 2\ncommand = [\"x\"]",
            (5, "two agents are called"),
            "a name of its own",
        ),
        (
            "[[agents]]\nname = \"a\"\ncommand = [\"x\"]\nprofile = \"loose\"",
            (4, "no profile"),
            "they are",
        ),
        (
            "[[agents]]\nname = \"a\"\ncommand = [\"x\"]\n[[agents]]\nname = \"a\"\ncommand = [\"y\"]",
            (5, "two agents are called"),
            "a name of its own",
        ),
    ];
    for (text, (line, message), hint) in cases {
        let error = parse_supervisor("supervisor.toml", text.as_bytes()).unwrap_err();
        let shown = error.to_string();
        assert!(shown.contains(message), "{text}: {shown}");
        assert!(
            shown.contains(&format!("supervisor.toml:{line}:")),
            "{text}: {shown}"
        );
        let given = error.hint.unwrap_or_default();
        assert!(given.contains(hint), "{text}: {given}");
    }
}
