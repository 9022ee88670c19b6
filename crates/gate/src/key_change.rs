//! Changing the keys of a state directory: on record, and with logs that verify afterwards.
//!
//! A log whose newest signature is by a key nobody believes any more is as good as unsigned. So before a key loses all
//! trust, the logs are verified and signed by another one. Wherever this is interrupted, the same command again
//! brings it to its end; nothing signed by a compromised key is ever signed anew.

use std::path::Path;

use belljar_ledger::{Durability, OpenError, VerifyOptions, Wait, verify};
use belljar_manifest::keys::{Algorithm, KeyId, KeyState, Keyset};

use crate::clock::now;
use crate::fleet::FleetNote;
use crate::keyring::{KeyDir, KeyError, KeySource, Keyring, known_keys};
use crate::log::{LogError, LogKind, open};
use crate::record::{Entry, RunEvent};
use crate::run::RunGate;

/// What to do. Keys are named by their id or the beginning of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAct<'a> {
    /// Make the first key, if there is none.
    Init,
    /// Make a new key that signs from now on; retire the one before.
    Rotate,
    /// Let this key verify, but sign no more.
    Retire(&'a str),
    /// Believe nothing that this key signed.
    Compromise(&'a str),
}

/// What came of it. The keys are changed, whatever became of the logs.
#[derive(Debug)]
pub struct KeyChange {
    /// The key that signs.
    pub signing: Option<KeyId>,
    /// Keys that are in another state than before.
    pub changed: Vec<(KeyId, KeyState)>,
    /// The entry of the last change in the log of runs; none if nothing changed.
    pub recorded: Result<Option<u64>, LogError>,
    /// What became of the fleet's log.
    pub fleet: Result<Resigned, LogError>,
}

/// What became of a log's signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resigned {
    /// It is signed by the key that signs now.
    Done,
    /// There is no such log.
    Absent,
    /// A controller writes to it. It notices the change by itself, and signs.
    Held,
    /// Nothing changed that matters to it.
    Unneeded,
}

/// How thoroughly a log is looked at before it is signed anew.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// At its signature and its right edge: the root that is signed is the root that was.
    AtEdge,
    /// At every entry.
    AtAll,
}

/// Changes the keys of an algorithm, records it, and sees to it that the logs are signed by a key that counts.
pub fn change_keys(
    state: &Path,
    source: &KeySource,
    algorithm: Algorithm,
    act: KeyAct<'_>,
) -> Result<KeyChange, KeyError> {
    let keys = match algorithm {
        Algorithm::Ed25519 => KeyDir::of(state, source.clone()),
        Algorithm::Hmac => KeyDir::hmac_of(state),
    };
    let before = keys.keyset()?;
    let outlook = apply(&keys, state, algorithm, act)?;
    let after = keys.keyset()?;
    let changed = changes(&before, &after);
    let recorded = match outlook.runs {
        Ok(_) => record(state, source, &changed),
        Err(trouble) => Err(trouble),
    };
    let fleet = match outlook.fleet {
        Ok(_) if algorithm == Algorithm::Ed25519 && !changed.is_empty() => {
            let ring = keys.load().map_err(LogError::from);
            ring.and_then(|ring| resign(LogKind::Fleet, state, &ring, Wait::Fail, Look::AtEdge))
        }
        other => other,
    };
    Ok(KeyChange {
        signing: after.signing_key(),
        changed,
        recorded,
        fleet,
    })
}

/// How the logs are off before the change is recorded.
struct Outlook {
    runs: Result<Resigned, LogError>,
    fleet: Result<Resigned, LogError>,
}

fn apply(
    keys: &KeyDir,
    state: &Path,
    algorithm: Algorithm,
    act: KeyAct<'_>,
) -> Result<Outlook, KeyError> {
    let now_s = now().wall_ms / 1000;
    let unneeded = Outlook {
        runs: Ok(Resigned::Unneeded),
        fleet: Ok(Resigned::Unneeded),
    };
    match act {
        KeyAct::Init => keys.init(now_s)?,
        KeyAct::Rotate => keys.rotate(now_s)?,
        KeyAct::Retire(key) => keys.retire(key, now_s)?,
        KeyAct::Compromise(key) => {
            let id = keys.find(key)?;
            if keys.keyset()?.signing_key() == Some(id) {
                keys.rotate(now_s)?;
            }
            let outlook = match algorithm {
                Algorithm::Ed25519 => resign_both(keys, state),
                Algorithm::Hmac => unneeded,
            };
            // A log that can't be signed anew is reported; it does not save the key.
            keys.compromise(&id.to_string(), now_s)?;
            return Ok(outlook);
        }
    };
    Ok(unneeded)
}

fn resign_both(keys: &KeyDir, state: &Path) -> Outlook {
    let resigned = |kind, wait| resign(kind, state, &keys.load()?, wait, Look::AtAll);
    Outlook {
        runs: resigned(LogKind::Runs, Wait::Block),
        fleet: resigned(LogKind::Fleet, Wait::Fail),
    }
}

/// Keys of `after` that are new or in another state.
fn changes(before: &Keyset, after: &Keyset) -> Vec<(KeyId, KeyState)> {
    after
        .keys()
        .map(|key| (key.id(), key.state()))
        .filter(|(id, state)| before.key(*id).map(|key| key.state()) != Some(*state))
        .collect()
}

fn record(
    state: &Path,
    source: &KeySource,
    changed: &[(KeyId, KeyState)],
) -> Result<Option<u64>, LogError> {
    let mut gate = RunGate::of(state, source.clone());
    let mut entry = None;
    for (key, state) in changed {
        let event = RunEvent::KeyChanged {
            key: key.to_string(),
            state: state_name(*state).to_owned(),
            by: Some(crate::Actor::this_user()),
        };
        entry = Some(gate.note(event, Durability::Power)?);
    }
    Ok(entry)
}

/// A state as documents call it.
#[must_use]
pub fn state_name(state: KeyState) -> &'static str {
    match state {
        KeyState::Active => "active",
        KeyState::Retired => "retired",
        KeyState::Compromised => "compromised",
    }
}

/// Signs a log anew with the key that signs now, provided that its signature counts.
fn resign(
    kind: LogKind,
    state: &Path,
    ring: &Keyring,
    wait: Wait,
    look: Look,
) -> Result<Resigned, LogError> {
    let directory = kind.directory(state);
    if !directory.exists() {
        return Ok(Resigned::Absent);
    }
    let (mut ledger, recovery) = match open(kind, state, ring, wait) {
        Err(LogError::Open {
            source: OpenError::Locked,
            ..
        }) => return Ok(Resigned::Held),
        opened => opened?,
    };
    if look == Look::AtAll {
        let options = VerifyOptions {
            origin: Some(kind.origin().to_owned()),
            ..VerifyOptions::default()
        };
        let known = known_keys(ring.keyset(), kind.origin());
        verify(&directory, &known, &options).map_err(|fault| LogError::Open {
            kind,
            source: OpenError::Damaged(fault),
        })?;
    }
    if !recovery.is_clean() {
        let (dropped_entries, dropped_bytes) = (recovery.dropped_entries, recovery.dropped_bytes);
        let bytes = match kind {
            LogKind::Runs => Entry::encode(
                now(),
                RunEvent::LogRecovered {
                    dropped_entries,
                    dropped_bytes,
                },
            ),
            LogKind::Fleet => Entry::encode(
                now(),
                FleetNote::LogRecovered {
                    dropped_entries,
                    dropped_bytes,
                },
            ),
        };
        ledger.append(&bytes?)?;
    }
    ledger.refresh(Durability::Power)?;
    Ok(Resigned::Done)
}
