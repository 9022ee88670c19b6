//! `belljar manifest`: the signed papers of replicas, looked at and checked without a controller.

use crate::cli::{Format, Manifest, OutputFormat};
use crate::commands::files::{read_file, read_keyset};
use crate::exit::{self, Failure};
use crate::print::{self, Line};
use belljar_gate::keyring::{KeyDir, known_keys};
use belljar_gate::{LogKind, clock, read_state};
use belljar_ledger::VerifyOptions;
use belljar_manifest::keys::Keyset;
use belljar_manifest::lineage::{
    Envelope, MAX_CHAIN, MAX_ENVELOPE_BYTES, Rejection, Revocations, VerifiedChain, WorkerId,
    verify_chain,
};
use belljar_supervisor::{StateDir, key_source};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The most bytes of all manifests together: far more than any honest chain has.
const MAX_BYTES: u64 = 32 * 1024 * 1024;

pub(crate) fn manifest(what: &Manifest) -> Result<u8, Failure> {
    match what {
        Manifest::Show { file, format } => show(file, format),
        Manifest::Verify {
            files,
            keyset,
            format,
        } => verify(files, keyset.as_deref(), format),
    }
}

/// The envelopes in some files, one a line; or the number of the first that is none, and why.
fn read(files: &[PathBuf]) -> Result<Result<Vec<Envelope>, (usize, Rejection)>, Failure> {
    let mut chain = Vec::new();
    let mut room = MAX_BYTES;
    for file in files {
        let bytes = read_file(file, room.min(MAX_CHAIN as u64 * MAX_ENVELOPE_BYTES as u64))?;
        room = room.saturating_sub(bytes.len() as u64);
        for line in bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            match Envelope::parse(line) {
                Ok(envelope) => chain.push(envelope),
                Err(rejection) => return Ok(Err((chain.len(), rejection))),
            }
        }
    }
    Ok(Ok(chain))
}

fn show(file: &Path, format: &Format) -> Result<u8, Failure> {
    let envelopes = match read(&[file.to_owned()])? {
        Ok(envelopes) if !envelopes.is_empty() => envelopes,
        Ok(_) => {
            return Err(Failure::Invalid(
                format!("{}: there is no manifest in it", file.display()),
                "an agent has its own as /belljar/manifest.json".into(),
            ));
        }
        Err((at, rejection)) => return Ok(refused(format, at, &rejection)),
    };
    for envelope in &envelopes {
        let payload: Value = serde_json::from_slice(envelope.unverified_payload())
            .unwrap_or_else(|_| json!({"not_a_manifest": true}));
        if format.output == OutputFormat::Json {
            print::json(&json!({
                "verified": false, "digest": envelope.digest().to_string(),
                "claimed_key": envelope.claimed_key().to_string(), "payload": payload,
            }));
        } else {
            show_text(envelope, &payload);
        }
    }
    if format.output == OutputFormat::Text {
        print::line(
            Line::Note,
            "nothing of this was checked: `belljar manifest verify` does",
        );
    }
    Ok(exit::OK)
}

pub(super) fn show_text(envelope: &Envelope, payload: &Value) {
    let row = |name: &str, value: &str| {
        print::out(&format!(
            "  {:<19}: {}\n",
            print::harmless(name),
            print::harmless(value)
        ));
    };
    print::out("MANIFEST\n");
    row("digest", &envelope.digest().to_string());
    for (name, value) in payload.as_object().into_iter().flatten() {
        match (name.as_str(), value) {
            (_, Value::Null) => {}
            ("not_before_ms" | "expires_ms", Value::Number(ms)) => row(
                name.trim_end_matches("_ms"),
                &print::utc(ms.as_u64().unwrap_or(0)),
            ),
            (_, Value::String(text)) => row(name, text),
            (_, other) => row(name, &other.to_string()),
        }
    }
}

/// What is known about revocations, and from where.
struct Standing {
    revocations: Revocations,
    epoch: u64,
    is_checked: bool,
}

impl Standing {
    /// Without a witness the manifests' own epoch is taken; they must still agree on it.
    fn unknown(chain: &[Envelope], keys: &Keyset) -> Self {
        let opened = chain.iter().filter_map(|envelope| envelope.open(keys).ok());
        let epoch = opened.map(|manifest| manifest.payload().epoch).max();
        Self {
            revocations: Revocations::new(),
            epoch: epoch.unwrap_or(0),
            is_checked: false,
        }
    }
}

fn verify(files: &[PathBuf], keyset: Option<&Path>, format: &Format) -> Result<u8, Failure> {
    let chain = match read(files)? {
        Ok(chain) => chain,
        Err((at, rejection)) => return Ok(refused(format, at, &rejection)),
    };
    let (keys, standing) = match keyset {
        // Whoever brings keys along needs no state directory.
        Some(file) => {
            let keys = read_keyset(file)?;
            let standing = match StateDir::existing() {
                Ok(state) => standing(state.path(), &chain, &keys)?,
                // One that was named was meant.
                Err(error) if StateDir::is_named() => return Err(error.into()),
                Err(_) => Standing::unknown(&chain, &keys),
            };
            (keys, standing)
        }
        None => {
            let state = StateDir::existing()?;
            let keys = own_keys(state.path(), &chain)?;
            let standing = standing(state.path(), &chain, &keys)?;
            (keys, standing)
        }
    };
    let now_ms = clock::now().wall_ms;
    match verify_chain(&chain, &keys, &standing.revocations, standing.epoch, now_ms) {
        Ok(verified) => Ok(accepted(format, &verified, &standing)),
        Err(fault) => Ok(refused(format, fault.at, &fault.rejection)),
    }
}

/// The set of this state directory that has the leaf's key. HMAC keys verify with their secret, so only here.
pub(super) fn own_keys(state: &Path, chain: &[Envelope]) -> Result<Keyset, Failure> {
    let hmac = KeyDir::hmac_of(state);
    let is_hmac = match chain.last() {
        Some(leaf) => hmac.keyset()?.key(leaf.claimed_key()).is_some(),
        None => false,
    };
    if is_hmac {
        return Ok(Keyset::clone(hmac.load()?.keyset()));
    }
    Ok(KeyDir::of(state, key_source()).keyset()?)
}

/// The fleet's log says what was revoked, if this fleet issued the manifest: then it is signed by a key of ours. The log
/// must hold itself, or it would be no witness.
fn standing(state: &Path, chain: &[Envelope], keys: &Keyset) -> Result<Standing, Failure> {
    let own = KeyDir::of(state, key_source()).keyset()?;
    let own_hmac = KeyDir::hmac_of(state).keyset()?;
    let is_ours = chain.last().is_some_and(|leaf| {
        let key = leaf.claimed_key();
        own.key(key).is_some() || own_hmac.key(key).is_some()
    });
    let directory = LogKind::Fleet.directory(state);
    if !is_ours || !directory.exists() {
        return Ok(Standing::unknown(chain, keys));
    }
    let options = VerifyOptions {
        origin: Some(LogKind::Fleet.origin().to_owned()),
        ..VerifyOptions::default()
    };
    let known = known_keys(&own, LogKind::Fleet.origin());
    belljar_ledger::verify(&directory, &known, &options)
        .map_err(|fault| Failure::Fault(LogKind::Fleet, fault))?;
    let fleet = read_state(state)?;
    let mut revocations = Revocations::new();
    for worker in fleet.revoked() {
        revocations.revoke(WorkerId::from_u128(worker.0));
    }
    Ok(Standing {
        revocations,
        epoch: fleet.epoch(),
        is_checked: true,
    })
}

fn accepted(format: &Format, chain: &VerifiedChain, standing: &Standing) -> u8 {
    let leaf = chain.leaf();
    if format.output == OutputFormat::Json {
        let workers = chain.iter().map(|manifest| manifest.worker().to_string());
        print::json(&json!({
            "ok": true, "worker": leaf.worker().to_string(), "key": leaf.key().to_string(),
            "digest": leaf.digest().to_string(), "depth": leaf.payload().depth, "epoch": leaf.payload().epoch,
            "chain": workers.collect::<Vec<_>>(), "revocation_checked": standing.is_checked,
        }));
        return exit::OK;
    }
    print::out(&format!(
        "{}  worker {}, depth {}, signed by key {}\n",
        print::styled("valid", "32", print::stdout_colours()),
        leaf.worker(),
        leaf.payload().depth,
        leaf.key(),
    ));
    if !standing.is_checked {
        print::line(
            Line::Note,
            "whether it was revoked is not known here: the log of the fleet that issued it is not at hand",
        );
    }
    exit::OK
}

fn refused(format: &Format, at: usize, rejection: &Rejection) -> u8 {
    let code = rejection.reason.code();
    if format.output == OutputFormat::Json {
        print::json(&json!({
            "ok": false, "code": code, "manifest": at, "message": rejection.detail, "hint": hint(code),
        }));
        return exit::NO;
    }
    print::out(&format!(
        "{}  manifest {at}, counted from the root: {code}\n  reason : {}\n  hint   : {}\n",
        print::styled("refused", "31", print::stdout_colours()),
        print::harmless(&rejection.detail),
        hint(code),
    ));
    exit::NO
}

fn hint(code: &str) -> &'static str {
    match code {
        "reject_key_unknown" => "name the issuer's keyset.json with --keyset",
        "reject_key_missing" => "an HMAC manifest can be checked only where its key is",
        "reject_chain" => "give every manifest from the root on, in this order",
        "reject_malformed" => "give the file as it was issued, byte for byte",
        "reject_expired" | "reject_not_yet_valid" => "see that the clock of this machine is right",
        _ => "believe nothing it says",
    }
}
