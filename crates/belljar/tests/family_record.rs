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

for_each_user!(
    a_family_is_on_record_as_a_lone_run_is,
    a_supervised_family_is_on_record_as_a_lone_run_is,
    who_acted_is_data,
);
