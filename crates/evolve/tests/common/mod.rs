//! What tests of releases and of rollouts share.

use belljar_evolve::review::{
    Approved, Proposer, Registry, ReviewPolicy, Standing, Subject, judge,
};
use belljar_evolve::{Digests, Risk};

/// When it is in these tests.
pub(crate) const NOW: u64 = 1_800_000_000;

/// A low risk asks for nobody: the proof is the real one all the same.
pub(crate) fn approved(proposal: &str, base: &str, candidate: &str) -> Approved {
    let subject = Subject {
        proposal: proposal.into(),
        proposer: Proposer {
            name: Some("worker".into()),
            key: None,
        },
        risk: Risk::Low,
        digests: Digests {
            base_tree: base.into(),
            candidate_tree: candidate.into(),
            evidence: "3".repeat(64),
            policy: "4".repeat(64),
        },
    };
    let rules = ReviewPolicy::default();
    match judge(&subject, &[], &Registry::default(), &rules, NOW) {
        Standing::Approved(approved) => approved,
        other => panic!("{other:?}"),
    }
}
