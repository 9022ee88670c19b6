//! `belljar keys`: who signs, and whose signatures count.

use crate::cli::{Format, KeyKind, Keys, OutputFormat};
use crate::exit::{self, Failure};
use crate::print::{self, Line};
use belljar_gate::LogError;
use belljar_gate::key_change::{KeyAct, KeyChange, Resigned, change_keys, state_name};
use belljar_gate::keyring::KeyDir;
use belljar_manifest::keys::{Algorithm, KeyEntry, Keyset};
use belljar_supervisor::{StateDir, key_source};
use serde_json::{Value, json};
use std::path::Path;

pub(crate) fn keys(what: &Keys) -> Result<u8, Failure> {
    let state = match what {
        Keys::Init { .. } => StateDir::find(),
        Keys::List { .. } | Keys::Rotate { .. } | Keys::Retire { .. } | Keys::Compromise { .. } => {
            StateDir::existing()
        }
    }?;
    let state = state.path();
    match what {
        Keys::Init { format } => change(state, Algorithm::Ed25519, KeyAct::Init, format),
        Keys::List { format } => list(state, format),
        Keys::Rotate { algorithm, format } => {
            let algorithm = match algorithm {
                KeyKind::Ed25519 => Algorithm::Ed25519,
                KeyKind::Hmac => Algorithm::Hmac,
            };
            change(state, algorithm, KeyAct::Rotate, format)
        }
        Keys::Retire { key, format } => {
            let algorithm = algorithm_of(state, key)?;
            change(state, algorithm, KeyAct::Retire(key), format)
        }
        Keys::Compromise { key, format } => {
            let algorithm = algorithm_of(state, key)?;
            change(state, algorithm, KeyAct::Compromise(key), format)
        }
    }
}

/// The two sets of a state directory.
fn sets(state: &Path) -> Result<[Keyset; 2], Failure> {
    Ok([
        KeyDir::of(state, key_source()).keyset()?,
        KeyDir::hmac_of(state).keyset()?,
    ])
}

/// Which set has the key. One that begins the ids of several is refused by the set.
fn algorithm_of(state: &Path, given: &str) -> Result<Algorithm, Failure> {
    let [ed25519, hmac] = sets(state)?;
    let has = |set: &Keyset| {
        set.keys()
            .any(|key| key.id().to_string().starts_with(given))
    };
    match (has(&ed25519), has(&hmac)) {
        (false, true) => Ok(Algorithm::Hmac),
        (true, true) => Err(Failure::Invalid(
            format!("{given} is the beginning of several ids"),
            "give more of it".into(),
        )),
        _ => Ok(Algorithm::Ed25519),
    }
}

fn list(state: &Path, format: &Format) -> Result<u8, Failure> {
    let sets = sets(state)?;
    let rows = sets.iter().flat_map(|set| {
        set.keys()
            .map(|key| (key, set.signing_key() == Some(key.id())))
    });
    if format.output == OutputFormat::Json {
        let [ed25519, _] = &sets;
        print::json(&json!({
            "signing": ed25519.signing_key().map(|id| id.to_string()),
            "keyset_file": KeyDir::of(state, key_source()).keyset_file(),
            "keys": rows.map(|(key, signs)| described(key, signs)).collect::<Vec<_>>(),
        }));
        return Ok(exit::OK);
    }
    print::out(&format!(
        "{:<18}{:<10}{:<13}{:<26}SIGNS\n",
        "ID", "ALGORITHM", "STATE", "CREATED"
    ));
    for (key, signs) in rows {
        print::out(&format!(
            "{:<18}{:<10}{:<13}{:<26}{}\n",
            key.id().to_string(),
            key.algorithm().as_str(),
            state_name(key.state()),
            print::utc(key.created_at().saturating_mul(1000)),
            if signs { "yes" } else { "no" },
        ));
    }
    Ok(exit::OK)
}

fn described(key: &KeyEntry, signs: bool) -> Value {
    let public = key.public_key().ok().flatten().map(ToString::to_string);
    json!({
        "id": key.id().to_string(), "algorithm": key.algorithm().as_str(), "state": state_name(key.state()),
        "created_at": key.created_at(), "signs": signs, "public": public,
    })
}

fn change(
    state: &Path,
    algorithm: Algorithm,
    act: KeyAct<'_>,
    format: &Format,
) -> Result<u8, Failure> {
    let KeyChange {
        signing,
        changed,
        recorded,
        fleet,
    } = change_keys(state, &key_source(), algorithm, act)?;
    let signing = signing.map(|id| id.to_string());
    if format.output == OutputFormat::Json {
        let error = |error: &LogError| json!({"message": belljar_gate::in_full(error), "hint": error.hint()});
        print::json(&json!({
            "signing": signing,
            "changed": changed.iter()
                .map(|(id, state)| json!({"id": id.to_string(), "state": state_name(*state)}))
                .collect::<Vec<_>>(),
            "entry": recorded.as_ref().ok().copied().flatten(),
            "fleet_log": fleet.as_ref().ok().map(|resigned| resigned_name(*resigned)),
            "errors": recorded.as_ref().err().into_iter().chain(fleet.as_ref().err()).map(error).collect::<Vec<_>>(),
        }));
        return Ok(if recorded.is_ok() && fleet.is_ok() {
            exit::OK
        } else {
            exit::INTERNAL
        });
    }
    for (id, state) in &changed {
        print::out(&format!("{id}  {}\n", state_name(*state)));
    }
    match (&signing, changed.is_empty()) {
        (Some(id), true) => print::out(&format!("nothing changed; key {id} signs\n")),
        (Some(id), false) => print::out(&format!("key {id} signs from now on\n")),
        (None, _) => {}
    }
    if fleet.as_ref().is_ok_and(|fleet| *fleet == Resigned::Held) {
        print::line(
            Line::Note,
            "the fleet's controller is running; it signs with the new key within a second",
        );
    }
    if matches!(act, KeyAct::Compromise(_)) && recorded.is_ok() && fleet.is_ok() {
        print::line(
            Line::Note,
            "the logs were signed as they are; whoever had the key could have written to them until now",
        );
        print::line(
            Line::Hint,
            "hold them against a checkpoint kept elsewhere: `belljar audit verify --since FILE`",
        );
    }
    // The keys are changed by now; what is left undone is said last.
    let undone = [recorded.err(), fleet.err()];
    let mut code = exit::OK;
    for error in undone.into_iter().flatten() {
        let failure = Failure::Log(error);
        code = failure.code();
        print::line(
            Line::Error,
            &format!("the keys are changed, but {}", failure.message()),
        );
        print::line(Line::Hint, &failure.hint().unwrap_or_default());
    }
    Ok(code)
}

fn resigned_name(resigned: Resigned) -> &'static str {
    match resigned {
        Resigned::Done => "signed",
        Resigned::Absent => "absent",
        Resigned::Held => "held_by_controller",
        Resigned::Unneeded => "unneeded",
    }
}
