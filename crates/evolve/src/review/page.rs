//! Proposals in the words of the operator's protocol: for the dashboard, and for whoever else asks. It reads and holds
//! nothing: neither a lock nor anybody's key.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use belljar_api::{
    CodeLine, CodePart, CodeTint, ProposalCommand, ProposalDetail, ProposalDigests, ProposalFile,
    ProposalImpact, ProposalList, ProposalName, ProposalReason, ProposalReview, ProposalRow,
    ProposalStage, ProposalStats, ReviewStatement, Shown, StageFact, StageVerdict,
};
use serde_json::Value;

use super::paint::{self, Tint};
use super::stats::{Statistics, statistics};
use super::{Desk, Dossier, FileChange, Kind, NotReady, ReviewError, Standing};
use crate::evidence::{StageResult, Verdict};
use crate::proposal::{Proposal, ProposalId, Reason, Status};
use crate::rollout;
use crate::store::{Store, StoreError};

/// The most proposals of a list.
const MOST_ROWS: usize = 500;
/// The most lines of all differences of one proposal together.
const MOST_LINES: usize = 4000;
/// The most figures of one stage.
const MOST_FACTS: usize = 60;
/// The most entries of each kind of count.
const MOST_COUNTS: usize = 50;

/// Why proposals can't be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The proposals.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What was said.
    #[error(transparent)]
    Review(#[from] ReviewError),
    /// There is none of this name.
    #[error("there is no such proposal")]
    Unknown,
}

/// All proposals, the newest first, with counts.
///
/// # Errors
/// When the state directory can't be read.
pub fn list(state: &Path, desk: &Desk, now_ms: u64) -> Result<ProposalList, PageError> {
    let all = Store::of(state).list()?;
    let stats = counts(statistics(&all, desk)?);
    let mut newest: Vec<&Proposal> = all.iter().collect();
    newest.sort_by(|one, other| {
        let by_time = other.proposed_ms.cmp(&one.proposed_ms);
        by_time.then_with(|| one.id.cmp(&other.id))
    });
    let rows = newest
        .iter()
        .take(MOST_ROWS)
        .filter_map(|proposal| row(state, proposal));
    Ok(ProposalList {
        proposals: rows.collect(),
        left_out: newest.len().saturating_sub(MOST_ROWS) as u64,
        stats,
        at_ms: now_ms,
    })
}

/// Everything about one proposal. One whose stages have not run yet is shown as far as it is known.
///
/// # Errors
/// When there is none of this name, or it can't be read.
pub fn detail(
    state: &Path,
    desk: &Desk,
    name: &str,
    now_ms: u64,
) -> Result<ProposalDetail, PageError> {
    let store = Store::of(state);
    let id = ProposalId::new(name).map_err(|_| PageError::Unknown)?;
    if !store.directory(&id).is_dir() {
        return Err(PageError::Unknown);
    }
    let proposal = store.read(&id)?;
    let mut shown = ProposalDetail {
        proposal: row(state, &proposal).ok_or(PageError::Unknown)?,
        description: proposal.description.clone(),
        reasons: proposal.reasons.iter().map(reason).collect(),
        files: Vec::new(),
        impact: ProposalImpact::default(),
        stages: Vec::new(),
        recommendation: Shown::new(""),
        review: ProposalReview {
            state: Shown::new("closed"),
            words: Vec::new(),
            approved_by: Vec::new(),
            needed: 0,
            statements: statements(desk, &id)?,
        },
        digests: None,
        rollout: rollout::view(state, &proposal.project, id.as_str()),
        commands: Vec::new(),
        not_ready: None,
    };
    match Dossier::gather(&store, &id) {
        Ok(dossier) => tell(&mut shown, &dossier, desk, now_ms)?,
        Err(NotReady::Store(error)) => return Err(error.into()),
        Err(other) => {
            shown.not_ready = Some(Shown::new(&format!("{other}; {}", other.hint())));
        }
    }
    Ok(shown)
}

fn tell(
    shown: &mut ProposalDetail,
    dossier: &Dossier,
    desk: &Desk,
    now_ms: u64,
) -> Result<(), PageError> {
    let mut room = MOST_LINES;
    shown.files = dossier
        .files
        .iter()
        .map(|file| {
            let file = changed(file, room);
            room = room.saturating_sub(file.lines.len());
            file
        })
        .collect();
    shown.impact = impact(dossier);
    shown.stages = dossier.stages.iter().map(stage).collect();
    shown.recommendation = Shown::new(&dossier.recommendation());
    shown.digests = Some(ProposalDigests {
        base_tree: Shown::new(&dossier.digests.base_tree),
        candidate_tree: Shown::new(&dossier.digests.candidate_tree),
        evidence: Shown::new(&dossier.digests.evidence),
        policy: Shown::new(&dossier.digests.policy),
    });
    let policy = desk.policy()?;
    let subject = dossier.subject();
    let standing = desk.standing(&dossier.proposal.id, &subject, &policy, now_ms / 1000)?;
    let review = &mut shown.review;
    review.needed = policy.people(subject.risk) as u64;
    review.words = paint::standing_words(&standing)
        .iter()
        .map(|words| Shown::new(words))
        .collect();
    let by = |names: &[super::ReviewerName]| -> Vec<Shown> {
        names.iter().map(|name| Shown::new(name.as_str())).collect()
    };
    let state = match &standing {
        Standing::Approved(yes) => {
            review.approved_by = by(yes.by());
            "approved"
        }
        Standing::Rejected { .. } => "rejected",
        Standing::Waiting {
            by: said, needed, ..
        } => {
            review.approved_by = by(said);
            review.needed = *needed as u64;
            "waiting"
        }
    };
    review.state = Shown::new(state);
    shown.commands = commands(dossier, &standing, shown.rollout.is_some());
    Ok(())
}

/// What makes sense to type now.
fn commands(dossier: &Dossier, standing: &Standing, is_rolled_out: bool) -> Vec<ProposalCommand> {
    let id = dossier.proposal.id.short();
    let command = |what: &str, words: String| ProposalCommand {
        what: Shown::new(what),
        command: Shown::new(&words),
    };
    let [approve, reject, comment] = paint::commands(dossier);
    let mut commands = vec![command(
        "look at it in a terminal",
        format!("belljar evolve review {id}"),
    )];
    let is_open = matches!(dossier.proposal.status, Status::Waiting | Status::Approved);
    if is_open && dossier.failed().is_none() {
        if matches!(standing, Standing::Waiting { .. }) {
            commands.push(command("approve", approve));
        }
        commands.push(command("reject", reject));
    }
    commands.push(command("comment", comment));
    if is_open && matches!(standing, Standing::Approved(_)) {
        let words = format!("belljar evolve deploy {id} --plan rollout.toml");
        commands.push(command("roll it out", words));
    }
    if is_rolled_out && dossier.proposal.status == Status::Deployed {
        let pause = format!("belljar evolve pause {id} --reason '…'");
        commands.push(command("hold it where it is", pause));
        let back = format!("belljar evolve rollback {id} --reason '…'");
        commands.push(command("take it back", back));
    }
    commands
}

fn row(state: &Path, proposal: &Proposal) -> Option<ProposalRow> {
    let is_out = matches!(proposal.status, Status::Deployed | Status::RolledBack);
    let stage = is_out.then(|| rollout::stage(state, &proposal.project, proposal.id.as_str()));
    Some(ProposalRow {
        id: ProposalName::new(proposal.id.as_str()).ok()?,
        project: Shown::new(&proposal.project),
        by: Shown::new(&proposal.by),
        title: Shown::new(proposal.description.lines().next().unwrap_or_default()),
        status: proposal.status,
        risk: proposal.risk,
        proposed_at_ms: proposal.proposed_ms,
        rollout: stage.flatten().map(|stage| Shown::new(&stage.to_string())),
    })
}

fn reason(reason: &Reason) -> ProposalReason {
    ProposalReason {
        code: Shown::new(&reason.code),
        stage: Shown::new(&reason.stage),
        at: reason.at.as_deref().map(Shown::new),
        message: reason.message.clone(),
        hint: reason.hint.clone(),
    }
}

fn changed(file: &FileChange, room: usize) -> ProposalFile {
    let comment = paint::comment_of(&file.path);
    let lines = file.lines.iter().take(room).map(|line| CodeLine {
        mark: line.mark.to_string(),
        parts: paint::tints(&line.text, comment)
            .into_iter()
            .map(|(tint, text)| CodePart {
                tint: match tint {
                    Tint::Plain => CodeTint::Plain,
                    Tint::Keyword => CodeTint::Keyword,
                    Tint::Text => CodeTint::Text,
                    Tint::Comment => CodeTint::Comment,
                    Tint::Number => CodeTint::Number,
                },
                text,
            })
            .collect(),
    });
    let kind = match file.kind {
        Kind::Added => "added",
        Kind::Removed => "removed",
        Kind::Changed => "changed",
    };
    ProposalFile {
        path: file.path.clone(),
        kind: Shown::new(kind),
        added: file.added as u64,
        removed: file.removed as u64,
        cut: (file.cut + file.lines.len().saturating_sub(room)) as u64,
        lines: lines.collect(),
    }
}

fn impact(dossier: &Dossier) -> ProposalImpact {
    let names = |set: &BTreeSet<String>| set.iter().cloned().collect();
    let impact = &dossier.impact;
    let raised = dossier.stages.iter().flat_map(|stage| &stage.raised);
    ProposalImpact {
        api_added: names(&impact.api_added),
        api_removed: names(&impact.api_removed),
        api_changed: names(&impact.api_changed),
        callers: names(&impact.callers),
        raised: raised
            .map(|(risk, why)| format!("{risk}: {}: {}", why.code, why.message))
            .collect(),
    }
}

fn stage(stage: &StageResult) -> ProposalStage {
    let mut facts = Vec::new();
    flatten("", &stage.facts, &mut facts);
    ProposalStage {
        name: Shown::new(&stage.stage),
        verdict: match stage.verdict {
            Verdict::Pass => StageVerdict::Pass,
            Verdict::Fail => StageVerdict::Fail,
            Verdict::NotAsked => StageVerdict::NotAsked,
        },
        reasons: stage.reasons.iter().map(reason).collect(),
        facts,
        inputs_sha256: Shown::new(&stage.inputs_sha256),
        cached: stage.cached,
        duration_ms: stage.duration_ms,
    }
}

/// Figures one below the other, each with its whole name.
fn flatten(name: &str, value: &Value, facts: &mut Vec<StageFact>) {
    if facts.len() >= MOST_FACTS {
        return;
    }
    match value {
        Value::Null => {}
        Value::Object(fields) => {
            for (key, value) in fields {
                let whole = match name {
                    "" => key.clone(),
                    above => format!("{above}.{key}"),
                };
                flatten(&whole, value, facts);
            }
        }
        Value::String(text) => facts.push(fact(name, text)),
        other => facts.push(fact(name, &other.to_string())),
    }
}

fn fact(name: &str, value: &str) -> StageFact {
    StageFact {
        name: Shown::new(name),
        value: Shown::new(value),
    }
}

/// What was said and signed. What no reviewer's key signed was not said.
fn statements(desk: &Desk, id: &ProposalId) -> Result<Vec<ReviewStatement>, PageError> {
    let reviewers = desk.reviewers().map_err(ReviewError::from)?;
    let mut said = Vec::new();
    for envelope in desk.said(id)? {
        let reviewer = envelope.key().and_then(|key| reviewers.with_key(key));
        let Some(one) = reviewer.and_then(|reviewer| envelope.open(&reviewer.key)) else {
            continue;
        };
        let is_yes = one.verdict == super::Verdict::Approve;
        said.push(ReviewStatement {
            reviewer: Shown::new(one.reviewer.as_str()),
            verdict: Shown::new(one.verdict.as_str()),
            reasons: one
                .reasons
                .iter()
                .map(|why| Shown::new(why.as_str()))
                .collect(),
            text: one.text,
            at_ms: one.issued_s.saturating_mul(1000),
            expires_at_ms: is_yes.then(|| one.expires_s.saturating_mul(1000)),
        });
    }
    said.sort_by_key(|one| one.at_ms);
    Ok(said)
}

fn counts(all: Statistics) -> ProposalStats {
    fn named<K: ToString>(map: BTreeMap<K, usize>) -> BTreeMap<String, u64> {
        let mut rows: Vec<(String, u64)> = map
            .into_iter()
            .map(|(name, count)| {
                let name: String = name.to_string().chars().take(200).collect();
                (name, count as u64)
            })
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.1));
        rows.into_iter().take(MOST_COUNTS).collect()
    }
    ProposalStats {
        proposals: all.proposals as u64,
        by_status: named(all.by_status),
        by_risk: named(all.by_risk),
        by_author: named(all.by_author),
        refused_for: named(all.refused_for),
        rejected_for: named(all.rejected_for),
        statements: named(all.statements),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_whole_names_and_an_end() {
        let mut facts = Vec::new();
        let value = serde_json::json!({"a": {"b": 1, "c": "x"}, "d": [1, 2], "e": null});
        flatten("", &value, &mut facts);
        let told: Vec<String> = facts
            .iter()
            .map(|fact| format!("{}={}", fact.name, fact.value))
            .collect();
        assert_eq!(told, ["a.b=1", "a.c=x", "d=[1,2]"]);
        let long: serde_json::Map<String, Value> =
            (0..200).map(|n| (n.to_string(), Value::from(n))).collect();
        let mut facts = Vec::new();
        flatten("", &Value::Object(long), &mut facts);
        assert_eq!(facts.len(), MOST_FACTS);
    }
}
