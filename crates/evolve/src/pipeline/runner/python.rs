//! pytest: the runner in the box forks the processes in which tests run, and shuts itself off from them.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::Work;
use super::super::chamber::{ChamberError, Chambers, Job};
use super::{Told, tail};
use crate::path::TreePath;
use crate::tree::Tree;

pub(super) const RUNNER: &str = include_str!("../../python/runner.py");

/// Runs test files on a tree.
pub(super) fn run(
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
        ..Job::default()
    };
    let result = chambers.run(&place, &job)?;
    if result.exit_code != Some(0) || result.stdout_truncated {
        return Err(ChamberError::Ended(format!(
            "the test runner ended with {:?}: {}",
            result.exit_code.or(result.signal),
            tail(result.stderr.as_deref().unwrap_or_default(), 2000)
        )));
    }
    let told = result.stdout.as_deref().unwrap_or_default();
    serde_json::from_str(told).map_err(|error| {
        ChamberError::Ended(format!("the test runner's word can't be read: {error}"))
    })
}
