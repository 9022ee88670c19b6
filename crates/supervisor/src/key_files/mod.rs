//! Files that a box may read and that hold a key: start-up files of shells and sessions, and a project's `.env` files.
//!
//! A variable with a key is withheld from a box; it would be of little use if every login shell set it again. So where
//! such a file holds the value of one of the policy's secrets, the box sees a copy of the file with the placeholder in
//! its place. Without `secrets`, what looks like a key in a start-up file is replaced by [`WITHHELD`].
//!
//! The search is bounded, and does not grow with the home directory: see [`candidates`].

mod candidates;
mod redact;
mod words;

pub(crate) use candidates::{Candidate, Candidates, Role};
pub(crate) use redact::{Redacted, redact_keys, redact_secrets};

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use zeroize::Zeroizing;

/// What is seen in place of a key that no rule of the policy is about.
pub(crate) const WITHHELD: &str = "belljar-withheld";

/// Shorter ones are not looked for: they would be found everywhere.
const SHORTEST: usize = 8;

/// A secret whose value is known here, and what a box is shown in its place.
#[derive(Clone)]
pub(crate) struct KnownSecret {
    /// What it is called in messages.
    pub(crate) name: String,
    /// What a box is shown.
    pub(crate) placeholder: String,
    /// What it never is.
    pub(crate) value: Zeroizing<String>,
}

impl fmt::Debug for KnownSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KnownSecret({})", self.name)
    }
}

/// A secret is withheld whatever the variable is called that holds it.
pub(crate) fn withhold_secrets(
    env: &mut Vec<(OsString, OsString)>,
    known: &[KnownSecret],
) -> Vec<String> {
    let mut withheld = Vec::new();
    env.retain(|(name, value)| {
        let Some(found) = redact_secrets(value.as_bytes(), known) else {
            return true;
        };
        let (name, held) = (name.to_string_lossy(), found.names.join(", "));
        withheld.push(format!("withheld: {name}, which holds the secret '{held}'"));
        false
    });
    withheld
}
