//! pytest: the runner in the box forks the processes in which tests run, and shuts itself off from them.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::Work;
use super::super::chamber::{ChamberError, Chambers, Job};
use super::{Told, tail};
use crate::glob::{self, Glob};
use crate::lang::Lang;
use crate::path::TreePath;
use crate::tree::{Entry, Tree};

pub(super) const RUNNER: &str = include_str!("../../python/runner.py");

/// The tree with nothing in its tests, and what was in them. Their sources hold the answers: nobody in a box finds them.
fn without_sources(
    tree: &Tree,
    files: &[TreePath],
    test_files: &[String],
) -> (Tree, BTreeMap<String, String>) {
    let globs: Vec<Glob> = test_files
        .iter()
        .map(String::as_str)
        .chain(TESTS_OF_ALL)
        .map(Glob::new)
        .collect();
    let mut bare = tree.clone();
    let mut sources = BTreeMap::new();
    for (path, entry) in tree.iter() {
        let is_test = files.contains(path) || glob::first(&globs, path).is_some();
        if is_test && Lang::of(path) == Some(Lang::Python) {
            // Each byte as a character: whatever encoding a file says it has, it is Python's to read.
            let bytes = entry.blob.iter().copied().map(char::from).collect();
            sources.insert(path.to_string(), bytes);
            let empty = Entry {
                blob: b"".as_slice().into(),
                ..entry.clone()
            };
            bare.put(path.clone(), empty);
        }
    }
    (bare, sources)
}

/// What tests use besides their own files.
const TESTS_OF_ALL: [&str; 4] = [
    "**/tests/**",
    "**/test/**",
    "conftest.py",
    "belljar_held_out/**",
];

/// Runs test files on a tree.
pub(super) fn run(
    chambers: &Chambers,
    work: &Work<'_>,
    tree: &Tree,
    files: &[TreePath],
    changed: &BTreeMap<String, Vec<usize>>,
) -> Result<Told, ChamberError> {
    let (tree, sources) = without_sources(tree, files, &work.config.test_files);
    let place = chambers.place(&tree)?;
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
        input: serde_json::to_vec(&sources)
            .map_err(|error| ChamberError::Ended(error.to_string()))?,
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
