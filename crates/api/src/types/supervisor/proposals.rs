//! Changes that agents propose to their own code, as people review them. All text of a proposal is its author's: whoever
//! shows it sees to that.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::types::{ProposalName, Shown};

/// Proposals, the newest first, and what became of all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProposalList {
    /// The proposals.
    pub proposals: Vec<ProposalRow>,
    /// Older ones that are not told.
    pub left_out: u64,
    /// Counts of all of them.
    pub stats: ProposalStats,
    /// When this was true.
    pub at_ms: u64,
}

/// A proposal as a list shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProposalRow {
    /// Its name.
    pub id: ProposalName,
    /// The project it is about.
    pub project: Shown,
    /// Who proposed it.
    pub by: Shown,
    /// What it is for, in its author's words: the beginning.
    pub title: Shown,
    /// How far it has come.
    pub status: ProposalStatus,
    /// How much can go wrong.
    pub risk: ProposalRisk,
    /// When it was proposed.
    pub proposed_at_ms: u64,
    /// Where its rollout is, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Shown>,
}

/// How far a proposal has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProposalStatus {
    /// Applied, and not looked at yet.
    Draft,
    /// Its stages are under way.
    Checking,
    /// A stage or a person refused it.
    Rejected,
    /// Every stage passed; people decide.
    Waiting,
    /// People decided for it.
    Approved,
    /// It runs.
    Deployed,
    /// It ran, and the one before runs again.
    RolledBack,
}

/// How much can go wrong.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ProposalRisk {
    /// Comments, documentation, messages.
    Low,
    /// New code, other code for the same thing.
    Medium,
    /// What the agent decides with.
    High,
    /// What keeps it safe, or what it is made of.
    Critical,
}

impl ProposalStatus {
    /// A stable word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::Checking => "checking",
            Self::Rejected => "rejected",
            Self::Waiting => "waiting",
            Self::Approved => "approved",
            Self::Deployed => "deployed",
            Self::RolledBack => "rolled_back",
        }
    }
}

impl ProposalRisk {
    /// A stable word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }

    /// The risk of this name.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Low, Self::Medium, Self::High, Self::Critical]
            .into_iter()
            .find(|risk| risk.as_str() == word)
    }
}

impl std::fmt::Display for ProposalRisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What was proposed, what became of it, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProposalStats {
    /// All proposals.
    pub proposals: u64,
    /// By how far they came.
    pub by_status: BTreeMap<String, u64>,
    /// By risk.
    pub by_risk: BTreeMap<String, u64>,
    /// By who proposed.
    pub by_author: BTreeMap<String, u64>,
    /// Why stages refused, by code.
    pub refused_for: BTreeMap<String, u64>,
    /// Why people refused.
    pub rejected_for: BTreeMap<String, u64>,
    /// What people said, in all.
    pub statements: BTreeMap<String, u64>,
}

/// Everything a reviewer looks at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProposalDetail {
    /// What the list shows.
    pub proposal: ProposalRow,
    /// What it is for, in its author's words.
    pub description: String,
    /// Why it was refused, and why it is as risky as it is.
    pub reasons: Vec<ProposalReason>,
    /// What became of each file.
    pub files: Vec<ProposalFile>,
    /// What it touches besides the lines it changes.
    pub impact: ProposalImpact,
    /// What each stage found.
    pub stages: Vec<ProposalStage>,
    /// What follows from the evidence: advice.
    pub recommendation: Shown,
    /// What people said, and whether it is enough.
    pub review: ProposalReview,
    /// What an approval would be about; absent until its stages have run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digests: Option<ProposalDigests>,
    /// Where its rollout is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutView>,
    /// What to type, on the host, to go on.
    pub commands: Vec<ProposalCommand>,
    /// Why parts of this are missing, where they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_ready: Option<Shown>,
}

/// Why something was refused or is risky.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProposalReason {
    /// A stable word.
    pub code: Shown,
    /// The stage that says so.
    pub stage: Shown,
    /// Where, if it is about a place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Shown>,
    /// In words.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// What became of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProposalFile {
    /// Which.
    pub path: String,
    /// `added`, `removed` or `changed`.
    pub kind: Shown,
    /// Lines that came.
    pub added: u64,
    /// Lines that went.
    pub removed: u64,
    /// The difference; empty where it is not text.
    pub lines: Vec<CodeLine>,
    /// Lines that were left out.
    pub cut: u64,
}

/// A line of a difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CodeLine {
    /// `+`, `-`, a space, or `@` between two parts.
    pub mark: String,
    /// Its parts, each of one colour.
    pub parts: Vec<CodePart>,
}

/// A part of a line of code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CodePart {
    /// What it is.
    pub tint: CodeTint,
    /// The text.
    pub text: String,
}

/// What a part of a line of code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CodeTint {
    /// Nothing in particular.
    Plain,
    /// A word of the language.
    Keyword,
    /// A text.
    Text,
    /// A comment.
    Comment,
    /// A number.
    Number,
}

/// What a change touches besides the lines it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProposalImpact {
    /// Names that others could use and that are new.
    pub api_added: Vec<String>,
    /// Such names that are gone.
    pub api_removed: Vec<String>,
    /// Such names that are declared in another way.
    pub api_changed: Vec<String>,
    /// Other files that mention a name that went or changed.
    pub callers: Vec<String>,
    /// What makes it riskier.
    pub raised: Vec<String>,
}

/// What one stage found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProposalStage {
    /// The stage, such as `3-unit`.
    pub name: Shown,
    /// How it went.
    pub verdict: StageVerdict,
    /// Why, where it did not pass.
    pub reasons: Vec<ProposalReason>,
    /// Figures of the stage's own, as text.
    pub facts: Vec<StageFact>,
    /// What was given to the stage.
    pub inputs_sha256: Shown,
    /// Whether it is the result of an earlier run on the same inputs.
    pub cached: bool,
    /// How long it took.
    pub duration_ms: u64,
}

/// How a stage went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StageVerdict {
    /// All it asks for is so.
    Pass,
    /// It is not, or nobody can tell.
    Fail,
    /// The project declares nothing for it.
    NotAsked,
}

/// A figure of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageFact {
    /// What it is.
    pub name: Shown,
    /// How much, or which.
    pub value: Shown,
}

/// What people said, and whether it is enough.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProposalReview {
    /// `approved`, `rejected`, `waiting`, or `closed` before the stages have run.
    pub state: Shown,
    /// In words.
    pub words: Vec<Shown>,
    /// Who approved, so that it counts.
    pub approved_by: Vec<Shown>,
    /// How many must.
    pub needed: u64,
    /// Everything that was said and signed, the oldest first.
    pub statements: Vec<ReviewStatement>,
}

/// Something that somebody said and signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReviewStatement {
    /// Who.
    pub reviewer: Shown,
    /// `approve`, `reject` or `comment`.
    pub verdict: Shown,
    /// Why, when it is no.
    pub reasons: Vec<Shown>,
    /// In words.
    pub text: String,
    /// When.
    pub at_ms: u64,
    /// Until when an approval counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
}

/// What an approval is about, each as the hex of a SHA-256.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProposalDigests {
    /// The tree before.
    pub base_tree: Shown,
    /// The tree after.
    pub candidate_tree: Shown,
    /// The evidence of every stage.
    pub evidence: Shown,
    /// The rules it was judged by.
    pub policy: Shown,
}

/// Something to type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProposalCommand {
    /// What it does.
    pub what: Shown,
    /// The words.
    pub command: Shown,
}

/// Where a rollout is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutView {
    /// `shadow`, `5 %`, …, `done`, `going back`, `rolled back`.
    pub stage: Shown,
    /// The steps in turn, and which is reached.
    pub steps: Vec<RolloutStep>,
    /// Why it is held, if somebody holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Shown>,
    /// Why it goes or went back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_back: Option<Shown>,
    /// How often the instances were looked at in this step.
    pub rounds: u64,
    /// The share of requests that fail, before and after.
    pub error_rates: [f64; 2],
    /// Whether a supervisor keeps the instances.
    pub is_supervised: bool,
    /// The instances, and what each is to run.
    pub instances: Vec<RolloutInstance>,
}

/// A step of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutStep {
    /// What it is called.
    pub name: Shown,
    /// `passed`, `now` or `ahead`; `undone` once it went back.
    pub state: Shown,
}

/// An instance of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutInstance {
    /// Its name.
    pub name: Shown,
    /// Whether it is to run the candidate.
    pub on_candidate: bool,
    /// The tree that its place shows, as hex.
    pub tree: Shown,
}
