//! Every command of the supervisor, against one that runs.

mod support;

use rustix::process::Signal;
use support::{Supervised, Who, eventually, for_each_user, text};

const PLAIN: &str = "[supervisor]\nmax_agents = 4\nstop_grace_seconds = 30\n";
/// Frozen anywhere, it leaves a whole number behind.
const COUNTING: &str =
    "n=0; while :; do n=$((n + 1)); echo $n > next; mv next counted; sleep 0.02; done";

fn agents_are_started_seen_frozen_released_stopped_and_killed(who: Who) {
    let supervised = Supervised::start(who, PLAIN);
    let id = supervised.agent("counter", COUNTING);
    supervised.await_phase(&id, "running");
    let listed = supervised.said(&["supervisor", "status"]);
    assert!(
        listed.contains("1 of 4 agents") && listed.contains("counter"),
        "{listed}"
    );

    // Frozen, it writes nothing more; released, it goes on.
    supervised.await_file("counted");
    supervised.query(&["supervisor", "quarantine", "counter", "--reason", "look"]);
    supervised.await_phase(&id, "quarantined");
    // Another agent's whole life goes by meanwhile.
    let still = supervised.await_file("counted");
    let other = supervised.agent("other", "sleep 0.3");
    assert_eq!(supervised.await_cause(&other), "finished");
    assert_eq!(supervised.await_file("counted"), still);
    supervised.query(&["supervisor", "release", &id[..12]]);
    assert_eq!(supervised.view(&id)["phase"], "running");
    eventually("it goes on", || {
        (supervised.await_file("counted") != still).then_some(())
    });

    // Asked to end, it may say good-bye.
    let polite = supervised.agent(
        "polite",
        "trap 'echo bye; exit 0' TERM; echo up > polite-up; while :; do sleep 0.02; done",
    );
    supervised.await_file("polite-up");
    supervised.query(&["supervisor", "stop", "polite", "--reason", "enough"]);
    assert_eq!(supervised.await_cause(&polite), "stopped");
    let ended = supervised.view(&polite);
    assert_eq!(ended["end"]["exit_code"], 0);
    assert_eq!(ended["end"]["detail"], "enough");
    assert_eq!(supervised.said(&["supervisor", "logs", "polite"]), "bye\n");

    // One that does not listen is killed when the grace is over.
    let deaf = supervised.agent(
        "deaf",
        "trap '' TERM; echo up > deaf-up; while :; do sleep 0.02; done",
    );
    supervised.await_file("deaf-up");
    supervised.query(&["supervisor", "stop", "deaf", "--grace", "0.2"]);
    assert_eq!(supervised.await_cause(&deaf), "stopped");

    let report = supervised.query(&["supervisor", "kill", "counter"]);
    assert_eq!(
        (&report["killed"], &report["survivors"]),
        (&1.into(), &0.into())
    );
    assert_eq!(supervised.await_cause(&id), "killed");
    let again = supervised.belljar(&["supervisor", "stop", &id]);
    assert_eq!(again.code(), 122, "{}", again.stderr());
    let nobody = supervised.belljar(&["supervisor", "kill", "nobody"]);
    assert_eq!(nobody.code(), 121, "{}", nobody.stderr());
    supervised.assert_nothing_left();
}

fn an_agent_is_started_anew_as_it_was(who: Who) {
    let supervised = Supervised::start(who, PLAIN);
    let limited = "extends: moderate\nresource_limits:\n  max_processes: 7\n";
    let first = supervised.limited("again", limited, COUNTING);
    supervised.await_phase(&first, "running");
    let second = supervised.query(&["supervisor", "restart", "again", "--reason", "anew"]);
    let id = text(&second["id"]);
    assert_ne!(id, first);
    assert_eq!(second["name"], "again");
    assert_eq!(
        second["limits"]["processes"], 7,
        "under the same capability"
    );
    let ended = supervised.view(&first);
    assert_eq!(ended["end"]["cause"], "stopped");
    assert_eq!(ended["end"]["detail"], "anew");
    // One that is dead is started; one that is held for somebody to look at is not touched.
    supervised.query(&["supervisor", "kill", &id]);
    let third = text(&supervised.query(&["supervisor", "restart", "again"])["id"]);
    supervised.query(&["supervisor", "quarantine", &third]);
    let refused = supervised.belljar(&["supervisor", "restart", "again"]);
    assert_ne!(refused.code(), 0);
    assert!(refused.stderr().contains("quarantine"), "{refused:?}");
    supervised.await_phase(&third, "quarantined");
}

fn output_is_followed_to_the_end_and_an_attached_run_is_like_a_run(who: Who) {
    let supervised = Supervised::start(who, PLAIN);
    supervised.agent(
        "slow",
        "for n in 1 2 3; do echo line $n; sleep 0.2; done; echo oops >&2",
    );
    let followed = supervised.said(&["supervisor", "logs", "-f", "slow"]);
    assert_eq!(followed, "line 1\nline 2\nline 3\n");
    let errors = supervised.said(&["supervisor", "logs", "--stderr", "slow"]);
    assert_eq!(errors, "oops\n");

    let script = "echo out; echo err >&2; exit 7";
    let run = supervised.belljar(&["run", "--supervisor", "--", "sh", "-c", script]);
    assert_eq!(run.code(), 7, "{}", run.stderr());
    assert_eq!(
        (run.stdout().as_str(), run.stderr().as_str()),
        ("out\n", "err\n")
    );
    let socket = supervised.jail.state.join("fleet/control.sock");
    let socket = format!("unix:{}", socket.display());
    let run = supervised.belljar(&[
        "run",
        "--supervisor",
        &socket,
        "--",
        "sh",
        "-c",
        "kill -9 $$",
    ]);
    assert_eq!(run.code(), 137);
    let remote =
        supervised.belljar(&["run", "--supervisor", "http://127.0.0.1:8080", "--", "true"]);
    assert_eq!(remote.code(), 121);
    assert!(
        remote.stderr().contains("wants a token"),
        "{}",
        remote.stderr()
    );

    // What can't run is told to whoever asks.
    let missing = supervised.belljar(&["sandbox", "--", "no-such-program"]);
    assert_eq!(missing.code(), 122, "{}", missing.stderr());
    assert!(
        missing.stderr().contains("not_found"),
        "{}",
        missing.stderr()
    );
}

fn the_kill_switch_ends_everybody_until_it_is_reset(who: Who) {
    let supervised = Supervised::start(who, PLAIN);
    for name in ["a", "b", "c"] {
        supervised.agent(name, "trap '' TERM; while :; do sleep 1; done");
    }
    let report = supervised.query(&["supervisor", "kill-all", "--reason", "drill"]);
    assert_eq!(
        (&report["killed"], &report["survivors"]),
        (&3.into(), &0.into())
    );
    assert!(supervised.keepers().is_empty());
    let refused = supervised.belljar(&["sandbox", "--", "true"]);
    assert_eq!(refused.code(), 122);
    assert!(
        refused.stderr().contains("kill_switch"),
        "{}",
        refused.stderr()
    );
    supervised.query(&["replication", "kill-switch", "reset", "--reason", "over"]);
    let id = supervised.agent("d", "exit 0");
    assert_eq!(supervised.await_cause(&id), "finished");
}

fn a_shutdown_is_kind_for_as_long_as_the_grace_lasts(who: Who) {
    let mut supervised = Supervised::start(who, PLAIN);
    supervised.agent(
        "polite",
        "trap 'echo bye > bye; exit 0' TERM; echo up > up; while :; do sleep 0.02; done",
    );
    supervised.await_file("up");
    supervised.agent(
        "deaf",
        "trap '' TERM; echo up > up2; while :; do sleep 1; done",
    );
    supervised.await_file("up2");
    supervised.said(&["supervisor", "shutdown", "--grace", "1"]);
    assert_eq!(supervised.await_end().code(), Some(0));
    assert_eq!(supervised.await_file("bye"), "bye\n");
    supervised.assert_nothing_left();
    let gone = supervised.belljar(&["supervisor", "status"]);
    assert_eq!(gone.code(), 121);
    assert!(
        gone.stderr().contains("no supervisor runs"),
        "{}",
        gone.stderr()
    );

    // A signal is the same.
    supervised.start_again();
    supervised.agent("another", "while :; do sleep 0.02; done");
    supervised.signal(Signal::TERM);
    assert_eq!(supervised.await_end().code(), Some(0));
    supervised.assert_nothing_left();
}

fn a_second_supervisor_is_refused_and_harms_nobody(who: Who) {
    let supervised = Supervised::start(who, PLAIN);
    let id = supervised.agent("one", COUNTING);
    let config = supervised.config();
    let second = supervised.belljar(&["supervisor", "start", "--config", &config, "--no-web"]);
    assert_eq!(second.code(), 122);
    let said = second.stderr();
    assert!(
        said.contains("a supervisor runs in") && said.contains("already"),
        "{said}"
    );
    assert_eq!(supervised.view(&id)["phase"], "running");
    supervised.query(&["supervisor", "quarantine", "one"]);
    supervised.await_phase(&id, "quarantined");
}

fn declared_agents_start_with_the_supervisor(who: Who) {
    let mut supervised = Supervised::prepare(who, "");
    let work = supervised.jail.work.display().to_string();
    let config = format!(
        "[supervisor]\nstop_grace_seconds = 1\n[[agents]]\nname = \"first\"\ncommand = [\"sh\", \"-c\", \"echo here > first; while :; do sleep 1; done\"]\n\
         workdir = \"{work}\"\n[[agents]]\nname = \"off\"\ncommand = [\"true\"]\nenabled = false\n\
         [[agents]]\nname = \"broken\"\ncommand = [\"no-such-program\"]\nworkdir = \"{work}\"\n"
    );
    let path = supervised.jail.base.join("supervisor.toml");
    supervised.jail.put(&path, &config);
    supervised.start_again();
    supervised.await_file("first");
    let names: Vec<String> = supervised
        .agents()
        .iter()
        .map(|agent| text(&agent["name"]))
        .collect();
    assert_eq!(names, ["first", "broken"]);
    assert!(
        supervised.output().contains("agent broken: not_found"),
        "{}",
        supervised.output()
    );
    // Adopted, it is not started twice.
    supervised.murder();
    supervised.start_again();
    let running = supervised
        .agents()
        .into_iter()
        .filter(|agent| agent["phase"] == "running");
    assert_eq!(running.count(), 1);

    let wrong = supervised.jail.base.join("wrong.toml");
    supervised.jail.put(&wrong, "[supervisor]\nmax_agent = 3\n");
    let wrong = wrong.to_string_lossy().into_owned();
    let refused = supervised.belljar(&["supervisor", "start", "--config", &wrong, "--no-web"]);
    assert_eq!(refused.code(), 121);
    assert!(
        refused.stderr().contains("did you mean 'max_agents'?"),
        "{}",
        refused.stderr()
    );
}

for_each_user!(
    agents_are_started_seen_frozen_released_stopped_and_killed,
    an_agent_is_started_anew_as_it_was,
    output_is_followed_to_the_end_and_an_attached_run_is_like_a_run,
    the_kill_switch_ends_everybody_until_it_is_reset,
    a_shutdown_is_kind_for_as_long_as_the_grace_lasts,
    a_second_supervisor_is_refused_and_harms_nobody,
    declared_agents_start_with_the_supervisor,
);
