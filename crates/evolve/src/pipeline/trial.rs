//! Stages 3 and 4: the project's own tests, taken from the tree before, on the tree after; held-out tests; and runs whose output
//! is compared on this side.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::Work;
use super::chamber::{Chambers, Job};
use super::finding::{Finding, finding};
use super::runner::{self, Outcome, Suite, Told};
use crate::config::Case;
use crate::glob::{self, Glob};
use crate::lang::{Lang, code_lines};
use crate::scope;
use crate::tree::Tree;

/// The candidate with everything that it is tested and built with as it was before.
pub(super) fn trusted(base: &Tree, candidate: &Tree, test_files: &[String]) -> Tree {
    let kept = kept(test_files);
    let mut tree = candidate.clone();
    for change in scope::changes(base, candidate) {
        if glob::first(&kept, change.path).is_some() {
            match change.before {
                Some(entry) => tree.put(change.path.clone(), entry.clone()),
                None => drop(tree.take(change.path)),
            }
        }
    }
    runner::with_tests_of(base, &mut tree);
    tree
}

/// What is taken from the tree before, whatever a candidate makes of it.
fn kept(test_files: &[String]) -> Vec<Glob> {
    let own = test_files.iter().map(String::as_str);
    scope::guarded().chain(own).map(Glob::new).collect()
}

/// Runs tests of every kind on the tree before and on the tree after, and compares.
pub(super) fn compare_all(
    work: &Work<'_>,
    chambers: &Chambers,
    [before, after]: [&Tree; 2],
    suites: &[Suite],
    coverage: Coverage,
) -> Finding {
    let mut all = finding();
    if suites.is_empty() {
        all.refuse(
            "no_tests",
            None,
            "there are no test files",
            "a change that nothing tests can't be judged; add tests by hand first",
        );
        return all;
    }
    let mut passed = BTreeSet::new();
    for suite in suites {
        let (found, ids) = compare(work, chambers, before, after, suite, coverage);
        all.reasons.extend(found.reasons);
        passed.extend(ids);
        match (suites.len(), all.facts.as_object_mut()) {
            (2.., Some(facts)) => drop(facts.insert(suite.runner.as_str().into(), found.facts)),
            _ => all.facts = found.facts,
        }
    }
    if coverage == Coverage::Counts {
        for wanted in &work.request.tests {
            let inside = format!("{wanted}::");
            if !passed.iter().any(|id: &String| id.starts_with(&inside)) {
                all.refuse(
                    "named_test",
                    Some(wanted.to_string()),
                    "no test in it ran and passed",
                    "name test files of the project",
                );
            }
        }
        unseen(&mut all, work, suites);
    }
    all
}

/// Changed code that no runner watches is never taken for code that was run.
fn unseen(finding: &mut Finding, work: &Work<'_>, suites: &[Suite]) {
    let is_seen = |lang: Lang| {
        suites
            .iter()
            .any(|suite| suite.runner.runs(lang) && suite.runner.sees_lines())
    };
    for change in &work.changes {
        let (Some(lang), Some(text)) = (
            Lang::of(change.path),
            change.after.and_then(|entry| entry.text()),
        ) else {
            continue;
        };
        let code = code_lines(lang, text);
        let is_code = change.lines().0.iter().any(|line| code.contains(line));
        let is_kept = |path| glob::first(&kept(&work.config.test_files), path).is_some();
        if !is_code || is_seen(lang) || is_kept(change.path) {
            continue;
        }
        if let Some(facts) = finding.facts.as_object_mut() {
            facts.insert("coverage".into(), json!("not available"));
        }
        if work.config.min_coverage > 0.0 {
            finding.refuse(
                "coverage_unavailable",
                Some(change.path.to_string()),
                "nothing here can tell whether tests run the changed lines",
                "say `min_coverage = 0` in evolve.toml if that is all right",
            );
        }
    }
}

/// Runs tests of one kind on both trees, and compares. Gives the names of those that pass, too.
fn compare(
    work: &Work<'_>,
    chambers: &Chambers,
    before: &Tree,
    after: &Tree,
    Suite { runner, files }: &Suite,
    coverage: Coverage,
) -> (Finding, Vec<String>) {
    let mut finding = finding();
    if files.is_empty() {
        finding.refuse(
            "no_tests",
            None,
            "there are no test files",
            "a change that nothing tests can't be judged; add tests by hand first",
        );
        return (finding, Vec::new());
    }
    let changed = match coverage {
        Coverage::Counts if runner.sees_lines() => work.changed(after, |lang| runner.runs(lang)),
        _ => BTreeMap::new(),
    };
    // Both at once: neither sees the other.
    let (base, candidate) = std::thread::scope(|scope| {
        let base = scope.spawn(|| runner.run(chambers, work, before, files, &BTreeMap::new()));
        let candidate = runner.run(chambers, work, after, files, &changed);
        (base.join(), candidate)
    });
    let base = match base {
        Ok(Ok(told)) => told,
        Ok(Err(error)) => {
            finding.refuse(
                "baseline",
                None,
                &format!("the tests can't be run on the tree before: {error}"),
                "see that the project's own tests run",
            );
            return (finding, Vec::new());
        }
        Err(_) => {
            finding.refuse("baseline", None, "the run on the tree before was lost", "");
            return (finding, Vec::new());
        }
    };
    let candidate = match candidate {
        Ok(told) => told,
        Err(error) => {
            finding.refuse(
                "tests_broken",
                None,
                &error.to_string(),
                "a run that does not come to its end is a failure",
            );
            return (finding, Vec::new());
        }
    };
    judge(&mut finding, &base, &candidate);
    if coverage == Coverage::Counts && runner.sees_lines() {
        cover(&mut finding, &candidate, work.config.min_coverage);
    }
    let passed = candidate.outcomes.into_iter();
    let passed = passed.filter(|(_, outcome)| *outcome == Outcome::Passed);
    (finding, passed.map(|(id, _)| id).collect())
}

/// Whether changed lines must be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coverage {
    Counts,
    Ignored,
}

fn judge(finding: &mut Finding, base: &Told, candidate: &Told) {
    let (old, new) = (&base.outcomes, &candidate.outcomes);
    let passed = |all: &BTreeMap<String, Outcome>| {
        all.values()
            .filter(|outcome| **outcome == Outcome::Passed)
            .count()
    };
    if !candidate.complete {
        let message = format!(
            "a process ended with {} before it had said how each test went: {}",
            candidate.exit,
            last_line(&candidate.log)
        );
        let hint = "nothing may end the process, or speak for it";
        finding.refuse("tests_broken", None, &message, hint);
    }
    if passed(old) == 0 || passed(new) == 0 {
        let hint = "a change that nothing tests can't be judged";
        finding.refuse("no_tests", None, "no test passes", hint);
    }
    for (id, was) in old {
        let at = Some(id.clone());
        match (was, new.get(id)) {
            (_, None) => finding.refuse(
                "test_missing",
                at,
                "it ran before and does not run now",
                "tests stay",
            ),
            (Outcome::Passed, Some(Outcome::Failed)) => {
                finding.refuse("test_failed", at, "it passed before and fails now", "")
            }
            (Outcome::Passed, Some(Outcome::Skipped)) => {
                finding.refuse("test_failed", at, "it passed before and is skipped now", "")
            }
            _ => {}
        }
    }
    for (id, now) in new {
        if !old.contains_key(id) && *now == Outcome::Failed {
            finding.refuse("test_failed", Some(id.clone()), "it is new and fails", "");
        }
    }
    // Each test ran once so that it must fail. Those that did on the tree before must on the tree after.
    let mut counted = 0;
    for (id, was) in &base.must_fail {
        if *was != Outcome::Failed {
            continue;
        }
        counted += 1;
        if candidate.must_fail.get(id) != Some(&Outcome::Failed) {
            let hint = "results, or comparisons, are being faked";
            finding.refuse(
                "sentinel",
                Some(id.clone()),
                "a test that must fail does not",
                hint,
            );
        }
    }
    if counted == 0 && passed(old) > 0 {
        let hint = "tests that can't fail tell nothing";
        finding.refuse("sentinel", None, "no test can be made to fail", hint);
    }
    finding.facts = json!({
        "tests": new.len(), "passed": passed(new), "baseline_tests": old.len(), "baseline_passed": passed(old),
        "sentinels": counted, "log": if finding.reasons.is_empty() { "" } else { candidate.log.as_str() },
    });
}

fn cover(finding: &mut Finding, told: &Told, least: f64) {
    let wanted: usize = told.lines.values().map(|lines| lines.wanted.len()).sum();
    let covered: usize = told.lines.values().map(|lines| lines.covered.len()).sum();
    let share = if wanted == 0 {
        1.0
    } else {
        covered as f64 / wanted as f64
    };
    if let Some(facts) = finding.facts.as_object_mut() {
        facts.insert("changed_lines".into(), json!(wanted));
        facts.insert("changed_lines_run".into(), json!(covered));
    }
    if share < least {
        let missed: BTreeSet<String> = told
            .lines
            .iter()
            .flat_map(|(file, lines)| {
                lines
                    .wanted
                    .iter()
                    .filter(|line| !lines.covered.contains(line))
                    .map(move |line| format!("{file}:{line}"))
            })
            .take(20)
            .collect();
        let missed = missed.into_iter().collect::<Vec<_>>().join(", ");
        let message = format!(
            "tests run {covered} of {wanted} changed lines, less than {:.0} %: not {missed}",
            least * 100.0
        );
        finding.refuse(
            "coverage",
            None,
            &message,
            "add tests by hand first, or change less",
        );
    }
}

fn last_line(log: &str) -> &str {
    log.lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("it said nothing")
}

/// Runs every case on the tree after; what it prints is compared here, with what it never sees.
pub(super) fn cases(finding: &mut Finding, chambers: &Chambers, after: &Tree, all: &[Case]) {
    let place = match chambers.place(after) {
        Ok(place) => place,
        Err(error) => return finding.refuse("case", None, &error.to_string(), ""),
    };
    for case in all {
        let words: Vec<String> = case
            .command
            .iter()
            .map(|word| word.replace("{input}", "/belljar/evolve/input"))
            .collect();
        let job = Job {
            words: &words,
            shows: vec![("evolve/input", case.input.clone().into_bytes())],
            ..Job::default()
        };
        let at = Some(case.name.clone());
        match chambers.run(&place, &job) {
            Err(error) => finding.refuse("case", at, &error.to_string(), ""),
            Ok(result) if result.exit_code != Some(0) => {
                let error = result.stderr.as_deref().unwrap_or_default();
                finding.refuse(
                    "case",
                    at,
                    &format!("it ended with {:?}: {}", result.exit_code, last_line(error)),
                    "",
                );
            }
            Ok(result) => {
                let printed = result.stdout.as_deref().unwrap_or_default();
                if result.stdout_truncated
                    || printed.trim_end_matches('\n') != case.expect.trim_end_matches('\n')
                {
                    // What was expected stays on this side: it would teach the next candidate what to print.
                    finding.refuse("case", at, "it does not print what it should", "");
                }
            }
        }
    }
}
