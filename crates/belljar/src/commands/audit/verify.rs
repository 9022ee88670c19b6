//! `belljar audit verify`: does the record hold?

use crate::cli::Verify;
use crate::commands::files::{read_file, read_keyset};
use crate::exit::Failure;
use belljar_gate::key_change::state_name;
use belljar_gate::keyring::{KeyDir, known_keys};
use belljar_gate::record::{Entry, RunEvent};
use belljar_gate::{FleetEntry, LogKind};
use belljar_ledger::{
    Checkpoint, Fault, KnownKey, MaxAge, Place, ProveError, Reader, Unsigned, Verified,
    VerifyOptions, verify_and_visit,
};
use belljar_manifest::keys::{KeyEntry, KeyState, Keyset};
use belljar_supervisor::{StateDir, key_source};
use serde_json::json;
use std::path::Path;
use std::time::SystemTime;

use super::finding::{Finding, in_words, key_of, known_as, time_of};
use super::kind;

/// The most that is read of a checkpoint or a proof: more than either can be.
pub(super) const MAX_PROOF: u64 = 256 * 1024;

pub(super) fn verify(arguments: &Verify) -> Result<u8, Failure> {
    let finding = match &arguments.proof {
        Some(file) => super::proof::of_proof(arguments, file)?,
        None => of_log(arguments)?,
    };
    finding.tell(arguments.format.output);
    Ok(finding.code)
}

/// A state of the fleet's log that was noted in the log of runs.
struct Anchor {
    size: u64,
    root: String,
}

/// A log that was gone through.
struct Pass {
    verified: Verified,
    anchors: Vec<Anchor>,
    /// Entries that this version does not understand: how many, and the first.
    foreign: (u64, Option<u64>),
}

fn of_log(arguments: &Verify) -> Result<Finding, Failure> {
    let log = arguments.log.map_or(LogKind::Runs, kind);
    let state = StateDir::existing()?;
    let state = state.path();
    let keyset = match &arguments.keyset {
        Some(file) => read_keyset(file)?,
        None => KeyDir::of(state, key_source()).keyset()?,
    };
    let options = VerifyOptions {
        origin: Some(log.origin().to_owned()),
        since: arguments
            .since
            .as_deref()
            .map(|file| read_checkpoint(file, log, &keyset))
            .transpose()?,
        min_size: 0,
        max_age: arguments.max_age.map(|age| MaxAge {
            age,
            now: SystemTime::now(),
        }),
    };
    let is_demanding =
        arguments.since.is_some() || arguments.max_age.is_some() || arguments.keyset.is_some();
    if !is_demanding && was_never_written(log, state, &keyset) {
        let message = format!("nothing was ever recorded in the log of {}", log.as_str());
        let details = json!({"log": log.as_str(), "entries": 0});
        return Ok(Finding::good("empty", message, Vec::new(), details));
    }
    Ok(match pass(log, state, &keyset, &options) {
        Err(fault) => Finding::bad(log, &fault, &keyset),
        Ok(pass) => match superseding(&keyset, &pass.verified.signed_by) {
            Some(next) => Finding::superseded(log, &pass.verified, next, &keyset),
            None => hold_together(log, state, &keyset, pass),
        },
    })
}

/// The key that signs in place of this one. Whoever changes keys signs the logs with the new one at once, so that a log whose newest
/// signature is by a key that has a successor is one from before: a copy that was put back.
fn superseding<'k>(keyset: &'k Keyset, signed_by: &KnownKey) -> Option<&'k KeyEntry> {
    let key = key_of(keyset, signed_by)?;
    if key.state() != KeyState::Retired {
        return None;
    }
    let signing = keyset.signing_key()?;
    keyset.key(signing)
}

/// Whether there is no trace of a log. Whoever writes one has a key first; and a fleet needs a key, too.
fn was_never_written(log: LogKind, state: &Path, keyset: &Keyset) -> bool {
    match log {
        LogKind::Runs => {
            LogKind::ALL.iter().all(|log| is_gone(*log, state)) && keyset.keys().next().is_none()
        }
        // There are runs without a fleet: then nothing about one is noted with them.
        LogKind::Fleet => {
            is_gone(log, state)
                && anchors_in_runs(state, keyset).is_ok_and(|found| found.is_empty())
        }
    }
}

fn is_gone(log: LogKind, state: &Path) -> bool {
    std::fs::symlink_metadata(log.directory(state))
        .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// The two logs vouch for each other: what was noted of the fleet's log must still be so.
fn hold_together(log: LogKind, state: &Path, keyset: &Keyset, pass: Pass) -> Finding {
    let mut notes = Vec::new();
    let anchors = match log {
        LogKind::Runs => Ok(pass.anchors),
        LogKind::Fleet => anchors_in_runs(state, keyset),
    };
    let anchors = anchors.unwrap_or_else(|fault| {
        let why = in_words(LogKind::Runs, &fault, keyset);
        notes.push(format!(
            "the log of runs does not verify, so what it notes of the fleet's was not compared: {why}"
        ));
        Vec::new()
    });
    if let Err(fault) = check_anchors(log, state, keyset, &anchors) {
        let mut finding = Finding::bad(LogKind::Fleet, &fault, keyset);
        if log == LogKind::Runs {
            finding.message = format!("the log of runs holds, but {}", finding.message);
        }
        return finding;
    }
    let Verified {
        checkpoint,
        signed_by,
        torn_tail,
    } = &pass.verified;
    if let (count @ 1.., Some(first)) = pass.foreign {
        notes.push(format!(
            "{count} entries are not in a form that this version knows, the first of them entry {first}; their signature holds"
        ));
    }
    if *torn_tail {
        notes.push(
            "somebody is writing to it, or was interrupted: what is not signed yet does not count"
                .into(),
        );
    }
    let key = key_of(keyset, signed_by);
    let id = key.map_or_else(|| signed_by.id().to_string(), |key| key.id().to_string());
    let state = key.map_or("unknown", |key| state_name(key.state()));
    let signed_at = time_of(checkpoint);
    let message = format!(
        "the log of {} is whole: {} entries, signed by key {id} ({state}) at {}",
        log.as_str(),
        checkpoint.size(),
        signed_at.as_deref().unwrap_or("an unknown time"),
    );
    let details = json!({
        "log": log.as_str(), "entries": checkpoint.size(), "root": checkpoint.root().to_string(),
        "durable_entries": checkpoint.durable(), "signed_by": id, "key_state": state, "signed_at": signed_at,
        "unsigned_tail": torn_tail, "entries_not_understood": pass.foreign.0,
        "first_not_understood": pass.foreign.1, "fleet_anchors": anchors.len(),
    });
    Finding::good("ok", message, notes, details)
}

/// Goes through a whole log.
fn pass(
    log: LogKind,
    state: &Path,
    keyset: &Keyset,
    options: &VerifyOptions,
) -> Result<Pass, Fault> {
    let mut anchors = Vec::new();
    let mut foreign = (0, None);
    let known = known_keys(keyset, log.origin());
    let verified = verify_and_visit(&log.directory(state), &known, options, |index, bytes| {
        let is_known = match log {
            LogKind::Fleet => serde_json::from_slice::<FleetEntry>(bytes).is_ok(),
            LogKind::Runs => match serde_json::from_slice::<Entry<RunEvent>>(bytes) {
                Ok(entry) => {
                    if let RunEvent::FleetAnchored { size, root } = entry.what {
                        anchors.push(Anchor { size, root });
                    }
                    true
                }
                Err(_) => false,
            },
        };
        if !is_known {
            foreign = (foreign.0 + 1, foreign.1.or(Some(index)));
        }
    })?;
    // The first entry follows the first signature at once: who shows a log without any shows an old copy.
    if verified.checkpoint.size() == 0 {
        return Err(Fault::Unsigned(Unsigned::Missing));
    }
    Ok(Pass {
        verified,
        anchors,
        foreign,
    })
}

/// What is noted of the fleet's log. A fleet notes itself when it is opened, so where there is a key there is a log of runs.
fn anchors_in_runs(state: &Path, keyset: &Keyset) -> Result<Vec<Anchor>, Fault> {
    if was_never_written(LogKind::Runs, state, keyset) {
        return Ok(Vec::new());
    }
    let options = VerifyOptions {
        origin: Some(LogKind::Runs.origin().to_owned()),
        ..VerifyOptions::default()
    };
    Ok(pass(LogKind::Runs, state, keyset, &options)?.anchors)
}

/// The fleet's log had this size and this root once, so it must have had them on its way to what it is now.
fn check_anchors(
    log: LogKind,
    state: &Path,
    keyset: &Keyset,
    anchors: &[Anchor],
) -> Result<(), Fault> {
    let Some(expected) = anchors.iter().map(|anchor| anchor.size).max() else {
        return Ok(());
    };
    let directory = LogKind::Fleet.directory(state);
    if is_gone(LogKind::Fleet, state) {
        return Err(Fault::Truncated { have: 0, expected });
    }
    if log == LogKind::Runs {
        let options = VerifyOptions {
            origin: Some(LogKind::Fleet.origin().to_owned()),
            min_size: expected,
            ..VerifyOptions::default()
        };
        pass(LogKind::Fleet, state, keyset, &options)?;
    }
    let reader = Reader::open(&directory)?;
    for anchor in anchors {
        if anchor.size > reader.size() {
            let (have, expected) = (reader.size(), anchor.size);
            return Err(Fault::Truncated { have, expected });
        }
        let root = reader.root_at(anchor.size).map_err(|error| match error {
            ProveError::Log(fault) => fault,
            ProveError::OutOfRange { asked, size } => Fault::Truncated {
                have: size,
                expected: asked,
            },
        })?;
        if root.to_string() != anchor.root {
            return Err(Fault::Tampered(Place::History { size: anchor.size }));
        }
    }
    Ok(())
}

/// A checkpoint that was kept elsewhere. Any key of ours may have signed it, one that was given up since too: who kept
/// it vouches for it, and a signature that fits none means that it was damaged or is somebody else's.
fn read_checkpoint(file: &Path, log: LogKind, keyset: &Keyset) -> Result<Checkpoint, Failure> {
    let not_ours = |why: String| {
        Failure::Invalid(
            format!("{}: {why}", file.display()),
            format!(
                "--since takes what `belljar audit checkpoint --log {}` printed",
                log.as_str()
            ),
        )
    };
    let checkpoint = Checkpoint::parse(&read_file(file, MAX_PROOF)?)
        .map_err(|invalid| not_ours(invalid.to_string()))?;
    if checkpoint.origin() != log.origin() {
        return Err(not_ours(format!(
            "it is of the log {:?}",
            checkpoint.origin()
        )));
    }
    let every: Vec<KnownKey> = keyset
        .keys()
        .filter_map(|key| known_as(key, log.origin()))
        .collect();
    checkpoint
        .signed_by(&every)
        .map_err(|distrust| not_ours(distrust.to_string()))?;
    Ok(checkpoint)
}
