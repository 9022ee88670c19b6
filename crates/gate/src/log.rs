//! The two logs of a state directory, and how they are opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_ledger::{AppendError, CommitError, Ledger, OpenError, Options, Recovery, Wait};

use crate::keyring::{KeyError, Keyring, known_keys};

/// One of the two logs. Lone runs come and go and take turns; a controller keeps its log to itself for as long as
/// it lives. So they have one each, and the state of the fleet's is noted in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogKind {
    /// Every launch and end of a lone run.
    Runs,
    /// Every decision about replicas.
    Fleet,
}

impl LogKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Runs, Self::Fleet];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::Fleet => "fleet",
        }
    }

    /// What its checkpoints call it.
    #[must_use]
    pub fn origin(self) -> &'static str {
        match self {
            Self::Runs => "belljar/runs",
            Self::Fleet => "belljar/fleet",
        }
    }

    /// Where it is.
    #[must_use]
    pub fn directory(self, state: &Path) -> PathBuf {
        match self {
            Self::Runs => state.join("ledger"),
            Self::Fleet => state.join("fleet").join("ledger"),
        }
    }
}

/// Nothing can be recorded, so nothing is granted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The log can't be opened.
    #[error("the log of {} can't be opened", kind.as_str())]
    Open {
        /// Which.
        kind: LogKind,
        /// Why.
        source: OpenError,
    },
    /// The keys can't be used.
    #[error("the keys that sign the log can't be used")]
    Keys(#[from] KeyError),
    /// The log takes no entry.
    #[error("the log takes no entry")]
    Append(#[from] AppendError),
    /// The log can't be written.
    #[error("the log can't be written")]
    Commit(#[from] CommitError),
    /// An entry can't be put in words.
    #[error("an entry can't be encoded")]
    Encode(#[from] serde_json::Error),
    /// What stands in the log is not what this version writes.
    #[error("entry {entry} of the log of {} can't be understood", kind.as_str())]
    Content {
        /// Which log.
        kind: LogKind,
        /// Which entry.
        entry: u64,
        /// How.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl LogError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Keys(error) => error.hint(),
            Self::Open {
                source: OpenError::Locked,
                kind,
            } => format!(
                "another process writes the log of {}; end it first (`belljar ps` and `belljar replication workers` may name it)",
                kind.as_str()
            ),
            Self::Open { kind, .. } => format!(
                "`belljar audit verify --log {}` says what is wrong with it",
                kind.as_str()
            ),
            Self::Content { kind, .. } => format!(
                "a newer Belljar wrote it, or somebody with the key did; `belljar audit verify --log {}` tells",
                kind.as_str()
            ),
            Self::Append(_) | Self::Commit(_) | Self::Encode(_) => {
                "see that the disk is not full and BELLJAR_STATE_DIR can be written to".to_owned()
            }
        }
    }
}

/// An error and what caused it, each in its own words.
#[must_use]
pub fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

/// Opens a log for writing.
pub(crate) fn open(
    kind: LogKind,
    state: &Path,
    keyring: &Keyring,
    wait: Wait,
) -> Result<(Ledger, Recovery), LogError> {
    let signer = keyring.log_signer(kind.origin()).ok_or(KeyError::NoKey)?;
    let signing = keyring.id();
    // The key that signs is known anyhow. Decoding the others takes a while, so it is left until one is needed.
    let others = || known_keys(keyring.keyset(), kind.origin());
    let attempt = |known_keys| {
        let options = Options {
            known_keys,
            ..Options::default()
        };
        Ledger::lock_and_open(
            &kind.directory(state),
            kind.origin(),
            Arc::new(signer.clone()),
            options,
            wait,
        )
    };
    let opened = match attempt(Vec::new()) {
        Err(OpenError::Damaged(belljar_ledger::Fault::UnknownKey { .. }))
            if keyring.keyset().keys().any(|key| key.id() != signing) =>
        {
            attempt(others())
        }
        other => other,
    };
    opened.map_err(|source| LogError::Open { kind, source })
}
