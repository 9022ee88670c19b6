//! What a contract holds a family to: every refusal at the door by its code, budgets that siblings share, limits that
//! boxes really have, and time.

mod support;

use std::fs;

use serde_json::Value;
use support::{Family, Refusal, Who, eventually, for_each_user, text};

/// The refusal, which must have this code and stand in the log.
#[track_caller]
fn refused(family: &Family, result: Result<String, Refusal>, code: &str) -> Refusal {
    let refusal = result.expect_err(code);
    assert_eq!(refusal.code(), code, "{refusal:?}");
    assert!(
        refusal.0["hint"]
            .as_str()
            .is_some_and(|hint| !hint.is_empty()),
        "{refusal:?}"
    );
    assert!(
        family.logged(&["\"refused\"", &format!("\"code\":\"{code}\"")]),
        "{code} is not in the log"
    );
    refusal
}

fn too_many_and_too_deep(who: Who) {
    let family = Family::start(who, "max_depth: 2\nmax_replicas: 3\n");
    family.replicate("root", "ann", "").expect("a grant");
    let bob = family.replicate("ann", "bob", "").expect("a grant");
    refused(&family, family.ask_replica("bob", "cid", ""), "deny_depth");
    refused(&family, family.ask_replica("root", "cid", ""), "deny_quota");
    assert_eq!(family.workers().len(), 3);
    // A place that is free again is free.
    family.operator(&["kill", &bob]);
    family.replicate("ann", "cid", "").expect("a grant");
    refused(&family, family.ask_replica("root", "dan", ""), "deny_quota");
}

fn too_soon(who: Who) {
    let family = Family::start(
        who,
        "max_depth: 2\nmax_replicas: 8\ncooldown_seconds: 1000\n",
    );
    family.replicate("root", "ann", "").expect("a grant");
    let refusal = refused(
        &family,
        family.ask_replica("root", "bob", ""),
        "deny_cooldown",
    );
    let wait = refusal.0["retry_after_ms"]
        .as_u64()
        .expect("how long to wait");
    assert!((1..=1_000_000).contains(&wait), "{wait}");
    // It is each parent's own.
    family.replicate("ann", "bob", "").expect("a grant");
    assert_eq!(family.workers().len(), 3);
}

fn too_much(who: Who) {
    let contract = "max_depth: 2\nmax_replicas: 4\nbudget:\n  replicas: 3\n  memory_mb: 256\n  processes: 64\n  cpu_seconds: 600\n";
    let family = Family::start(who, contract);
    for (option, dimension) in [
        ("--memory-mb 1000", "memory"),
        ("--processes 1000", "pids"),
        ("--cpu-seconds 10000", "cpu"),
        ("--replicas 9", "replicas"),
    ] {
        let refusal = refused(
            &family,
            family.ask_replica("root", "ann", option),
            "deny_budget",
        );
        assert!(
            refusal.message().contains(dimension),
            "{option}: {refusal:?}"
        );
        let asked = format!(
            "{} asked",
            option.split(' ').next_back().expect("an amount")
        );
        let says = option.starts_with("--cpu") || refusal.message().contains(&asked);
        assert!(says && refusal.message().contains("left"), "{refusal:?}");
    }
    assert_eq!(family.workers().len(), 1);
}

/// What a family may hold is carved up, not copied: the sum of what its members were granted never exceeds it.
fn siblings_share_what_their_parent_has(who: Who) {
    let contract = "max_depth: 2\nmax_replicas: 8\nbudget:\n  memory_mb: 512\n  processes: 128\n";
    let family = Family::start(who, contract);
    let ann = family
        .replicate("root", "ann", "--memory-mb 256")
        .expect("a grant");
    refused(
        &family,
        family.ask_replica("root", "bob", "--memory-mb 256"),
        "deny_budget",
    );
    let usage = family.agent("root", "usage").expect("its usage");
    let number = |value: &Value| value.as_u64().expect("a number");
    assert_eq!(number(&usage["granted"]["memory_mb"]), 512);
    assert_eq!(number(&usage["reserved"]["memory_mb"]), 256);
    assert_eq!(
        number(&usage["own"]["memory_mb"]) + number(&usage["available"]["memory_mb"]),
        512 - 256
    );
    // What one gave back another may have.
    family.operator(&["kill", &ann]);
    family
        .replicate("root", "bob", "--memory-mb 256")
        .expect("a grant");
    // A child's child takes from the child.
    refused(
        &family,
        family.ask_replica("bob", "cid", "--memory-mb 256"),
        "deny_budget",
    );
    family
        .replicate("bob", "cid", "--memory-mb 64")
        .expect("a grant");
    let usage = family.agent("bob", "usage").expect("its usage");
    assert!(number(&usage["available"]["memory_mb"]) <= 256 - 64);
}

/// The box of a child has the limits that were granted, whatever it tries.
fn a_box_has_the_limits_it_was_granted(who: Who) {
    let contract = "max_depth: 1\nmax_replicas: 4\nresources:\n  memory_limit_mb: 64\nbudget:\n  processes: 96\n";
    let family = Family::start(who, contract);
    let probe = family.jail.probe_path();
    let probe = probe.display();
    // Enough to live with, and then more, held until somebody notices.
    let script = format!("{probe} alloc anonymous 24 little; {probe} alloc-many 2 100");
    let eater = family
        .ask_replica("root", "ann", &format!("-- sh -c '{script}'"))
        .expect("a grant");
    assert_eq!(family.await_end(&eater), "exited");
    let little = fs::read_to_string(family.jail.work.join("little")).expect("it could allocate");
    assert_eq!(little, "24\n");
    assert!(family.logged(&["box_failed", "memory", &eater]));

    // Forks beyond its own number are refused, and those that were made make it no more than one worker.
    let usage = family.agent("root", "usage").expect("its usage");
    let own = usage["own"]["pids"].as_u64().expect("a bound");
    assert_eq!(own, 96 / 4);
    let said = family.order("root", &format!("{probe} fork-bomb 200 persistent"));
    assert!(said.out.contains("refused"), "{said:?}");
    let boxed = family.boxed().len() as u64;
    // The box's own first process is none of the agent's.
    assert!(boxed <= own + 1, "{boxed} processes where {own} may be");
    assert_eq!(family.workers().len(), 1);
}

/// No request raises a limit, and no request is taken for another.
fn a_child_has_no_more_than_its_parent(who: Who) {
    let contract = "max_depth: 2\nmax_replicas: 4\nresources:\n  memory_limit_mb: 128\n";
    let family = Family::start(who, contract);
    let ask = |body: &str| family.post("root", "/v1/replicate", body);
    let (status, answer) = ask(r#"{"reason":"more","capability":{"max_memory_mb":100000}}"#);
    let problem = |answer: &Value| text(&answer["code"]);
    assert_eq!(
        (status, problem(&answer)),
        (403, "deny_capability".to_owned()),
        "{answer}"
    );
    assert!(family.logged(&["\"refused\"", "deny_capability"]));
    for body in [
        r#"{"reason":"x","depth":0}"#,
        r#"{"reason":"x","parent":"00000000000000000000000000000001"}"#,
        r#"{"reason":"x","capability":{"network":"open"}}"#,
        r#"{"reason":"x","budget":{"memory":1}}"#,
        r#"{"reason":"x","reason":"y"}"#,
        r#"{"reason":""}"#,
        r#"{}"#,
        "[]",
        "",
    ] {
        let (status, answer) = ask(body);
        assert_eq!(status, 400, "{body}: {answer}");
    }
    assert_eq!(family.workers().len(), 1);
    // Less is granted, and is what the child's papers say.
    let (status, answer) =
        ask(r#"{"reason":"less","command":["sleep","1000"],"capability":{"max_memory_mb":32}}"#);
    assert_eq!(status, 201, "{answer}");
    let (status, answer) = ask(
        r#"{"reason":"its own","command":["sleep","1000"],"capability":{"max_memory_mb":128}}"#,
    );
    assert_eq!(status, 201, "{answer}");
}

fn stop_conditions_hold_at_the_door_and_by_themselves(who: Who) {
    let contract = "max_depth: 3\nmax_replicas: 8\nstop_conditions:\n  \
        - name: enough\n    when: workers.active >= 3\n    on_trigger: deny\n  \
        - name: spender\n    when: worker.tokens > 100\n    on_trigger: quarantine\n  \
        - name: glutton\n    when: worker.tokens > 1000 && lineage.depth == 2\n    on_trigger: kill\n";
    let family = Family::start(who, contract);
    let ann = family.replicate("root", "ann", "").expect("a grant");
    let bob = family.replicate("ann", "bob", "").expect("a grant");
    let refusal = refused(
        &family,
        family.ask_replica("root", "cid", ""),
        "deny_stop_condition",
    );
    assert!(refusal.message().contains("enough"), "{refusal:?}");
    // What a worker reports is enough to stop it: nobody asks for anything.
    family.tell("ann", "/belljar/bin/belljar agent usage --tokens-in 500");
    eventually("the spender is quarantined", || {
        let workers = family.workers();
        let ann = workers.iter().find(|worker| worker["id"] == ann.as_str())?;
        (ann["state"] == "quarantined").then_some(())
    });
    family.tell("bob", "/belljar/bin/belljar agent usage --tokens-in 5000");
    assert_eq!(family.await_end(&bob), "killed_stop_condition");
    assert!(family.logged(&["stop_condition_triggered", "glutton"]));
}

/// Silence ends a worker, without anybody asking for anything; a sign of life is enough against it.
fn silence_ends_a_worker(who: Who) {
    let contract = "max_depth: 1\nmax_replicas: 4\nheartbeat_timeout_seconds: 3\n";
    let beat = "/belljar/bin/belljar agent replicate --reason x -- sh silent.sh
        while :; do /belljar/bin/belljar agent heartbeat > /dev/null 2>&1; sleep 0.2; done";
    // On a machine so busy that three seconds pass between two beats, the speaker is reaped too: then once more.
    for _ in 0..8 {
        let mut family = Family::prepare(who, contract);
        let script = |name: &str, text: &str| family.jail.put(&family.jail.work.join(name), text);
        script("beat.sh", beat);
        script("silent.sh", "trap '' TERM; sleep 1000");
        family.launch(&["sh", "beat.sh"]);
        let survived = eventually("the silent one is reaped", || {
            let listed = family.belljar(&["replication", "workers", "--all", "--output", "json"]);
            let list: Value = serde_json::from_str(&listed.stdout()).unwrap_or_default();
            let workers = list["workers"].as_array().cloned().unwrap_or_default();
            let ended = |depth: u64| {
                let worker = workers.iter().find(|worker| worker["depth"] == depth)?;
                (worker["state"] == "ended").then(|| text(&worker["ended_by"]["code"]))
            };
            match (ended(1), ended(0), family.is_over()) {
                (Some(code), None, false) => {
                    assert_eq!(code, "reap_stale");
                    Some(true)
                }
                (_, None, false) => None,
                _ => Some(false),
            }
        });
        if survived {
            eventually("its box is dead", || {
                let boxed = family.boxed();
                let alive = |word| boxed.iter().any(|(_, line)| line.contains(word));
                (!alive("silent.sh") && !alive("sleep 1000")).then_some(())
            });
            assert!(family.logged(&["\"ended\"", "reap_stale"]));
            family.belljar(&["replication", "kill-switch", "engage", "--reason", "done"]);
            family.await_controller();
            return;
        }
    }
    panic!("whoever gave signs of life was reaped all the same");
}

/// Its time ends a worker, and no child has more than its parent has left.
fn an_expired_family_ends_by_itself(who: Who) {
    let command = "trap '' TERM; /belljar/bin/belljar agent replicate --reason x -- \
        sh -c 'trap \"\" TERM; echo > up; sleep 1000'; sleep 1000";
    // Long enough for both to come up, however busy the machine.
    for seconds in [2, 8, 30, 90] {
        let contract = format!("max_depth: 2\nmax_replicas: 4\nexpiration_seconds: {seconds}\n");
        let mut family = Family::prepare(who, &contract);
        family.launch(&["sh", "-c", command]);
        family.await_controller();
        if !family.jail.work.join("up").exists() {
            continue;
        }
        let log = family.log();
        let ended = |code: &str| {
            let code = format!("\"code\":\"{code}\"");
            log.iter()
                .filter(|entry| entry.to_string().contains(&code))
                .count()
        };
        // The child's time was its parent's: it ended with it or, by the same clock, just so.
        assert!(ended("expired") >= 1, "{log:#?}");
        assert_eq!(ended("expired") + ended("parent_exit"), 2, "{log:#?}");
        family.assert_nothing_left(&[]);
        family.assert_log_holds();
        return;
    }
    panic!("a child never came up");
}

fn a_child_never_outlives_its_parents_time(who: Who) {
    let family = Family::start(
        who,
        "max_depth: 2\nmax_replicas: 4\nexpiration_seconds: 600\n",
    );
    family.replicate("root", "ann", "").expect("a grant");
    family.replicate("ann", "bob", "").expect("a grant");
    let workers = family.workers();
    let left = |depth: u64| {
        let worker = workers.iter().find(|worker| worker["depth"] == depth);
        worker.expect("alive")["expires_in_ms"]
            .as_u64()
            .expect("a bound")
    };
    assert!(left(2) <= left(1) && left(1) <= left(0) && left(0) <= 600_000);
    let until = |name: &str| {
        let manifest = family.agent(name, "manifest").expect("a manifest");
        manifest["payload"]["expires_ms"].as_u64().expect("a bound")
    };
    assert!(until("bob") <= until("ann") && until("ann") <= until("root"));
}

/// What becomes of the children of a worker that ends.
fn children_follow_or_stay_as_the_contract_says(who: Who) {
    for (word, left) in [("kill", 1), ("keep", 2)] {
        let family = Family::start(
            who,
            &format!("max_depth: 3\nmax_replicas: 8\non_parent_exit: {word}\n"),
        );
        let ann = family.replicate("root", "ann", "").expect("a grant");
        let bob = family.replicate("ann", "bob", "").expect("a grant");
        family.tell("ann", "/belljar/bin/belljar agent shutdown --reason done");
        assert_eq!(family.await_end(&ann), "shutdown");
        match word {
            "kill" => assert_eq!(family.await_end(&bob), "parent_exit"),
            _ => assert!(family.agent("bob", "heartbeat").is_ok()),
        }
        assert_eq!(family.workers().len(), left, "{word}");
        eventually("nothing is left of it", || {
            let boxed = family.boxed();
            // The puppets' shells are what is alive: one box for each worker.
            let inits = boxed.iter().filter(|(_, line)| line.contains("--contract"));
            (inits.count() == left).then_some(())
        });
        assert!(family.logged(&["agent_said", "done"]));
    }
}

/// A family whose root ends, and whose children stay, ends with the last of them.
fn the_last_one_out_ends_the_controller(who: Who) {
    let mut family = Family::prepare(who, "max_depth: 1\nmax_replicas: 3\non_parent_exit: keep\n");
    family.launch(&[
        "sh",
        "-c",
        "/belljar/bin/belljar agent replicate --reason x -- sh -c 'while [ ! -e go ]; do sleep 0.05; done; echo > done'; exit 7",
    ]);
    eventually("the child lives alone", || {
        let listed = family.belljar(&["replication", "workers", "--all", "--output", "json"]);
        let list: Value = serde_json::from_str(&listed.stdout()).ok()?;
        let workers = list["workers"].as_array()?;
        let alone = workers.len() == 2
            && workers
                .iter()
                .any(|w| w["depth"] == 0 && w["state"] == "ended");
        alone.then_some(())
    });
    family.jail.put(&family.jail.work.join("go"), "");
    assert_eq!(family.await_controller().code(), Some(7));
    assert!(family.jail.work.join("done").exists());
    family.assert_nothing_left(&[]);
}

for_each_user!(
    too_many_and_too_deep,
    too_soon,
    too_much,
    siblings_share_what_their_parent_has,
    a_box_has_the_limits_it_was_granted,
    a_child_has_no_more_than_its_parent,
    stop_conditions_hold_at_the_door_and_by_themselves,
    silence_ends_a_worker,
    a_child_never_outlives_its_parents_time,
    an_expired_family_ends_by_itself,
    children_follow_or_stay_as_the_contract_says,
    the_last_one_out_ends_the_controller,
);
