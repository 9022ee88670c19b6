//! Test runners: how a project's tests are run, and what is believed of what they say. Each test is run twice, once so that it
//! must fail; which run counts is drawn outside of the candidate's reach.

mod cargo;
mod node;
mod python;
mod spoil;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Work;
use super::chamber::{ChamberError, Chambers};
use crate::config::Config;
use crate::glob::{self, Glob};
use crate::lang::Lang;
use crate::path::TreePath;
use crate::tree::Tree;

pub(super) use cargo::with_tests_of;

/// What all runners are made of: another text is another judge.
pub(super) const TEXTS: [&str; 2] = [python::RUNNER, node::RUNNER];

/// A preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runner {
    /// pytest, for Python.
    Python,
    /// Node's own test runner, for JavaScript and TypeScript.
    Node,
    /// `cargo test`, for Rust.
    Cargo,
}

/// Tests of one kind, and the files they are in.
#[derive(Clone, Debug)]
pub(super) struct Suite {
    pub(super) runner: Runner,
    pub(super) files: Vec<TreePath>,
}

/// How a run of tests went.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Told {
    /// Whether its processes came to their ends and said everything.
    pub(super) complete: bool,
    pub(super) exit: i32,
    pub(super) outcomes: BTreeMap<String, Outcome>,
    /// The same tests, in the run in which each was made to fail.
    pub(super) must_fail: BTreeMap<String, Outcome>,
    /// The end of what they printed.
    pub(super) log: String,
    pub(super) lines: BTreeMap<String, LinesTold>,
}

/// Changed lines of a file that can be run, and those that were.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinesTold {
    pub(super) wanted: Vec<usize>,
    pub(super) covered: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Passed,
    Skipped,
    Failed,
}

impl Runner {
    const ALL: [Self; 3] = [Self::Python, Self::Node, Self::Cargo];

    /// As evolve.toml calls it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
            Self::Cargo => "cargo",
        }
    }

    /// Whether files of this language are its business.
    pub(super) fn runs(self, lang: Lang) -> bool {
        match self {
            Self::Python => lang == Lang::Python,
            Self::Node => matches!(lang, Lang::JavaScript | Lang::TypeScript | Lang::Tsx),
            Self::Cargo => lang == Lang::Rust,
        }
    }

    /// Whether it can tell which lines were run.
    pub(super) fn sees_lines(self) -> bool {
        self != Self::Cargo
    }

    /// Runs tests on a tree, twice.
    pub(super) fn run(
        self,
        chambers: &Chambers,
        work: &Work<'_>,
        tree: &Tree,
        files: &[TreePath],
        changed: &BTreeMap<String, Vec<usize>>,
    ) -> Result<Told, ChamberError> {
        match self {
            Self::Python => python::run(chambers, work, tree, files, changed),
            Self::Node => node::run(chambers, work, tree, files, changed),
            Self::Cargo => cargo::run(chambers, work, tree, files),
        }
    }
}

/// The tests of a tree, by who runs them: those that evolve.toml names, or those for which there are files.
pub(super) fn suites(config: &Config, tree: &Tree) -> Vec<Suite> {
    let globs: Vec<Glob> = config
        .test_files
        .iter()
        .map(|pattern| Glob::new(pattern))
        .collect();
    let files = |runner: Runner| -> Vec<TreePath> {
        if runner == Runner::Cargo {
            let manifest = TreePath::new(cargo::MANIFEST).ok();
            return manifest
                .filter(|path| tree.get(path).is_some())
                .into_iter()
                .collect();
        }
        let all = tree.iter().map(|(path, _)| path);
        all.filter(|path| {
            Lang::of(path).is_some_and(|lang| runner.runs(lang))
                && glob::first(&globs, path).is_some()
        })
        .cloned()
        .collect()
    };
    let named = |runner: Runner| config.runners.iter().any(|name| name == runner.as_str());
    Runner::ALL
        .into_iter()
        .map(|runner| Suite {
            files: files(runner),
            runner,
        })
        .filter(|suite| match config.runners.is_empty() {
            true => !suite.files.is_empty(),
            // One that is named and has nothing to run is a failure, later.
            false => named(suite.runner),
        })
        .collect()
}

/// A number that nobody in a box knows.
fn secret() -> Result<[u8; 32], ChamberError> {
    crate::disk::random::<32>()
        .map(|bytes| *bytes)
        .map_err(|error| ChamberError::Ended(format!("no random numbers: {error}")))
}

/// Both runs of everything, one in which a test counts and one in which it must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    First,
    Second,
}

impl Turn {
    const BOTH: [Self; 2] = [Self::First, Self::Second];

    /// Whether tests of this name must fail in this turn.
    fn spoils(self, secret: &[u8; 32], name: &str) -> bool {
        use sha2::Digest as _;
        let digest = sha2::Sha256::new()
            .chain_update(secret)
            .chain_update(name)
            .finalize();
        (digest.first().copied().unwrap_or_default() & 1 == 1) == (self == Self::First)
    }
}

fn tail(text: &str, most: usize) -> &str {
    let mut from = text.len().saturating_sub(most);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}
