//! A kill switch and a crowd: hundreds of boxes, each with processes that do not want to end.

mod support;

use std::fs;

use serde_json::Value;
use support::{AGENT, Family, Who, cgroups_of, eventually, for_each_user, text};

/// Five processes: one waits, one ignores what it can, one stands still, one forks without end, and the shell above them.
/// By itself none of them lives longer than ten minutes.
const CROWD: &str = "(trap '' TERM INT HUP QUIT; sleep 600) & \
    sh -c 'kill -STOP $$; sleep 600' & \
    (n=0; while [ $n -lt 300 ]; do n=$((n+1)); sleep 2; done) & \
    echo $$ > up/$(cut -c1-32 /belljar/state); wait";

/// Asks until all are there: the door slows down whoever asks too often.
const HIRING: &str = r#"n=0
while [ $n -lt $1 ]; do
    printf %032d $n > state.$2
    /belljar/bin/belljar agent replicate --reason crowd --state state.$2 -- sh crowd.sh > answer.$2 2>&1 && n=$((n+1))
done
echo hired
"#;

fn a_crowd_is_killed_to_the_last_process(who: Who) {
    let boxes = match who {
        Who::Root => 200,
        Who::User => 40,
    };
    let contract = format!(
        "max_depth: 1\nmax_replicas: {}\nexpiration_seconds: 600\n",
        boxes + 1
    );
    let mut family = Family::start(who, &contract);
    for (name, text) in [("crowd.sh", CROWD), ("hiring.sh", HIRING), ("up/made", "")] {
        family.jail.put(&family.jail.work.join(name), text);
    }
    let hired = family.order("root", &format!("cd ../..; sh hiring.sh {boxes} a"));
    assert_eq!(hired.out, "hired\n", "{hired:?}");
    let up = family.jail.work.join("up");
    eventually("all boxes are up", || {
        let names = fs::read_dir(&up).expect("the marks").count();
        (names > boxes).then_some(())
    });
    // One more is refused: the crowd is as large as the contract allows, and all of it is alive.
    let said = family.order(
        "root",
        &format!("{AGENT} replicate --reason more --output json -- true"),
    );
    assert!(said.out.contains("deny_quota"), "{said:?}");
    let ids: Vec<String> = family
        .workers()
        .iter()
        .map(|worker| text(&worker["id"]))
        .collect();
    assert_eq!(ids.len(), boxes + 1);
    eventually("each has five processes", || {
        (family.boxed().len() >= boxes * 5).then_some(())
    });

    let report: Value = family.operator(&["kill-switch", "engage", "--reason", "the whole crowd"]);
    assert_eq!(report["survivors"], 0, "{report}");
    assert_eq!(report["killed"], boxes as u64 + 1, "{report}");
    // The report came when it was done: nothing is awaited here.
    assert_eq!(family.boxed(), []);
    family.await_controller();
    for id in &ids {
        assert_eq!(cgroups_of(id), Vec::<std::path::PathBuf>::new());
    }
    family.assert_nothing_left(&[]);
    let log = family.log();
    let ended = log.iter().filter(|entry| {
        let what = &entry["what"];
        what["kind"] == "ended" && what["code"] == "killed_kill_switch"
    });
    assert_eq!(ended.count(), boxes + 1);
    family.assert_log_holds();
    println!("killed {boxes} boxes in {} us", report["elapsed_us"]);
}

for_each_user!(a_crowd_is_killed_to_the_last_process);
