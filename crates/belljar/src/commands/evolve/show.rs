//! Proposals for people to look at.

use super::{failure, stage_line};
use crate::cli::OutputFormat;
use crate::exit::{self, Failure};
use crate::print;
use belljar_evolve::scope;
use belljar_evolve::store::{Loaded, Store};
use belljar_supervisor::StateDir;
use serde_json::json;
use std::fmt::Write as _;

pub(super) fn list(output: OutputFormat) -> Result<u8, Failure> {
    let state = StateDir::existing()?;
    let all = Store::of(state.path()).list().map_err(failure)?;
    if output == OutputFormat::Json {
        print::json(&all);
        return Ok(exit::OK);
    }
    let mut text = String::new();
    for proposal in &all {
        let first = proposal.description.lines().next().unwrap_or_default();
        // Writing to a String can't fail.
        let _ = writeln!(
            text,
            "{}  {:<11} {:<8} {}  {}",
            proposal.id.short(),
            proposal.status.as_str(),
            proposal.risk.as_str(),
            print::utc(proposal.proposed_ms),
            print::harmless(first)
        );
    }
    print::out(&text);
    Ok(exit::OK)
}

pub(super) fn show(id: &str, output: OutputFormat) -> Result<u8, Failure> {
    let state = StateDir::existing()?;
    let store = Store::of(state.path());
    let id = store.find(id).map_err(failure)?;
    let loaded = store.load(&id).map_err(failure)?;
    let evidence = store.evidence(&id).map_err(failure)?.unwrap_or_default();
    let diff = diff(&loaded);
    if output == OutputFormat::Json {
        print::json(&json!({"proposal": loaded.proposal, "evidence": evidence, "diff": diff}));
        return Ok(exit::OK);
    }
    let proposal = &loaded.proposal;
    let mut text = format!(
        "{}\n  status    {}\n  risk      {}\n  by        {}\n  proposed  {}\n  git tree  {}\n\n",
        proposal.id,
        proposal.status.as_str(),
        proposal.risk,
        print::harmless(&proposal.by),
        print::utc(proposal.proposed_ms),
        proposal.git_tree
    );
    for line in proposal
        .description
        .lines()
        .chain(["", "To undo it:"])
        .chain(loaded.request.rollback_plan.lines())
    {
        let _ = writeln!(text, "  {}", print::harmless(line));
    }
    text.push('\n');
    for statement in &evidence {
        let _ = writeln!(text, "  {}", stage_line(&statement.predicate));
    }
    for reason in &proposal.reasons {
        let at = reason
            .at
            .as_deref()
            .map(|at| format!("{at}: "))
            .unwrap_or_default();
        let _ = writeln!(
            text,
            "  {}",
            print::harmless(&format!(
                "{} {} {at}{}",
                reason.stage, reason.code, reason.message
            ))
        );
    }
    text.push('\n');
    for line in diff.lines() {
        let _ = writeln!(text, "{}", print::harmless(line));
    }
    print::out(&text);
    Ok(exit::OK)
}

/// What it changes, as a unified diff.
fn diff(loaded: &Loaded) -> String {
    let changes = scope::changes(&loaded.base, &loaded.candidate);
    changes.iter().map(scope::Change::unified).collect()
}
