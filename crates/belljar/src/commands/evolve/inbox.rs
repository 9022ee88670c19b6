//! What agents propose from inside their boxes.

use super::{check, failure};
use crate::cli::OutputFormat;
use crate::exit::{self, Failure};
use crate::print;
use belljar_evolve::store::{Store, StoreError};
use belljar_gate::in_full;
use belljar_supervisor::StateDir;
use belljar_supervisor::inbox::{Inbox, Letter};
use serde_json::{Map, Value, json};
use std::path::Path;

pub(super) fn list(output: OutputFormat) -> Result<u8, Failure> {
    let state = StateDir::existing()?;
    let all = Inbox::of(state.path()).all();
    let status = |letter: &Letter| -> String {
        let known = letter
            .answer
            .as_ref()
            .and_then(|answer| answer.get("status")?.as_str());
        known.unwrap_or("kept").to_owned()
    };
    match output {
        OutputFormat::Json => {
            let rows: Vec<Value> = all
                .iter()
                .map(|letter| json!({"name": letter.name, "worker": letter.worker, "answer": letter.answer}))
                .collect();
            print::json(&rows);
        }
        OutputFormat::Text => {
            let line = |letter: &Letter| {
                format!("{}  {}\n", letter.name, print::harmless(&status(letter)))
            };
            print::out(&all.iter().map(line).collect::<String>());
        }
    }
    Ok(exit::OK)
}

pub(super) fn take(name: &str, project: &Path, output: OutputFormat) -> Result<u8, Failure> {
    let state = StateDir::existing()?;
    let inbox = Inbox::of(state.path());
    let (letter, bytes) = inbox.read(name).ok_or_else(|| {
        Failure::Invalid(
            format!("there is no {name} in the inbox"),
            "`belljar evolve inbox` lists them".into(),
        )
    })?;
    let store = Store::of(state.path());
    // Whose it is says the door it came through.
    let by = format!("agent:{}", letter.worker);
    let proposed = store.propose(project, "request.yaml", &bytes, &by);
    let proposal = proposed.or_else(|error| {
        answer(&inbox, &letter, &refused(&error))?;
        Err(failure(error))
    })?;
    let code = check(&state, &store, &proposal.id, output)?;
    let judged = store.read(&proposal.id).map_err(failure)?;
    let told = json!({"proposal": judged.id, "status": judged.status, "risk": judged.risk, "reasons": judged.reasons});
    answer(&inbox, &letter, &told)?;
    Ok(code)
}

fn refused(error: &StoreError) -> Value {
    let reason = json!({"code": "request", "stage": "0-freeze", "message": in_full(error)});
    json!({"status": "rejected", "reasons": [reason]})
}

fn answer(inbox: &Inbox, letter: &Letter, told: &Value) -> Result<(), Failure> {
    let told: Map<String, Value> = told.as_object().cloned().unwrap_or_default();
    inbox.answer(letter, &told).map_err(|error| {
        Failure::Invalid(
            in_full(&error),
            "the agent was not told; take it again".into(),
        )
    })
}
