//! Stage 2: what the text gives away, and programs that must end well.

use std::path::Path;

use belljar_supervisor::RunResult;
use serde_json::json;

use super::Work;
use super::chamber::{ChamberError, Chambers, Job};
use super::finding::{Finding, finding};
use crate::lang::Lang;
use crate::proposal::Risk;
use crate::signals;
use crate::tree::Tree;

const CASE_HINT: &str = "declare one in evolve.toml, whose output is compared outside of the box: \
    [[cases]] name = \"answers\" command = [\"/usr/bin/python3\", \"agent.py\", \"{input}\"] input = \"…\" expect = \"…\"";

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
    let code = work
        .changes
        .iter()
        .find(|change| Lang::of(change.path).is_some());
    if let (Some(change), true) = (code, work.config.cases.is_empty()) {
        let at = Some(change.path.to_string());
        let message = "there is no case: tests run in the process they judge, and code can be right for them alone";
        found.refuse("no_case", at, message, CASE_HINT);
    }
    let place = match chambers.place(tree) {
        Ok(place) => place,
        Err(error) => {
            found.refuse("tree", None, &error.to_string(), "");
            return found;
        }
    };
    super::syntax::check(&mut found, work, chambers, &place, tree);
    for check in &work.config.checks {
        let job = Job {
            words: &check.command,
            ..Job::default()
        };
        must_end_well(&mut found, chambers, &place, &check.name, &job);
    }
    found.facts =
        json!({"checks": work.config.checks.len(), "workspace_ms": chambers.slowest_ms()});
    found
}

/// Runs a program; gives what it said, if it ended well.
pub(super) fn must_end_well(
    found: &mut Finding,
    chambers: &Chambers,
    place: &Path,
    name: &str,
    job: &Job<'_>,
) -> Option<RunResult> {
    let at = Some(name.to_owned());
    match chambers.run(place, job) {
        Ok(result) if result.exit_code == Some(0) => return Some(result),
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
    None
}
