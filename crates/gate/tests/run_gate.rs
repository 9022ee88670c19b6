//! The gate of lone runs: what it lets pass is on record first, and what can't be recorded does not pass.
#![allow(clippy::unwrap_used)]

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use belljar_gate::keyring::{KeyDir, KeySource, known_keys};
use belljar_gate::latch::Latch;
use belljar_gate::record::{Entry, RunEvent};
use belljar_gate::{Durability, Ending, Launch, LogKind, Refusal, RunGate};
use belljar_ledger::{Reader, Verified, VerifyOptions, verify};

fn gate(state: &Path) -> RunGate {
    RunGate::of(state, KeySource::Directory)
}

fn keys(state: &Path) -> KeyDir {
    KeyDir::of(state, KeySource::Directory)
}

fn launch(run: &str) -> Launch {
    Launch {
        run: run.to_owned(),
        program: "/bin/true".to_owned(),
        command_sha256: "00".repeat(32),
        capability: "moderate".to_owned(),
        capability_sha256: "11".repeat(32),
        tier: "seccomp".to_owned(),
        image: None,
    }
}

fn events(state: &Path) -> Vec<RunEvent> {
    let reader = Reader::open(&LogKind::Runs.directory(state)).unwrap();
    let entries = reader.entries(0);
    entries
        .map(|entry| {
            let entry: Entry<RunEvent> = serde_json::from_slice(&entry.unwrap().bytes).unwrap();
            entry.what
        })
        .collect()
}

/// Each event's kind and run, in short.
fn told(state: &Path) -> Vec<String> {
    let short = |event: &RunEvent| {
        let event = serde_json::to_value(event).unwrap();
        let run = event["run"].as_str().unwrap_or_default();
        format!("{} {run}", event["kind"].as_str().unwrap())
            .trim_end()
            .to_owned()
    };
    events(state).iter().map(short).collect()
}

#[track_caller]
fn verified(state: &Path) -> Verified {
    let known = known_keys(&keys(state).keyset().unwrap(), LogKind::Runs.origin());
    let options = VerifyOptions {
        origin: Some(LogKind::Runs.origin().to_owned()),
        ..VerifyOptions::default()
    };
    verify(&LogKind::Runs.directory(state), &known, &options).unwrap()
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files_below(&path)),
            false => found.push(path),
        }
    }
    found
}

#[test]
fn a_launch_is_on_record_when_its_permit_is_there() {
    let state = tempfile::tempdir().unwrap();
    let mut gate = gate(state.path());
    let permit = gate.admit(launch("a"), Durability::Crash).unwrap();
    assert_eq!(permit.entry(), 0);
    assert_eq!(told(state.path()), ["run_launched a"]);
    let RunEvent::RunLaunched { user, program, .. } = &events(state.path())[0] else {
        panic!("not a launch");
    };
    assert_eq!(*user, rustix::process::getuid().as_raw());
    assert_eq!(program, "/bin/true");
    assert_eq!(permit.spend(), launch("a"));
    let ending = Ending {
        exit_code: Some(3),
        ..Ending::default()
    };
    assert_eq!(gate.ended("a", ending, Durability::Crash).unwrap(), 1);
    assert_eq!(told(state.path()), ["run_launched a", "run_ended a"]);
    assert_eq!(verified(state.path()).checkpoint.size(), 2);
}

#[test]
fn strict_durability_reaches_the_disk_before_the_permit() {
    let state = tempfile::tempdir().unwrap();
    let mut gate = gate(state.path());
    let permit = gate.admit(launch("a"), Durability::Power).unwrap();
    assert_eq!(verified(state.path()).checkpoint.durable(), 1);
    permit.spend();
    gate.ended("a", Ending::default(), Durability::Crash)
        .unwrap();
    let checkpoint = verified(state.path()).checkpoint;
    assert_eq!((checkpoint.size(), checkpoint.durable()), (2, 1));
}

#[test]
fn an_engaged_kill_switch_refuses_and_says_so_on_record() {
    let state = tempfile::tempdir().unwrap();
    let latch = Latch::of(state.path());
    latch.engage(1, "smoke").unwrap();
    let refused = gate(state.path()).admit(launch("a"), Durability::Crash);
    let Err(refusal @ Refusal::KillSwitch { .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(refusal.code(), "deny_kill_switch");
    let [RunEvent::RunRefused { code, why, .. }] = &events(state.path())[..] else {
        panic!("{:?}", events(state.path()));
    };
    assert_eq!(code, "deny_kill_switch");
    assert!(why.contains("smoke"));
    latch.reset().unwrap();
    gate(state.path())
        .admit(launch("b"), Durability::Crash)
        .unwrap()
        .spend();
}

#[test]
fn what_cannot_be_recorded_is_refused() {
    let state = tempfile::tempdir().unwrap();
    let refuses = |why: &str| {
        let refused = gate(state.path()).admit(launch("a"), Durability::Crash);
        let code = refused.as_ref().err().map(Refusal::code);
        assert_eq!(code, Some("deny_unrecorded"), "{why}: {refused:?}");
    };
    fs::write(state.path().join("ledger"), "in the way").unwrap();
    refuses("a file where the log should be");
    fs::remove_file(state.path().join("ledger")).unwrap();
    std::os::unix::fs::symlink("/proc/self/nowhere", state.path().join("ledger")).unwrap();
    refuses("a link to nowhere");
    fs::remove_file(state.path().join("ledger")).unwrap();
    gate(state.path())
        .admit(launch("b"), Durability::Crash)
        .unwrap()
        .spend();
    let keyset = keys(state.path()).keyset_file();
    fs::write(&keyset, "{}").unwrap();
    refuses("keys that can't be read");
    fs::remove_file(&keyset).unwrap();
    refuses("a log that another key signed");
}

#[test]
fn a_log_that_was_changed_takes_no_more() {
    let state = tempfile::tempdir().unwrap();
    gate(state.path())
        .admit(launch("a"), Durability::Crash)
        .unwrap()
        .spend();
    let checkpoint = state.path().join("ledger/checkpoint");
    let text = fs::read_to_string(&checkpoint).unwrap();
    fs::write(&checkpoint, text.replacen("\n1\n", "\n0\n", 1)).unwrap();
    let refused = gate(state.path()).admit(launch("b"), Durability::Crash);
    assert!(
        matches!(refused, Err(Refusal::Unrecorded(_))),
        "{refused:?}"
    );
}

#[test]
fn runs_side_by_side_share_the_log_in_order() {
    let state = tempfile::tempdir().unwrap();
    let (mut one, mut two) = (gate(state.path()), gate(state.path()));
    one.admit(launch("1"), Durability::Crash).unwrap().spend();
    two.admit(launch("2"), Durability::Crash).unwrap().spend();
    one.ended("1", Ending::default(), Durability::Crash)
        .unwrap();
    // Nobody wrote in between.
    one.refused("3", "/x", "deny_hidden", "no").unwrap();
    two.ended("2", Ending::default(), Durability::Crash)
        .unwrap();
    assert_eq!(
        told(state.path()),
        [
            "run_launched 1",
            "run_launched 2",
            "run_ended 1",
            "run_refused 3",
            "run_ended 2"
        ]
    );
    verified(state.path());
}

#[test]
fn many_at_once_lose_nothing() {
    const MANY: usize = 6;
    const EACH: usize = 10;
    let state = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for run in 0..MANY {
            let state = state.path();
            scope.spawn(move || {
                let mut gate = gate(state);
                for n in 0..EACH {
                    let id = format!("{run}.{n}");
                    gate.admit(launch(&id), Durability::Crash).unwrap().spend();
                    gate.ended(&id, Ending::default(), Durability::Crash)
                        .unwrap();
                }
            });
        }
    });
    assert_eq!(
        verified(state.path()).checkpoint.size() as usize,
        2 * MANY * EACH
    );
    let told = told(state.path());
    for run in 0..MANY {
        for n in 0..EACH {
            let place = |kind| {
                told.iter()
                    .position(|line| *line == format!("{kind} {run}.{n}"))
            };
            assert!(place("run_launched").unwrap() < place("run_ended").unwrap());
        }
    }
}

#[test]
fn an_interrupted_writer_leaves_a_word_about_it() {
    let state = tempfile::tempdir().unwrap();
    gate(state.path())
        .admit(launch("a"), Durability::Crash)
        .unwrap()
        .spend();
    let entries = files_below(&state.path().join("ledger/tile/entries"));
    let [bundle] = &entries[..] else {
        panic!("{entries:?}");
    };
    // A whole entry and a piece of the next: what a writer leaves that is killed before it signs.
    let mut file = OpenOptions::new().append(true).open(bundle).unwrap();
    file.write_all(b"\x00\x03abc\x00\x09de").unwrap();
    drop(file);
    gate(state.path())
        .admit(launch("b"), Durability::Crash)
        .unwrap()
        .spend();
    assert_eq!(
        told(state.path()),
        ["run_launched a", "log_recovered", "run_launched b"]
    );
    let RunEvent::LogRecovered {
        dropped_entries, ..
    } = events(state.path())[1]
    else {
        panic!("not recovered");
    };
    assert_eq!(dropped_entries, 1);
    verified(state.path());
}

#[test]
fn keys_may_change_between_launch_and_end() {
    for compromise in [false, true] {
        let state = tempfile::tempdir().unwrap();
        let source = KeySource::Directory;
        let mut gate = gate(state.path());
        gate.admit(launch("a"), Durability::Crash).unwrap().spend();
        let old = keys(state.path()).load().unwrap().id().to_string();
        let act = match compromise {
            true => belljar_gate::key_change::KeyAct::Compromise(&old),
            false => belljar_gate::key_change::KeyAct::Rotate,
        };
        let algorithm = belljar_manifest::keys::Algorithm::Ed25519;
        belljar_gate::key_change::change_keys(state.path(), &source, algorithm, act).unwrap();
        gate.ended("a", Ending::default(), Durability::Crash)
            .unwrap();
        let new = keys(state.path()).load().unwrap();
        let signed_by = verified(state.path()).signed_by;
        let public = new.keyset().key(new.id()).unwrap().public_key().unwrap();
        assert_eq!(
            signed_by.bytes(),
            public.unwrap().bytes(),
            "the new key signs"
        );
        assert_eq!(told(state.path()).last().unwrap(), "run_ended a");
    }
}
