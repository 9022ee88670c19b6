//! Calls of MCP tools that wait for an operator.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::types::{HoldId, Reason, Shown};

/// Calls that wait, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HoldList {
    /// The calls.
    pub holds: Vec<HoldView>,
}

/// A call that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HoldView {
    /// Its name.
    pub id: HoldId,
    /// The run whose call it is.
    pub run: Shown,
    /// The server.
    pub server: Shown,
    /// The tool, or what else is asked.
    pub tool: Shown,
    /// The arguments, as JSON; what a rule redacts is its size and digest.
    pub arguments: Shown,
    /// Why it is held.
    pub code: Shown,
    /// The rule that holds it.
    pub rule: Shown,
    /// When it began to wait.
    pub opened_at_ms: u64,
    /// When it is refused if nobody answers.
    pub deadline_ms: u64,
}

/// An operator's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldAnswerRequest {
    /// Whether the call may be made.
    pub allow: bool,
    /// Why; it goes to the ledger, and to whoever asked where the answer is no.
    pub reason: Reason,
}
