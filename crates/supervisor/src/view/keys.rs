//! Files that hold keys, shown without them.

use super::{Around, Builder};
use crate::home::HomeCover;
use crate::key_files::{Candidate, Candidates, Redacted, Role, redact_keys, redact_secrets};
use belljar_policy::{FileOp, Source};
use belljar_sandbox::plan::{Kind, Shows};
use std::path::Path;

/// How many files are shown with other contents, and their bytes in all; those beyond are hidden. A plan has room for few
/// texts, and others need it too.
const ALTERED: usize = 40;
const ALTERED_BYTES: usize = 2 << 20;

/// What a file has to do with keys.
enum Holds {
    /// Values of these secrets.
    Secrets(Redacted),
    /// What looks like keys, in these variables.
    Keys(Redacted),
    /// Nobody knows: it is too long.
    TooLong,
}

impl Builder<'_> {
    pub(super) fn withhold_keys(&mut self) {
        let Some(secrets) = self.secrets else { return };
        let is_seen = |path: &Path| self.sees(path);
        let mut search = Candidates::new(self.places, &is_seen).start_up();
        if !secrets.is_empty() {
            search = search.near();
        }
        let found = search.found();
        for candidate in found {
            if let Some(holds) = self.judge(&candidate) {
                self.withhold(&candidate, holds);
            }
        }
    }

    fn judge(&self, candidate: &Candidate) -> Option<Holds> {
        let secrets = self.secrets.unwrap_or_default();
        let Some(text) = &candidate.text else {
            return (candidate.role == Role::StartUp).then_some(Holds::TooLong);
        };
        if let Some(redacted) = redact_secrets(text, secrets) {
            // A copy that still holds one in some way is none.
            return match redact_secrets(&redacted.bytes, secrets) {
                None => Some(Holds::Secrets(redacted)),
                Some(_) => Some(Holds::TooLong),
            };
        }
        // Whoever names the very file knows what is in it.
        let is_named = self.is_named(&candidate.named) || self.is_named(&candidate.path);
        let decision = self.table.decide(&candidate.path, FileOp::Read);
        let is_meant =
            is_named && decision.is_allow() && decision.because().origin.source == Source::Document;
        match candidate.role {
            Role::StartUp if !is_meant => redact_keys(text).map(Holds::Keys),
            _ => None,
        }
    }

    fn withhold(&mut self, candidate: &Candidate, holds: Holds) {
        let named = self.shown_as(&candidate.named);
        let (bytes, what) = match holds {
            Holds::Secrets(Redacted { bytes, names }) => {
                let many = if names.len() > 1 { "s" } else { "" };
                let held = format!("{named} holds the secret{many} {}", quoted(&names));
                (
                    Some(bytes),
                    (held, format!("shown with its placeholder{many}")),
                )
            }
            Holds::Keys(Redacted { bytes, names }) => (
                Some(bytes),
                (
                    format!("{named} sets {}", names.join(", ")),
                    format!(
                        "shown as {}; give keys with `secrets`, or name the file in readable_paths",
                        crate::key_files::WITHHELD
                    ),
                ),
            ),
            Holds::TooLong => (
                None,
                (
                    format!("{named} can't be searched for keys"),
                    "hidden".to_owned(),
                ),
            ),
        };
        if self.around(&candidate.path) == Around::HostWrite {
            self.pin_above(&candidate.path);
        }
        let held: usize = self
            .built
            .altered
            .iter()
            .map(|(_, bytes)| bytes.len())
            .sum();
        let fits = |bytes: &Vec<u8>| {
            self.built.altered.len() < ALTERED && held + bytes.len() <= ALTERED_BYTES
        };
        let (what, how) = what;
        let is_copied = self.around(&candidate.path) == Around::HomeCopy;
        let how = match bytes.filter(fits) {
            Some(bytes) if is_copied => {
                self.mask(&candidate.path, HomeCover::Text(bytes.into()));
                how
            }
            Some(bytes) => {
                self.built
                    .altered
                    .push((candidate.path.clone(), bytes.into()));
                how
            }
            None if is_copied => {
                self.mask(&candidate.path, HomeCover::Absent);
                "hidden".to_owned()
            }
            None => {
                self.show(candidate.path.clone(), Shows::Hidden(Kind::File));
                "hidden".to_owned()
            }
        };
        self.built.withheld.push(format!("{what}: {how}"));
        self.hide_compiled(&candidate.path);
    }

    /// zsh compiles its files, and then reads the compiled one.
    fn hide_compiled(&mut self, path: &Path) {
        let Some(name) = path.file_name() else { return };
        let mut compiled = name.to_owned();
        compiled.push(".zwc");
        let compiled = path.with_file_name(compiled);
        if self.around(&compiled) == Around::HomeCopy {
            self.mask(&compiled, HomeCover::Absent);
        } else if compiled.is_file() && self.sees(&compiled) {
            self.pin_above(&compiled);
            self.show(compiled, Shows::Hidden(Kind::File));
        }
    }

    /// A path as its user would write it.
    fn shown_as(&self, path: &Path) -> String {
        match path.strip_prefix(&self.places.home) {
            Ok(below) => format!("~/{}", below.display()),
            Err(_) => path.display().to_string(),
        }
    }
}

fn quoted(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    names.join(", ")
}
