//! What was proposed, what became of it, and why: for people, and for agents to learn from.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Desk, Reason, ReviewError, Verdict};
use crate::proposal::Proposal;

/// Counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// All proposals.
    pub proposals: usize,
    /// By how far they came.
    pub by_status: BTreeMap<&'static str, usize>,
    /// By risk.
    pub by_risk: BTreeMap<&'static str, usize>,
    /// By who proposed.
    pub by_author: BTreeMap<String, usize>,
    /// Why stages refused, by code.
    pub refused_for: BTreeMap<String, usize>,
    /// Why people refused.
    pub rejected_for: BTreeMap<&'static str, usize>,
    /// What people said, in all.
    pub statements: BTreeMap<&'static str, usize>,
}

/// Counts proposals, and what people said about them. A statement that nobody's key signed is not counted.
///
/// # Errors
/// When what was said can't be read.
pub fn statistics(proposals: &[Proposal], desk: &Desk) -> Result<Statistics, ReviewError> {
    let mut counts = Statistics {
        proposals: proposals.len(),
        ..Statistics::default()
    };
    let reviewers = desk.reviewers()?;
    for proposal in proposals {
        *counts
            .by_status
            .entry(proposal.status.as_str())
            .or_default() += 1;
        *counts.by_risk.entry(proposal.risk.as_str()).or_default() += 1;
        *counts.by_author.entry(proposal.by.clone()).or_default() += 1;
        if proposal.status.as_str() == "rejected" {
            for reason in proposal
                .reasons
                .iter()
                .filter(|reason| reason.stage != "review")
            {
                *counts.refused_for.entry(reason.code.clone()).or_default() += 1;
            }
        }
        for envelope in desk.said(&proposal.id)? {
            let reviewer = envelope.key().and_then(|key| reviewers.with_key(key));
            let Some(said) = reviewer.and_then(|one| envelope.open(&one.key)) else {
                continue;
            };
            *counts.statements.entry(said.verdict.as_str()).or_default() += 1;
            if said.verdict == Verdict::Reject {
                for reason in said.reasons {
                    *counts
                        .rejected_for
                        .entry(Reason::as_str(reason))
                        .or_default() += 1;
                }
            }
        }
    }
    Ok(counts)
}
