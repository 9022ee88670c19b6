//! The log of a fleet, for operators that ask a daemon about it.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use belljar_api::{
    Asked, LedgerEntries, LedgerEntry, LedgerQuery, LedgerReport, OperatorCall, Problem,
    ProofReply, Route, Shown, Status,
};
use belljar_gate::LogKind;
use belljar_gate::keyring::{KeyDir, known_keys};
use belljar_ledger::{ProveError, Reader, VerifyOptions, verify};
use belljar_supervisor::key_source;

use crate::commands::audit::lines;

const LOG: LogKind = LogKind::Fleet;
const MOST_ENTRIES: u64 = 500;
const USUAL_ENTRIES: u64 = 50;

/// Reads the log, as anybody could who may read its directory.
pub(super) struct Records {
    state: PathBuf,
    /// What the last look at all of it found, and when.
    verified: Mutex<Option<(String, u64)>>,
}

impl Records {
    pub(super) fn of(state: PathBuf) -> Self {
        Self {
            state,
            verified: Mutex::default(),
        }
    }

    /// Answers what is about the log; gives back what is not.
    pub(super) fn answer(&self, call: OperatorCall) -> Option<OperatorCall> {
        match call {
            OperatorCall::ReadLedger(asked) => respond(asked, |_| self.report()),
            OperatorCall::VerifyLedger(asked) => respond(asked, |_| self.verify()),
            OperatorCall::ListEntries(asked) => respond(asked, |query| self.entries(query)),
            OperatorCall::ProveEntry(asked) => respond(asked, |query| self.prove(query)),
            other => return Some(other),
        }
        None
    }

    fn reader(&self) -> Result<Reader, Problem> {
        Reader::open(&LOG.directory(&self.state)).map_err(unreadable)
    }

    fn report(&self) -> Result<LedgerReport, Problem> {
        let reader = self.reader()?;
        let verified = self
            .verified
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let keyset = KeyDir::of(&self.state, key_source()).keyset();
        let key = keyset.ok().and_then(|keyset| {
            let known = known_keys(&keyset, LOG.origin());
            let signed_by = reader.checkpoint().signed_by(&known).ok()?;
            Some(signed_by.id().to_string())
        });
        Ok(LedgerReport {
            entries: reader.size(),
            checkpoint: reader.checkpoint().note().to_owned(),
            key: Shown::new(key.as_deref().unwrap_or("unknown")),
            verified: Shown::new(verified.as_ref().map_or("not_checked", |(word, _)| word)),
            verified_at_ms: verified.map(|(_, at)| at),
            failed: None,
        })
    }

    /// Goes through all of it.
    fn verify(&self) -> Result<LedgerReport, Problem> {
        let keyset = KeyDir::of(&self.state, key_source()).keyset();
        let keyset = keyset.map_err(|error| Problem::new("no_keys", error.to_string()))?;
        let options = VerifyOptions {
            origin: Some(LOG.origin().to_owned()),
            ..VerifyOptions::default()
        };
        let known = known_keys(&keyset, LOG.origin());
        let found = verify(&LOG.directory(&self.state), &known, &options);
        let word = match found {
            Ok(_) => "whole".to_owned(),
            Err(fault) => fault.to_string(),
        };
        *self.verified.lock().unwrap_or_else(PoisonError::into_inner) = Some((word, now_ms()));
        self.report()
    }

    fn entries(&self, query: LedgerQuery) -> Result<LedgerEntries, Problem> {
        let reader = self.reader()?;
        let end = query.before.unwrap_or(u64::MAX).min(reader.size());
        let count = query.limit.unwrap_or(USUAL_ENTRIES).min(MOST_ENTRIES);
        let first = end.saturating_sub(count);
        let mut entries = Vec::new();
        for entry in reader.entries(first).take((end - first) as usize) {
            let entry = entry.map_err(unreadable)?;
            entries.push(LedgerEntry {
                index: entry.index,
                entry: lines::value(entry.index, &entry.bytes),
            });
        }
        entries.reverse();
        Ok(LedgerEntries { entries })
    }

    /// A proof is checked before it is handed out: one that a damaged log gives would convince nobody, and tell too late.
    fn prove(&self, query: LedgerQuery) -> Result<ProofReply, Problem> {
        let Some(index) = query.index else {
            return Err(Problem::new("bad_request", "no entry is named")
                .hint("ask with ?index=N; GET /v1/ledger/entries lists them"));
        };
        let reader = self.reader()?;
        let absent = || Problem::new("not_found", format!("there is no entry {index}"));
        let bytes = reader
            .entry(index)
            .map_err(unreadable)?
            .ok_or_else(absent)?;
        let proof = reader.proof_file(index).map_err(|error| match error {
            ProveError::Log(fault) => unreadable(fault),
            ProveError::OutOfRange { .. } => absent(),
        })?;
        let keyset = KeyDir::of(&self.state, key_source()).keyset();
        let keyset = keyset.map_err(|error| Problem::new("no_keys", error.to_string()))?;
        let known = known_keys(&keyset, LOG.origin());
        let held = proof.verify(&bytes, LOG.origin(), &known);
        held.map_err(|unproven| Problem::new("unproven", unproven.to_string()))?;
        Ok(ProofReply {
            index,
            proof: proof.with_extra(bytes).to_string(),
        })
    }
}

fn unreadable(fault: belljar_ledger::Fault) -> Problem {
    Problem::new("log_unreadable", fault.to_string())
        .hint("`belljar audit verify --log fleet` says what is wrong with it")
}

pub(super) fn respond<R: Route>(
    asked: Asked<R>,
    answer: impl FnOnce(R::Request) -> Result<R::Response, Problem>,
) {
    match answer(asked.request) {
        Ok(response) => asked.responder.reply(&response),
        Err(problem) => {
            let status = match problem.code.as_ref() {
                "bad_request" => Status::BAD_REQUEST,
                "not_found" => Status::NOT_FOUND,
                _ => Status::INTERNAL_ERROR,
            };
            asked.responder.refuse(status, &problem);
        }
    }
}

pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
