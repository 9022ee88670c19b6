//! When something needs a person's attention: a state machine that is told what happens and what time it is, and does nothing
//! else.

mod cause;
mod engine;
mod reference;
mod watch;

use std::time::Duration;

use belljar_api::{AlertKind, Response, Severity};

pub(crate) use engine::froze;
pub use engine::{Change, Engine, NoSuchAlert};
pub use reference::reference;
pub(crate) use reference::word;

use crate::settings::Rule;

/// Every kind.
pub(crate) const KINDS: [AlertKind; 11] = [
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
];

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
}

pub(crate) fn nature(kind: AlertKind) -> Nature {
    match kind {
        AlertKind::HighResourceUsage
        | AlertKind::AgentQuarantined
        | AlertKind::BudgetExceeded
        | AlertKind::KillSwitchEngaged
        | AlertKind::LedgerFailure => Nature::Level,
        AlertKind::SuspiciousToolUsage
        | AlertKind::UnauthorizedAccess
        | AlertKind::NetworkAnomaly
        | AlertKind::PrivilegeEscalation
        | AlertKind::AgentCrashed
        | AlertKind::ReplicationDenied => Nature::Counted,
    }
}

pub(crate) fn over(rule: &Rule) -> Over {
    match rule.kind {
        AlertKind::HighResourceUsage => Over::After(rule.lasting),
        AlertKind::AgentQuarantined
        | AlertKind::BudgetExceeded
        | AlertKind::KillSwitchEngaged
        | AlertKind::LedgerFailure => Over::AtOnce,
        AlertKind::SuspiciousToolUsage
        | AlertKind::NetworkAnomaly
        | AlertKind::ReplicationDenied => Over::After(rule.window * 10),
        // An attempt does not become harmless by being over.
        AlertKind::UnauthorizedAccess
        | AlertKind::PrivilegeEscalation
        | AlertKind::AgentCrashed => Over::ByAPerson,
    }
}

pub(crate) fn is_about_an_agent(kind: AlertKind) -> bool {
    !matches!(
        kind,
        AlertKind::KillSwitchEngaged | AlertKind::LedgerFailure
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
        AlertKind::KillSwitchEngaged | AlertKind::LedgerFailure => (Severity::Critical, 1, 60, 0),
    };
    Rule {
        kind,
        enabled: true,
        severity,
        threshold,
        window: Duration::from_secs(window),
        lasting: Duration::from_secs(lasting),
        respond: vec![Response::Notify],
    }
}
