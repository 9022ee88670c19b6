//! A proposal with every part, as a server would tell of it.

use belljar_api::*;

pub fn row(id: ProposalName) -> ProposalRow {
    ProposalRow {
        id,
        project: Shown::new("/srv/agent"),
        by: Shown::new("agent:w1"),
        title: Shown::new("remember what it gave"),
        status: ProposalStatus::Waiting,
        risk: ProposalRisk::High,
        proposed_at_ms: 3,
        rollout: None,
    }
}

pub fn list(id: ProposalName) -> ProposalList {
    ProposalList {
        proposals: vec![row(id)],
        left_out: 2,
        stats: ProposalStats {
            proposals: 3,
            by_status: [("waiting".to_owned(), 3)].into(),
            ..ProposalStats::default()
        },
        at_ms: 4,
    }
}

pub fn proposal(id: ProposalName) -> ProposalDetail {
    let reason = ProposalReason {
        code: Shown::new("test_failed"),
        stage: Shown::new("3-unit"),
        at: Some(Shown::new("tests/test_x.py::test_y")),
        message: "it fails\nnow".to_owned(),
        hint: None,
    };
    ProposalDetail {
        proposal: row(id),
        description: "remember what it gave\n\nmore".to_owned(),
        reasons: vec![reason.clone()],
        files: vec![ProposalFile {
            path: "agent.py".to_owned(),
            kind: Shown::new("changed"),
            added: 1,
            removed: 0,
            lines: vec![CodeLine {
                mark: "+".to_owned(),
                parts: vec![CodePart {
                    tint: CodeTint::Keyword,
                    text: "import".to_owned(),
                }],
            }],
            cut: 0,
        }],
        impact: ProposalImpact {
            api_changed: vec!["score".to_owned()],
            ..ProposalImpact::default()
        },
        stages: vec![ProposalStage {
            name: Shown::new("3-unit"),
            verdict: StageVerdict::Fail,
            reasons: vec![reason],
            facts: vec![StageFact {
                name: Shown::new("tests"),
                value: Shown::new("41"),
            }],
            inputs_sha256: Shown::new("aa"),
            cached: true,
            duration_ms: 5,
        }],
        recommendation: Shown::new("reject"),
        review: ProposalReview {
            state: Shown::new("waiting"),
            words: vec![Shown::new("0 of 1 have approved")],
            approved_by: Vec::new(),
            needed: 1,
            statements: vec![ReviewStatement {
                reviewer: Shown::new("ada"),
                verdict: Shown::new("comment"),
                reasons: Vec::new(),
                text: "why?".to_owned(),
                at_ms: 6,
                expires_at_ms: None,
            }],
        },
        digests: None,
        rollout: Some(RolloutView {
            stage: Shown::new("25 %"),
            steps: vec![RolloutStep {
                name: Shown::new("25 %"),
                state: Shown::new("now"),
            }],
            paused: None,
            why_back: None,
            rounds: 7,
            error_rates: [0.5, 0.25],
            is_supervised: true,
            instances: vec![RolloutInstance {
                name: Shown::new("worker-1"),
                on_candidate: true,
                tree: Shown::new("bb"),
            }],
        }),
        commands: vec![ProposalCommand {
            what: Shown::new("approve"),
            command: Shown::new("belljar evolve approve"),
        }],
        not_ready: None,
    }
}
