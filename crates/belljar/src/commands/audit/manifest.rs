//! `belljar audit manifest`: what vouched for a box, long after the box is gone.

use crate::cli::{Format, OutputFormat};
use crate::commands::manifest::{own_keys, show_text};
use crate::exit::{self, Failure};
use crate::print::{self, Line};
use belljar_gate::{FleetEntry, FleetNote, LogKind, ManifestStore};
use belljar_ledger::Reader;
use belljar_manifest::lineage::{Digest, Envelope};
use belljar_supervisor::StateDir;
use serde_json::{Value, json};

/// A manifest that the log names, and the entry that does.
struct NamedManifest {
    entry: u64,
    worker: String,
    digest: String,
}

pub(super) fn manifest(which: &str, format: &Format) -> Result<u8, Failure> {
    let log = LogKind::Fleet;
    let Some(reader) = super::open(log)? else {
        return Err(super::absent(log));
    };
    let which = which.to_ascii_lowercase();
    let found = find(&reader, &which)?;
    let distinct = found.iter().any(|other| {
        found
            .first()
            .is_some_and(|first| first.digest != other.digest)
    });
    let Some(named) = found.first().filter(|_| !distinct) else {
        return Err(match found.len() {
            0 => Failure::Invalid(
                format!("no box in the fleet's log ran under {}", print::harmless(&which)),
                "`belljar audit show --log fleet` lists them as `box_launched`; a log of 0.1.0 has none".into(),
            ),
            _ => Failure::Invalid(
                format!("{} is the beginning of several", print::harmless(&which)),
                "give more of its digits".into(),
            ),
        });
    };
    tell(named, format)
}

/// The first entry for each manifest that this is the beginning of.
fn find(reader: &Reader, which: &str) -> Result<Vec<NamedManifest>, Failure> {
    let mut found: Vec<NamedManifest> = Vec::new();
    let mut entries = reader.entries(0);
    while let Some(next) = entries.next_borrowed() {
        let (index, bytes) = next.map_err(|fault| Failure::Fault(LogKind::Fleet, fault))?;
        let Ok(FleetEntry::Note(entry)) = serde_json::from_slice(bytes) else {
            continue;
        };
        let FleetNote::BoxLaunched {
            worker, manifest, ..
        } = entry.what
        else {
            continue;
        };
        let worker = worker.to_string();
        let is_new = found.iter().all(|known| known.digest != manifest);
        if is_new && (manifest.starts_with(which) || worker.starts_with(which)) {
            found.push(NamedManifest {
                entry: index,
                worker,
                digest: manifest,
            });
        }
    }
    Ok(found)
}

fn tell(named: &NamedManifest, format: &Format) -> Result<u8, Failure> {
    let state = StateDir::existing()?;
    let bad = |what: String, hint: &str| Failure::Invalid(what, hint.to_owned());
    let digest: Digest = named.digest.parse().map_err(|_| {
        bad(
            format!("entry {} names no digest", named.entry),
            "check the log with `belljar audit verify --log fleet`",
        )
    })?;
    let bytes = ManifestStore::of(state.path())
        .read(&digest)
        .map_err(|error| {
            bad(
                belljar_gate::in_full(&error),
                "manifests are kept below fleet/manifests of the state directory; the log vouches for their digests",
            )
        })?;
    let envelope = Envelope::parse(&bytes).map_err(|rejection| {
        bad(
            format!("it is no manifest: {rejection}"),
            "check the log with `belljar audit verify --log fleet`",
        )
    })?;
    let chain = [envelope];
    let keys = own_keys(state.path(), &chain)?;
    let [envelope] = chain;
    let verified = envelope.open(&keys);
    let payload: Value =
        serde_json::from_slice(envelope.unverified_payload()).unwrap_or(Value::Null);
    if format.output == OutputFormat::Json {
        print::json(&json!({
            "verified": verified.is_ok(), "digest": named.digest, "entry": named.entry, "worker": named.worker,
            "key": envelope.claimed_key().to_string(),
            "problem": verified.as_ref().err().map(ToString::to_string),
            "payload": payload,
        }));
    } else {
        show_text(&envelope, &payload);
    }
    let verdict = match &verified {
        Ok(_) => format!(
            "signed by key {}, on record as entry {} before the box's first instruction; `belljar audit verify --log fleet` checks the log",
            envelope.claimed_key(),
            named.entry
        ),
        Err(rejection) => format!("its signature does not hold here: {rejection}"),
    };
    print::line(Line::Note, &verdict);
    Ok(if verified.is_ok() { exit::OK } else { exit::NO })
}
