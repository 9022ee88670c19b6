//! What needs a person's attention, and what was done about it by rule.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::types::{AgentId, AlertId, Name, Reason, Shown, SilenceId};

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
    /// A call of a tool waits for an operator's answer.
    ApprovalWaiting,
    /// The disk is full or nearly so, or the history can't be written.
    StorageFailure,
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
    /// Why it was acknowledged or resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Shown>,
    /// Whether a silence holds: nobody is told of it.
    #[serde(default)]
    pub silenced: bool,
    /// What was done about it by rule.
    #[serde(default)]
    pub responses: Vec<ResponseTaken>,
}

/// Which alerts are resolved together. One of the three must be said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveAlertsRequest {
    /// Those about agents with this name or id; `*` stands for any letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Name>,
    /// Those of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<AlertKind>,
    /// All that the other two do not leave out.
    #[serde(default)]
    pub all: bool,
    /// Why; it goes to the ledger.
    pub reason: Reason,
}

/// What was resolved together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlertsResolved {
    /// Their numbers.
    pub resolved: Vec<AlertId>,
}

/// Asks that nobody is told of some alerts for a while. They are raised and listed all the same, and rules that freeze or end
/// an agent do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SilenceRequest {
    /// Alerts about agents with this name or id; `*` stands for any letters. About everybody where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Name>,
    /// Alerts of this kind; of every kind where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<AlertKind>,
    /// For how long, from 1,000 to 2,592,000,000 (30 days).
    #[schemars(range(min = 1_000, max = 2_592_000_000_u64))]
    pub for_ms: u64,
    /// Why; it goes to the ledger.
    pub reason: Reason,
}

/// A silence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SilenceView {
    /// Its number.
    pub id: SilenceId,
    /// About whom; everybody where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Name>,
    /// Of which kind; every kind where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<AlertKind>,
    /// Why.
    pub reason: Shown,
    /// Who asked for it.
    pub by: Shown,
    /// Since when it holds.
    pub since_ms: u64,
    /// Until when.
    pub until_ms: u64,
}

/// Silences that hold, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SilenceList {
    /// The silences.
    pub silences: Vec<SilenceView>,
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
