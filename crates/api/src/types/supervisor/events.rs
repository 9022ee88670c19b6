//! What happened, for people: a view of decisions and facts, not the record of them, which is the ledger.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Severity;
use crate::types::{AgentId, Name, Shown};

/// Which events. The newest come first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EventQuery {
    /// Whose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
    /// Of which kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<EventKind>,
    /// Of at least which severity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    /// Whose text holds this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search: Option<Name>,
    /// Older than the event of this number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// Newer than the event of this number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// How many; at most 1,000, and 100 where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// Events, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventList {
    /// The events.
    pub events: Vec<EventView>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventView {
    /// Its number; later events have larger ones.
    pub id: u64,
    /// When.
    pub at_ms: u64,
    /// To whom; absent where it is about the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
    /// What kind.
    pub kind: EventKind,
    /// How bad.
    pub severity: Severity,
    /// What happened.
    pub text: Shown,
    /// A stable word where there is one, such as `deny_host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Shown>,
    /// What to change, where something can be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<Shown>,
}

/// The kinds of events.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// An agent's program runs.
    Started,
    /// An agent ended.
    Ended,
    /// An agent will be started again.
    Restarting,
    /// The gateway refused a host.
    EgressRefused,
    /// The kernel refused a system call that agents have no business with.
    SystemCallRefused,
    /// A box met a limit and lives on.
    LimitMet,
    /// A replica was granted.
    Replicated,
    /// A replica was refused.
    ReplicationDenied,
    /// An agent was frozen.
    Quarantined,
    /// An agent was let go on.
    Released,
    /// An agent was killed.
    Killed,
    /// A kill switch was engaged.
    KillSwitchEngaged,
    /// It was reset.
    KillSwitchReset,
    /// An agent spent its budget for models.
    BudgetExceeded,
    /// A tool was refused, or used in a suspicious way.
    ToolRefused,
    /// A call of a tool waits for an operator.
    ToolHeld,
    /// An alert was raised, or changed.
    Alert,
    /// A rule answered an alert.
    Responded,
    /// The log can't be written, or can again.
    Ledger,
    /// The daemon itself: started, adopted, shut down.
    Daemon,
}
