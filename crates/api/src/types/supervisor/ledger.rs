//! The log, as an operator sees it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::types::Shown;

/// How the log stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerReport {
    /// Entries in it.
    pub entries: u64,
    /// The signed checkpoint, as text.
    pub checkpoint: String,
    /// The key that signs, as text.
    pub key: Shown,
    /// Whether all of it was last found whole: `whole`, `not_checked` or what is wrong.
    pub verified: Shown,
    /// When that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified_at_ms: Option<u64>,
    /// Why it can't be written; grants are refused as long as this is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Shown>,
}

/// Which entries. The newest come first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LedgerQuery {
    /// Older than this index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// How many; at most 500, and 50 where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Prove this entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u64>,
}

/// Entries, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerEntries {
    /// The entries.
    pub entries: Vec<LedgerEntry>,
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerEntry {
    /// Its place.
    pub index: u64,
    /// What it says.
    pub entry: Value,
}

/// That an entry is in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProofReply {
    /// Its place.
    pub index: u64,
    /// A c2sp.org/tlog-proof file, which `belljar audit prove --check` reads.
    pub proof: String,
}
