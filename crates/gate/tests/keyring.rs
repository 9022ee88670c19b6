//! Keys on disk: who may read them, who may change them, and where else they may come from.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use belljar_gate::keyring::{KeyDir, KeyError, KeySource, known_keys};
use belljar_manifest::keys::{KeyId, KeyState, SecretKey};

fn own(state: &Path) -> KeyDir {
    KeyDir::of(state, KeySource::Directory)
}

fn secret_file(state: &Path, id: KeyId) -> PathBuf {
    state.join("keys").join(format!("{id}.key"))
}

fn state_of(keys: &KeyDir, id: KeyId) -> KeyState {
    keys.keyset().unwrap().key(id).unwrap().state()
}

/// A key file outside the state directory.
fn key_file(directory: &Path, seed: u8) -> (PathBuf, KeyId) {
    let secret = SecretKey::ed25519(&[seed; 32]);
    let path = directory.join("elsewhere.key");
    fs::write(&path, secret.to_text().as_bytes()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    (path, secret.id())
}

#[test]
fn the_first_key_is_made_once_and_signs() {
    let state = tempfile::tempdir().unwrap();
    let keys = own(state.path());
    assert!(matches!(keys.load(), Err(KeyError::NoKey)));
    assert_eq!(keys.keyset().unwrap().keys().count(), 0);
    let id = keys.init(1).unwrap();
    assert_eq!(keys.init(2).unwrap(), id);
    assert_eq!(keys.load_or_init(3).unwrap().id(), id);
    assert_eq!(keys.keyset().unwrap().keys().count(), 1);
}

#[test]
fn a_key_goes_from_active_to_retired_to_compromised_and_never_back() {
    let state = tempfile::tempdir().unwrap();
    let keys = own(state.path());
    let first = keys.init(1).unwrap();
    let second = keys.rotate(2).unwrap();
    assert_eq!(state_of(&keys, first), KeyState::Retired);
    assert_eq!(keys.load().unwrap().id(), second);
    assert_eq!(
        known_keys(&keys.keyset().unwrap(), "belljar/runs").len(),
        2,
        "a retired key verifies"
    );
    keys.compromise(&first.to_string(), 3).unwrap();
    assert_eq!(state_of(&keys, first), KeyState::Compromised);
    assert_eq!(known_keys(&keys.keyset().unwrap(), "belljar/runs").len(), 1);
    assert!(matches!(
        keys.retire(&first.to_string(), 4),
        Err(KeyError::Change(_))
    ));
    assert_eq!(state_of(&keys, first), KeyState::Compromised);
}

#[test]
fn a_set_never_stays_without_a_key_that_signs() {
    let state = tempfile::tempdir().unwrap();
    let keys = own(state.path());
    let first = keys.init(1).unwrap();
    // The beginning of an id is enough.
    keys.retire(&first.to_string()[..6], 2).unwrap();
    let second = keys.load().unwrap().id();
    assert_ne!(first, second);
    keys.compromise(&second.to_string(), 3).unwrap();
    let third = keys.load().unwrap().id();
    assert!(third != first && third != second);
}

#[test]
fn a_key_that_is_not_named_clearly_is_not_touched() {
    let state = tempfile::tempdir().unwrap();
    let keys = own(state.path());
    keys.init(1).unwrap();
    for given in ["", "zz", "/"] {
        assert!(
            matches!(
                keys.compromise(given, 2),
                Err(KeyError::Ambiguous { found: 0, .. })
            ),
            "{given:?}"
        );
    }
    let actives = |keys: &KeyDir| {
        let set = keys.keyset().unwrap();
        set.keys()
            .filter(|key| key.state() == KeyState::Active)
            .count()
    };
    assert_eq!(actives(&keys), 1);
}

#[test]
fn secrets_are_their_owners_alone_and_refused_when_not() {
    let state = tempfile::tempdir().unwrap();
    let keys = own(state.path());
    let id = keys.init(1).unwrap();
    let file = secret_file(state.path(), id);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o600);
    assert_eq!(mode(&state.path().join("keys")), 0o700);
    for exposed in [0o640, 0o604, 0o620, 0o666] {
        fs::set_permissions(&file, fs::Permissions::from_mode(exposed)).unwrap();
        let refused = keys.load();
        assert!(
            matches!(refused, Err(KeyError::Exposed { .. })),
            "{exposed:o}: {refused:?}"
        );
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).unwrap();
    keys.load().unwrap();
}

#[test]
fn nothing_of_a_secret_is_in_the_set_or_in_what_is_printed() {
    let state = tempfile::tempdir().unwrap();
    let keys = own(state.path());
    let id = keys.init(1).unwrap();
    let text = fs::read_to_string(secret_file(state.path(), id)).unwrap();
    let secret = text.split_whitespace().last().unwrap();
    let set = fs::read_to_string(keys.keyset_file()).unwrap();
    let printed = format!("{:?} {:?}", keys, keys.load().unwrap());
    assert_eq!(secret.len(), 64);
    assert!(!set.contains(secret) && !printed.contains(secret));
}

#[test]
fn another_keys_secret_does_not_pass() {
    let state = tempfile::tempdir().unwrap();
    let keys = own(state.path());
    let first = keys.init(1).unwrap();
    let second = keys.rotate(2).unwrap();
    fs::copy(
        secret_file(state.path(), first),
        secret_file(state.path(), second),
    )
    .unwrap();
    assert!(matches!(keys.load(), Err(KeyError::WrongSecret { .. })));
    fs::write(
        secret_file(state.path(), second),
        "belljar-secret-key-v1 ed25519 00",
    )
    .unwrap();
    assert!(matches!(keys.load(), Err(KeyError::NotSecret { .. })));
}

#[test]
fn a_damaged_set_is_an_error_and_not_an_empty_set() {
    let state = tempfile::tempdir().unwrap();
    let keys = own(state.path());
    keys.init(1).unwrap();
    for damage in [&b""[..], b"{}", b"\xff", &[b' '; 128 * 1024]] {
        fs::write(keys.keyset_file(), damage).unwrap();
        assert!(matches!(keys.load_or_init(2), Err(KeyError::Keyset { .. })));
        assert!(matches!(keys.rotate(2), Err(KeyError::Keyset { .. })));
    }
}

#[test]
fn many_who_begin_at_once_get_one_key() {
    const MANY: usize = 8;
    let state = tempfile::tempdir().unwrap();
    let start = Barrier::new(MANY);
    let ids: Vec<KeyId> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..MANY)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    own(state.path()).load_or_init(1).unwrap().id()
                })
            })
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(own(state.path()).keyset().unwrap().keys().count(), 1);
}

#[test]
fn rotations_at_once_lose_none() {
    const MANY: usize = 6;
    let state = tempfile::tempdir().unwrap();
    own(state.path()).init(1).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..MANY {
            scope.spawn(|| own(state.path()).rotate(2).unwrap());
        }
    });
    let keys = own(state.path());
    assert_eq!(keys.keyset().unwrap().keys().count(), 1 + MANY);
    keys.load().unwrap();
}

#[test]
fn a_key_may_be_kept_in_a_file_elsewhere() {
    let state = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let (file, id) = key_file(elsewhere.path(), 7);
    let keys = KeyDir::of(state.path(), KeySource::File(file.clone()));
    assert_eq!(keys.init(1).unwrap(), id);
    assert_eq!(keys.load().unwrap().id(), id);
    assert!(!secret_file(state.path(), id).exists());
    assert!(
        matches!(own(state.path()).load(), Err(KeyError::File { .. })),
        "without the file there is no secret"
    );
    // The same key again is no rotation.
    assert!(matches!(keys.rotate(2), Err(KeyError::Change(_))));
    let (_, next) = key_file(elsewhere.path(), 8);
    assert!(matches!(keys.load(), Err(KeyError::WrongSecret { .. })));
    assert_eq!(keys.rotate(2).unwrap(), next);
    assert_eq!(keys.load().unwrap().id(), next);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(keys.load(), Err(KeyError::Exposed { .. })));
}

#[test]
fn a_key_may_be_printed_by_a_command() {
    let state = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let (file, id) = key_file(elsewhere.path(), 9);
    let by = |command: String| KeyDir::of(state.path(), KeySource::Command(command));
    let keys = by(format!("cat '{}'", file.display()));
    assert_eq!(keys.init(1).unwrap(), id);
    assert_eq!(keys.load().unwrap().id(), id);
    for (command, is_failure) in [
        (format!("cat '{}'; exit 3", file.display()), true),
        ("kill -9 $$".to_owned(), true),
        ("/nonexistent/program".to_owned(), true),
        ("true".to_owned(), false),
        ("echo belljar-secret-key-v1 ed25519 zz".to_owned(), false),
        ("yes".to_owned(), true),
    ] {
        let refused = by(command.clone()).load();
        match is_failure {
            true => assert!(
                matches!(refused, Err(KeyError::Command { .. })),
                "{command}: {refused:?}"
            ),
            false => assert!(
                matches!(refused, Err(KeyError::NotSecret { .. })),
                "{command}: {refused:?}"
            ),
        }
    }
}

#[test]
fn hmac_keys_have_a_set_of_their_own() {
    let state = tempfile::tempdir().unwrap();
    let keys = KeyDir::hmac_of(state.path());
    let first = keys.init(1).unwrap();
    let second = keys.rotate(2).unwrap();
    let ring = keys.load().unwrap();
    assert_eq!(ring.id(), second);
    assert!(own(state.path()).keyset().unwrap().keys().next().is_none());
    // The secret of a retired one is needed to verify; of a compromised one it is not.
    fs::remove_file(state.path().join(format!("keys/hmac/{first}.key"))).unwrap();
    assert!(keys.load().is_err());
    keys.compromise(&first.to_string(), 3).unwrap();
    keys.load().unwrap();
    assert!(
        known_keys(&keys.keyset().unwrap(), "belljar/runs").is_empty(),
        "no log is believed for an HMAC key"
    );
}
