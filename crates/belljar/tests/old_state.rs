//! What 0.1.0 wrote is still read: its logs verify and fold, and go on.

mod support;

use std::process::Command;

use serde_json::Value;
use support::{Family, Who, for_each_user, text};

const FIXTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/fixtures/state-0.1.0.tar.gz"
);
/// Entries in the fixture.
const RUNS: usize = 17;
const FLEET: usize = 46;

/// A family whose state directory is the old one; nothing of it runs.
fn old(who: Who) -> Family {
    let family = Family::prepare(who, "max_depth: 1\nmax_replicas: 2\n");
    let state = &family.jail.state;
    std::fs::create_dir_all(state).expect("a directory");
    let unpacked = Command::new("tar")
        .arg("-xzf")
        .arg(FIXTURE)
        .arg("-C")
        .arg(state)
        .arg("--no-same-owner")
        .status();
    assert!(unpacked.expect("start tar").success());
    let mut pending = vec![state.clone()];
    while let Some(path) = pending.pop() {
        family.jail.own(&path);
        if path.is_dir() {
            let below = std::fs::read_dir(&path).expect("a directory");
            pending.extend(below.map(|entry| entry.expect("an entry").path()));
        }
    }
    family
}

fn entries(family: &Family, log: &str) -> Vec<Value> {
    let exported = family.belljar(&["audit", "export", "--log", log]);
    let text = exported.stdout();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("an entry"))
        .collect()
}

fn the_logs_of_0_1_0_verify_and_go_on(who: Who) {
    let mut family = old(who);
    family.assert_log_holds();
    for (log, count) in [("runs", RUNS), ("fleet", FLEET)] {
        assert_eq!(entries(&family, log).len(), count, "{log}");
        let verified = family.query(&["audit", "verify", "--log", log]);
        assert_eq!(verified["entries_not_understood"], 0, "{verified}");
        let shown = family.belljar(&["audit", "show", "--log", log]);
        assert_eq!(shown.stdout().lines().count(), count, "{log}");
    }

    // A controller takes the fleet over; its new entries stand behind the old ones.
    family.launch(&["true"]);
    assert!(family.await_controller().success(), "{}", family.output());
    let log = entries(&family, "fleet");
    assert!(log.len() > FLEET, "{}", log.len());
    let kinds: Vec<String> = log.iter().map(|e| text(&e["what"]["kind"])).collect();
    assert!(
        kinds[FLEET..].iter().any(|kind| kind == "box_launched"),
        "{kinds:?}"
    );
    let lone = family.belljar(&["run", "--quiet", "--", "true"]);
    assert_eq!(lone.code(), 0, "{}", lone.stderr());
    assert!(entries(&family, "runs").len() > RUNS + 1);
    family.assert_log_holds();
}

for_each_user!(the_logs_of_0_1_0_verify_and_go_on);
