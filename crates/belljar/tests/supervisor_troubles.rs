//! A supervisor in trouble: a full disk, where nothing is granted that can't be recorded, nobody is forgotten, and whoever must
//! end does; a port that is taken; a history that is damaged. In worlds of the tests' own, whose state directory may be a small
//! file system.

mod support;

use std::fs::File;
use std::io::Write as _;
use std::process::Command;

use serde_json::Value;
use support::{Supervised, Who, eventually, for_each_user_in_a_world};

const CONFIG: &str = "[supervisor]\nmax_agents = 20\nstop_grace_seconds = 1\n";

/// A file system of a few megabytes over the state directory, which belongs to the user.
fn put_state_on_a_small_disk(supervised: &Supervised, who: Who) {
    let state = &supervised.jail.state;
    std::fs::create_dir_all(state).expect("a state directory");
    // Whoever is root in this world may be a user outside, of whom it is the only one there.
    let owner = match rustix::process::geteuid().is_root() && who == Who::User {
        true => format!(",uid={0},gid={0}", who.uid()),
        false => String::new(),
    };
    let mounted = Command::new("mount")
        .args([
            "-t",
            "tmpfs",
            "-o",
            &format!("size=16m,mode=700{owner}"),
            "small",
        ])
        .arg(state)
        .status()
        .expect("mount");
    assert!(mounted.success(), "a small file system");
}

/// Writes until nothing fits any more.
fn fill(supervised: &Supervised) -> std::path::PathBuf {
    let path = supervised.jail.state.join("filler");
    let mut file = File::create(&path).expect("a file");
    let block = [0; 4096];
    while file.write_all(&block).is_ok() {}
    path
}

fn status(supervised: &Supervised) -> Value {
    supervised.query(&["supervisor", "status"])
}

fn a_full_disk_stops_grants_and_nothing_else(who: Who) {
    let mut supervised = Supervised::prepare(who, CONFIG);
    put_state_on_a_small_disk(&supervised, who);
    supervised.start_again();
    let old = supervised.agent("old", "while :; do sleep 0.1; done");
    let frozen = supervised.agent("frozen", "while :; do sleep 0.1; done");
    let other = supervised.agent("other", "trap '' TERM; while :; do sleep 0.1; done");
    let filler = fill(&supervised);

    // The log has room of its own for a while; then every start is refused for its sake.
    let refused = eventually("the log can't be written", || {
        let said = supervised.belljar(&["sandbox", "--name", "new", "--", "/bin/true"]);
        assert_eq!(said.status.code(), Some(122), "{}", said.stderr());
        said.stderr()
            .contains("deny_unrecorded")
            .then(|| said.stderr())
    });
    assert!(refused.contains("start the controller anew"), "{refused}");

    // It can still be seen, and says what is wrong.
    let seen = eventually("the failure is told", || {
        let seen = status(&supervised);
        seen["status"]["ledger"]["failed"]
            .is_string()
            .then_some(seen)
    });
    let running = supervised.agents();
    let living = running.iter().filter(|agent| agent["phase"] == "running");
    assert_eq!(living.count(), 3, "{seen}");
    eventually("LedgerFailure", || {
        let alerts = supervised.query(&["monitor", "alerts"]);
        let mut alerts = alerts["alerts"].as_array().into_iter().flatten();
        alerts
            .any(|alert| alert["kind"] == "LedgerFailure")
            .then_some(())
    });

    // Whoever must be held back is; letting go needs a record.
    supervised.said(&["supervisor", "quarantine", &frozen]);
    supervised.await_phase(&frozen, "quarantined");
    let released = supervised.belljar(&["supervisor", "release", &frozen]);
    assert_eq!(released.status.code(), Some(122), "{}", released.stderr());
    supervised.await_phase(&frozen, "quarantined");
    supervised.said(&["supervisor", "kill", &old]);
    assert_eq!(supervised.await_cause(&old), "killed");
    supervised.said(&["supervisor", "stop", &other]);
    assert_eq!(supervised.await_cause(&other), "stopped");

    // With room again, and started again, it takes up where the record ends; whoever lives is adopted.
    std::fs::remove_file(filler).expect("room");
    supervised.murder();
    supervised.start_again();
    let seen = status(&supervised);
    assert!(seen["status"]["ledger"]["failed"].is_null(), "{seen}");
    let fresh = supervised.agent("fresh", "while :; do sleep 0.1; done");
    supervised.await_phase(&fresh, "running");
    let verified = supervised.belljar(&["audit", "verify", "--log", "fleet"]);
    assert!(verified.status.success(), "{}", verified.stderr());
    supervised.said(&["supervisor", "shutdown"]);
    assert!(supervised.await_end().success());
    supervised.assert_nothing_left();
}

fn a_shutdown_needs_no_record(who: Who) {
    let mut supervised = Supervised::prepare(who, CONFIG);
    put_state_on_a_small_disk(&supervised, who);
    supervised.start_again();
    supervised.agent("old", "while :; do sleep 0.1; done");
    fill(&supervised);
    eventually("the log can't be written", || {
        let said = supervised.belljar(&["sandbox", "--name", "new", "--", "/bin/true"]);
        said.stderr().contains("deny_unrecorded").then_some(())
    });
    supervised.said(&["supervisor", "shutdown"]);
    supervised.await_end();
    supervised.assert_nothing_left();
}

fn a_taken_port_is_told_and_nothing_is_left(who: Who) {
    let mut supervised = Supervised::prepare(who, CONFIG);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its number").port().to_string();
    let config = supervised.config();
    let words = [
        "supervisor",
        "start",
        "--config",
        &config,
        "--web-port",
        &port,
    ];
    let said = supervised.belljar(&words);
    assert_eq!(said.status.code(), Some(121), "{}", said.stderr());
    let told = said.stderr();
    assert!(told.contains(&port) && told.contains("taken"), "{told}");
    assert!(told.contains("--web-port"), "{told}");
    supervised.assert_nothing_left();
    // Nothing of that start is in the way of the next.
    supervised.start_again();
    supervised.said(&["supervisor", "shutdown"]);
    assert!(supervised.await_end().success());
}

fn a_damaged_history_is_set_aside(who: Who) {
    let mut supervised = Supervised::start(who, CONFIG);
    supervised.agent("first", "exit 0");
    supervised.murder();
    let history = supervised.jail.state.join("monitor/monitor.db");
    std::fs::write(&history, vec![0xa5; 64 << 10]).expect("the history's file");
    for end in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(history.with_extension(format!("db{end}")));
    }
    supervised.start_again();
    let second = supervised.agent("second", "while :; do sleep 0.1; done");
    supervised.await_phase(&second, "running");
    let files = support::files_below(&supervised.jail.state.join("monitor"));
    let is_kept = |file: &std::path::PathBuf| {
        std::fs::read(file).is_ok_and(|bytes| bytes.starts_with(&[0xa5; 16]))
    };
    assert!(files.iter().any(is_kept), "it was thrown away: {files:#?}");
    eventually("events are kept again", || {
        let events = supervised.query(&["monitor", "events"]);
        events.to_string().contains(&second).then_some(())
    });
}

for_each_user_in_a_world!(
    a_full_disk_stops_grants_and_nothing_else,
    a_shutdown_needs_no_record,
    a_taken_port_is_told_and_nothing_is_left,
    a_damaged_history_is_set_aside,
);
