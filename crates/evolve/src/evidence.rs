//! What each stage found, as in-toto statements: who reads the record needs no other tool of ours.

use serde::{Deserialize, Serialize};

use crate::proposal::{ProposalId, Reason, Risk};

/// The type of every statement.
pub const STATEMENT: &str = "https://in-toto.io/Statement/v1";
/// What our statements are about.
pub const PREDICATE: &str = "https://belljar.dev/evolve/stage/v1";

/// An in-toto statement about a candidate tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// Always [`STATEMENT`].
    #[serde(rename = "_type")]
    pub kind: String,
    /// The candidate tree.
    pub subject: Vec<Subject>,
    /// Always [`PREDICATE`].
    #[serde(rename = "predicateType")]
    pub predicate_type: String,
    /// What was found.
    pub predicate: StageResult,
}

/// What a statement is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// Which tree.
    pub name: String,
    /// Its digests.
    pub digest: TreeDigests,
}

/// A tree's digests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeDigests {
    /// Ours.
    pub sha256: String,
    /// Git's.
    #[serde(rename = "gitTree")]
    pub git_tree: String,
}

/// How a stage went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// All it asks for is so.
    Pass,
    /// It is not, or nobody can tell.
    Fail,
    /// The project declares nothing for it.
    NotAsked,
}

/// What one stage found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageResult {
    /// The proposal.
    pub proposal: ProposalId,
    /// The stage, such as `3-unit`.
    pub stage: String,
    /// How it went.
    pub verdict: Verdict,
    /// Why, where it did not pass.
    pub reasons: Vec<Reason>,
    /// What makes the proposal riskier, and how much.
    pub raised: Vec<(Risk, Reason)>,
    /// Figures of the stage's own.
    pub facts: serde_json::Value,
    /// What was given to the stage: the same inputs have the same result.
    pub inputs_sha256: String,
    /// Whether it is the result of an earlier run on the same inputs.
    pub cached: bool,
    /// How long it took, by this side's clock.
    pub duration_ms: u64,
}
