//! A family of real boxes: what a replica gets, what it can't reach, and how an operator stops it.

mod support;

use std::fs;

use serde_json::Value;
use support::{AGENT, Family, Who, eventually, for_each_user, text};

const ROOMY: &str = "max_depth: 3\nmax_replicas: 8\n";

fn ids(workers: &[Value]) -> Vec<String> {
    let mut ids: Vec<String> = workers.iter().map(|worker| text(&worker["id"])).collect();
    ids.sort();
    ids
}

fn a_replica_has_a_box_and_papers_of_its_own(who: Who) {
    let family = Family::start(who, ROOMY);
    let root = family.root_id();
    let child = family.replicate("root", "ann", "").expect("a grant");
    let grandchild = family.replicate("ann", "bob", "").expect("a grant");

    // Whose paper it is, the door and the file agree; the state came along; nothing of it can be written.
    let own = family.agent("ann", "manifest").expect("a manifest");
    assert_eq!(own["payload"]["worker"], child.as_str());
    assert_eq!(own["payload"]["parent"]["worker"], root.as_str());
    assert_eq!(own["payload"]["depth"], 1);
    let said = family.order(
        "ann",
        "cat /belljar/manifest.json; for f in manifest.json chain.jsonl state agent.sock bin/belljar new; do \
         (echo x > /belljar/$f) 2>/dev/null && echo wrote $f; rm -f /belljar/$f 2>/dev/null && [ ! -e /belljar/$f ] && \
         [ $f != new ] && echo removed $f; done; true",
    );
    assert_eq!(said.out.trim(), text(&own["envelope"]), "{said:?}");

    // What it may is no more than its parent may: here, the very same.
    let parents = family.agent("root", "manifest").expect("a manifest");
    assert_eq!(
        own["payload"]["capability"],
        parents["payload"]["capability"]
    );

    // The chain holds without a controller, and fails with a byte of it changed.
    family.order("bob", "cat /belljar/chain.jsonl > ../../chain.jsonl");
    let chain = family.jail.work_file("chain.jsonl");
    let verified = family.query(&["manifest", "verify", &chain]);
    assert!(verified.to_string().contains(&grandchild), "{verified}");
    let lines = fs::read_to_string(&chain).expect("the chain");
    assert_eq!(lines.lines().count(), 3);
    let middle_missing: String = [0, 2]
        .iter()
        .map(|at| format!("{}\n", lines.lines().nth(*at).expect("a line")))
        .collect();
    family
        .jail
        .put(&family.jail.work.join("gap.jsonl"), &middle_missing);
    let gap = family.jail.work_file("gap.jsonl");
    assert_eq!(family.belljar(&["manifest", "verify", &gap]).code(), 1);

    // Two boxes: other namespaces, and neither sees the other's processes.
    let namespaces =
        "readlink /proc/self/ns/pid /proc/self/ns/mnt /proc/self/ns/user /proc/self/ns/net";
    let (one, other) = (
        family.order("root", namespaces),
        family.order("ann", namespaces),
    );
    for (a, b) in one.out.lines().zip(other.out.lines()) {
        assert_ne!(a, b);
    }
    let tree = family.operator(&["tree"]);
    assert_eq!(ids(tree["workers"].as_array().expect("workers")).len(), 3);
}

/// A door is its box's alone: the sockets of the others are not in the view, and a path to them leads nowhere.
fn nobody_reaches_anothers_door(who: Who) {
    let family = Family::start(who, ROOMY);
    let root = family.root_id();
    let child = family.replicate("root", "ann", "").expect("a grant");
    let state = family.jail.state.display().to_string();
    for (name, other) in [("root", &child), ("ann", &root)] {
        let said = family.order(
            name,
            &format!(
                "for socket in {state}/doors/{other}.sock {state}/fleet/control.sock; do \
                 curl --silent --max-time 60 --unix-socket $socket http://x/v1/manifest && echo reached $socket; done; \
                 ls {state} /belljar; true"
            ),
        );
        assert!(!said.out.contains("reached"), "{said:?}");
        assert!(!said.out.contains("doors"), "{said:?}");
        // The operator's routes are not to be had at an agent's door.
        let (status, _) = family.post(name, "/v1/kill-switch", r#"{"reason":"mine"}"#);
        assert_eq!(status, 404);
    }
    assert_eq!(family.workers().len(), 2);
}

/// Processes are not workers: whoever forks stays in the box, and asks as its worker.
fn a_fork_is_no_replica(who: Who) {
    let family = Family::start(who, "max_depth: 2\nmax_replicas: 4\n");
    let root = family.root_id();
    let before = family.boxed().len();
    let said = family.order(
        "root",
        "for i in 1 2 3 4 5 6; do setsid sleep 1000 > /dev/null 2>&1 & done; echo started",
    );
    assert_eq!(said.out, "started\n");
    eventually("the forks are there", || {
        (family.boxed().len() >= before + 6).then_some(())
    });
    assert_eq!(ids(&family.workers()), [root.as_str()]);
    // A grandchild, with nothing of its parent's environment, is still who its door says.
    let said = family.order(
        "root",
        &format!("(setsid env -i {AGENT} manifest --output json & wait)"),
    );
    let asked: Value = serde_json::from_str(&said.out).expect("a manifest");
    assert_eq!(asked["payload"]["worker"], root.as_str());
    let said = family.order(
        "root",
        &format!(
            "(setsid env -i {AGENT} replicate --reason fork --output json -- sleep 1000 & wait)"
        ),
    );
    let granted: Value = serde_json::from_str(&said.out).expect("a grant");
    let workers = family.workers();
    let child = workers.iter().find(|w| w["id"] == granted["worker_id"]);
    assert_eq!(child.expect("the child")["parent"], root.as_str());
    // What was forked ends with its worker, session of its own or not.
    let report = family.operator(&["kill", &root, "--subtree"]);
    assert_eq!(
        (&report["killed"], &report["survivors"]),
        (&2.into(), &0.into())
    );
    eventually("nothing is left", || {
        family.boxed().is_empty().then_some(())
    });
}

/// Counts in a file of the workspace until there is a file `go-NAME`.
fn counting(name: &str) -> String {
    format!(
        "n=0; while [ ! -e ../../go-{name} ]; do n=$((n+1)); echo $n > ../../new-{name}; \
         mv ../../new-{name} ../../count-{name}; done"
    )
}

fn count(family: &Family, name: &str) -> u64 {
    let read = || fs::read_to_string(family.jail.work.join(format!("count-{name}"))).ok();
    eventually("it counts", || read()?.trim().parse().ok())
}

/// Where a counter stands still: five times in a row it has not moved while another went on by twenty.
fn await_standstill(family: &Family, name: &str, other: &str) -> u64 {
    let (mut stands, mut rounds) = (count(family, name), 0);
    for _ in 0..100 {
        let from = count(family, other);
        eventually("the other goes on", || {
            (count(family, other) >= from + 20).then_some(())
        });
        let now = count(family, name);
        rounds = if now == stands { rounds + 1 } else { 0 };
        stands = now;
        if rounds == 5 {
            return stands;
        }
    }
    panic!("{name} never stands still");
}

fn quarantine_stops_every_process_and_release_lets_it_go_on(who: Who) {
    let family = Family::start(
        who,
        "max_depth: 2\nmax_replicas: 4\nheartbeat_timeout_seconds: 600\n",
    );
    let ann = family.replicate("root", "ann", "").expect("a grant");
    family.order(
        "root",
        &format!("({}) > /dev/null 2>&1 &", counting("root")),
    );
    // It counts, and when it may go on it asks for a replica.
    let order = family.tell(
        "ann",
        &format!(
            "{}; printf x | {AGENT} replicate --reason late --output json -- sleep 1000",
            counting("ann")
        ),
    );
    let first = count(&family, "ann");
    eventually("it goes on", || {
        (count(&family, "ann") > first).then_some(())
    });

    family.operator(&["quarantine", &ann[..8], "--reason", "odd"]);
    // A slow machine shows `freezing` until every process is seen to hold still.
    eventually("it is quarantined", || {
        let workers = family.workers();
        let held = workers.iter().find(|worker| worker["id"] == ann.as_str());
        (held?["state"] == "quarantined").then_some(())
    });
    let stood = await_standstill(&family, "ann", "root");
    family.jail.put(&family.jail.work.join("go-ann"), "");
    // Twice is once; the family's other members are untouched; the worker makes and gets nothing.
    family.operator(&["quarantine", &ann]);
    assert!(family.agent("root", "heartbeat").is_ok());
    assert_eq!(
        await_standstill(&family, "ann", "root"),
        stood,
        "a quarantined worker made progress"
    );
    assert!(family.answer(&order).is_none());
    assert_eq!(family.workers().len(), 2);

    let released = family.operator(&["release", &ann, "--reason", "looked at"]);
    assert_eq!(released["state"], "running");
    let said = eventually("it asks at last", || family.answer(&order));
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(family.workers().len(), 3);
    assert!(family.logged(&["quarantine", "odd", &ann]));
    // Frozen, it still can be killed.
    family.operator(&["quarantine", &ann]);
    let report = family.operator(&["kill", &ann]);
    assert_eq!(
        (&report["killed"], &report["survivors"]),
        (&2.into(), &0.into())
    );
    assert_eq!(family.workers().len(), 1);
}

/// A maker in `vfork` can be stopped by no signal. That its child holds still is enough: it is neither killed for it nor
/// shown as freezing for ever.
fn a_process_that_waits_in_vfork_is_quarantined_and_goes_on(who: Who) {
    let family = Family::start(who, "max_depth: 2\nmax_replicas: 4\n");
    let ann = family.replicate("root", "ann", "").expect("a grant");
    let probe = family.jail.probe_path();
    family.order(
        "ann",
        &format!(
            "{} wait-in-vfork ../../count-ann > /dev/null 2>&1 &",
            probe.display()
        ),
    );
    family.order(
        "root",
        &format!("({}) > /dev/null 2>&1 &", counting("root")),
    );
    count(&family, "ann");
    family.operator(&["quarantine", &ann, "--reason", "odd"]);
    let state = || {
        let workers = family.workers();
        let held = workers.iter().find(|worker| worker["id"] == ann.as_str());
        held.expect("a quarantined agent lives")["state"].clone()
    };
    eventually("it is quarantined", || {
        (state() == "quarantined").then_some(())
    });
    let stood = await_standstill(&family, "ann", "root");
    let released = family.operator(&["release", &ann, "--reason", "looked at"]);
    assert_eq!(released["state"], "running");
    eventually("it goes on", || {
        (count(&family, "ann") > stood).then_some(())
    });
}

/// Programs that do what they can to live on: they ignore, stand still, and multiply.
const STUBBORN: &str = "(trap '' TERM INT HUP; while :; do sleep 1; done) & \
    (kill -STOP $(exec sh -c 'echo $PPID')) & \
    (while :; do sleep 0.2 & wait; done) & echo stubborn";

fn kills_reach_just_whom_they_should(who: Who) {
    let mut family = Family::start(who, "max_depth: 3\nmax_replicas: 8\non_parent_exit: keep\n");
    let root = family.root_id();
    let ann = family.replicate("root", "ann", "").expect("a grant");
    let bob = family.replicate("ann", "bob", "").expect("a grant");
    let cid = family.replicate("bob", "cid", "").expect("a grant");
    for name in ["root", "ann", "bob", "cid"] {
        assert_eq!(family.order(name, STUBBORN).out, "stubborn\n");
    }
    // One, and not its children.
    let report = family.operator(&["kill", &ann, "--reason", "just the one"]);
    assert_eq!(
        (&report["killed"], &report["survivors"]),
        (&1.into(), &0.into())
    );
    let mut left = vec![root.clone(), bob.clone(), cid.clone()];
    left.sort();
    assert_eq!(ids(&family.workers()), left);
    assert!(family.agent("cid", "heartbeat").is_ok());
    // One and all below, in its place in the line though its parent is gone.
    let report = family.operator(&["kill", &ann, "--subtree"]);
    assert_eq!(
        (&report["killed"], &report["survivors"]),
        (&2.into(), &0.into())
    );
    assert_eq!(ids(&family.workers()), [root.as_str()]);
    assert!(family.agent("root", "heartbeat").is_ok());
    // Nobody is killed twice.
    assert_ne!(family.belljar(&["replication", "kill", &cid]).code(), 0);
    // The last one's end is the controller's.
    family.operator(&["kill", &root]);
    family.await_controller();
    family.assert_nothing_left(&[root, ann, bob, cid]);
    assert!(family.logged(&["just the one"]));
    family.assert_log_holds();
}

fn the_kill_switch_ends_all_and_stays_engaged(who: Who) {
    let mut family = Family::start(who, ROOMY);
    let mut all = vec![family.root_id()];
    all.push(family.replicate("root", "ann", "").expect("a grant"));
    all.push(family.replicate("ann", "bob", "").expect("a grant"));
    for name in ["root", "ann", "bob"] {
        assert_eq!(family.order(name, STUBBORN).out, "stubborn\n");
    }
    // A run that no controller keeps is no exception.
    let lone = family
        .jail
        .belljar(&[
            "run",
            "--quiet",
            "--",
            "sh",
            "-c",
            "echo > lone; sleep 1000",
        ])
        .spawn();
    let lone = lone.expect("start belljar");
    eventually("the lone run is up", || {
        family.jail.work.join("lone").exists().then_some(())
    });

    let report = family.operator(&["kill-switch", "engage", "--reason", "enough"]);
    assert_eq!(report["survivors"], 0, "{report}");
    assert_eq!(report["killed"], 4, "{report}");
    assert!(!support::finish(lone).status.success());
    family.await_controller();
    family.assert_nothing_left(&all);

    let status = family.belljar(&["replication", "kill-switch", "status"]);
    assert_eq!(status.code(), 1);
    assert!(status.stdout().contains("enough"), "{}", status.stdout());
    refused_until_reset(&family);
    let ended = family.log();
    for id in &all {
        let died = |entry: &&Value| {
            let entry = entry.to_string();
            entry.contains(id) && entry.contains("killed_kill_switch")
        };
        assert!(
            ended.iter().any(|entry| died(&entry)),
            "{id} has no end in the log"
        );
    }
    assert!(family.logged(&["kill_report", "\"survivors\":0"]));
    family.assert_log_holds();

    let reset = family.operator(&["kill-switch", "reset", "--reason", "over"]);
    assert_eq!(reset["was_engaged"], true);
    family.start_puppet();
    assert_eq!(family.workers().len(), 1);
}

fn refused_until_reset(family: &Family) {
    let contract = family.contract_path();
    for words in [
        &["run", "--", "sh", "-c", "echo > ran"][..],
        &[
            "run",
            "--contract",
            &contract,
            "--",
            "sh",
            "-c",
            "echo > ran",
        ],
    ] {
        let refused = family.belljar(words);
        assert_eq!(refused.code(), 122, "{}", refused.stderr());
        assert!(
            refused.stderr().contains("kill switch"),
            "{}",
            refused.stderr()
        );
        assert!(
            refused.stderr().contains("reset"),
            "no hint: {}",
            refused.stderr()
        );
    }
    assert!(!family.jail.work.join("ran").exists());
}

/// Taking back a manifest ends whoever lives by it, and below.
fn revocation_ends_a_subtree_and_an_epoch_everybody(who: Who) {
    let mut family = Family::start(who, "max_depth: 3\nmax_replicas: 8\non_parent_exit: keep\n");
    let root = family.root_id();
    let ann = family.replicate("root", "ann", "").expect("a grant");
    let bob = family.replicate("ann", "bob", "").expect("a grant");
    let eve = family.replicate("root", "eve", "").expect("a grant");
    family.order("bob", "cat /belljar/chain.jsonl > ../../chain.jsonl");
    let chain = family.jail.work_file("chain.jsonl");
    family.query(&["manifest", "verify", &chain]);

    let report = family.operator(&["revoke", &ann, "--reason", "stolen"]);
    assert_eq!(
        (&report["killed"], &report["survivors"]),
        (&2.into(), &0.into())
    );
    let mut left = vec![root.clone(), eve.clone()];
    left.sort();
    assert_eq!(ids(&family.workers()), left);
    assert_eq!(family.await_end(&bob), "revoked");
    let verified = family.belljar(&["manifest", "verify", &chain]);
    assert_eq!(verified.code(), 1, "{}", verified.stdout());

    let bumped = family.operator(&["bump-epoch"]);
    assert_eq!(bumped["epoch"], 1, "{bumped}");
    family.await_controller();
    family.assert_nothing_left(&[root, ann, bob, eve]);
    family.assert_log_holds();
}

fn keys_rotate_under_a_running_family(who: Who) {
    let family = Family::start(who, ROOMY);
    let key_of = |name: &str| {
        let manifest = family.agent(name, "manifest").expect("a manifest");
        let envelope: Value = serde_json::from_str(&text(&manifest["envelope"])).expect("JSON");
        text(&envelope["signatures"][0]["keyid"])
    };
    family.replicate("root", "ann", "").expect("a grant");
    let old = key_of("ann");
    assert_eq!(key_of("root"), old);
    family.query(&["keys", "rotate"]);
    eventually("the controller sees the new key", || {
        family.logged(&["keys_changed"]).then_some(())
    });
    let bob = family.replicate("ann", "bob", "").expect("a grant");
    let new = key_of("bob");
    assert_ne!(new, old);
    // The old ones hold still, and so does a chain of both.
    family.order("bob", "cat /belljar/chain.jsonl > ../../chain.jsonl");
    let chain = family.jail.work_file("chain.jsonl");
    family.query(&["manifest", "verify", &chain]);
    family.assert_log_holds();

    // A key that somebody else may have vouches for nobody; those it vouched for are frozen.
    family.query(&["keys", "compromise", &old]);
    eventually("those of the old key are quarantined", || {
        let workers = family.workers();
        let frozen = workers
            .iter()
            .filter(|worker| worker["state"] == "quarantined");
        (frozen.count() == 2).then_some(())
    });
    let workers = family.workers();
    let state = |id: &str| {
        workers
            .iter()
            .find(|worker| worker["id"] == id)
            .map(|w| w["state"].clone())
    };
    assert_eq!(state(&bob), Some("running".into()));
    assert!(family.agent("bob", "heartbeat").is_ok());
    assert_eq!(family.belljar(&["manifest", "verify", &chain]).code(), 1);
    assert!(family.logged(&["quarantined_key"]));
    family.assert_log_holds();
}

for_each_user!(
    a_replica_has_a_box_and_papers_of_its_own,
    nobody_reaches_anothers_door,
    a_fork_is_no_replica,
    quarantine_stops_every_process_and_release_lets_it_go_on,
    a_process_that_waits_in_vfork_is_quarantined_and_goes_on,
    kills_reach_just_whom_they_should,
    the_kill_switch_ends_all_and_stays_engaged,
    revocation_ends_a_subtree_and_an_epoch_everybody,
    keys_rotate_under_a_running_family,
);
