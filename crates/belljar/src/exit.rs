//! Exit codes, and the one place where an error becomes text.

use crate::print::{self, Line};
use belljar_api::CallError;
use belljar_experiment::StoreError;
use belljar_gate::OpenFleetError;
use belljar_gate::in_full;
use belljar_gate::keyring::KeyError;
use belljar_gate::{LogError, LogKind};
use belljar_image::ImageError;
use belljar_ledger::{Fault, Unsigned};
use belljar_manifest::{ManifestError, ReadError};
use belljar_supervisor::fleet::{FleetError, HireError};
use belljar_supervisor::{ApplyError, RunError};
use belljar_web::TokenError;
use std::path::Path;
use std::process::ExitCode;

/// Everything went well, or what was asked about is allowed.
pub(crate) const OK: u8 = 0;
/// What was asked about is denied; a document is not valid.
pub(crate) const NO: u8 = 1;
/// Something in Belljar or the system went wrong.
pub(crate) const INTERNAL: u8 = 120;
/// A configuration file or other input is wrong.
pub(crate) const INVALID: u8 = 121;
/// The policy does not allow it, or this host can't enforce it.
pub(crate) const REFUSED: u8 = 122;
/// A limit ended the box.
pub(crate) const LIMIT: u8 = 123;
/// Time ran out.
pub(crate) const TIMEOUT: u8 = 124;
/// The program can't be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such program.
pub(crate) const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that ended the program.
pub(crate) const SIGNAL_BASE: i32 = 128;

/// A policy gate fails.
pub(crate) const GATE_FAILS: u8 = 1;
/// A policy gate warns.
pub(crate) const GATE_WARNS: u8 = 2;

/// A log was tampered with.
pub(crate) const TAMPERED: u8 = 1;
/// A log lacks entries at its end.
pub(crate) const TRUNCATED: u8 = 3;
/// A log is not signed by a key that counts.
pub(crate) const UNSIGNED: u8 = 4;
/// A log's newest signature is too old.
pub(crate) const STALE: u8 = 5;
/// A log can't be read.
pub(crate) const UNREADABLE: u8 = 6;

/// Everybody was killed, and it is not on record or nothing holds the kill switch.
pub(crate) const UNRECORDED: u8 = 7;

/// The table in the help.
pub(crate) const HELP: &str = "\
Exit codes:
  the program's own, or 128+N if signal N ended it; else
    2  wrong usage
  120  internal error
  121  invalid configuration or input
  122  refused: by the policy, or because this host can't enforce it
  123  a limit ended the box (memory, cpu, tokens, cost)
  124  time ran out
  126  the program is not executable
  127  the program was not found";

/// What a command can fail with.
#[derive(Debug)]
pub(crate) enum Failure {
    Run(RunError),
    Config(ReadError),
    Apply(ApplyError),
    Fleet(FleetError),
    Call(CallError),
    /// The keys can't be used or changed.
    Keys(KeyError),
    /// A log can't be written.
    Log(LogError),
    /// A log is not as it should be.
    Fault(LogKind, Fault),
    /// An experiment can't be run or read.
    Experiment(StoreError),
    /// The web API's tokens can't be used or changed.
    Token(TokenError),
    /// An image can't be made, found or removed.
    Image(ImageError),
    /// Several boxes left changes, and none was named. Each in a line.
    Ambiguous(Vec<String>),
    /// A message and a hint of a command's own.
    Invalid(String, String),
    /// The same, where nothing is wrong with what was given but it may not be.
    Refused(String, String),
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        Failure::Run(error)
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        Failure::Config(error)
    }
}

impl From<FleetError> for Failure {
    fn from(error: FleetError) -> Self {
        match error {
            FleetError::Run(error) | FleetError::Hire(HireError::Run(error)) => Failure::Run(error),
            other => Failure::Fleet(other),
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Failure::Call(error)
    }
}

impl From<ApplyError> for Failure {
    fn from(error: ApplyError) -> Self {
        Failure::Apply(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::Experiment(error)
    }
}

impl From<KeyError> for Failure {
    fn from(error: KeyError) -> Self {
        Failure::Keys(error)
    }
}

impl From<TokenError> for Failure {
    fn from(error: TokenError) -> Self {
        Failure::Token(error)
    }
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        Failure::Image(error)
    }
}

impl From<LogError> for Failure {
    fn from(error: LogError) -> Self {
        Failure::Log(error)
    }
}

/// The exit code for what is wrong with a log.
pub(crate) fn fault_code(fault: &Fault) -> u8 {
    match fault {
        Fault::Tampered(_) | Fault::OtherLog { .. } => TAMPERED,
        Fault::Truncated { .. } => TRUNCATED,
        Fault::Unsigned(_) | Fault::UnknownKey { .. } => UNSIGNED,
        Fault::Stale { .. } => STALE,
        Fault::Unreadable { .. } => UNREADABLE,
    }
}

/// A stable word for the same.
pub(crate) fn fault_word(fault: &Fault) -> &'static str {
    match fault_code(fault) {
        TAMPERED => "tampered",
        TRUNCATED => "truncated",
        UNSIGNED => "unsigned",
        STALE => "stale",
        _ => "unreadable",
    }
}

/// What to do about it.
pub(crate) fn fault_hint(log: LogKind, fault: &Fault) -> String {
    let log = log.as_str();
    match fault {
        Fault::Tampered(_) | Fault::OtherLog { .. } => format!(
            "keep the directory as evidence and restore the log of {log} from a copy; nothing it says from there on counts"
        ),
        Fault::Truncated { .. } => {
            format!("restore the log of {log} from a copy; what is left of it is as it was signed")
        }
        Fault::Unsigned(Unsigned::Missing) => {
            format!("restore the log of {log} from a copy, or move the keys away with it to start anew")
        }
        Fault::Unsigned(_) | Fault::UnknownKey { .. } => {
            "`belljar keys list` shows whose signatures count; --keyset names other keys".to_owned()
        }
        Fault::Stale { .. } => {
            "nothing was recorded since, or somebody put an old copy back; a fleet's controller signs every minute".to_owned()
        }
        Fault::Unreadable { .. } => {
            "run it as the user whose log it is, or set BELLJAR_STATE_DIR".to_owned()
        }
    }
}

impl Failure {
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Fault(_, fault) => fault_code(fault),
            Failure::Keys(KeyError::Exposed { .. }) => REFUSED,
            Failure::Keys(KeyError::File { .. }) | Failure::Log(_) => INTERNAL,
            Failure::Keys(_) => INVALID,
            Failure::Token(TokenError::Exposed { .. } | TokenError::TooMany) => REFUSED,
            Failure::Token(TokenError::File { .. } | TokenError::Random(_)) => INTERNAL,
            Failure::Token(_) => INVALID,
            Failure::Image(ImageError::InUse(_) | ImageError::Unavailable { .. }) => REFUSED,
            Failure::Image(ImageError::Store { .. }) => INTERNAL,
            Failure::Image(_) => INVALID,
            Failure::Experiment(StoreError::Io { .. }) => INTERNAL,
            Failure::Experiment(_) => INVALID,
            Failure::Run(RunError::Refused { .. } | RunError::NotAdmitted { .. }) => REFUSED,
            Failure::Run(RunError::NotFound { .. }) => NOT_FOUND,
            Failure::Run(RunError::NotExecutable { .. }) => NOT_EXECUTABLE,
            Failure::Run(RunError::Invalid { .. } | RunError::UnknownId { .. })
            | Failure::Config(_)
            | Failure::Ambiguous(_)
            | Failure::Invalid(..) => INVALID,
            Failure::Apply(
                ApplyError::Conflicts(_) | ApplyError::Troubled(_) | ApplyError::Altered { .. },
            )
            | Failure::Refused(..) => REFUSED,
            Failure::Fleet(FleetError::Open(OpenFleetError::Condition(_))) => INVALID,
            Failure::Fleet(_) | Failure::Call(CallError::Refused { .. }) => REFUSED,
            Failure::Call(_) => INTERNAL,
            Failure::Run(_) | Failure::Apply(_) => INTERNAL,
        }
    }

    /// A stable word for scripts.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Failure::Run(error) => error.code(),
            Failure::Config(_) => "invalid_config",
            Failure::Keys(_) => "keys",
            Failure::Log(_) => "log",
            Failure::Token(_) => "token",
            Failure::Experiment(_) => "experiment",
            Failure::Image(_) => "image",
            Failure::Fault(_, fault) => fault_word(fault),
            Failure::Apply(ApplyError::Conflicts(_)) => "conflict",
            Failure::Apply(ApplyError::Troubled(_)) => "unlisted_changes",
            Failure::Apply(ApplyError::Altered { .. }) => "altered_changes",
            Failure::Fleet(FleetError::Hire(HireError::Refused(refusal))) => refusal.code(),
            Failure::Fleet(_) => "refused",
            Failure::Call(CallError::Refused { .. }) => "refused",
            Failure::Apply(_) | Failure::Call(_) => "internal",
            Failure::Ambiguous(_) => "ambiguous",
            Failure::Invalid(..) => "invalid_input",
            Failure::Refused(..) => "refused",
        }
    }

    pub(crate) fn message(&self) -> String {
        match self {
            Failure::Run(error) => error.to_string(),
            Failure::Config(error) => in_full(error),
            Failure::Apply(error) => error.to_string(),
            Failure::Fleet(error) => in_full(error),
            Failure::Call(CallError::Refused { problem, .. }) => {
                format!("{}: {}", problem.code, problem.message)
            }
            Failure::Call(error) => in_full(error),
            Failure::Keys(error) => in_full(error),
            Failure::Log(error) => in_full(error),
            Failure::Token(error) => in_full(error),
            Failure::Experiment(error) => in_full(error),
            Failure::Image(error) => in_full(error),
            Failure::Fault(log, fault) => {
                format!("the log of {}: {}", log.as_str(), in_full(fault))
            }
            Failure::Ambiguous(lines) => format!("{} boxes left changes that wait", lines.len()),
            Failure::Invalid(message, _) | Failure::Refused(message, _) => message.clone(),
        }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Failure::Run(error) => error.hint(),
            Failure::Config(ReadError::Manifest(error)) => error.hint.clone(),
            Failure::Config(_) => {
                Some("name a capability.yaml or sandbox.toml that you can read".into())
            }
            Failure::Apply(ApplyError::Conflicts(_)) => Some(
                "`belljar diff` shows the changes that wait; those paths were not touched".into(),
            ),
            Failure::Apply(ApplyError::Troubled(_) | ApplyError::Altered { .. }) => Some(
                "what is kept can't be trusted any more: `belljar discard` throws it away".into(),
            ),
            Failure::Apply(ApplyError::Failed { .. }) => Some(
                "what was applied stays; once the cause is gone, `belljar apply` goes on".into(),
            ),
            Failure::Fleet(FleetError::Open(error)) => Some(error.hint()),
            Failure::Fleet(FleetError::Hire(HireError::Refused(refusal))) => {
                Some(refusal.hint().to_owned())
            }
            Failure::Call(error) => error.hint().map(str::to_owned),
            Failure::Apply(ApplyError::State(error)) => error.hint(),
            Failure::Fleet(_) => None,
            Failure::Keys(error) => Some(error.hint()),
            Failure::Log(error) => Some(error.hint()),
            Failure::Token(error) => Some(error.hint().to_owned()),
            Failure::Experiment(error) => Some(error.hint().to_owned()),
            Failure::Image(error) => error.hint(),
            Failure::Fault(log, fault) => Some(fault_hint(*log, fault)),
            Failure::Ambiguous(_) => {
                Some("name one by its id, or take the newest with --last".into())
            }
            Failure::Invalid(_, hint) | Failure::Refused(_, hint) => Some(hint.clone()),
        }
    }

    /// For programs: with everything the other side said.
    pub(crate) fn as_json(&self) -> serde_json::Value {
        match self {
            Failure::Call(CallError::Refused { problem, .. }) => serde_json::json!(problem),
            _ => {
                serde_json::json!({"code": self.word(), "message": self.message(), "hint": self.hint()})
            }
        }
    }

    /// The error with its place in the file, where it has one.
    fn manifest(&self) -> Option<&ManifestError> {
        match self {
            Failure::Config(ReadError::Manifest(error)) => Some(error),
            _ => None,
        }
    }

    /// The paths that an error is about, where it is about several.
    fn paths(&self) -> Vec<&Path> {
        match self {
            Failure::Apply(ApplyError::Conflicts(conflicts)) => {
                conflicts.iter().map(|at| at.path.as_path()).collect()
            }
            Failure::Apply(ApplyError::Troubled(troubles)) => {
                troubles.iter().map(|at| at.path.as_path()).collect()
            }
            _ => Vec::new(),
        }
    }

    fn show(&self) {
        if let Some(error) = self.manifest() {
            eprintln!("{}", error.render(print::manifest_colour()));
            return;
        }
        print::line(Line::Error, &self.message());
        self.paths()
            .iter()
            .for_each(|path| eprintln!("  {}", print::harmless_path(path)));
        if let Failure::Ambiguous(lines) = self {
            lines
                .iter()
                .for_each(|line| eprintln!("  {}", print::harmless(line)));
        }
        if let Some(hint) = self.hint() {
            print::line(Line::Hint, &hint);
        }
    }
}

/// Ends the process the way the outcome says.
pub(crate) fn finish(outcome: Result<u8, Failure>) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.show();
            ExitCode::from(failure.code())
        }
    }
}
