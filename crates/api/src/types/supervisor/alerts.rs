//! What needs a person's attention, and what was done about it by rule.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AgentId;
use crate::types::{Shown, WorkerId};

/// An alert's number, as it stands in a path.
pub type AlertId = WorkerId;

/// The alerts there are.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum AlertKind {
    /// CPU or memory near or at a limit for longer than allowed.
    HighResourceUsage,
    /// Tools refused, or used in a burst.
    SuspiciousToolUsage,
    /// Something an agent has no right to was tried: a hidden path, a host process.
    UnauthorizedAccess,
    /// Hosts refused in a burst.
    NetworkAnomaly,
    /// A system call that only serves to gain power was tried.
    PrivilegeEscalation,
    /// An agent ended with an error, ran out of memory or loops.
    AgentCrashed,
    /// An agent was frozen.
    AgentQuarantined,
    /// A budget is spent.
    BudgetExceeded,
    /// A replica was refused.
    ReplicationDenied,
    /// The kill switch was engaged.
    KillSwitchEngaged,
    /// The log can't be written.
    LedgerFailure,
}

/// How bad something is.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Good to know.
    #[default]
    Info,
    /// Look at it today.
    Warning,
    /// Look at it now.
    Critical,
}

/// Where an alert stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AlertState {
    /// Nobody has seen to it.
    Open,
    /// Somebody has seen it.
    Acknowledged,
    /// It is over.
    Resolved,
}

/// Which alerts. The newest come first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AlertQuery {
    /// About whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
    /// In which state; open and acknowledged where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<AlertState>,
    /// How many; at most 1,000, and 200 where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// Alerts, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlertList {
    /// The alerts.
    pub alerts: Vec<AlertView>,
}

/// An alert.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlertView {
    /// Its number.
    pub id: AlertId,
    /// What it is about.
    pub kind: AlertKind,
    /// How bad it is.
    pub severity: Severity,
    /// About whom; absent where it is about the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
    /// The agent's name, as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_name: Option<Shown>,
    /// What happened.
    pub text: Shown,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<Shown>,
    /// Where it stands.
    pub state: AlertState,
    /// When it was raised.
    pub opened_at_ms: u64,
    /// When its cause was last seen.
    pub last_at_ms: u64,
    /// How often its cause was seen.
    pub count: u64,
    /// Who acknowledged or resolved it; `belljar` where its cause is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Shown>,
    /// What was done about it by rule.
    #[serde(default)]
    pub responses: Vec<ResponseTaken>,
}

/// What a rule may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// Tell a webhook, syslog or a command.
    Notify,
    /// Freeze the agent; it goes on when the alert is resolved.
    Freeze,
    /// Freeze the agent until a person releases it.
    Quarantine,
    /// Kill the agent.
    Kill,
    /// Kill the agent and everything below it.
    KillSubtree,
}

/// What was done by rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResponseTaken {
    /// What.
    pub response: Response,
    /// When.
    pub at_ms: u64,
    /// Why it failed, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Shown>,
}
