//! What stages would have found, as the pipeline keeps it.

use belljar_evolve::Risk;
use belljar_evolve::evidence::{
    PREDICATE, STATEMENT, StageResult, Statement, Subject, TreeDigests, Verdict,
};
use belljar_evolve::pipeline::Outcome;
use belljar_evolve::proposal::Proposal;
use serde_json::Value;

/// One stage's evidence about a proposal, and what follows from it.
pub(crate) fn judged(proposal: &Proposal, risk: Risk, verdict: Verdict) -> Outcome {
    let stage = StageResult {
        proposal: proposal.id.clone(),
        stage: "3-unit".into(),
        verdict,
        reasons: Vec::new(),
        facts: Value::Null,
        raised: Vec::new(),
        inputs_sha256: "0".repeat(64),
        cached: false,
        duration_ms: 12,
    };
    let statement = Statement {
        kind: STATEMENT.into(),
        subject: vec![Subject {
            name: "candidate".into(),
            digest: TreeDigests {
                sha256: proposal.candidate_tree.clone(),
                git_tree: proposal.git_tree.clone(),
            },
        }],
        predicate_type: PREDICATE.into(),
        predicate: stage,
    };
    Outcome {
        passed: verdict == Verdict::Pass,
        risk,
        reasons: Vec::new(),
        statements: vec![statement],
    }
}
