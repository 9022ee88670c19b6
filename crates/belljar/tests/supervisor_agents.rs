//! Agents of a supervisor: how their ends are told apart, who is started again, and how many there may be.

mod support;

use std::fs;

use serde_json::Value;
use support::{Supervised, Who, eventually, for_each_user, text};

fn ends_are_told_apart(who: Who) {
    let supervised = Supervised::start(who, "[supervisor]\nmax_agents = 20\n");
    let finished = supervised.agent("finished", "exit 0");
    let crashed = supervised.agent("crashed", "exit 3");
    let signalled = supervised.agent("signalled", "kill -SEGV $$");
    let limits = "extends: moderate\nresource_limits:\n  max_cpu_seconds: 1\n";
    let limited = supervised.limited("limited", limits, "while :; do :; done");
    let memory = "extends: moderate\nresource_limits:\n  max_memory_mb: 64\n";
    let hungry = "a=x; while :; do a=$a$a; done";
    let hungry = supervised.limited("hungry", memory, hungry);
    let lifetime = "extends: moderate\nresource_limits:\n  max_wall_seconds: 1\n";
    let late = supervised.limited("late", lifetime, "while :; do sleep 1; done");
    for (id, cause) in [
        (&finished, "finished"),
        (&crashed, "crashed"),
        (&signalled, "crashed"),
        (&limited, "limit"),
        (&late, "limit"),
    ] {
        assert_eq!(supervised.await_cause(id), cause);
    }
    assert_eq!(supervised.view(&crashed)["end"]["exit_code"], 3);
    assert_eq!(supervised.view(&signalled)["end"]["signal"], 11);
    assert_eq!(supervised.view(&limited)["end"]["detail"], "cpu");
    assert_eq!(supervised.view(&late)["end"]["detail"], "timeout");
    // Without a control group the shell itself is refused the memory, and says so.
    let by_kernel = who == Who::Root;
    let cause = supervised.await_cause(&hungry);
    assert!(
        cause == "out_of_memory" || !by_kernel && cause == "crashed",
        "{cause}"
    );
    supervised.assert_nothing_left();
}

/// The declared agent `name`, which fails as long as there is no file `calm`.
fn failing(supervised: &Supervised, restart: &str, settings: &str) {
    let work = supervised.jail.work.display();
    let config = format!(
        "[supervisor]\n{settings}\n[[agents]]\nname = \"failing\"\nrestart = \"{restart}\"\nworkdir = \"{work}\"\n\
         command = [\"sh\", \"-c\", \"echo run >> runs; [ -e calm ] || exit 1; echo steady > steady; while :; do sleep 1; done\"]\n"
    );
    let path = supervised.jail.base.join("supervisor.toml");
    supervised.jail.put(&path, &config);
}

fn runs(supervised: &Supervised) -> usize {
    let text = fs::read_to_string(supervised.jail.work.join("runs")).unwrap_or_default();
    text.lines().count()
}

fn latest(supervised: &Supervised, name: &str) -> Value {
    let agents = supervised.agents();
    let mut named = agents.into_iter().filter(|agent| agent["name"] == name);
    named.next_back().expect("an agent of that name")
}

fn an_agent_that_fails_is_started_again_until_it_fails_too_often(who: Who) {
    let mut supervised = Supervised::prepare(who, "");
    let hasty = "restart = { first_seconds = 0.05, longest_seconds = 0.1, crash_loop = 3, window_seconds = 600 }";
    failing(&supervised, "on_failure", hasty);
    supervised.start_again();
    eventually("it is given up", || {
        (latest(&supervised, "failing")["phase"] == "crash_loop").then_some(())
    });
    // The first start, and three more.
    assert_eq!(runs(&supervised), 4);
    let agent = latest(&supervised, "failing");
    assert_eq!(
        (&agent["restarts"], &agent["end"]["cause"]),
        (&3.into(), &"crashed".into())
    );
    // Each start was a worker of its own, let in by the gate.
    let log = supervised.log();
    let admitted = log
        .iter()
        .filter(|entry| entry["what"]["kind"] == "root_admitted");
    assert_eq!(admitted.count(), 4);
    supervised.assert_nothing_left();
}

fn an_agent_that_recovers_stays_and_one_that_was_stopped_stays_ended(who: Who) {
    let mut supervised = Supervised::prepare(who, "");
    let hasty = "stop_grace_seconds = 1\nrestart = { first_seconds = 0.05, longest_seconds = 0.1, crash_loop = 1000 }";
    failing(&supervised, "always", hasty);
    supervised.start_again();
    eventually("it is started again", || {
        (runs(&supervised) >= 3).then_some(())
    });
    supervised.jail.put(&supervised.jail.work.join("calm"), "");
    // One that was under way may still fail.
    supervised.await_file("steady");
    let agent = eventually("it recovers", || {
        let agent = latest(&supervised, "failing");
        (agent["phase"] == "running").then_some(agent)
    });
    assert!(
        agent["restarts"]
            .as_u64()
            .is_some_and(|restarts| restarts >= 2)
    );
    // A supervisor that dies does not forget how often.
    supervised.murder();
    supervised.start_again();
    let adopted = latest(&supervised, "failing");
    assert_eq!(
        (&adopted["id"], &adopted["restarts"]),
        (&agent["id"], &agent["restarts"])
    );
    supervised.query(&["supervisor", "stop", "failing"]);
    let id = text(&agent["id"]);
    assert_eq!(supervised.await_cause(&id), "stopped");
    supervised.await_phase(&id, "ended");
    supervised.assert_nothing_left();
}

fn an_agent_that_waits_for_its_next_life_can_be_given_up(who: Who) {
    let mut supervised = Supervised::prepare(who, "");
    failing(
        &supervised,
        "always",
        "restart = { first_seconds = 3600, longest_seconds = 3600 }",
    );
    supervised.start_again();
    let id = text(&latest(&supervised, "failing")["id"]);
    supervised.await_phase(&id, "waiting");
    // A supervisor that dies meanwhile does not forget that it waits.
    supervised.murder();
    failing(
        &supervised,
        "never",
        "restart = { first_seconds = 3600, longest_seconds = 3600 }",
    );
    supervised.start_again();
    supervised.await_phase(&id, "waiting");
    supervised.query(&["supervisor", "kill", "failing"]);
    supervised.await_phase(&id, "ended");
    assert_eq!(runs(&supervised), 1);
    supervised.assert_nothing_left();
}

fn an_agent_that_died_while_nobody_was_there_is_started_again(who: Who) {
    let mut supervised = Supervised::prepare(who, "");
    let hasty = "orphan_grace_seconds = 600\nrestart = { first_seconds = 0.05 }";
    failing(&supervised, "on_failure", hasty);
    supervised.jail.put(&supervised.jail.work.join("calm"), "");
    supervised.start_again();
    let script = "while [ ! -e fail ]; do sleep 0.02; done; exit 1";
    let file = supervised.jail.base.join("agent.toml");
    let config = format!(
        "[agent]\nname = \"other\"\nrestart = \"on_failure\"\nworkdir = \"{}\"\ncommand = [\"sh\", \"-c\", \"echo run >> other; {script}\"]\n",
        supervised.jail.work.display()
    );
    supervised.jail.put(&file, &config);
    supervised.query(&["sandbox", "--config", &file.to_string_lossy()]);
    supervised.await_file("other");
    supervised.murder();
    supervised.jail.put(&supervised.jail.work.join("fail"), "");
    eventually("it has ended", || {
        (supervised.keepers().len() == 1).then_some(())
    });
    fs::remove_file(supervised.jail.work.join("fail")).expect("remove a file");
    supervised.start_again();
    let agent = eventually("it is started again", || {
        let agent = latest(&supervised, "other");
        (agent["phase"] == "running").then_some(agent)
    });
    assert_eq!(agent["restarts"], 1);
    eventually("its program runs again", || {
        (supervised.await_file("other") == "run\nrun\n").then_some(())
    });
}

fn only_the_living_are_counted(who: Who) {
    let supervised = Supervised::start(who, "[supervisor]\nmax_agents = 2\n");
    for n in 0..3 {
        let id = supervised.agent(&format!("short-{n}"), "exit 0");
        assert_eq!(supervised.await_cause(&id), "finished");
    }
    let first = supervised.agent("first", "while :; do sleep 1; done");
    supervised.agent("second", "while :; do sleep 1; done");
    let third = supervised.belljar(&["sandbox", "--name", "third", "--", "true"]);
    assert_eq!(third.code(), 122);
    assert!(
        third.stderr().contains("deny_max_agents"),
        "{}",
        third.stderr()
    );
    let named = supervised.belljar(&["sandbox", "--name", "first", "--", "true"]);
    assert!(named.stderr().contains("name_taken"), "{}", named.stderr());
    supervised.query(&["supervisor", "kill", &first]);
    let third = supervised.agent("third", "exit 0");
    assert_eq!(supervised.await_cause(&third), "finished");
}

fn output_is_kept_within_bounds(who: Who) {
    let supervised = Supervised::start(who, "[supervisor]\nlog_max_mb = 1\nlog_keep = 2\n");
    let script = "i=0; while [ $i -lt 5 ]; do head -c 1000000 /dev/zero | tr '\\0' x; echo; i=$((i + 1)); done; echo last words";
    let id = supervised.agent("loud", script);
    assert_eq!(supervised.await_cause(&id), "finished");
    let directory = supervised.jail.state.join("fleet/output").join(&id);
    let sizes: Vec<u64> = fs::read_dir(directory)
        .expect("its output")
        .map(|entry| {
            entry
                .and_then(|entry| entry.metadata())
                .expect("a file")
                .len()
        })
        .collect();
    assert!(
        sizes.len() <= 2 && sizes.iter().all(|size| *size <= 1 << 20),
        "{sizes:?}"
    );
    let logs = supervised.said(&["supervisor", "logs", "loud"]);
    assert!(logs.ends_with("x\nlast words\n"));
    assert!(logs.len() <= 2 << 20);
}

for_each_user!(
    ends_are_told_apart,
    an_agent_that_fails_is_started_again_until_it_fails_too_often,
    an_agent_that_recovers_stays_and_one_that_was_stopped_stays_ended,
    an_agent_that_died_while_nobody_was_there_is_started_again,
    an_agent_that_waits_for_its_next_life_can_be_given_up,
    only_the_living_are_counted,
    output_is_kept_within_bounds,
);
