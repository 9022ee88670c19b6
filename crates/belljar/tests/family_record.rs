//! The record of a family says of each box what a lone run's says, and what vouched for it.

mod support;

use std::fs;

use serde_json::Value;
use support::{AGENT, Family, Host, Who, eventually, for_each_user, text};

const ROOMY: &str = "max_depth: 3\nmax_replicas: 8\n";
/// SHA-256 of the words `sh`, `-c`, `exit 5`, each with its length before it.
const WORDS: [&[u8]; 3] = [b"sh", b"-c", b"exit 5"];

/// The first entry of this kind about this worker, with its place.
fn first<'l>(log: &'l [Value], kind: &str, worker: &str) -> Option<(usize, &'l Value)> {
    let mut whats = log.iter().map(|entry| &entry["what"]).enumerate();
    whats.find(|(_, what)| what["kind"] == kind && what["worker"] == worker)
}

fn a_family_is_on_record_as_a_lone_run_is(who: Who) {
    what_ran_is_on_record(who, Host::Run);
}

fn a_supervised_family_is_on_record_as_a_lone_run_is(who: Who) {
    what_ran_is_on_record(who, Host::Supervisor);
}

fn what_ran_is_on_record(who: Who, host: Host) {
    let mut family = Family::prepare(who, ROOMY).host(host);
    family.start_puppet();
    let asked = format!("{AGENT} replicate --reason check --output json -- sh -c 'exit 5'");
    let said = family.order("root", &asked);
    let child = serde_json::from_str::<Value>(&said.out).expect("an answer");
    let child = text(&child["worker_id"]);
    let log = eventually("its end is on record", || {
        let log = family.log();
        first(&log, "ended", &child).is_some().then_some(log)
    });

    let (launched_at, launched) = first(&log, "box_launched", &child).expect("a launch");
    let (started_at, _) = first(&log, "started", &child).expect("a start");
    assert!(launched_at < started_at, "on record before it ran");
    assert_eq!(
        launched["command_sha256"],
        belljar_gate::record::words_sha256(WORDS).as_str()
    );
    assert!(text(&launched["program"]).ends_with("/sh"), "{launched}");
    for name in ["capability", "capability_sha256", "tier", "manifest"] {
        assert!(!text(&launched[name]).is_empty(), "{name}: {launched}");
    }

    let (_, ended) = first(&log, "box_ended", &child).expect("an end");
    assert_eq!(ended["exit_code"], 5, "{ended}");
    assert_eq!(ended["killed_by"], Value::Null);
    assert!(ended["duration_ms"].as_u64() > Some(0), "{ended}");

    // The box is gone, and its manifest is there: by the log's digest, or by whom it was for.
    let digest = text(&launched["manifest"]);
    for which in [digest.as_str(), &digest[..12], &child] {
        let shown = family.query(&["audit", "manifest", which]);
        assert_eq!(shown["verified"], true, "{shown}");
        assert_eq!(shown["payload"]["worker"], child.as_str());
        assert_eq!(
            shown["payload"]["parent"]["worker"],
            family.root_id().as_str()
        );
    }
    // One that was changed is not shown as what it was.
    let kept = family.jail.state.join("fleet/manifests");
    let kept = kept.join(&digest[..2]).join(format!("{digest}.json"));
    let mut bytes = fs::read(&kept).expect("the manifest");
    bytes[20] ^= 1;
    fs::write(&kept, &bytes).expect("a change");
    let shown = family.belljar(&["audit", "manifest", &child]);
    assert_eq!(shown.code(), 121, "{}", shown.stderr());
    assert!(
        shown.stderr().contains("is not what it was"),
        "{}",
        shown.stderr()
    );
    family.assert_log_holds();
}

fn who_acted_is_data(who: Who) {
    let family = Family::start(who, ROOMY);
    let child = family.replicate("root", "ann", "").expect("a grant");
    family.operator(&["kill", &child, "--reason", "a drill"]);
    let log = family.log();
    let mut acts = log.iter().map(|entry| &entry["what"]);
    let act = acts
        .find(|what| what["kind"] == "operator_acted" && what["worker"] == child.as_str())
        .expect("an act");
    assert_eq!(act["reason"], "a drill");
    assert_eq!(act["by"]["type"], "user");
    assert_eq!(act["by"]["uid"], act["user"]);
}

/// A program that says that it ends has the last word about how.
fn a_polite_end_has_the_programs_exit_code(who: Who) {
    let mut family = Family::prepare(who, ROOMY);
    let says = format!("{AGENT} shutdown --reason completed");
    let asks = format!("{AGENT} replicate --reason more --output json -- true");
    family.launch(&["sh", "-c", &format!("{says}; {asks} > asked; exit 3")]);
    let code = family.await_controller().code();
    assert_eq!(code, Some(3), "{}", family.output());
    let asked = fs::read_to_string(family.jail.work.join("asked")).expect("an answer");
    assert!(asked.contains("deny_parent_unknown"), "{asked}");
    assert!(family.logged(&["\"ended\"", "\"shutdown\""]));

    // One that says so and goes on is ended all the same.
    family.launch(&["sh", "-c", &format!("{says}; sleep 1000")]);
    assert_eq!(family.await_controller().code(), Some(137));
    assert!(family.output().contains("shutdown"), "{}", family.output());
}

/// Nobody runs any more, and who there was is still told.
fn a_family_is_listed_after_its_end(who: Who) {
    let mut family = Family::start(who, ROOMY);
    let asks = format!("{AGENT} replicate --reason part --output json -- sh -c 'exit 5'");
    family.order("root", &asks);
    eventually("its end is on record", || {
        family
            .logged(&["box_ended", "\"exit_code\":5"])
            .then_some(())
    });
    family.operator(&["kill", &family.root_id()]);
    family.await_controller();
    for words in [
        &["replication", "tree"][..],
        &["replication", "workers", "--all"],
    ] {
        let list = family.query(words);
        let workers = list["workers"].as_array().expect("workers");
        assert_eq!(workers.len(), 2, "{list}");
        assert!(
            workers.iter().all(|worker| worker["state"] == "ended"),
            "{list}"
        );
        assert_eq!(workers[1]["parent"], workers[0]["id"]);
        assert_eq!(workers[1]["ended_by"]["reason"], "exit code 5", "{list}");
    }
    let shown = family.belljar(&["replication", "tree"]);
    assert!(
        shown.stdout().contains("exited (exit code 5)"),
        "{}",
        shown.stdout()
    );
    assert!(
        shown.stderr().contains("no controller runs"),
        "{}",
        shown.stderr()
    );
}

fn a_quarantine_can_take_in_those_below(who: Who) {
    let family = Family::start(who, ROOMY);
    let ann = family.replicate("root", "ann", "").expect("a grant");
    let bob = family.replicate("ann", "bob", "").expect("a grant");
    let state = |id: &str| {
        let workers = family.workers();
        let worker = workers.iter().find(|worker| worker["id"] == id);
        text(&worker.expect("a worker")["state"])
    };
    // A slow machine shows `freezing` until every process is seen to hold still.
    let await_quarantine = |id: &str| {
        eventually("it is quarantined", || {
            (state(id) == "quarantined").then_some(())
        });
    };
    family.operator(&["quarantine", &ann]);
    await_quarantine(&ann);
    assert_eq!(state(&bob), "running");
    family.operator(&["quarantine", &ann, "--subtree"]);
    await_quarantine(&bob);
    family.operator(&["release", &ann, "--subtree"]);
    assert_eq!(
        (state(&ann).as_str(), state(&bob).as_str()),
        ("running", "running")
    );
}

fn a_release_that_does_not_hold_says_why(who: Who) {
    let family = Family::start(
        who,
        "max_depth: 3\nmax_replicas: 8\nstop_conditions: [{name: too-deep, when: lineage.depth >= 1, on_trigger: quarantine}]\n",
    );
    let child = family.ask_replica("root", "ann", "").expect("a grant");
    eventually("it is frozen", || {
        family
            .logged(&["quarantined_stop_condition", &child])
            .then_some(())
    });
    let said = family.belljar(&["replication", "release", &child]);
    assert_eq!(said.code(), 122, "{}", said.stderr());
    assert!(
        said.stderr()
            .contains("stop condition too-deep still holds"),
        "{}",
        said.stderr()
    );
}

for_each_user!(
    a_polite_end_has_the_programs_exit_code,
    a_family_is_listed_after_its_end,
    a_quarantine_can_take_in_those_below,
    a_release_that_does_not_hold_says_why,
    a_family_is_on_record_as_a_lone_run_is,
    a_supervised_family_is_on_record_as_a_lone_run_is,
    who_acted_is_data,
);
