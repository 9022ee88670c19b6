//! Changing keys: on record, and the logs still hold; what only a key that was given up signed does not.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use belljar_gate::key_change::{KeyAct, KeyChange, Resigned, change_keys};
use belljar_gate::keyring::{KeyDir, KeySource, known_keys};
use belljar_gate::record::RunEvent;
use belljar_gate::{
    Durability, FleetGate, FleetOptions, Hands, LogError, LogKind, RunGate, read_state,
};
use belljar_ledger::{Fault, Reader, Verified, VerifyOptions, verify};
use belljar_manifest::keys::{Algorithm, KeyId, KeyState};
use belljar_policy::Contract;
use belljar_replication::{Code, WorkerId};

struct NoHands;

impl Hands for NoHands {
    fn kill(&self, _: WorkerId, _: Code) {}
    fn freeze(&self, _: WorkerId) {}
    fn thaw(&self, _: WorkerId) {}
}

fn fleet(state: &Path) -> FleetGate {
    let options = FleetOptions {
        contract: Contract::new(1, 4, std::time::Duration::ZERO, None),
        predicates: Vec::new(),
        keys: KeySource::Directory,
        hands: Box::new(NoHands),
    };
    FleetGate::open(state, options).unwrap()
}

fn change(state: &Path, act: KeyAct<'_>) -> KeyChange {
    change_keys(state, &KeySource::Directory, Algorithm::Ed25519, act).unwrap()
}

fn signing(state: &Path) -> KeyId {
    let keys = KeyDir::of(state, KeySource::Directory);
    keys.keyset().unwrap().signing_key().unwrap()
}

fn check(state: &Path, log: LogKind) -> Result<Verified, Fault> {
    let keyset = KeyDir::of(state, KeySource::Directory).keyset().unwrap();
    let options = VerifyOptions {
        origin: Some(log.origin().to_owned()),
        ..VerifyOptions::default()
    };
    let known = known_keys(&keyset, log.origin());
    verify(&log.directory(state), &known, &options)
}

/// The newest entries of the log of runs.
fn last_entries(state: &Path, count: u64) -> Vec<String> {
    let reader = Reader::open(&LogKind::Runs.directory(state)).unwrap();
    reader
        .entries(reader.size() - count)
        .map(|entry| String::from_utf8(entry.unwrap().bytes).unwrap())
        .collect()
}

#[test]
fn each_change_is_on_record() {
    let state = tempfile::tempdir().unwrap();
    let first = change(state.path(), KeyAct::Init);
    assert_eq!(first.changed, [(first.signing.unwrap(), KeyState::Active)]);
    assert_eq!(first.recorded.unwrap(), Some(0));
    assert_eq!(first.fleet.unwrap(), Resigned::Absent);
    let again = change(state.path(), KeyAct::Init);
    assert!(again.changed.is_empty() && again.recorded.unwrap().is_none());
    let second = change(state.path(), KeyAct::Rotate);
    assert_eq!(second.recorded.unwrap(), Some(2));
    let [retired, active] = &last_entries(state.path(), 2)[..] else {
        panic!("two changes");
    };
    let says = |entry: &str, key: KeyId, state: &str| {
        entry.contains(&format!(
            r#""kind":"key_changed","key":"{key}","state":"{state}""#
        ))
    };
    assert!(
        says(retired, first.signing.unwrap(), "retired"),
        "{retired}"
    );
    assert!(says(active, second.signing.unwrap(), "active"), "{active}");
    check(state.path(), LogKind::Runs).unwrap();
}

#[test]
fn a_key_given_up_takes_no_log_with_it() {
    let state = tempfile::tempdir().unwrap();
    drop(fleet(state.path()));
    let first = signing(state.path());
    let changed = change(state.path(), KeyAct::Compromise(&first.to_string()));
    let second = changed.signing.unwrap();
    assert_ne!(first, second);
    assert_eq!(changed.fleet.unwrap(), Resigned::Done);
    changed.recorded.unwrap();
    for log in LogKind::ALL {
        check(state.path(), log).unwrap();
    }
    read_state(state.path()).unwrap();
    // And the logs can be written as before.
    drop(fleet(state.path()));
    check(state.path(), LogKind::Fleet).unwrap();
}

#[test]
fn a_retired_key_given_up_takes_no_log_with_it_either() {
    let state = tempfile::tempdir().unwrap();
    drop(fleet(state.path()));
    let first = signing(state.path());
    // As if it had not been signed anew when the key was rotated.
    KeyDir::of(state.path(), KeySource::Directory)
        .rotate(1)
        .unwrap();
    let changed = change(state.path(), KeyAct::Compromise(&first.to_string()));
    assert_eq!(changed.changed, [(first, KeyState::Compromised)]);
    for log in LogKind::ALL {
        check(state.path(), log).unwrap();
    }
}

#[test]
fn what_only_a_compromised_key_signed_does_not_count_and_is_never_signed_anew() {
    let state = tempfile::tempdir().unwrap();
    drop(fleet(state.path()));
    let first = signing(state.path()).to_string();
    let forged = LogKind::ALL.map(|log| fs::read(log.directory(state.path()).join("checkpoint")));
    change(state.path(), KeyAct::Compromise(&first));
    for (log, checkpoint) in LogKind::ALL.into_iter().zip(forged) {
        let place = log.directory(state.path()).join("checkpoint");
        fs::write(place, checkpoint.unwrap()).unwrap();
        assert!(
            matches!(check(state.path(), log), Err(Fault::UnknownKey { .. })),
            "{log:?}"
        );
    }
    // Asking again blesses nothing.
    let again = change(state.path(), KeyAct::Compromise(&first));
    assert!(again.changed.is_empty());
    assert!(again.fleet.is_err());
    for log in LogKind::ALL {
        assert!(check(state.path(), log).is_err(), "{log:?}");
    }
    let event = RunEvent::KillSwitchReset {
        reason: "x".into(),
        by: None,
    };
    let written = RunGate::of(state.path(), KeySource::Directory).note(event, Durability::Crash);
    assert!(matches!(written, Err(LogError::Open { .. })));
}

#[test]
fn an_interrupted_change_can_be_brought_to_its_end() {
    let state = tempfile::tempdir().unwrap();
    drop(fleet(state.path()));
    let first = signing(state.path()).to_string();
    // The first step only: another key signs, and the logs are not signed by it yet.
    KeyDir::of(state.path(), KeySource::Directory)
        .rotate(1)
        .unwrap();
    let second = signing(state.path());
    let changed = change(state.path(), KeyAct::Compromise(&first));
    assert_eq!(changed.signing, Some(second), "no third key is made");
    for log in LogKind::ALL {
        check(state.path(), log).unwrap();
    }
}

#[test]
fn a_log_that_does_not_hold_is_not_signed_anew_but_the_key_is_given_up() {
    let state = tempfile::tempdir().unwrap();
    let gate = |n: u32| {
        let reason = format!("entry {n}");
        let event = RunEvent::KillSwitchReset { reason, by: None };
        RunGate::of(state.path(), KeySource::Directory).note(event, Durability::Crash)
    };
    (0..300).for_each(|n| assert_eq!(gate(n).unwrap(), u64::from(n)));
    let first = signing(state.path()).to_string();
    // In the first, full bundle: the right edge, which is all that opening looks at, is as it was.
    let bundle = state.path().join("ledger/tile/entries/000");
    let mut bytes = fs::read(&bundle).unwrap();
    bytes[40] ^= 1;
    fs::write(&bundle, bytes).unwrap();
    let changed = change(state.path(), KeyAct::Compromise(&first));
    assert!(
        matches!(&changed.recorded, Err(LogError::Open { .. })),
        "{:?}",
        changed.recorded
    );
    let keyset = KeyDir::of(state.path(), KeySource::Directory)
        .keyset()
        .unwrap();
    let key = keyset.keys().find(|key| key.id().to_string() == first);
    assert_eq!(key.unwrap().state(), KeyState::Compromised);
    assert!(check(state.path(), LogKind::Runs).is_err());
}

#[test]
fn a_running_controller_signs_with_the_new_key_by_itself() {
    let state = tempfile::tempdir().unwrap();
    let fleet = fleet(state.path());
    let changed = change(state.path(), KeyAct::Rotate);
    assert_eq!(changed.fleet.unwrap(), Resigned::Held);
    let public = {
        let keyset = KeyDir::of(state.path(), KeySource::Directory)
            .keyset()
            .unwrap();
        let key = keyset.key(changed.signing.unwrap()).unwrap();
        key.public_key().unwrap().unwrap().bytes()
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while check(state.path(), LogKind::Fleet)
        .unwrap()
        .signed_by
        .bytes()
        != public
    {
        assert!(std::time::Instant::now() < deadline, "it never noticed");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    drop(fleet);
    // It was noted with the runs from its first moment on.
    let reader = Reader::open(&LogKind::Runs.directory(state.path())).unwrap();
    let first = String::from_utf8(reader.entry(0).unwrap().unwrap()).unwrap();
    assert!(first.contains("fleet_anchored"), "{first}");
}

#[test]
fn hmac_keys_change_without_the_logs() {
    let state = tempfile::tempdir().unwrap();
    let act = |act| change_keys(state.path(), &KeySource::Directory, Algorithm::Hmac, act).unwrap();
    let first = act(KeyAct::Rotate).signing.unwrap().to_string();
    let changed = act(KeyAct::Compromise(&first));
    assert_eq!(changed.fleet.unwrap(), Resigned::Unneeded);
    assert!(changed.recorded.unwrap().is_some());
    assert_eq!(changed.changed.len(), 2);
    check(state.path(), LogKind::Runs).unwrap();
}
