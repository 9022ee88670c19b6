//! Agents that a supervisor's file declares: each runs, or says why it does not; what somebody stopped stays stopped; and a file
//! that is read again takes effect whole or not at all.

mod support;

use std::fs;

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use support::{Http, Supervised, Who, eventually, for_each_user, supervised_pid, text};

const HASTY: &str = "restart = { first_seconds = 0.05, longest_seconds = 0.2, crash_loop = 2, window_seconds = 600 }\nstop_grace_seconds = 1\n";
const IDLE: &str = "while :; do sleep 0.1; done";

/// One `[[agents]]`.
fn agent(supervised: &Supervised, name: &str, script: &str, more: &str) -> String {
    let work = supervised.jail.work.display();
    format!(
        "[[agents]]\nname = {name:?}\nworkdir = \"{work}\"\ncommand = [\"sh\", \"-c\", {script:?}]\n{more}\n"
    )
}

fn declare(supervised: &Supervised, settings: &str, agents: &[String]) {
    let config = format!(
        "[supervisor]\nmax_agents = 20\n{settings}\n{}",
        agents.concat()
    );
    let path = supervised.jail.base.join("supervisor.toml");
    supervised.jail.put(&path, &config);
}

fn status(supervised: &Supervised) -> Value {
    supervised.query(&["supervisor", "status"])
}

/// Declared agents that don't run: `name: code`.
fn not_running(supervised: &Supervised) -> Vec<String> {
    let status = status(supervised);
    let all = status["not_running"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let line = |it: &Value| format!("{}: {}", text(&it["name"]), text(&it["code"]));
    let mut all: Vec<_> = all.iter().map(line).collect();
    all.sort();
    all
}

fn running(supervised: &Supervised) -> Vec<String> {
    let status = status(supervised);
    let agents = status["agents"].as_array().expect("a list").clone();
    let running = agents.iter().filter(|it| it["phase"] == "running");
    let mut names: Vec<_> = running.map(|it| text(&it["name"])).collect();
    names.sort();
    names
}

fn ready(supervised: &Supervised) -> (u16, Value) {
    let output = supervised.output();
    let (_, address) = output
        .split_once("dashboard at http://")
        .expect("a dashboard");
    let address = address.split_whitespace().next().expect("its address");
    let address = address.trim_end_matches('/');
    let http = Http {
        at: address.to_owned(),
        session: None,
    };
    let answer = http.raw(
        format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
    );
    (answer.status, answer.json())
}

fn a_contract_is_shared_and_whoever_is_refused_is_told_of_and_tried_again(who: Who) {
    let mut supervised = Supervised::prepare(who, "");
    supervised.jail.put(
        &supervised.jail.base.join("contract.yaml"),
        "max_depth: 1\nmax_replicas: 3\nbudget: {cpu_seconds: 100, memory_mb: 1000, processes: 400}\n",
    );
    let contract = format!("contract = \"contract.yaml\"\n{HASTY}");
    let agents = [
        agent(&supervised, "a", IDLE, "share = 0.5"),
        agent(&supervised, "b", IDLE, "budget = { cpu_seconds = 20 }"),
        agent(&supervised, "c", IDLE, ""),
        agent(&supervised, "d", IDLE, ""),
    ];
    declare(&supervised, &contract, &agents);
    supervised.start_again();
    assert_eq!(running(&supervised), ["a", "b", "c"]);
    let granted = |name: &str| {
        let status = status(&supervised);
        let agents = status["agents"].as_array().expect("a list").clone();
        let found = agents.into_iter().find(|it| it["name"] == name);
        let granted = found.expect(name)["budget"]["granted"].clone();
        (granted["cpu_ms"].clone(), granted["memory_mb"].clone())
    };
    assert_eq!(granted("a"), (50_000.into(), 500.into()));
    assert_eq!(granted("b"), (20_000.into(), 166.into()));
    assert_eq!(granted("c"), (15_000.into(), 166.into()));
    // The fourth is one too many for the contract: in every place where somebody may look.
    assert_eq!(not_running(&supervised), ["d: deny_quota"]);
    let said = supervised.said(&["supervisor", "status"]);
    assert!(said.contains("NOT RUNNING  d: deny_quota"), "{said}");
    let (code, body) = eventually("it is not ready", || {
        let (code, body) = ready(&supervised);
        (code == 503).then_some((code, body))
    });
    assert_eq!((code, &body["not_running"]), (503, &Value::from(vec!["d"])));
    eventually("an alert", || {
        let alerts = supervised.query(&["monitor", "alerts"]).to_string();
        alerts.contains("d can't be started").then_some(())
    });
    // As soon as there is room it runs, and is granted what is its own.
    supervised.said(&["supervisor", "stop", "a"]);
    eventually("d runs", || {
        (running(&supervised) == ["b", "c", "d"]).then_some(())
    });
    assert_eq!(granted("d"), (15_000.into(), 166.into()));
    assert_eq!(not_running(&supervised), ["a: stopped"]);
    eventually("it is ready", || {
        (ready(&supervised).0 == 200).then_some(())
    });
}

/// Whoever is not to run stays so: after the daemon's death, and after the machine's.
fn what_was_stopped_or_is_done_does_not_come_back(who: Who) {
    let mut supervised = Supervised::prepare(who, "");
    let always = "restart = \"always\"";
    let counting = |name: &str, then: &str| format!("echo run >> {name}-runs; {then}");
    let agents: Vec<String> = [
        ("killed", IDLE, always),
        ("stopped", IDLE, always),
        ("frozen", IDLE, always),
        ("done", "exit 0", "restart = \"never\""),
        ("looping", "exit 1", always),
        ("other", IDLE, always),
    ]
    .map(|(name, then, more)| agent(&supervised, name, &counting(name, then), more))
    .to_vec();
    declare(&supervised, HASTY, &agents);
    supervised.start_again();
    let runs = |supervised: &Supervised, name: &str| {
        let path = supervised.jail.work.join(format!("{name}-runs"));
        fs::read_to_string(path).unwrap_or_default().lines().count()
    };
    eventually("those that end have ended", || {
        (not_running(&supervised) == ["done: finished", "looping: crash_loop"]).then_some(())
    });
    for (verb, name) in [
        ("kill", "killed"),
        ("stop", "stopped"),
        ("quarantine", "frozen"),
    ] {
        supervised.said(&["supervisor", verb, name, "--reason", "malicious"]);
    }
    eventually("it has ended", || {
        (not_running(&supervised).len() == 4).then_some(())
    });
    let before =
        ["killed", "stopped", "frozen", "done", "looping"].map(|name| runs(&supervised, name));

    supervised.murder();
    supervised.start_again();
    assert_eq!(running(&supervised), ["other"]);
    let expected = [
        "done: finished",
        "killed: killed",
        "looping: crash_loop",
        "stopped: stopped",
    ];
    assert_eq!(not_running(&supervised), expected);
    let said = supervised.said(&["supervisor", "status"]);
    assert!(
        said.contains("killed: killed by owner at ") && said.contains(": malicious"),
        "{said}"
    );

    // As after the machine was started anew: keepers are gone too.
    supervised.murder();
    for (_, keeper) in supervised.keepers() {
        kill_process(supervised_pid(keeper), Signal::KILL).expect("kill a keeper");
    }
    eventually("they are gone", || {
        supervised.keepers().is_empty().then_some(())
    });
    supervised.start_again();
    assert_eq!(running(&supervised), ["other"]);
    let expected = [
        "done: finished",
        "frozen: quarantined",
        "killed: killed",
        "looping: crash_loop",
        "stopped: stopped",
    ];
    assert_eq!(not_running(&supervised), expected);
    let after =
        ["killed", "stopped", "frozen", "done", "looping"].map(|name| runs(&supervised, name));
    assert_eq!(before, after);

    // Somebody who says so has it run again, and that is remembered as well.
    supervised.said(&["supervisor", "agent", "start", "killed"]);
    supervised.murder();
    supervised.start_again();
    assert_eq!(running(&supervised), ["killed", "other"]);
    let unknown = supervised.belljar(&["supervisor", "agent", "start", "nobody"]);
    assert_ne!(unknown.code(), 0, "{}", unknown.stdout());
}

fn a_file_that_is_read_again_takes_effect_whole_or_not_at_all(who: Who) {
    let mut supervised = Supervised::prepare(who, "");
    let one = |name: &str, script: &str| agent(&supervised, name, script, "restart = \"always\"");
    let (same, gone, old) = (one("same", IDLE), one("gone", IDLE), one("other", IDLE));
    let new = one("other", &format!("echo new > new; {IDLE}"));
    let added = one("added", IDLE);
    declare(&supervised, HASTY, &[same.clone(), gone.clone(), old]);
    supervised.start_again();
    let ids = |supervised: &Supervised| {
        let agents = status(supervised)["agents"]
            .as_array()
            .expect("a list")
            .clone();
        let mut all: Vec<_> = agents
            .iter()
            .map(|it| (text(&it["name"]), text(&it["id"])))
            .collect();
        all.sort();
        all
    };
    let before = ids(&supervised);

    // Wrong in its last agent: nothing of it is used.
    let wrong = agent(&supervised, "wrong", IDLE, "capability = \"missing.yaml\"");
    declare(
        &supervised,
        HASTY,
        &[same.clone(), new.clone(), added.clone(), wrong],
    );
    let config = supervised.config();
    for words in [
        &["supervisor", "reload"][..],
        &["supervisor", "validate", &config],
        &["validate", &config],
    ] {
        let said = supervised.belljar(words);
        assert_ne!(said.code(), 0, "{words:?}: {}", said.stdout());
        assert!(
            said.stderr().contains("missing.yaml"),
            "{words:?}: {}",
            said.stderr()
        );
    }
    assert_eq!(ids(&supervised), before);

    let max = "max_replicas = 1";
    declare(
        &supervised,
        &format!("{HASTY}{max}"),
        std::slice::from_ref(&same),
    );
    let said = supervised.belljar(&["supervisor", "validate", &config]);
    assert_eq!(said.code(), 1, "{}", said.stdout());
    assert!(
        said.stderr().contains("supervisor.toml:5:1"),
        "{}",
        said.stderr()
    );

    declare(
        &supervised,
        &format!("log_keep = 7\n{HASTY}"),
        &[same, new, added],
    );
    supervised.said(&["validate", &config]);
    let would = supervised.query(&["supervisor", "reload", "--dry-run"]);
    let changes = |reply: &Value| {
        let agents = reply["agents"].as_array().expect("a list").clone();
        let line = |it: &Value| {
            format!(
                "{} {} {}",
                text(&it["name"]),
                text(&it["change"]),
                it["keys"]
            )
        };
        agents.iter().map(line).collect::<Vec<_>>()
    };
    let expected = [
        "other changed [\"command\"]",
        "added added null",
        "gone removed null",
    ];
    assert_eq!(changes(&would), expected);
    assert_eq!(would["needs_restart"], Value::from(vec!["log_keep"]));
    assert_eq!(ids(&supervised), before);
    // A signal is as good as the command.
    supervised.signal(Signal::HUP);
    eventually("they run", || {
        (running(&supervised) == ["added", "other", "same"]).then_some(())
    });
    assert_eq!(supervised.await_file("new"), "new\n");
    let same = |all: &[(String, String)]| all.iter().find(|(name, _)| name == "same").cloned();
    assert_eq!(same(&ids(&supervised)), same(&before));
    assert_eq!(
        changes(&supervised.query(&["supervisor", "reload"])),
        [""; 0]
    );
}

/// What is not running when a file is read again is started by what it says then.
fn one_that_waits_takes_its_new_definition(who: Who) {
    let mut supervised = Supervised::prepare(who, "");
    let slow = "restart = { first_seconds = 3600, longest_seconds = 3600 }\n";
    let failing = agent(&supervised, "a", "exit 1", "restart = \"always\"");
    declare(&supervised, slow, &[failing]);
    supervised.start_again();
    eventually("it waits", || {
        (status(&supervised)["agents"][0]["phase"] == "waiting").then_some(())
    });
    supervised.murder();
    let steady = agent(
        &supervised,
        "a",
        &format!("echo new > new; {IDLE}"),
        "restart = \"always\"",
    );
    declare(&supervised, slow, &[steady]);
    supervised.start_again();
    supervised.said(&["supervisor", "reload"]);
    assert_eq!(supervised.await_file("new"), "new\n");
}

fn a_start_in_the_background_tells_the_truth(who: Who) {
    let mut supervised = Supervised::prepare(who, "[supervisor]\nmax_agents = 5\n");
    supervised.start_again();
    let config = supervised.config();
    let detach = [
        "supervisor",
        "start",
        "--detach",
        "--config",
        &config,
        "--web-port",
        "0",
    ];
    let second = supervised.belljar(&detach);
    assert_eq!(second.code(), 122, "{}", second.stderr());
    assert!(second.stderr().contains("already"), "{}", second.stderr());
    // One that was just killed is waited for.
    let old = supervised.pid();
    kill_process(supervised_pid(old), Signal::KILL).expect("kill it");
    let third = supervised.belljar(&detach);
    assert_eq!(third.code(), 0, "{}", third.stderr());
    supervised.await_end();
    let said = third.stderr();
    let (_, pid) = said.split_once("process ").expect("its process");
    let pid: String = pid.chars().take_while(char::is_ascii_digit).collect();
    assert_ne!(pid, old.to_string());
    assert!(
        fs::exists(format!("/proc/{pid}")).unwrap_or(false),
        "{said}"
    );
    supervised.said(&["supervisor", "shutdown"]);
    // What keeps it from starting is said here, too.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its number").port().to_string();
    let busy = [
        "supervisor",
        "start",
        "--detach",
        "--config",
        &config,
        "--web-port",
        &port,
    ];
    let failed = supervised.belljar(&busy);
    assert_ne!(failed.code(), 0);
    let said = failed.stderr();
    assert!(
        said.contains("taken") && said.contains("daemon.log"),
        "{said}"
    );
}

/// An upgrade, as the unit does it: the signal that it stops the daemon with, and a start.
fn a_restart_of_the_service_costs_no_agent(who: Who) {
    let unit = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../packaging/belljar.service"
    );
    let unit = fs::read_to_string(unit).expect("the unit");
    let says = |line: &str| unit.lines().any(|it| it == line);
    assert!(
        says("KillMode=process") && says("KillSignal=SIGUSR1"),
        "{unit}"
    );
    assert!(!unit.lines().any(|it| it.starts_with("ExecStop")), "{unit}");
    let mut supervised = Supervised::prepare(who, "");
    let agents = [agent(&supervised, "a", IDLE, "")];
    declare(&supervised, HASTY, &agents);
    supervised.start_again();
    let id = text(&status(&supervised)["agents"][0]["id"]);
    supervised.signal(Signal::USR1);
    assert!(supervised.await_end().success());
    assert_eq!(supervised.keepers().len(), 1);
    supervised.start_again();
    assert_eq!(supervised.view(&id)["phase"], "running");
    assert_eq!(
        status(&supervised)["agents"].as_array().map(Vec::len),
        Some(1)
    );
}

/// Whom the kill switch kills while no supervisor sees it, or one that hangs, is not started again once the switch is off.
fn whom_the_kill_switch_killed_unseen_stays_stopped(who: Who) {
    for hangs in [false, true] {
        let mut supervised = Supervised::prepare(who, "");
        let agents = ["a", "b", "c"]
            .map(|name| agent(&supervised, name, IDLE, "restart = \"always\""))
            .to_vec();
        declare(&supervised, HASTY, &agents);
        supervised.start_again();
        assert_eq!(running(&supervised), ["a", "b", "c"]);
        match hangs {
            true => supervised.signal(Signal::STOP),
            false => supervised.murder(),
        }
        let report = supervised.query(&["supervisor", "kill-all", "--reason", "drill"]);
        assert_eq!(
            (&report["killed"], &report["survivors"]),
            (&3.into(), &0.into()),
            "hangs: {hangs}, {report}"
        );
        assert!(supervised.keepers().is_empty(), "somebody lives");
        if hangs {
            supervised.signal(Signal::CONT);
            eventually("it has seen their ends", || {
                (not_running(&supervised).len() == 3).then_some(())
            });
        }
        supervised.said(&["replication", "kill-switch", "reset", "--reason", "over"]);
        if !hangs {
            supervised.start_again();
        }
        let expected = ["a: killed", "b: killed", "c: killed"];
        assert_eq!(not_running(&supervised), expected);
        // Longer than anybody waits to be tried again.
        std::thread::sleep(std::time::Duration::from_millis(600));
        assert_eq!(not_running(&supervised), expected);
        supervised.said(&["supervisor", "agent", "start", "--all"]);
        assert_eq!(running(&supervised), ["a", "b", "c"]);
    }
}

/// One that can't be started is one alert by its name, and can be stopped like any other.
fn one_that_is_tried_again_is_one_alert_and_can_be_stopped(who: Who) {
    let mut supervised = Supervised::prepare(who, "");
    let work = supervised.jail.work.display().to_string();
    let missing = |name: &str| {
        format!("[[agents]]\nname = {name:?}\nworkdir = {work:?}\ncommand = [\"/no/such\"]\n")
    };
    let agents = [missing("stopped"), missing("killed")];
    declare(&supervised, HASTY, &agents);
    supervised.start_again();
    let crashed = |supervised: &Supervised| {
        let alerts = supervised.query(&["monitor", "alerts"]);
        let alerts = alerts["alerts"].as_array().cloned().unwrap_or_default();
        let crashes = alerts.iter().filter(|it| it["kind"] == "AgentCrashed");
        let mut about: Vec<String> = crashes.map(|it| text(&it["agent_name"])).collect();
        about.sort();
        about
    };
    let seen = eventually("they were tried several times", || {
        let status = status(&supervised);
        let tried = status["not_running"].as_array()?.iter();
        let often = tried.filter(|it| it["attempts"].as_u64() >= Some(3));
        // Alerts follow a moment later.
        let seen = (often.count() == 2).then(|| crashed(&supervised));
        seen.filter(|about| about.len() >= 2)
    });
    assert_eq!(seen, ["killed", "stopped"]);
    supervised.said(&["supervisor", "stop", "stopped", "--reason", "enough"]);
    supervised.said(&["supervisor", "kill", "killed", "--reason", "enough"]);
    let expected = ["killed: killed", "stopped: stopped"];
    assert_eq!(not_running(&supervised), expected);
    supervised.murder();
    supervised.start_again();
    assert_eq!(not_running(&supervised), expected);
}

/// A shutdown ends whoever waits for a next life as well: the next supervisor starts what is declared, and nobody else.
fn whoever_waits_at_a_shutdown_is_not_taken_up_again(who: Who) {
    let mut supervised = Supervised::prepare(who, "");
    let patient = "restart = { first_seconds = 3600, longest_seconds = 3600 }\n";
    declare(&supervised, patient, &[]);
    supervised.start_again();
    let fails = ["sandbox", "--name", "fails", "--restart", "always", "--"];
    supervised.said(&[&fails[..], &["sh", "-c", "exit 1"]].concat());
    eventually("it waits", || {
        let agents = supervised.agents();
        agents
            .iter()
            .any(|it| it["phase"] == "waiting")
            .then_some(())
    });
    supervised.said(&["supervisor", "shutdown"]);
    assert!(supervised.await_end().success());
    supervised.start_again();
    let agents = supervised.agents();
    let phases: Vec<_> = agents.iter().map(|it| text(&it["phase"])).collect();
    assert_eq!(phases, ["ended"]);
}

/// By its name an agent is all of its lives: what it wrote, what happened to it, what it used.
fn one_that_is_started_again_is_still_who_it_was(who: Who) {
    let mut supervised = Supervised::prepare(who, "");
    let script = "echo a life; sleep 1.2; exit 1";
    let agents = [agent(&supervised, "lives", script, "restart = \"always\"")];
    declare(&supervised, HASTY, &agents);
    supervised.start_again();
    eventually("it is over", || {
        (not_running(&supervised) == ["lives: crash_loop"]).then_some(())
    });
    let said = supervised.said(&["supervisor", "logs", "lives"]);
    assert_eq!(said, "a life\n".repeat(3));
    let ids: Vec<String> = supervised
        .agents()
        .iter()
        .map(|it| text(&it["id"]))
        .collect();
    assert_eq!(ids.len(), 3);
    let last = supervised.said(&["supervisor", "logs", &ids[2]]);
    assert_eq!(last, "a life\n");
    let events = supervised.said(&["monitor", "events", "--agent", "lives", "-n", "100"]);
    assert_eq!(events.matches("lives started").count(), 3, "{events}");
    let samples = |agent: &str| {
        let reply = supervised.query(&["monitor", "metrics", "--agent", agent, "--since", "10m"]);
        reply["samples"].as_array().map_or(0, Vec::len)
    };
    let of_each: usize = ids.iter().map(|id| samples(id)).sum();
    assert_eq!(samples("lives"), of_each);
}

/// Nobody has to change what is shipped for it to run.
fn the_shipped_file_runs_as_it_is(who: Who) {
    let mut supervised = Supervised::prepare(who, "");
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let path = supervised.jail.base.join("supervisor.toml");
    let shipped = fs::read_to_string(format!("{examples}/supervisor.toml")).expect("the example");
    supervised.jail.put(&path, &shipped);
    supervised.start_again();
    let declared = shipped.matches("[[agents]]").count();
    let first = eventually("every agent has written something", || {
        let agents = supervised.agents();
        let has_written = |agent: &&Value| {
            let id = text(&agent["id"]);
            !supervised.said(&["supervisor", "logs", &id]).is_empty()
        };
        let all = agents.iter().filter(has_written).count() == declared;
        all.then_some(agents)
    });
    for agent in &first {
        assert_eq!(
            (&agent["phase"], &agent["restarts"]),
            (&"running".into(), &0.into()),
            "{agent}"
        );
    }
    assert_eq!(not_running(&supervised), [""; 0]);
}

fn tokens_that_cannot_be_read_are_told_of(who: Who) {
    let mut supervised = Supervised::prepare(who, "[supervisor]\nmax_agents = 5\n");
    let path = supervised.jail.state.join("web/tokens.json");
    supervised.jail.put(&path, "{\"tokens\": [");
    supervised.start_again();
    eventually("it is told", || {
        let events = supervised.query(&["monitor", "events"]).to_string();
        events.contains("tokens_unreadable").then_some(())
    });
    assert!(
        supervised.output().contains("no token is good"),
        "{}",
        supervised.output()
    );
    eventually("it is not ready", || {
        (ready(&supervised).0 == 503).then_some(())
    });
}

for_each_user!(
    a_contract_is_shared_and_whoever_is_refused_is_told_of_and_tried_again,
    what_was_stopped_or_is_done_does_not_come_back,
    a_file_that_is_read_again_takes_effect_whole_or_not_at_all,
    one_that_waits_takes_its_new_definition,
    a_start_in_the_background_tells_the_truth,
    a_restart_of_the_service_costs_no_agent,
    whom_the_kill_switch_killed_unseen_stays_stopped,
    one_that_is_tried_again_is_one_alert_and_can_be_stopped,
    whoever_waits_at_a_shutdown_is_not_taken_up_again,
    one_that_is_started_again_is_still_who_it_was,
    the_shipped_file_runs_as_it_is,
    tokens_that_cannot_be_read_are_told_of,
);
