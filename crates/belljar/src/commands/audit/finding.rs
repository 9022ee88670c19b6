//! The answer of `belljar audit verify`, and its words.

use crate::cli::OutputFormat;
use crate::exit::{self, Failure};
use crate::print::{self, Line};
use belljar_gate::LogKind;
use belljar_ledger::{Checkpoint, Distrust, Fault, KnownKey, Place, Unproven, Unsigned, Verified};
use belljar_manifest::keys::{KeyEntry, KeyState, Keyset};
use serde_json::{Value, json};
use std::time::UNIX_EPOCH;

/// The answer.
pub(super) struct Finding {
    pub(super) code: u8,
    pub(super) word: &'static str,
    pub(super) message: String,
    pub(super) hint: Option<String>,
    pub(super) notes: Vec<String>,
    pub(super) details: Value,
}

impl Finding {
    pub(super) fn good(
        word: &'static str,
        message: String,
        notes: Vec<String>,
        details: Value,
    ) -> Self {
        Self {
            code: exit::OK,
            word,
            message,
            hint: None,
            notes,
            details,
        }
    }

    pub(super) fn bad(log: LogKind, fault: &Fault, keyset: &Keyset) -> Self {
        Self {
            code: exit::fault_code(fault),
            word: exit::fault_word(fault),
            message: format!(
                "the log of {}: {}",
                log.as_str(),
                in_words(log, fault, keyset)
            ),
            hint: Some(exit::fault_hint(log, fault)),
            notes: Vec::new(),
            details: json!({"log": log.as_str()}),
        }
    }

    /// A log that holds as far as it goes, signed last by a key that another one has replaced since.
    pub(super) fn superseded(
        log: LogKind,
        verified: &Verified,
        next: &KeyEntry,
        keyset: &Keyset,
    ) -> Self {
        let signed = key_of(keyset, &verified.signed_by);
        let signed = signed.map_or_else(String::new, |key| key.id().to_string());
        Self {
            code: exit::STALE,
            word: "stale",
            message: format!(
                "the log of {} ends with {} entries, signed by key {signed}, which key {} has replaced since",
                log.as_str(),
                verified.checkpoint.size(),
                next.id(),
            ),
            hint: Some(
                "an older copy of the log was put back, or a change of keys was interrupted: repeat that with `belljar keys rotate`, \
                 and compare with a checkpoint that you kept elsewhere (`--since`)"
                    .to_owned(),
            ),
            notes: Vec::new(),
            details: json!({
                "log": log.as_str(), "entries": verified.checkpoint.size(), "signed_by": signed,
                "signing_key": next.id().to_string(),
            }),
        }
    }

    pub(super) fn tell(&self, output: OutputFormat) {
        if output == OutputFormat::Json {
            let mut all = json!({
                "ok": self.code == exit::OK, "status": self.word, "exit_code": self.code,
                "message": self.message, "hint": self.hint, "notes": self.notes,
            });
            if let (Some(all), Some(details)) = (all.as_object_mut(), self.details.as_object()) {
                all.extend(details.clone());
            }
            return print::json(&all);
        }
        let on = print::stdout_colours();
        let colour = if self.code == exit::OK { "32" } else { "1;31" };
        print::out(&format!(
            "{}  {}\n",
            print::styled(self.word, colour, on),
            print::harmless(&self.message)
        ));
        for note in &self.notes {
            print::line(Line::Note, note);
        }
        if let Some(hint) = &self.hint {
            print::line(Line::Hint, hint);
        }
    }
}

/// A proof that does not hold, as what is wrong with the log it is from.
pub(super) fn unproven(log: LogKind, error: Unproven) -> Failure {
    let fault = match error {
        Unproven::OtherLog(found) => Fault::OtherLog {
            found,
            expected: log.origin().to_owned(),
        },
        Unproven::Checkpoint(Distrust::UnknownKey { name, id }) => Fault::UnknownKey { name, id },
        Unproven::Checkpoint(Distrust::BadSignature { name }) => {
            Fault::Unsigned(Unsigned::BadSignature { name })
        }
        Unproven::OtherEntry { index } => Fault::Tampered(Place::Entry(index)),
    };
    Failure::Fault(log, fault)
}

pub(super) fn known_as(key: &KeyEntry, origin: &str) -> Option<KnownKey> {
    let public = key.public_key().ok().flatten()?;
    KnownKey::new(origin, public.bytes()).ok()
}

pub(super) fn key_of<'k>(keyset: &'k Keyset, known: &KnownKey) -> Option<&'k KeyEntry> {
    keyset
        .keys()
        .find(|key| known_as(key, known.name()).as_ref() == Some(known))
}

/// What is wrong, with what is known of the key.
pub(super) fn in_words(log: LogKind, fault: &Fault, keyset: &Keyset) -> String {
    match fault {
        Fault::UnknownKey { id, .. } => {
            let given_up = keyset
                .keys()
                .filter(|key| key.state() == KeyState::Compromised)
                .find(|key| known_as(key, log.origin()).is_some_and(|known| known.id() == *id));
            match given_up {
                Some(key) => format!("signed only by key {}, which is compromised", key.id()),
                None => "signed by no key of yours".to_owned(),
            }
        }
        Fault::Unsigned(Unsigned::Missing) => {
            "empty though it should not be: there is no signed entry".to_owned()
        }
        other => {
            let text = belljar_gate::in_full(other);
            let said = format!("{}: ", exit::fault_word(other));
            text.strip_prefix(&said).unwrap_or(&text).to_owned()
        }
    }
}

pub(super) fn time_of(checkpoint: &Checkpoint) -> Option<String> {
    let since_1970 = checkpoint.time()?.duration_since(UNIX_EPOCH).ok()?;
    Some(print::utc(u64::try_from(since_1970.as_millis()).ok()?))
}
