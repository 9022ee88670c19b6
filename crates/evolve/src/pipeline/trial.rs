//! Stages 3 and 4: the project's own tests, taken from the tree before, on the tree after; held-out tests; and runs whose output
//! is compared on this side.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Work;
use super::chamber::{ChamberError, Chambers, Job, Watched};
use super::finding::{Finding, finding};
use crate::config::Case;
use crate::glob::{self, Glob};
use crate::path::TreePath;
use crate::scope::{self, GUARDED};
use crate::tree::Tree;

pub(super) const RUNNER: &str = include_str!("../python/runner.py");

/// What the runner says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Told {
    /// Whether its processes came to their ends and said everything.
    complete: bool,
    exit: i32,
    outcomes: BTreeMap<String, Outcome>,
    /// The same tests, in the run in which each was made to fail.
    must_fail: BTreeMap<String, Outcome>,
    /// The end of what they printed.
    log: String,
    lines: BTreeMap<String, LinesTold>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinesTold {
    wanted: Vec<usize>,
    covered: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Passed,
    Skipped,
    Failed,
}

/// The candidate with everything that it is tested and built with as it was before.
pub(super) fn trusted(base: &Tree, candidate: &Tree, test_files: &[String]) -> Tree {
    let kept: Vec<Glob> = GUARDED
        .iter()
        .copied()
        .chain(test_files.iter().map(String::as_str))
        .map(Glob::new)
        .collect();
    let mut tree = candidate.clone();
    for change in scope::changes(base, candidate) {
        if glob::first(&kept, change.path).is_some() {
            match change.before {
                Some(entry) => tree.put(change.path.clone(), entry.clone()),
                None => drop(tree.take(change.path)),
            }
        }
    }
    tree
}

/// Test files of a tree.
pub(super) fn test_files(tree: &Tree, patterns: &[String]) -> Vec<TreePath> {
    let globs: Vec<Glob> = patterns.iter().map(|pattern| Glob::new(pattern)).collect();
    let all = tree.iter().map(|(path, _)| path);
    all.filter(|path| path.extension() == Some("py") && glob::first(&globs, path).is_some())
        .cloned()
        .collect()
}

/// Runs test files on a tree.
fn run(
    chambers: &Chambers,
    work: &Work<'_>,
    tree: &Tree,
    files: &[TreePath],
    changed: &BTreeMap<String, Vec<usize>>,
) -> Result<Told, ChamberError> {
    let place = chambers.place(tree)?;
    let job = json!({"root": place, "paths": work.config.import_paths, "files": files, "changed": changed});
    let words = [
        work.config.python.as_str(),
        "-I",
        "-B",
        "/belljar/evolve/runner.py",
    ]
    .map(str::to_owned);
    let job = Job {
        words: &words,
        shows: vec![
            ("evolve/runner.py", RUNNER.as_bytes().to_vec()),
            ("evolve/job.json", job.to_string().into_bytes()),
        ],
        watched: Watched::No,
    };
    let result = chambers.run(&place, &job)?;
    let error = result.stderr.as_deref().unwrap_or_default();
    let tail = &error[error.len().saturating_sub(2000)..error.len()];
    if result.exit_code != Some(0) || result.stdout_truncated {
        return Err(ChamberError::Ended(format!(
            "the test runner ended with {:?}: {tail}",
            result.exit_code.or(result.signal)
        )));
    }
    let told = result.stdout.as_deref().unwrap_or_default();
    serde_json::from_str(told).map_err(|error| {
        ChamberError::Ended(format!("the test runner's word can't be read: {error}"))
    })
}

/// Runs test files on the tree before and on the tree after, and compares.
pub(super) fn compare(
    work: &Work<'_>,
    chambers: &Chambers,
    before: &Tree,
    after: &Tree,
    files: &[TreePath],
    coverage: Coverage,
) -> Finding {
    let mut finding = finding();
    if files.is_empty() {
        finding.refuse(
            "no_tests",
            None,
            "there are no test files",
            "a change that nothing tests can't be judged; add tests by hand first",
        );
        return finding;
    }
    let changed = match coverage {
        Coverage::Counts => work.changed_python(after),
        Coverage::Ignored => BTreeMap::new(),
    };
    // Both at once: neither sees the other.
    let (base, candidate) = std::thread::scope(|scope| {
        let base = scope.spawn(|| run(chambers, work, before, files, &BTreeMap::new()));
        let candidate = run(chambers, work, after, files, &changed);
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
            return finding;
        }
        Err(_) => {
            finding.refuse("baseline", None, "the run on the tree before was lost", "");
            return finding;
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
            return finding;
        }
    };
    judge(&mut finding, &base, &candidate);
    for wanted in work
        .request
        .tests
        .iter()
        .filter(|_| coverage == Coverage::Counts)
    {
        let inside = format!("{wanted}::");
        let mut all = candidate.outcomes.iter();
        let passed =
            all.any(|(id, outcome)| id.starts_with(&inside) && *outcome == Outcome::Passed);
        if !passed {
            finding.refuse(
                "named_test",
                Some(wanted.to_string()),
                "no test in it ran and passed",
                "name test files of the project",
            );
        }
    }
    if coverage == Coverage::Counts {
        cover(&mut finding, &candidate, work.config.min_coverage);
    }
    finding
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
            watched: Watched::No,
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
