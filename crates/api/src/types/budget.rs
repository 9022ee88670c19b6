//! What may be used, and what was.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A ceiling per dimension. An absent dimension has no ceiling of its own; in a request it asks for nothing in particular.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Replicas alive at once, below this worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u64>,
    /// Milliseconds of CPU time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Memory, in mebibytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// Processes and threads alive at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// Model tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Millionths of a US dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_usd: Option<u64>,
}

/// An amount per dimension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Amounts {
    /// Replicas.
    pub replicas: u64,
    /// Milliseconds of CPU time.
    pub cpu_ms: u64,
    /// Memory, in mebibytes.
    pub memory_mb: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Model tokens.
    pub tokens: u64,
    /// Millionths of a US dollar.
    pub micro_usd: u64,
}

/// How a worker's budget stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BudgetView {
    /// What it was given, for itself and all below it.
    pub granted: Budget,
    /// The part its own box may use.
    pub own: Budget,
    /// The part set aside for its live children.
    pub reserved: Amounts,
    /// What it and its ended children have used up for good.
    pub spent: Amounts,
    /// What a new child could still be given.
    pub available: Budget,
}
