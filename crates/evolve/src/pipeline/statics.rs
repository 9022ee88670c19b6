//! Stage 2: what the text gives away, and programs that must end well.

use std::path::Path;

use serde_json::json;

use super::Work;
use super::chamber::{ChamberError, Chambers, Job};
use super::finding::{Finding, finding};
use crate::lang::Lang;
use crate::proposal::Risk;
use crate::signals;
use crate::tree::Tree;

/// Looks at the text, then has the interpreter and the project's own checks look at it in boxes.
pub(super) fn check(work: &Work<'_>, chambers: &Chambers, tree: &Tree) -> Finding {
    let signals = signals::judge(&work.changes, work.config);
    let mut found = finding();
    found.reasons = signals.reasons;
    found.raised = signals
        .raised
        .into_iter()
        .map(|reason| (Risk::High, reason))
        .collect();
    let place = match chambers.place(tree) {
        Ok(place) => place,
        Err(error) => {
            found.refuse("tree", None, &error.to_string(), "");
            return found;
        }
    };
    let python = work.changed(tree, |lang| lang == Lang::Python);
    if !python.is_empty() {
        let words = [
            work.config.python.as_str(),
            "-I",
            "-B",
            "/belljar/evolve/syntax.py",
        ]
        .map(str::to_owned);
        let job = json!({"root": place, "changed": python.keys().collect::<Vec<_>>()});
        let shows = vec![
            (
                "evolve/syntax.py",
                include_str!("../python/syntax.py").as_bytes().to_vec(),
            ),
            ("evolve/job.json", job.to_string().into_bytes()),
        ];
        must_end_well(
            &mut found,
            chambers,
            &place,
            "syntax",
            &Job {
                words: &words,
                shows,
                ..Job::default()
            },
        );
    }
    for check in &work.config.checks {
        must_end_well(
            &mut found,
            chambers,
            &place,
            &check.name,
            &Job {
                words: &check.command,
                ..Job::default()
            },
        );
    }
    found.facts =
        json!({"checks": work.config.checks.len(), "workspace_ms": chambers.slowest_ms()});
    found
}

fn must_end_well(
    found: &mut Finding,
    chambers: &Chambers,
    place: &Path,
    name: &str,
    job: &Job<'_>,
) {
    let at = Some(name.to_owned());
    match chambers.run(place, job) {
        Ok(result) if result.exit_code == Some(0) => {}
        Ok(result) => {
            let said = [result.stderr.as_deref(), result.stdout.as_deref()]
                .into_iter()
                .flatten()
                .find(|text| !text.trim().is_empty());
            let last = said
                .and_then(|text| text.trim_end().lines().last())
                .unwrap_or("it said nothing");
            found.refuse(
                "check",
                at,
                &format!("it ended with {:?}: {last}", result.exit_code),
                "",
            );
        }
        Err(error @ ChamberError::Run(_)) => found.refuse(
            "missing_tool",
            at,
            &error.to_string(),
            "install it, or take it out of evolve.toml",
        ),
        Err(error) => found.refuse("check", at, &error.to_string(), ""),
    }
}
