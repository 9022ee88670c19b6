//! A supervisor or its keepers that are killed at any moment: boxes stay held, the next supervisor knows all, and nothing is
//! charged twice.

mod support;

use std::fs;

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use support::{AGENT, Supervised, Who, eventually, for_each_user, supervised_pid as pid, text};

const PATIENT: &str = "[supervisor]\nmax_agents = 60\norphan_grace_seconds = 600\n";
const HASTY: &str = "[supervisor]\nmax_agents = 60\norphan_grace_seconds = 1\n";
const IDLE: &str = "while :; do sleep 1; done";

/// Uses CPU time until it is told to stop.
fn busy(name: &str) -> String {
    format!("echo up > {name}-up; while [ ! -e stop ]; do :; done")
}

fn phases(supervised: &Supervised) -> Vec<(String, String)> {
    let agents = supervised.agents();
    let mut phases: Vec<_> = agents
        .iter()
        .map(|agent| (text(&agent["id"]), text(&agent["phase"])))
        .collect();
    phases.sort();
    phases
}

fn all_agents_outlive_a_killed_supervisor_and_are_adopted(who: Who) {
    let mut supervised = Supervised::start(who, PATIENT);
    let mut ids: Vec<String> = (0..48)
        .map(|n| supervised.agent(&format!("idle-{n}"), IDLE))
        .collect();
    let frozen = ids[0].clone();
    let asking = format!(
        "while [ ! -e ask ]; do sleep 0.02; done; {AGENT} replicate --reason test --output json > asked; echo $? >> asked; {IDLE}"
    );
    ids.push(supervised.agent("asking", &asking));
    let greedy = "extends: moderate\nresource_limits:\n  max_cpu_seconds: 1\n";
    let eating = "while [ ! -e eat ]; do sleep 0.02; done; while :; do :; done";
    let greedy = supervised.limited("greedy", greedy, eating);
    ids.sort();
    supervised.query(&["supervisor", "quarantine", &frozen]);
    let keepers = supervised.keepers();
    assert_eq!(keepers.len(), 50);

    supervised.murder();
    // Nobody was harmed; nothing is granted; limits hold.
    assert_eq!(supervised.keepers().len(), 50);
    supervised.jail.put(&supervised.jail.work.join("ask"), "");
    let asked = eventually("the agent is answered", || {
        let asked = fs::read_to_string(supervised.jail.work.join("asked")).ok()?;
        (asked.lines().count() >= 2).then_some(asked)
    });
    assert!(asked.contains("deny_no_supervisor"), "{asked}");
    supervised.jail.put(&supervised.jail.work.join("eat"), "");
    eventually("the greedy one is killed", || {
        (supervised.keepers().len() == 49).then_some(())
    });

    supervised.start_again();
    let mut expected: Vec<_> = ids
        .iter()
        .map(|id| {
            let phase = if *id == frozen {
                "quarantined"
            } else {
                "running"
            };
            (id.clone(), phase.to_owned())
        })
        .collect();
    expected.push((greedy.clone(), "ended".to_owned()));
    expected.sort();
    assert_eq!(phases(&supervised), expected);
    assert_eq!(supervised.view(&greedy)["end"]["cause"], "limit");
    assert_eq!(supervised.view(&greedy)["end"]["detail"], "cpu");
    let same: Vec<_> = keepers
        .into_iter()
        .filter(|(id, _)| *id != greedy)
        .collect();
    let mut now = supervised.keepers();
    now.sort();
    let mut same = same;
    same.sort();
    assert_eq!(now, same, "the same keepers keep them");

    // They are held as before: one by one, and all together.
    supervised.query(&["supervisor", "release", &frozen]);
    supervised.query(&["supervisor", "kill", &ids[1]]);
    let report = supervised.query(&["supervisor", "kill-all", "--reason", "drill"]);
    assert_eq!(
        (&report["killed"], &report["survivors"]),
        (&48.into(), &0.into())
    );
    supervised.assert_nothing_left();
    let verified = supervised.belljar(&["audit", "verify", "--log", "fleet"]);
    assert_eq!(
        verified.code(),
        0,
        "{}{}",
        verified.stdout(),
        verified.stderr()
    );
}

fn what_was_used_is_charged_once_whatever_dies(who: Who) {
    let mut supervised = Supervised::start(who, PATIENT);
    let across = supervised.agent("across", &busy("across"));
    let meanwhile = supervised.agent(
        "meanwhile",
        "while [ ! -e burn ]; do sleep 0.02; done; n=0; while [ $n -lt 200000 ]; do n=$((n + 1)); done",
    );
    supervised.await_file("across-up");
    for _ in 0..3 {
        eventually("something is charged", || {
            (supervised.charged_cpu(&across) > 0).then_some(())
        });
        supervised.murder();
        supervised.start_again();
    }
    // One ends while nobody is there.
    supervised.murder();
    supervised.jail.put(&supervised.jail.work.join("burn"), "");
    eventually("it has ended", || {
        (supervised.keepers().len() == 1).then_some(())
    });
    supervised.start_again();
    supervised.jail.put(&supervised.jail.work.join("stop"), "");
    for id in [&across, &meanwhile] {
        assert_eq!(supervised.await_cause(id), "finished");
        let used = supervised.view(id)["usage"]["cpu_ms"].as_u64();
        assert!(used.is_some_and(|used| used > 0));
        assert_eq!(
            Some(supervised.charged_cpu(id)),
            used,
            "{}",
            supervised.output()
        );
    }
    supervised.assert_nothing_left();
}

fn agents_die_when_nobody_comes_back_in_time(who: Who) {
    let mut supervised = Supervised::start(who, HASTY);
    let ids = [
        supervised.agent("a", IDLE),
        supervised.agent("b", &busy("b")),
    ];
    supervised.await_file("b-up");
    supervised.murder();
    eventually("everybody is dead", || {
        supervised.kept().is_empty().then_some(())
    });
    supervised.start_again();
    for id in ids {
        let agent = supervised.view(&id);
        assert_eq!(
            (&agent["phase"], &agent["end"]["cause"]),
            (&"ended".into(), &"killed".into())
        );
        assert_eq!(agent["end"]["detail"], "orphaned");
    }
    supervised.assert_nothing_left();
}

fn a_supervisor_that_is_back_in_time_saves_its_agents(who: Who) {
    let config = "[supervisor]\norphan_grace_seconds = 0.2\n";
    let mut supervised = Supervised::start(who, config);
    let id = supervised.agent(
        "a",
        "n=0; while :; do n=$((n + 1)); echo $n > counted; sleep 0.02; done",
    );
    supervised.await_file("counted");
    supervised.murder();
    // Frozen by now or not: it goes on.
    supervised.start_again();
    assert_eq!(supervised.view(&id)["phase"], "running");
    let before = supervised.await_file("counted");
    eventually("it goes on", || {
        (supervised.await_file("counted") != before).then_some(())
    });
}

fn a_killed_keeper_takes_its_box_along_and_no_other(who: Who) {
    let supervised = Supervised::start(who, PATIENT);
    let stubborn = "(trap '' TERM INT HUP; while :; do sleep 1; done) & (while :; do sleep 0.2 & wait; done) & wait";
    let ids: Vec<String> = (0..8)
        .map(|n| supervised.agent(&format!("agent-{n}"), stubborn))
        .collect();
    let mut keepers = supervised.keepers();
    keepers.sort();
    let (doomed, spared): (Vec<_>, Vec<_>) = keepers
        .into_iter()
        .enumerate()
        .partition(|(n, _)| n % 2 == 0);
    for (_, (_, keeper)) in &doomed {
        kill_process(pid(*keeper), Signal::KILL).expect("kill a keeper");
    }
    for (_, (id, _)) in &doomed {
        assert_eq!(supervised.await_cause(id), "keeper_lost");
    }
    for (_, (id, _)) in &spared {
        assert_eq!(supervised.view(id)["phase"], "running");
    }
    let mut now = supervised.keepers();
    now.sort();
    let left: Vec<_> = spared.into_iter().map(|(_, keeper)| keeper).collect();
    assert_eq!(now, left);
    let ends: Vec<Value> = supervised.log();
    let lost = ends
        .iter()
        .filter(|entry| entry["what"]["kind"] == "ended" && entry["what"]["code"] == "lost");
    assert_eq!(lost.count(), 4);
    let report = supervised.query(&["supervisor", "kill-all", "--reason", "over"]);
    assert_eq!(report["survivors"], 0);
    assert_eq!(ids.len(), 8);
    supervised.assert_nothing_left();
}

fn the_kill_switch_reaches_agents_that_have_no_supervisor(who: Who) {
    let mut supervised = Supervised::start(who, PATIENT);
    let ids = [supervised.agent("a", IDLE), supervised.agent("b", IDLE)];
    supervised.murder();
    let report = supervised.query(&["supervisor", "kill-all", "--reason", "drill"]);
    assert_eq!(
        (&report["killed"], &report["survivors"]),
        (&2.into(), &0.into())
    );
    assert!(supervised.keepers().is_empty());
    supervised.start_again();
    let refused = supervised.belljar(&["sandbox", "--", "true"]);
    assert!(
        refused.stderr().contains("kill_switch"),
        "{}",
        refused.stderr()
    );
    let log = supervised.log();
    for id in ids {
        let lost = |entry: &Value| {
            entry["what"]["kind"] == "workers_lost" && entry.to_string().contains(&id)
        };
        assert!(log.iter().any(lost), "{id} is on record as lost");
    }
    supervised.assert_nothing_left();
}

fn replicas_are_kept_like_their_parents(who: Who) {
    let mut supervised = Supervised::prepare(who, "");
    let contract = supervised.jail.base.join("contract.yaml");
    supervised
        .jail
        .put(&contract, "max_depth: 2\nmax_replicas: 3\n");
    let config = supervised.jail.base.join("supervisor.toml");
    supervised.jail.put(
        &config,
        "[supervisor]\ncontract = \"contract.yaml\"\norphan_grace_seconds = 600\n",
    );
    supervised.start_again();
    // The first asks twice, whenever it is told to; its replicas idle.
    let parent = format!(
        "n=1; while :; do while [ ! -e ask-$n ]; do sleep 0.02; done; \
         {AGENT} replicate --reason test --output json -- sh -c '{IDLE}' > answer; echo $? >> answer; mv answer answer-$n; n=$((n + 1)); done"
    );
    let root = supervised.agent("root", &parent);
    let ask = |supervised: &Supervised, n: u32| {
        supervised
            .jail
            .put(&supervised.jail.work.join(format!("ask-{n}")), "");
        supervised.await_file(&format!("answer-{n}"))
    };
    let granted = ask(&supervised, 1);
    let child: Value =
        serde_json::from_str(granted.lines().next().expect("a line")).expect("an answer");
    let child = text(&child["worker_id"]);
    let agent = supervised.await_phase(&child, "running");
    assert_eq!(
        (&agent["parent"], &agent["depth"]),
        (&root.as_str().into(), &1.into())
    );

    supervised.murder();
    supervised.start_again();
    let agent = supervised.view(&child);
    assert_eq!(
        (&agent["parent"], &agent["phase"]),
        (&root.as_str().into(), &"running".into())
    );
    // Adopted, the parent is answered again, and held to the same contract.
    let granted = ask(&supervised, 2);
    assert!(granted.contains("worker_id"), "{granted}");
    let denied = ask(&supervised, 3);
    assert!(denied.contains("deny_quota"), "{denied}");
    let tree = supervised.query(&["replication", "tree"]);
    assert_eq!(tree["workers"].as_array().map(Vec::len), Some(3));
    // The end of the parent is its children's.
    supervised.query(&["supervisor", "kill", "root"]);
    assert_eq!(supervised.await_cause(&child), "killed");
    eventually("nobody is left", || {
        supervised.kept().is_empty().then_some(())
    });
    supervised.assert_nothing_left();
}

/// What people are told of an agent that is over.
fn told(agent: &Value) -> Value {
    let keys = [
        "id",
        "name",
        "phase",
        "since_ms",
        "started_at_ms",
        "command",
        "capability",
        "usage",
        "end",
    ];
    keys.iter()
        .map(|key| ((*key).to_owned(), agent[key].clone()))
        .collect()
}

fn whoever_ended_is_told_of_by_the_next_supervisor(who: Who) {
    let mut supervised = Supervised::start(who, PATIENT);
    let finished = supervised.agent("finished", "echo it was here");
    let crashed = supervised.agent("crashed", "exit 3");
    let stopped = supervised.agent("stopped", IDLE);
    supervised.query(&["supervisor", "stop", &stopped, "--reason", "no more of it"]);
    let killed = supervised.agent("killed", IDLE);
    supervised.query(&["supervisor", "kill", &killed, "--reason", "it was rude"]);
    let ended = [&finished, &crashed, &stopped, &killed];
    for id in ended {
        supervised.await_phase(id, "ended");
    }
    let expected: Vec<Value> = ended.map(|id| told(&supervised.view(id))).into();
    let causes: Vec<String> = expected
        .iter()
        .map(|agent| text(&agent["end"]["cause"]))
        .collect();
    assert_eq!(causes, ["finished", "crashed", "stopped", "killed"]);
    let living = supervised.agent("living", IDLE);
    let lost = supervised.agent("lost", IDLE);

    supervised.murder();
    let keepers = supervised.keepers();
    let (_, keeper) = keepers
        .iter()
        .find(|(id, _)| *id == lost)
        .expect("its keeper");
    kill_process(pid(*keeper), Signal::KILL).expect("kill a keeper");
    eventually("it is gone", || {
        (supervised.keepers().len() == 1).then_some(())
    });
    // Once more after that: what was recalled is kept like what was seen.
    for _ in 0..2 {
        supervised.start_again();
        let now: Vec<Value> = ended.map(|id| told(&supervised.view(id))).into();
        assert_eq!(now, expected);
        let agent = supervised.view(&lost);
        assert_eq!(
            (&agent["phase"], &agent["end"]["cause"]),
            (&"ended".into(), &"keeper_lost".into())
        );
        let ids: Vec<String> = supervised
            .agents()
            .iter()
            .map(|agent| text(&agent["id"]))
            .collect();
        let all = [&finished, &crashed, &stopped, &killed, &living, &lost];
        assert_eq!(ids, all.map(String::clone), "by start, each once");
        let live = supervised.query(&["supervisor", "status"]);
        assert_eq!(live["agents"].as_array().map(Vec::len), Some(1));
        let output = supervised.said(&["supervisor", "logs", &finished]);
        assert_eq!(output, "it was here\n");
        supervised.murder();
    }
}

#[test]
fn a_start_reads_no_more_of_the_past_than_is_remembered() {
    let mut supervised = Supervised::start(Who::Root, PATIENT);
    let id = supervised.agent("a", "true");
    supervised.await_phase(&id, "ended");
    supervised.murder();
    let directory = supervised.jail.state.join("fleet/agents");
    let page = fs::read_to_string(directory.join(format!("{id}.json"))).expect("its page");
    let started = serde_json::from_str::<Value>(&page).expect("a page");
    let started = format!("\"started_at_ms\":{},", started["view"]["started_at_ms"]);
    // As many more as are remembered, all of them older.
    for n in 0..1000_u32 {
        let other = format!("{n:08x}{}", &id[8..]);
        let page = page
            .replace(&id, &other)
            .replace(&started, &format!("\"started_at_ms\":{n},"));
        let path = directory.join(format!("{other}.json"));
        supervised.jail.put(&path, &page);
    }
    // And what a supervisor or a disk that died in the middle of it may leave.
    let cut = format!("ffffffff{}", &id[8..]);
    supervised.jail.put(
        &directory.join(format!("{cut}.json")),
        &page[..page.len() / 2],
    );
    supervised.jail.put(&directory.join(".x.json.draft"), "{");

    supervised.start_again();
    let agents = supervised.agents();
    let known: Vec<String> = agents.iter().map(|agent| text(&agent["id"])).collect();
    assert_eq!(known.len(), 1000);
    assert_eq!(known.last(), Some(&id), "the last to start is the last");
    assert!(!known.contains(&cut));
    let mut kept: Vec<String> = fs::read_dir(&directory)
        .expect("the directory")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    kept.sort();
    let mut expected: Vec<String> = known.iter().map(|id| format!("{id}.json")).collect();
    expected.sort();
    assert_eq!(kept, expected, "what is forgotten is forgotten on disk too");
}

for_each_user!(
    whoever_ended_is_told_of_by_the_next_supervisor,
    all_agents_outlive_a_killed_supervisor_and_are_adopted,
    what_was_used_is_charged_once_whatever_dies,
    agents_die_when_nobody_comes_back_in_time,
    a_supervisor_that_is_back_in_time_saves_its_agents,
    a_killed_keeper_takes_its_box_along_and_no_other,
    the_kill_switch_reaches_agents_that_have_no_supervisor,
    replicas_are_kept_like_their_parents,
);
