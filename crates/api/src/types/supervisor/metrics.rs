//! What agents used, over time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::types::AgentId;

/// Which samples.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsQuery {
    /// Whose; the sum over all agents where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
    /// From when; ten minutes ago where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// Until when; now where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    /// The most samples; at most 2,000, and 600 where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub points: Option<u64>,
}

/// Samples, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetricsReply {
    /// Milliseconds between two of them.
    pub every_ms: u64,
    /// The samples.
    pub samples: Vec<Sample>,
}

/// What was used in one stretch of time. Rates are means over the stretch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// When the stretch began.
    pub at_ms: u64,
    /// Hundredths of one core.
    pub cpu_percent: f64,
    /// The most bytes of memory in it.
    pub memory_bytes: u64,
    /// The most processes and threads in it.
    pub processes: u64,
    /// Bytes a second read from disks.
    pub read_rate: f64,
    /// Bytes a second written to disks.
    pub write_rate: f64,
    /// Bytes a second sent through the gateway.
    pub send_rate: f64,
    /// Bytes a second received through it.
    pub receive_rate: f64,
    /// Tokens of models in it.
    pub tokens: u64,
    /// What they cost, in millionths of a US dollar.
    pub micro_usd: u64,
}
