//! What is known of a proposal, and its names.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Names a proposal: the SHA-256 of what it asks for, of whom it comes from and of the tree it starts from, as hex.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ProposalId(String);

/// Not the name of a proposal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the name of a proposal: 64 hexadecimal digits, or the first eight or more of them"
)]
pub struct InvalidProposalId(String);

impl ProposalId {
    /// Checks a name: 64 lower-case hexadecimal digits. So it is also safe as a file's name.
    ///
    /// # Errors
    /// When it is something else.
    pub fn new(id: impl Into<String>) -> Result<Self, InvalidProposalId> {
        let id = id.into();
        if id.len() == 64 && is_hex(&id) {
            Ok(Self(id))
        } else {
            Err(InvalidProposalId(id))
        }
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first digits, for people.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.0[..12]
    }

    /// Whether it begins with these digits, at least eight.
    #[must_use]
    pub fn begins_with(&self, digits: &str) -> bool {
        digits.len() >= 8 && self.0.starts_with(digits)
    }
}

pub(crate) fn is_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

impl fmt::Display for ProposalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ProposalId {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

/// What an approval is about, each as the hex of a SHA-256. Another value in any of them is another thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Digests {
    /// The tree before.
    pub base_tree: String,
    /// The tree after.
    pub candidate_tree: String,
    /// The evidence of every stage.
    pub evidence: String,
    /// The rules it was judged by.
    pub policy: String,
}

/// How much can go wrong. It is computed; an author's own claim can only raise it.
pub use belljar_api::ProposalRisk as Risk;
/// How far a proposal has come.
pub use belljar_api::ProposalStatus as Status;

/// The stage that people's reasons are of.
pub const REVIEW: &str = "review";

/// Why something was refused or is risky, for people and for the agent that asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// A stable word.
    pub code: String,
    /// The stage that says so.
    pub stage: String,
    /// Where, if it is about a place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// In words.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// `proposal.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proposal {
    /// Its name.
    pub id: ProposalId,
    /// Who proposed it: `operator:NAME`, `agent:ID`, or `user:UID` for a person who did not say their name.
    pub by: String,
    /// What change and why, in its author's words.
    pub description: String,
    /// The digest of the tree before.
    pub base_tree: String,
    /// The digest of the tree after.
    pub candidate_tree: String,
    /// The candidate's name in git.
    pub git_tree: String,
    /// The project's directory, of which the tree before is a copy.
    pub project: String,
    /// How much can go wrong.
    pub risk: Risk,
    /// How far it has come.
    pub status: Status,
    /// Why it was refused, and why it is as risky as it is.
    pub reasons: Vec<Reason>,
    /// When it was proposed, in milliseconds since 1970.
    pub proposed_ms: u64,
}

impl Proposal {
    /// Whether people have decided about it, or it has run: then no stage has a say in it any more.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        let by_people = || self.reasons.iter().any(|reason| reason.stage == REVIEW);
        match self.status {
            Status::Approved | Status::Deployed | Status::RolledBack => true,
            Status::Rejected => by_people(),
            Status::Draft | Status::Checking | Status::Waiting => false,
        }
    }
}
