//! `belljar audit verify --proof`: an entry and its proof, without the log.

use crate::cli::Verify;
use crate::commands::files::{read_file, read_keyset};
use crate::exit::{self, Failure};
use belljar_gate::LogKind;
use belljar_gate::keyring::{KeyDir, known_keys};
use belljar_ledger::ProofFile;
use belljar_supervisor::{StateDir, key_source};
use serde_json::json;
use std::path::Path;

use super::finding::{Finding, in_words, key_of, time_of, unproven};
use super::verify::MAX_PROOF;
use super::{kind, lines};

/// Only public keys are needed.
pub(super) fn of_proof(arguments: &Verify, file: &Path) -> Result<Finding, Failure> {
    let keyset = match &arguments.keyset {
        Some(file) => read_keyset(file)?,
        None => KeyDir::of(StateDir::existing()?.path(), key_source()).keyset()?,
    };
    let bytes = read_file(file, MAX_PROOF)?;
    let refused = |code, word, message: String| Finding {
        code,
        word,
        message,
        hint: Some("ask for a new one: `belljar audit prove --entry N`".into()),
        notes: Vec::new(),
        details: json!({"proof": file.display().to_string()}),
    };
    let proof = match ProofFile::parse(&bytes) {
        Ok(proof) => proof,
        Err(invalid) => {
            return Ok(refused(
                exit::UNREADABLE,
                "unreadable",
                belljar_gate::in_full(&invalid),
            ));
        }
    };
    let Some(entry) = proof.extra() else {
        let message = "the proof does not hold the entry it is about".to_owned();
        return Ok(refused(exit::UNREADABLE, "unreadable", message));
    };
    let candidates = arguments
        .log
        .map_or(LogKind::ALL.to_vec(), |log| vec![kind(log)]);
    let origin = proof.checkpoint().origin();
    let Some(log) = candidates.into_iter().find(|log| log.origin() == origin) else {
        let message = format!("the proof is of the log {origin:?}");
        return Ok(refused(exit::TAMPERED, "tampered", message));
    };
    if let Some(wanted) = arguments.entry.filter(|wanted| *wanted != proof.index()) {
        let message = format!("the proof is about entry {}, not {wanted}", proof.index());
        return Ok(refused(exit::TAMPERED, "tampered", message));
    }
    let known = known_keys(&keyset, log.origin());
    let signer = match proof.verify(entry, log.origin(), &known) {
        Ok(signer) => signer,
        Err(error) => {
            let Failure::Fault(log, fault) = unproven(log, error) else {
                return Ok(refused(
                    exit::TAMPERED,
                    "tampered",
                    "the proof does not hold".into(),
                ));
            };
            let message = format!(
                "the proof does not hold: {}",
                in_words(log, &fault, &keyset)
            );
            return Ok(refused(
                exit::fault_code(&fault),
                exit::fault_word(&fault),
                message,
            ));
        }
    };
    let id = key_of(&keyset, signer).map_or_else(String::new, |key| key.id().to_string());
    let index = proof.index();
    let shown = lines::Style::of(index + 1).text(index, entry);
    let message = format!(
        "entry {index} is in the log of {}, among {} entries signed by key {id} at {}: {}",
        log.as_str(),
        proof.checkpoint().size(),
        time_of(proof.checkpoint())
            .as_deref()
            .unwrap_or("an unknown time"),
        shown.trim_start(),
    );
    let details = json!({
        "log": log.as_str(), "entry": index, "entries": proof.checkpoint().size(), "signed_by": id,
        "signed_at": time_of(proof.checkpoint()), "content": lines::value(index, entry),
    });
    Ok(Finding::good("ok", message, Vec::new(), details))
}
