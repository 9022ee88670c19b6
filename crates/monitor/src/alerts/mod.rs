//! When something needs a person's attention: a state machine that is told what happens and what time it is, and does nothing
//! else.

pub(crate) mod beacon;
mod cause;
mod causes;
mod engine;
mod lives;
mod people;
mod reference;
mod silence;
mod watch;

use std::time::Duration;

use belljar_api::{AlertKind, Response, Severity};

pub(crate) use engine::froze;
pub use engine::{Change, Engine, NoSuchAlert};
pub use reference::reference;
pub(crate) use reference::word;

use crate::settings::Rule;

/// Every kind.
pub(crate) const KINDS: [AlertKind; 13] = [
    AlertKind::HighResourceUsage,
    AlertKind::SuspiciousToolUsage,
    AlertKind::UnauthorizedAccess,
    AlertKind::NetworkAnomaly,
    AlertKind::PrivilegeEscalation,
    AlertKind::AgentCrashed,
    AlertKind::AgentQuarantined,
    AlertKind::BudgetExceeded,
    AlertKind::ReplicationDenied,
    AlertKind::KillSwitchEngaged,
    AlertKind::LedgerFailure,
    AlertKind::ApprovalWaiting,
    AlertKind::StorageFailure,
];

/// How long an agent that crashed must have run again for that to be over.
const RECOVERED: Duration = Duration::from_secs(300);

/// What makes an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nature {
    /// So many causes within a window.
    Counted,
    /// Something is so, or is not.
    Level,
}

/// When an alert is over without a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// A person says so.
    ByAPerson,
    /// Its cause is gone.
    AtOnce,
    /// Its cause has been gone for so long.
    After(Duration),
    /// The agent runs again and its cause has been gone for so long.
    Recovered(Duration),
}

pub(crate) fn nature(kind: AlertKind) -> Nature {
    match kind {
        AlertKind::HighResourceUsage
        | AlertKind::AgentQuarantined
        | AlertKind::BudgetExceeded
        | AlertKind::KillSwitchEngaged
        | AlertKind::LedgerFailure
        | AlertKind::ApprovalWaiting
        | AlertKind::StorageFailure => Nature::Level,
        AlertKind::SuspiciousToolUsage
        | AlertKind::UnauthorizedAccess
        | AlertKind::NetworkAnomaly
        | AlertKind::PrivilegeEscalation
        | AlertKind::AgentCrashed
        | AlertKind::ReplicationDenied => Nature::Counted,
    }
}

pub(crate) fn over(rule: &Rule) -> Over {
    let said = rule.resolve_after;
    match rule.kind {
        AlertKind::HighResourceUsage => Over::After(rule.lasting),
        AlertKind::AgentQuarantined
        | AlertKind::BudgetExceeded
        | AlertKind::KillSwitchEngaged
        | AlertKind::LedgerFailure
        | AlertKind::ApprovalWaiting
        | AlertKind::StorageFailure => Over::AtOnce,
        _ if said == Some(Duration::ZERO) => Over::ByAPerson,
        AlertKind::AgentCrashed => Over::Recovered(said.unwrap_or(RECOVERED)),
        AlertKind::SuspiciousToolUsage
        | AlertKind::NetworkAnomaly
        | AlertKind::ReplicationDenied => Over::After(said.unwrap_or(rule.window * 10)),
        // An attempt does not become harmless by being over, unless somebody says so.
        AlertKind::UnauthorizedAccess | AlertKind::PrivilegeEscalation => {
            said.map_or(Over::ByAPerson, Over::After)
        }
    }
}

/// Whether the rule may say when it is over; of what is so or is not, that is known.
pub(crate) fn may_say_when_over(kind: AlertKind) -> bool {
    nature(kind) == Nature::Counted
}

/// Why an alert is over at once.
fn over_text(kind: AlertKind) -> &'static str {
    match kind {
        AlertKind::AgentQuarantined => "the agent was released",
        AlertKind::BudgetExceeded => "its budget is not spent any more",
        AlertKind::KillSwitchEngaged => "the kill switch was reset",
        AlertKind::LedgerFailure => "the log can be written again",
        AlertKind::ApprovalWaiting => "the call was answered, or nobody answered in time",
        AlertKind::StorageFailure => "there is room, and the history can be written again",
        _ => "that is no longer so",
    }
}

pub(crate) fn is_about_an_agent(kind: AlertKind) -> bool {
    !matches!(
        kind,
        AlertKind::KillSwitchEngaged | AlertKind::LedgerFailure | AlertKind::StorageFailure
    )
}

/// The rule that holds where nothing else is said.
#[must_use]
pub fn rule_of(kind: AlertKind) -> Rule {
    let (severity, threshold, window, lasting) = match kind {
        AlertKind::HighResourceUsage => (Severity::Warning, 1, 60, 30),
        AlertKind::SuspiciousToolUsage => (Severity::Warning, 5, 60, 0),
        AlertKind::UnauthorizedAccess => (Severity::Critical, 1, 60, 0),
        AlertKind::NetworkAnomaly => (Severity::Warning, 10, 60, 0),
        AlertKind::PrivilegeEscalation => (Severity::Critical, 1, 60, 0),
        AlertKind::AgentCrashed => (Severity::Warning, 1, 60, 0),
        AlertKind::AgentQuarantined => (Severity::Warning, 1, 60, 0),
        AlertKind::BudgetExceeded => (Severity::Warning, 1, 60, 0),
        AlertKind::ReplicationDenied => (Severity::Warning, 1, 60, 0),
        AlertKind::ApprovalWaiting => (Severity::Warning, 1, 60, 0),
        AlertKind::KillSwitchEngaged | AlertKind::LedgerFailure | AlertKind::StorageFailure => {
            (Severity::Critical, 1, 60, 0)
        }
    };
    Rule {
        kind,
        enabled: true,
        severity,
        threshold,
        window: Duration::from_secs(window),
        lasting: Duration::from_secs(lasting),
        resolve_after: None,
        respond: vec![Response::Notify],
    }
}
