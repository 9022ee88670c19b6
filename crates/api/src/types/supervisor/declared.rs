//! Agents that the supervisor's file declares: what is wanted of them, and what became of that.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::types::{Name, Reason, Shown};

/// A declared agent that does not run, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeclaredView {
    /// Its name.
    pub name: Shown,
    /// Why it does not run.
    pub state: DeclaredState,
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
    /// Who wanted that, where somebody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Shown>,
    /// A stable word, such as `deny_budget` or `stopped`.
    pub code: Shown,
    /// What was said.
    pub reason: Shown,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<Shown>,
    /// When it is tried again, where it will be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at_ms: Option<u64>,
    /// How often it was tried.
    pub attempts: u32,
}

/// Why a declared agent does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeclaredState {
    /// It is about to be started.
    Pending,
    /// It could not be started, and is tried again.
    Refused,
    /// It is not wanted until somebody starts it: it was stopped, killed or quarantined, or it has ended for good.
    Stopped,
}

/// Makes declared agents wanted again, and starts them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartDeclaredRequest {
    /// Which; all that do not run where absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<Name>,
    /// Why; it goes to the ledger.
    pub reason: Reason,
}

/// What became of declared agents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeclaredReply {
    /// Those that run now and did not before.
    pub started: Vec<Shown>,
    /// Those that still don't, and why.
    pub not_running: Vec<DeclaredView>,
}

/// Reads the supervisor's file again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReloadRequest {
    /// Why; it goes to the ledger.
    pub reason: Reason,
    /// Whether nothing is to be done but told what would be.
    #[serde(default)]
    pub dry_run: bool,
    /// Whether agents that changed go on as they are until they are started again.
    #[serde(default)]
    pub no_restart: bool,
}

/// What a file says now and did not before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReloadReply {
    /// Agents, by name.
    pub agents: Vec<AgentChange>,
    /// Settings of the supervisor that take effect with its next start.
    pub needs_restart: Vec<Shown>,
    /// Those that don't run now, and why.
    pub not_running: Vec<DeclaredView>,
}

/// How an agent's declaration changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentChange {
    /// Its name.
    pub name: Shown,
    /// How.
    pub change: ChangeOfAgent,
    /// The keys that are not what they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<Shown>,
}

/// What changed of an agent's declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeOfAgent {
    /// It is new.
    Added,
    /// It is not declared any more.
    Removed,
    /// It is another.
    Changed,
}
