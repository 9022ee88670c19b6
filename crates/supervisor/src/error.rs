//! Why a box did not run.

use crate::result::KilledBy;
use belljar_sandbox::native::LaunchError;
use std::path::PathBuf;

/// A run that did not take place. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The policy, or this host, does not allow it.
    #[error("refused: {what}")]
    Refused {
        /// What, and why.
        what: String,
        /// What to change.
        hint: String,
    },
    /// There is no such program.
    #[error("program not found: {program}")]
    NotFound {
        /// As given.
        program: String,
        /// Where it was looked for.
        hint: String,
    },
    /// There is, but it can't be executed.
    #[error("not executable: {}", program.display())]
    NotExecutable {
        /// The file.
        program: PathBuf,
        /// What to do.
        hint: String,
    },
    /// Something given is wrong.
    #[error("{what}")]
    Invalid {
        /// What.
        what: String,
        /// What to do.
        hint: String,
    },
    /// A wall could not be put up.
    #[error("the box could not be put up: {source}")]
    Launch {
        /// At which step, and why.
        #[from]
        source: LaunchError,
    },
    /// The state directory can't be used.
    #[error("state directory {}: {source}", path.display())]
    State {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A system call failed that should not.
    #[error("{doing}: {source}")]
    System {
        /// While doing what.
        doing: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// Its walls stood, and it was not let in.
    #[error("not admitted: {what}")]
    NotAdmitted {
        /// A stable word of whoever refused.
        code: &'static str,
        /// What, and why.
        what: String,
        /// What to change.
        hint: String,
    },
    /// Its keeper, another process, says so.
    #[error("{what}")]
    Kept {
        /// A stable word.
        code: &'static str,
        /// What, and why.
        what: String,
        /// What to change.
        hint: Option<String>,
    },
    /// It was killed before its program could start.
    #[error("killed before it started ({})", by.as_str())]
    KilledEarly {
        /// By whom.
        by: KilledBy,
    },
    /// No sandbox or overlay has this id.
    #[error("no such sandbox: {id}")]
    UnknownId {
        /// As given.
        id: String,
    },
}

impl RunError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            RunError::Refused { hint, .. }
            | RunError::NotAdmitted { hint, .. }
            | RunError::NotFound { hint, .. }
            | RunError::NotExecutable { hint, .. }
            | RunError::Invalid { hint, .. } => Some(hint.clone()),
            RunError::Kept { hint, .. } => hint.clone(),
            RunError::Launch { .. } => {
                Some("`belljar doctor` shows what this host can enforce".into())
            }
            RunError::State { source, .. } => Some(
                match source.kind() {
                    std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                        "make room on the disk of the state directory (BELLJAR_STATE_DIR)"
                    }
                    _ => "set BELLJAR_STATE_DIR to a directory you can write to",
                }
                .into(),
            ),
            RunError::UnknownId { .. } => {
                Some("`belljar ps` lists running boxes and kept changes".into())
            }
            RunError::System { .. } | RunError::KilledEarly { .. } => None,
        }
    }

    /// A stable word for scripts.
    pub fn code(&self) -> &'static str {
        match self {
            RunError::Refused { .. } => "refused",
            RunError::NotFound { .. } => "not_found",
            RunError::NotExecutable { .. } => "not_executable",
            RunError::Invalid { .. } => "invalid_input",
            RunError::UnknownId { .. } => "unknown_id",
            RunError::NotAdmitted { code, .. } | RunError::Kept { code, .. } => code,
            RunError::KilledEarly { .. } => "killed_early",
            RunError::Launch { .. } | RunError::State { .. } | RunError::System { .. } => {
                "internal"
            }
        }
    }

    pub(crate) fn system(doing: &'static str) -> impl Fn(rustix::io::Errno) -> RunError {
        move |errno| RunError::System {
            doing,
            source: errno.into(),
        }
    }
}
