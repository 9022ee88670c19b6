//! `cargo test`, without a network: the tree is built and its tests are run in a box, twice, from sources in which about half the
//! tests must fail. What the test programs print is read here.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Work;
use super::super::chamber::{ChamberError, Chambers, Job};
use super::{Outcome, Told, Turn, secret, spoil, tail};
use crate::lang::Lang;
use crate::path::TreePath;
use crate::tree::{Entry, Tree};

/// What says that a project is cargo's.
pub(super) const MANIFEST: &str = "Cargo.toml";

/// The same path for every tree: nothing in it tells which run this is, and tests may write beside their sources.
const SCRIPT: &str = "cp -r . /tmp/project && cd /tmp/project && exec \"$0\" \"$@\"";

/// Every Rust file of a tree with the tests inside it as they were before.
pub(in super::super) fn with_tests_of(base: &Tree, tree: &mut Tree) {
    let mut changed = Vec::new();
    for (path, entry) in tree.iter() {
        let before = base.get(path);
        if Lang::of(path) == Some(Lang::Rust) && before != Some(entry) {
            let old = before.and_then(Entry::text).unwrap_or_default();
            if let Some(text) = entry
                .text()
                .and_then(|text| spoil::with_tests_of(old, text))
            {
                let blob = text.into_bytes().into();
                changed.push((
                    path.clone(),
                    Entry {
                        mode: entry.mode,
                        blob,
                    },
                ));
            }
        }
    }
    for (path, entry) in changed {
        tree.put(path, entry);
    }
}

/// Runs a project's tests; or those of these files alone, if the manifest is not among them.
pub(super) fn run(
    chambers: &Chambers,
    work: &Work<'_>,
    tree: &Tree,
    files: &[TreePath],
) -> Result<Told, ChamberError> {
    let secret = secret()?;
    let mut told = Told {
        complete: true,
        ..Told::default()
    };
    for turn in Turn::BOTH {
        let is_due = |name: &str| turn.spoils(&secret, name);
        let place = chambers.place(&spoiled(tree, &is_due))?;
        let words = words(&work.config.cargo, tree, files);
        let job = Job {
            words: &words,
            env: environment(&work.config.cargo),
            ..Job::default()
        };
        let result = chambers.run(&place, &job)?;
        let said = result.stdout.as_deref().unwrap_or_default();
        let programs = result.stderr.as_deref().unwrap_or_default();
        let found = heard(said, programs, result.exit_code)
            .filter(|_| !result.stdout_truncated && !result.stderr_truncated);
        told.log.push_str(tail(programs, 4000));
        match found {
            None => {
                told.complete = false;
                told.exit = result.exit_code.unwrap_or(-1);
            }
            Some(found) => {
                for (id, outcome) in found {
                    let list = match is_due(last_name(&id)) {
                        true => &mut told.must_fail,
                        false => &mut told.outcomes,
                    };
                    list.insert(id, outcome);
                }
            }
        }
    }
    // What is skipped is skipped in both runs.
    let skipped: Vec<String> = told
        .must_fail
        .iter()
        .filter(|(_, outcome)| **outcome == Outcome::Skipped)
        .map(|(id, _)| id.clone())
        .collect();
    for id in skipped {
        told.outcomes.entry(id).or_insert(Outcome::Skipped);
    }
    Ok(told)
}

fn spoiled(tree: &Tree, is_due: &dyn Fn(&str) -> bool) -> Tree {
    let mut made = tree.clone();
    for (path, entry) in tree.iter() {
        if Lang::of(path) == Some(Lang::Rust)
            && let Some(text) = entry.text().filter(|text| text.contains("test"))
            && let Some(text) = spoil::spoiled(text, is_due)
        {
            let blob = text.into_bytes().into();
            made.put(
                path.clone(),
                Entry {
                    mode: entry.mode,
                    blob,
                },
            );
        }
    }
    made
}

fn words(cargo: &str, tree: &Tree, files: &[TreePath]) -> Vec<String> {
    let mut words = vec!["/bin/sh", "-c", SCRIPT, cargo, "test", "--offline"];
    words.extend(["--no-fail-fast", "--target-dir", "/tmp/target"]);
    if TreePath::new("Cargo.lock").is_ok_and(|lock| tree.get(&lock).is_some()) {
        words.push("--locked");
    }
    let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    match files.iter().any(|file| file.as_str() == MANIFEST) {
        true => words.push("--tests".into()),
        false => {
            for file in files {
                let name = file.name().trim_end_matches(".rs");
                words.extend(["--test".into(), name.to_owned()]);
            }
        }
    }
    words
}

fn environment(cargo: &str) -> Vec<(&'static str, String)> {
    let beside = |name: &str| {
        let directory = cargo
            .rsplit_once('/')
            .map_or("", |(directory, _)| directory);
        format!("{directory}/{name}")
    };
    vec![
        ("RUSTC", beside("rustc")),
        ("CARGO_HOME", "/tmp/cargo".into()),
        ("CARGO_INCREMENTAL", "0".into()),
        ("CARGO_PROFILE_DEV_DEBUG", "0".into()),
        ("CARGO_TERM_COLOR", "never".into()),
        // A test that was made to fail is no reason for a warning that ends the build.
        ("RUSTFLAGS", "--cap-lints=warn".into()),
    ]
}

fn last_name(id: &str) -> &str {
    id.rsplit("::").next().unwrap_or(id)
}

/// How each test went, if all programs told of every test they said they have, and the end is the one that follows from it.
fn heard(said: &str, programs: &str, exit: Option<i32>) -> Option<BTreeMap<String, Outcome>> {
    let names: Vec<&str> = programs.lines().filter_map(program).collect();
    let mut found = BTreeMap::new();
    let mut blocks = names.iter();
    let mut block: Option<(&str, usize)> = None;
    for line in said.lines() {
        if let Some(count) = line
            .strip_prefix("running ")
            .and_then(|rest| rest.split(' ').next()?.parse().ok())
        {
            // The one before has not come to its end.
            if block.is_some() {
                return None;
            }
            block = Some((blocks.next()?, count));
        } else if let Some((test, outcome)) = line.strip_prefix("test ").and_then(result) {
            let (name, left) = block.as_mut()?;
            *left = left.checked_sub(1)?;
            if found.insert(format!("{name}::{test}"), outcome).is_some() {
                return None;
            }
        } else if line.starts_with("test result: ") {
            let (_, left) = block.take()?;
            if left > 0 {
                return None;
            }
        }
    }
    let has_failed = found.values().any(|outcome| *outcome == Outcome::Failed);
    let end = if has_failed { 101 } else { 0 };
    let distinct = names.iter().collect::<BTreeSet<_>>().len() == names.len();
    (block.is_none() && blocks.next().is_none() && distinct && exit == Some(end)).then_some(found)
}

/// `tests/a.rs` of `Running tests/a.rs (/tmp/target/debug/deps/a-0123)`.
fn program(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("Running ")?;
    let (name, _) = rest.split_once(" (")?;
    Some(name.strip_prefix("unittests ").unwrap_or(name))
}

/// `tests::a ... ok`, with what libtest adds to a name.
fn result(line: &str) -> Option<(&str, Outcome)> {
    let (name, word) = line.split_once(" ... ")?;
    let outcome = match word {
        "ok" => Outcome::Passed,
        "FAILED" => Outcome::Failed,
        other if other == "ignored" || other.starts_with("ignored, ") => Outcome::Skipped,
        _ => return None,
    };
    let name = name.split(" - ").next().unwrap_or(name);
    Some((name, outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAMS: &str = "   Compiling a v0.1.0\n     Running unittests src/lib.rs (/tmp/target/debug/deps/a-1)\n     Running tests/b.rs (/tmp/target/debug/deps/b-2)\n";
    const SAID: &str = "\nrunning 2 tests\ntest tests::one ... ok\ntest tests::two - should panic ... ok\n\ntest result: ok. 2 passed; 0 failed\n\n\nrunning 1 test\ntest three ... ignored, slow\n\ntest result: ok. 0 passed; 1 ignored\n";

    #[test]
    fn what_test_programs_print_counts_when_it_is_whole() {
        let found = heard(SAID, PROGRAMS, Some(0)).unwrap();
        assert_eq!(found["src/lib.rs::tests::two"], Outcome::Passed);
        assert_eq!(found["tests/b.rs::three"], Outcome::Skipped);
        assert_eq!(found.len(), 3);
        for (said, exit) in [
            (SAID.to_owned(), Some(101)),
            (SAID.to_owned(), None),
            (SAID.replace("test tests::one ... ok\n", ""), Some(0)),
            (SAID.replace("one ... ok", "one ... FAILED"), Some(0)),
            (SAID.replace("running 2", "running 3"), Some(0)),
            (format!("test early ... ok\n{SAID}"), Some(0)),
            (
                format!("{SAID}running 1 test\ntest more ... ok\ntest result: ok\n"),
                Some(0),
            ),
            (
                SAID.replace("tests::two - should panic", "tests::one"),
                Some(0),
            ),
            (
                SAID.split("test result").next().unwrap().to_owned(),
                Some(0),
            ),
            (String::new(), Some(0)),
        ] {
            assert_eq!(heard(&said, PROGRAMS, exit), None, "{said}");
        }
        assert!(
            heard(
                &SAID.replace("one ... ok", "one ... FAILED"),
                PROGRAMS,
                Some(101)
            )
            .is_some()
        );
    }
}
