//! SECURITY.md names, for each promise, the tests that hold it; here it is seen that they exist.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Headings whose tables are promises: each row names a test in its last column.
const PROMISES: &[&str] = &[
    "## What holds today",
    "### The web API and the dashboard",
    "### In its scope",
    "### Out of its scope",
    "### Its security assumptions",
];

/// What a row says that promises nothing.
const NO_PROMISE: &str = "**Not covered.**";

/// Whether a file has a test of this name: with the attribute, or handed to a macro that makes tests of functions.
fn has_test(text: &str, test: &str) -> bool {
    let Some((before, after)) = text.split_once(&format!("fn {test}(")) else {
        return false;
    };
    let attributes = before.trim_end().rsplit("\n\n").next().unwrap_or_default();
    let is_word = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    let is_handed = |part: &str| {
        let mut found = part.match_indices(test);
        found.any(|(at, _)| part.get(at + test.len()..).is_some_and(is_word))
    };
    attributes.contains("test]") || is_handed(after) || is_handed(before)
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What stands between backquotes and has the form `file::test`.
fn references(text: &str) -> Vec<(&str, &str)> {
    let is_name = |name: &str| {
        !name.is_empty()
            && name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|quoted| quoted.split_once("::"))
        .filter(|(file, test)| is_name(file) && is_name(test))
        .collect()
}

/// Every source file of the crates, by its name.
fn sources() -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut pending = vec![repository().join("crates"), repository().join("xtask")];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).expect("a directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                // A directory's own file goes by the directory's name.
                let named = match path.ends_with("mod.rs") {
                    true => path.parent().and_then(Path::file_name),
                    false => path.file_stem(),
                };
                let name = named.expect("a name").to_string_lossy().into_owned();
                found
                    .entry(name)
                    .or_default()
                    .push(fs::read_to_string(&path).expect("a source"));
            }
        }
    }
    found
}

#[test]
fn every_promise_names_tests_that_exist() {
    let document = fs::read_to_string(repository().join("SECURITY.md")).expect("SECURITY.md");
    let sources = sources();
    let exists = |file: &str, test: &str| {
        let files = sources.get(file).map(Vec::as_slice).unwrap_or_default();
        files.iter().any(|text| has_test(text, test))
    };
    let missing: Vec<String> = references(&document)
        .into_iter()
        .filter(|(file, test)| !exists(file, test))
        .map(|(file, test)| format!("{file}::{test}"))
        .collect();
    assert!(
        missing.is_empty(),
        "SECURITY.md names tests that do not exist: {missing:#?}"
    );

    let mut heading = "";
    let mut rows = 0;
    let mut without = Vec::new();
    for line in document.lines() {
        if line.starts_with('#') {
            heading = line;
        }
        let is_head = line.starts_with("|---") || line.contains("| held by |");
        let is_head = is_head || line.contains(NO_PROMISE);
        if !PROMISES.contains(&heading) || !line.starts_with('|') || is_head {
            continue;
        }
        rows += 1;
        let last = line
            .trim_end_matches('|')
            .rsplit('|')
            .next()
            .unwrap_or_default();
        if references(last).is_empty() {
            without.push(line);
        }
    }
    assert!(
        without.is_empty(),
        "promises that no test is named for: {without:#?}"
    );
    assert!(rows > 30, "the tables were not found: {rows} rows");
}
