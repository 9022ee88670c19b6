//! A supervisor in trouble: a full disk, where nothing is granted that can't be recorded, nobody is forgotten, and whoever must
//! end does; a port that is taken; a history that is damaged. In worlds of the tests' own, whose state directory may be a small
//! file system.

mod support;

use std::fs::File;
use std::io::Write as _;
use std::process::Command;

use belljar_image::ImageConfig;
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use support::{
    AGENT, Family, IMAGE, Jail, Supervised, Who, eventually, finish, for_each_user_in_a_world,
    provide_image,
};

const REFUSED: i32 = 122;

const CONFIG: &str = "[supervisor]\nmax_agents = 20\nstop_grace_seconds = 1\n";

/// A file system of a few megabytes over the state directory, which belongs to the user.
fn put_state_on_a_small_disk(jail: &Jail, who: Who) {
    let state = &jail.state;
    std::fs::create_dir_all(state).expect("a state directory");
    // Whoever is root in this world may be a user outside, of whom it is the only one there.
    let owner = match rustix::process::geteuid().is_root() && who == Who::User {
        true => format!(",uid={0},gid={0}", who.uid()),
        false => String::new(),
    };
    let mounted = Command::new("mount")
        .args([
            "-t",
            "tmpfs",
            "-o",
            &format!("size=16m,mode=700{owner}"),
            "small",
        ])
        .arg(state)
        .status()
        .expect("mount");
    assert!(mounted.success(), "a small file system");
}

/// Writes until nothing fits any more.
fn fill(jail: &Jail) -> std::path::PathBuf {
    let path = jail.state.join("filler");
    let mut file = File::create(&path).expect("a file");
    let block = [0; 4096];
    while file.write_all(&block).is_ok() {}
    path
}

fn status(supervised: &Supervised) -> Value {
    supervised.query(&["supervisor", "status"])
}

fn a_full_disk_stops_grants_and_nothing_else(who: Who) {
    let mut supervised = Supervised::prepare(who, CONFIG);
    put_state_on_a_small_disk(&supervised.jail, who);
    supervised.start_again();
    let old = supervised.agent("old", "while :; do sleep 0.1; done");
    let frozen = supervised.agent("frozen", "while :; do sleep 0.1; done");
    let other = supervised.agent("other", "trap '' TERM; while :; do sleep 0.1; done");
    let filler = fill(&supervised.jail);

    // The log has room of its own for a while; then every start is refused for its sake.
    let refused = eventually("the log can't be written", || {
        let said = supervised.belljar(&["sandbox", "--name", "new", "--", "/bin/true"]);
        assert_eq!(said.status.code(), Some(122), "{}", said.stderr());
        said.stderr()
            .contains("deny_unrecorded")
            .then(|| said.stderr())
    });
    assert!(refused.contains("start the controller anew"), "{refused}");

    // It can still be seen, and says what is wrong.
    let seen = eventually("the failure is told", || {
        let seen = status(&supervised);
        seen["status"]["ledger"]["failed"]
            .is_string()
            .then_some(seen)
    });
    let running = supervised.agents();
    let living = running.iter().filter(|agent| agent["phase"] == "running");
    assert_eq!(living.count(), 3, "{seen}");
    eventually("LedgerFailure", || {
        let alerts = supervised.query(&["monitor", "alerts"]);
        let mut alerts = alerts["alerts"].as_array().into_iter().flatten();
        alerts
            .any(|alert| alert["kind"] == "LedgerFailure")
            .then_some(())
    });

    // Whoever must be held back is; letting go needs a record.
    supervised.said(&["supervisor", "quarantine", &frozen]);
    supervised.await_phase(&frozen, "quarantined");
    let released = supervised.belljar(&["supervisor", "release", &frozen]);
    assert_eq!(released.status.code(), Some(122), "{}", released.stderr());
    supervised.await_phase(&frozen, "quarantined");
    supervised.said(&["supervisor", "kill", &old]);
    assert_eq!(supervised.await_cause(&old), "killed");
    supervised.said(&["supervisor", "stop", &other]);
    assert_eq!(supervised.await_cause(&other), "stopped");

    // With room again, and started again, it takes up where the record ends; whoever lives is adopted.
    std::fs::remove_file(filler).expect("room");
    supervised.murder();
    supervised.start_again();
    let seen = status(&supervised);
    assert!(seen["status"]["ledger"]["failed"].is_null(), "{seen}");
    let fresh = supervised.agent("fresh", "while :; do sleep 0.1; done");
    supervised.await_phase(&fresh, "running");
    let verified = supervised.belljar(&["audit", "verify", "--log", "fleet"]);
    assert!(verified.status.success(), "{}", verified.stderr());
    supervised.said(&["supervisor", "shutdown"]);
    assert!(supervised.await_end().success());
    supervised.assert_nothing_left();
}

fn a_shutdown_needs_no_record(who: Who) {
    let mut supervised = Supervised::prepare(who, CONFIG);
    put_state_on_a_small_disk(&supervised.jail, who);
    supervised.start_again();
    supervised.agent("old", "while :; do sleep 0.1; done");
    fill(&supervised.jail);
    eventually("the log can't be written", || {
        let said = supervised.belljar(&["sandbox", "--name", "new", "--", "/bin/true"]);
        said.stderr().contains("deny_unrecorded").then_some(())
    });
    supervised.said(&["supervisor", "shutdown"]);
    supervised.await_end();
    supervised.assert_nothing_left();
}

/// An image that nobody can take up until this is dropped: who wants it waits, after its grant and before its box.
fn withhold_image(jail: &Jail) -> File {
    let digest = belljar_image::Store::open(&jail.state).find(IMAGE);
    let digest = digest.expect("the image").digest;
    let place = jail.state.join("images/trees").join(digest.hex());
    // A file in place of the one that live boxes hold.
    let path = place.join("held.new");
    jail.put(&path, "");
    let held = File::open(&path).expect("what it is held by");
    flock(&held, FlockOperation::LockExclusive).expect("hold it alone");
    std::fs::rename(path, place.join("held")).expect("put it in place");
    held
}

/// Which image a box has is found after its grant was put on record: what can't be recorded then does not run.
fn a_box_whose_image_cannot_be_put_on_record_does_not_start(who: Who) {
    let mut supervised = Supervised::prepare(who, CONFIG);
    put_state_on_a_small_disk(&supervised.jail, who);
    provide_image(&supervised.jail.state, ImageConfig::default());
    supervised.jail.own(&supervised.jail.state);
    supervised.start_again();
    let policy = supervised.jail.base.join("boxed.yaml");
    supervised.jail.put(
        &policy,
        &format!("extends: moderate\nsandbox_tier: container\nimage: {IMAGE}\n"),
    );
    let policy = policy.to_string_lossy().into_owned();
    let start = |name: &str| {
        let words = ["sandbox", "--name", name, "--sandbox-config", &policy];
        let mut command = supervised.jail.belljar(&words);
        command.args(["--", "sh", "-c", &format!("echo ran > {name}")]);
        command.spawn().expect("start belljar")
    };
    let first = finish(start("first"));
    assert_eq!(first.code(), 0, "{}", first.stderr());
    supervised.await_file("first");

    let image = withhold_image(&supervised.jail);
    let second = start("second");
    eventually("its grant is on record", || {
        let log = supervised.log();
        let granted = log
            .iter()
            .filter(|it| it["what"]["kind"] == "root_admitted");
        (granted.count() == 2).then_some(())
    });
    let filler = fill(&supervised.jail);
    eventually("the log can't be written", || {
        let said = supervised.belljar(&["sandbox", "--name", "new", "--", "/bin/true"]);
        said.stderr().contains("deny_unrecorded").then_some(())
    });
    // The log stays as it is; a box would have all the room it wants.
    std::fs::remove_file(filler).expect("room");
    drop(image);
    let second = finish(second);
    assert_eq!(second.code(), REFUSED, "{}", second.stderr());
    supervised.said(&["supervisor", "shutdown"]);
    supervised.await_end();
    assert!(!supervised.jail.work.join("second").exists(), "it ran");
    supervised.assert_nothing_left();
}

/// The same for a replica in a family without a supervisor.
fn a_replica_whose_image_cannot_be_put_on_record_does_not_start(who: Who) {
    let mut family = Family::prepare(who, "max_depth: 1\nmax_replicas: 8\n");
    put_state_on_a_small_disk(&family.jail, who);
    provide_image(&family.jail.state, ImageConfig::default());
    family.jail.own(&family.jail.state);
    let capability = family.jail.base.join("capability.yaml");
    let policy = format!("extends: moderate\nsandbox_tier: container\nimage: {IMAGE}\n");
    family.jail.put(&capability, &policy);
    family.start_puppet();
    family
        .replicate("root", "ann", "")
        .expect("the first replica");

    let image = withhold_image(&family.jail);
    let ask = |name: &str| format!("printf {name} | {AGENT} replicate --reason test --state -");
    // Beside what else the puppet is asked to do.
    let script = format!("mkdir ../bob; ({}) > asked 2>&1 &", ask("bob"));
    family.order("root", &script);
    eventually("its grant is on record", || {
        let log = family.log();
        let granted = log.iter().filter(|it| it["what"]["kind"] == "registered");
        (granted.count() == 2).then_some(())
    });
    let filler = fill(&family.jail);
    eventually("the log can't be written", || {
        let said = family.order("root", &ask("cid"));
        said.err.contains("deny_unrecorded").then_some(())
    });
    std::fs::remove_file(filler).expect("room");
    drop(image);
    let ran = family.jail.work.join("strings/bob/up");
    eventually("nobody is left but the first two", || {
        assert!(!ran.exists(), "it ran: {}", family.output());
        (family.workers().len() == 2).then_some(())
    });
    assert!(!ran.exists(), "it ran: {}", family.output());
}

const IDLE: &str = "while :; do sleep 0.1; done";
/// What `kill-all` ends with where everybody is dead and something could not be kept.
const UNRECORDED: i32 = 7;

/// `belljar` in a view of its own where the state directory can't be written to.
fn read_only(jail: &Jail, words: &[&str]) -> std::process::Output {
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    command.arg(&jail.state);
    if !jail.who.is_runner() {
        let uid = jail.who.uid().to_string();
        command.args([
            "setpriv",
            "--reuid",
            &uid,
            "--regid",
            &uid,
            "--clear-groups",
        ]);
    }
    command.arg(jail.belljar_path()).args(words);
    command.env("BELLJAR_STATE_DIR", &jail.state);
    command.env("BELLJAR_RUNTIME_DIR", jail.base.join("runtime"));
    command.output().expect("unshare")
}

/// Lays the state directory over itself, for reading alone: whoever has files of it open keeps those.
fn close_state(jail: &Jail) {
    for options in [&["--bind"][..], &["-o", "remount,bind,ro"]] {
        let mut mount = Command::new("mount");
        mount.args(options).arg(&jail.state);
        if options == ["--bind"] {
            mount.arg(&jail.state);
        }
        assert!(mount.status().expect("mount").success(), "{options:?}");
    }
}

fn open_state(jail: &Jail) {
    let opened = Command::new("umount")
        .arg("--lazy")
        .arg(&jail.state)
        .status();
    assert!(opened.expect("umount").success());
}

/// Who runs is killed first; then whatever can hold the switch does, and says so.
fn kill_all_needs_no_disk(who: Who) {
    let mut supervised = Supervised::prepare(who, CONFIG);
    let runtime = supervised.jail.base.join("runtime");
    let reset = ["replication", "kill-switch", "reset", "--reason", "over"];
    // First with nothing to hold it but the daemon, and then with a directory that can.
    for has_place in [false, true] {
        supervised.start_again();
        supervised.agent("old", IDLE);
        if has_place {
            std::fs::create_dir(&runtime).expect("a directory");
            supervised.jail.own(&runtime);
        }
        close_state(&supervised.jail);
        let said = supervised.belljar(&["supervisor", "kill-all", "--output", "json"]);
        let report: Value = serde_json::from_str(&said.stdout()).expect("a report");
        assert_eq!(
            (&report["killed"], &report["survivors"]),
            (&1.into(), &0.into()),
            "{report}"
        );
        let is_recorded = report["not_recorded"].is_null();
        let expected = if is_recorded { 0 } else { UNRECORDED };
        assert_eq!(said.status.code(), Some(expected), "{}", said.stderr());
        assert!(is_recorded == has_place, "{report}");
        let held_by = |supervised: &Supervised| {
            let status = status(supervised);
            let engaged = &status["status"]["kill_switch"]["engaged"];
            engaged["held_by"].as_str().unwrap_or_default().to_owned()
        };
        let expected = if has_place {
            "runtime"
        } else {
            "the memory of the supervisor"
        };
        assert!(
            held_by(&supervised).contains(expected),
            "{}",
            held_by(&supervised)
        );
        let new = supervised.belljar(&["sandbox", "--name", "new", "--", "/bin/true"]);
        assert_eq!(new.status.code(), Some(REFUSED), "{}", new.stderr());
        // With a disk again it goes where it lasts, and so it does for the next daemon.
        open_state(&supervised.jail);
        eventually("it is on the disk", || {
            held_by(&supervised)
                .contains("the state directory")
                .then_some(())
        });
        supervised.murder();
        supervised.start_again();
        assert!(held_by(&supervised).contains("the state directory"));
        supervised.said(&reset);
        assert!(status(&supervised)["status"]["kill_switch"]["engaged"].is_null());
        supervised.said(&["supervisor", "shutdown"]);
        supervised.await_end();
        assert!(
            !has_place
                || std::fs::read_dir(runtime.join("belljar")).is_ok_and(|it| it.count() == 0)
        );
    }
}

/// The same with the daemon dead and the state directory for reading alone.
fn kill_all_needs_no_daemon_and_no_disk(who: Who) {
    let mut supervised = Supervised::start(who, CONFIG);
    let runtime = supervised.jail.base.join("runtime");
    for has_place in [false, true] {
        supervised.agent("old", IDLE);
        supervised.murder();
        if has_place {
            std::fs::create_dir(&runtime).expect("a directory");
            supervised.jail.own(&runtime);
        }
        let said = read_only(&supervised.jail, &["supervisor", "kill-all"]);
        let errors = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(UNRECORDED), "{errors}");
        assert!(
            String::from_utf8_lossy(&said.stdout).contains("survivors: 0"),
            "{errors}"
        );
        assert!(supervised.keepers().is_empty(), "somebody lives");
        let words = ["replication", "kill-switch", "status"];
        let said = read_only(&supervised.jail, &words);
        let engaged = String::from_utf8_lossy(&said.stdout).into_owned();
        match has_place {
            false => assert!(errors.contains("nothing holds the kill switch"), "{errors}"),
            true => assert!(
                engaged.contains("held by") && engaged.contains("runtime"),
                "{engaged}"
            ),
        }
        supervised.start_again();
        let new = supervised.belljar(&["sandbox", "--name", "new", "--", "/bin/true"]);
        assert_eq!(
            new.status.code(),
            Some(if has_place { REFUSED } else { 0 }),
            "{}",
            new.stderr()
        );
        supervised.said(&["replication", "kill-switch", "reset", "--reason", "over"]);
        assert!(
            !has_place
                || std::fs::read_dir(runtime.join("belljar")).is_ok_and(|it| it.count() == 0)
        );
    }
}

fn a_taken_port_is_told_and_nothing_is_left(who: Who) {
    let mut supervised = Supervised::prepare(who, CONFIG);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its number").port().to_string();
    let config = supervised.config();
    let words = [
        "supervisor",
        "start",
        "--config",
        &config,
        "--web-port",
        &port,
    ];
    let said = supervised.belljar(&words);
    assert_eq!(said.status.code(), Some(121), "{}", said.stderr());
    let told = said.stderr();
    assert!(told.contains(&port) && told.contains("taken"), "{told}");
    assert!(told.contains("--web-port"), "{told}");
    supervised.assert_nothing_left();
    // Nothing of that start is in the way of the next.
    supervised.start_again();
    supervised.said(&["supervisor", "shutdown"]);
    assert!(supervised.await_end().success());
}

fn a_damaged_history_is_set_aside(who: Who) {
    let mut supervised = Supervised::start(who, CONFIG);
    supervised.agent("first", "exit 0");
    supervised.murder();
    let history = supervised.jail.state.join("monitor/monitor.db");
    std::fs::write(&history, vec![0xa5; 64 << 10]).expect("the history's file");
    for end in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(history.with_extension(format!("db{end}")));
    }
    supervised.start_again();
    let second = supervised.agent("second", "while :; do sleep 0.1; done");
    supervised.await_phase(&second, "running");
    let files = support::files_below(&supervised.jail.state.join("monitor"));
    let is_kept = |file: &std::path::PathBuf| {
        std::fs::read(file).is_ok_and(|bytes| bytes.starts_with(&[0xa5; 16]))
    };
    assert!(files.iter().any(is_kept), "it was thrown away: {files:#?}");
    eventually("events are kept again", || {
        let events = supervised.query(&["monitor", "events"]);
        events.to_string().contains(&second).then_some(())
    });
}

for_each_user_in_a_world!(
    a_full_disk_stops_grants_and_nothing_else,
    a_shutdown_needs_no_record,
    a_box_whose_image_cannot_be_put_on_record_does_not_start,
    a_replica_whose_image_cannot_be_put_on_record_does_not_start,
    kill_all_needs_no_disk,
    kill_all_needs_no_daemon_and_no_disk,
    a_taken_port_is_told_and_nothing_is_left,
    a_damaged_history_is_set_aside,
);
