//! A controller that is killed at any moment: its boxes die with it, and the next one knows what became of them.

mod support;

use std::fs;
use std::path::Path;

use serde_json::Value;
use support::{Family, Who, eventually, for_each_user, processes_marked, text};

const ROOMY: &str = "max_depth: 3\nmax_replicas: 8\n";
const STUBBORN: &str = "(trap '' TERM INT HUP; while :; do sleep 1; done) & \
    (while :; do sleep 0.2 & wait; done) & echo stubborn";

/// The ends in the log, by worker.
fn ends(log: &[Value]) -> Vec<(String, String)> {
    let mut ends: Vec<_> = log
        .iter()
        .filter_map(|entry| find(entry, "ended"))
        .map(|ended| (text(&ended["worker"]), text(&ended["code"])))
        .collect();
    let lost = log.iter().filter_map(|entry| find(entry, "workers_lost"));
    let lost = lost.flat_map(|lost| lost["workers"].as_array().expect("a list"));
    ends.extend(lost.map(|id| (text(id), "lost".to_owned())));
    ends.sort();
    ends
}

/// The object that says `kind`, wherever in the entry it is.
fn find<'a>(value: &'a Value, kind: &str) -> Option<&'a Value> {
    if value["kind"] == kind {
        return Some(value);
    }
    match value {
        Value::Object(fields) => fields.values().find_map(|value| find(value, kind)),
        _ => None,
    }
}

fn boxes_die_with_a_killed_controller_and_are_recorded_as_lost(who: Who) {
    let mut family = Family::start(who, ROOMY);
    let mut all = vec![family.root_id()];
    all.push(family.replicate("root", "ann", "").expect("a grant"));
    all.push(family.replicate("ann", "bob", "").expect("a grant"));
    for name in ["root", "ann", "bob"] {
        assert_eq!(family.order(name, STUBBORN).out, "stubborn\n");
    }
    family.operator(&["quarantine", &all[1]]);
    assert!(!family.boxed().is_empty());
    family.murder();
    eventually("every box is dead", || {
        family.boxed().is_empty().then_some(())
    });
    // Nobody answers, and that is said; the record is whole as far as it goes.
    let nobody = family.belljar(&["replication", "workers"]);
    assert_eq!(nobody.code(), 121);
    assert!(
        nobody.stderr().contains("no controller"),
        "{}",
        nobody.stderr()
    );
    family.assert_log_holds();
    assert_eq!(ends(&family.log()), []);

    family.start_puppet();
    all.sort();
    let lost: Vec<_> = all
        .iter()
        .map(|id| (id.clone(), "lost".to_owned()))
        .collect();
    assert_eq!(ends(&family.log()), lost);
    // Its memory is the record's: one new root, and three that are lost.
    let everybody = family.everybody();
    assert_eq!(everybody.len(), 4);
    let mut ended: Vec<String> = everybody
        .iter()
        .filter(|worker| worker["state"] == "ended" && worker["ended_by"]["code"] == "lost")
        .map(|worker| text(&worker["id"]))
        .collect();
    ended.sort();
    assert_eq!(ended, all);
    // The places of the lost are free again.
    for (n, name) in ["cid", "dan", "eve", "fay", "gus", "hal", "ian"]
        .iter()
        .enumerate()
    {
        let granted = family.replicate("root", name, "");
        assert!(granted.is_ok(), "replica {n}: {granted:?}");
    }
    assert_eq!(
        family
            .ask_replica("root", "jon", "")
            .expect_err("full")
            .code(),
        "deny_quota"
    );
    family.assert_log_holds();
}

fn the_kill_switch_survives_a_killed_controller(who: Who) {
    let mut family = Family::start(who, ROOMY);
    let root = family.root_id();
    family.replicate("root", "ann", "").expect("a grant");
    family.operator(&["kill-switch", "engage", "--reason", "stay down"]);
    family.await_controller();
    // Killed or not, engaged or disengaged by hand on disk: the log knows.
    refused(&family);
    let latch = latch_files(&family.jail.state);
    assert!(!latch.is_empty(), "the latch is a file");
    for file in latch {
        fs::remove_file(file).expect("remove the latch");
    }
    refused_with_contract(&family);
    family.operator(&["kill-switch", "reset", "--reason", "up again"]);
    family.start_puppet();
    assert_ne!(family.root_id(), root);
    // Engaged while nobody can hear it: the next start does.
    family.murder();
    let report = family.operator(&["kill-switch", "engage", "--reason", "while away"]);
    assert_eq!(report["survivors"], 0);
    refused(&family);
    refused_with_contract(&family);
    family.assert_log_holds();
}

/// Files of the state directory that say the switch is engaged.
fn latch_files(state: &Path) -> Vec<std::path::PathBuf> {
    let files = support::files_below(state).into_iter();
    files
        .filter(|file| file.to_string_lossy().contains("kill"))
        .collect()
}

#[track_caller]
fn refused(family: &Family) {
    let refused = family.belljar(&["run", "--", "sh", "-c", "echo > ran"]);
    assert_eq!(refused.code(), 122, "{}", refused.stderr());
    assert!(
        refused.stderr().contains("kill switch"),
        "{}",
        refused.stderr()
    );
    assert!(!family.jail.work.join("ran").exists());
}

#[track_caller]
fn refused_with_contract(family: &Family) {
    let contract = family.contract_path();
    let refused = family.belljar(&[
        "run",
        "--contract",
        &contract,
        "--",
        "sh",
        "-c",
        "echo > ran",
    ]);
    assert_eq!(refused.code(), 122, "{}", refused.stderr());
    assert!(
        refused.stderr().contains("deny_kill_switch"),
        "{}",
        refused.stderr()
    );
    assert!(!family.jail.work.join("ran").exists());
}

/// Killed while it grants and ends, again and again, wherever that hits it.
fn a_controller_killed_at_work_forgets_nobody(who: Who) {
    const CROWD: &str = "for i in 1 2 3 4; do (while :; do \
        /belljar/bin/belljar agent replicate --reason crowd --output json -- sh -c 'exit 0' >> granted.$i 2>/dev/null; \
        done) & done; echo at work";
    let mut family = Family::prepare(who, "max_depth: 2\nmax_replicas: 6\n");
    let mut granted = Vec::new();
    for round in 1..=4 {
        family.start_puppet();
        assert_eq!(family.order("root", CROWD).out, "at work\n");
        eventually("some are granted", || {
            (heard(&family).len() >= 3 * round).then_some(())
        });
        family.murder();
        eventually("every box is dead", || {
            family.boxed().is_empty().then_some(())
        });
        granted.extend(heard(&family));
        family.assert_log_holds();
    }
    // Whoever heard of a grant heard of one that is on record, with its end.
    family.start_puppet();
    let ends = ends(&family.log());
    for id in &granted {
        assert!(
            ends.iter().any(|(worker, _)| worker == id),
            "{id} was forgotten"
        );
    }
    assert_eq!(family.workers().len(), 1);
    // Nobody ended twice.
    let mut once = ends.clone();
    once.dedup_by(|a, b| a.0 == b.0);
    assert_eq!(once.len(), ends.len());
}

/// Those that agents were told of.
fn heard(family: &Family) -> Vec<String> {
    let files = support::files_below(&family.jail.work.join("strings/root")).into_iter();
    let files = files.filter(|file| file.to_string_lossy().contains("granted."));
    let text: String = files
        .filter_map(|file| fs::read_to_string(file).ok())
        .collect();
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|answer| answer["worker_id"].as_str().map(str::to_owned))
        .collect()
}

fn one_controller_at_a_time(who: Who) {
    let family = Family::start(who, ROOMY);
    family.replicate("root", "ann", "").expect("a grant");
    let contract = family.contract_path();
    let second = family.belljar(&[
        "run",
        "--contract",
        &contract,
        "--",
        "sh",
        "-c",
        "echo > ran",
    ]);
    assert_eq!(second.code(), 122, "{}", second.stderr());
    assert!(second.stderr().contains("another"), "{}", second.stderr());
    assert!(!family.jail.work.join("ran").exists());
    // The first is none the worse for it.
    assert_eq!(family.workers().len(), 2);
    for name in ["root", "ann"] {
        assert!(family.agent(name, "heartbeat").is_ok());
    }
    family.replicate("ann", "bob", "").expect("a grant");
}

fn a_bad_contract_starts_nothing(who: Who) {
    let cases = [
        (
            "max_depth: 1\nmax_replica: 2\n",
            "contract.yaml:2",
            "max_replicas",
        ),
        ("max_depth: 1\n", "contract.yaml", "max_replicas"),
        (
            "max_depth: -1\nmax_replicas: 2\n",
            "contract.yaml:1",
            "max_depth",
        ),
        (
            "max_depth: 1\nmax_replicas: 2\nstop_conditions:\n  - name: crowd\n    when: workers.activ > 1\n",
            "contract.yaml:5",
            "workers.active",
        ),
        (
            "max_depth: 1\nmax_replicas: 2\nstop_conditions:\n  - name: crowd\n    when: workers.active >\n",
            "contract.yaml:5",
            "crowd",
        ),
    ];
    let family = Family::prepare(who, "");
    let path = family.contract_path();
    for (contract, place, word) in cases {
        family.jail.put(Path::new(&path), contract);
        let refused = family.belljar(&["run", "--contract", &path, "--", "sh", "-c", "echo > ran"]);
        let said = refused.stderr();
        assert_eq!(refused.code(), 121, "{contract}: {said}");
        assert!(said.contains(place), "{contract}: no {place} in {said}");
        assert!(said.contains(word), "{contract}: no {word} in {said}");
        assert!(!family.jail.work.join("ran").exists());
        let checked = family.belljar(&["replication", "contract", "validate", &path]);
        assert_ne!(checked.code(), 0, "{contract}");
    }
    assert_eq!(processes_marked(&family.jail.base), []);
}

for_each_user!(
    boxes_die_with_a_killed_controller_and_are_recorded_as_lost,
    the_kill_switch_survives_a_killed_controller,
    a_controller_killed_at_work_forgets_nobody,
    one_controller_at_a_time,
    a_bad_contract_starts_nothing,
);
