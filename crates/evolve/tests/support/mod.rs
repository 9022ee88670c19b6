//! A project, proposals for it, and the stages with real boxes.

// Each test binary uses a part of it.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use belljar_evolve::pipeline::{Outcome, Pipeline, Progress};
use belljar_evolve::proposal::Proposal;
use belljar_evolve::store::{Store, StoreError};
use belljar_supervisor::StateDir;

/// A project whose one function is slow.
pub(crate) const AGENT: &str = "\"\"\"An agent.\"\"\"\nimport math\n\n\ndef score(n):\n    total = 0\n    for i in range(n):\n        total += math.isqrt(i)\n    return total\n\n\ndef name():\n    return \"agent\"\n";
pub(crate) const TESTS: &str = "import agent\n\n\ndef test_score():\n    assert agent.score(10) == 16\n\n\ndef test_name():\n    assert agent.name() == \"agent\"\n";

/// Every change of code asks for one; what it prints is no matter of these tests.
pub(crate) const CASE: &str =
    "[[cases]]\nname = \"echo\"\ncommand = [\"/bin/echo\", \"3\"]\nexpect = \"3\"\n";

pub(crate) struct World {
    place: tempfile::TempDir,
    config: String,
}

/// What became of a proposal.
pub(crate) struct Judged {
    pub(crate) proposal: Proposal,
    pub(crate) outcome: Outcome,
    pub(crate) cached: Vec<String>,
}

impl Judged {
    pub(crate) fn codes(&self) -> Vec<&str> {
        let refused = self
            .outcome
            .statements
            .iter()
            .flat_map(|statement| &statement.predicate.reasons);
        refused.map(|reason| reason.code.as_str()).collect()
    }

    #[track_caller]
    pub(crate) fn is_refused_for(&self, code: &str) {
        assert!(!self.outcome.passed);
        assert!(self.codes().contains(&code), "{:#?}", self.outcome.reasons);
    }

    /// What the stage of unit tests counted.
    #[track_caller]
    pub(crate) fn unit(&self) -> &serde_json::Value {
        let mut all = self.outcome.statements.iter();
        let unit = all.find(|statement| statement.predicate.stage == "3-unit");
        &unit.expect("a stage").predicate.facts
    }

    /// It passes, and so does every one of this many tests: one that fails on the tree before too would be no reason to refuse it.
    #[track_caller]
    pub(crate) fn passes_all(&self, tests: usize) {
        self.passes();
        assert_eq!(self.unit()["passed"], tests, "{}", self.unit());
    }

    #[track_caller]
    pub(crate) fn passes(&self) {
        assert!(self.outcome.passed, "{:#?}", self.outcome.reasons);
    }
}

impl World {
    /// The agent and its tests.
    pub(crate) fn new() -> Self {
        Self::with(&[("agent.py", AGENT), ("tests/test_agent.py", TESTS)])
    }

    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let venv = clients().join("venv");
        let world = Self {
            config: format!(
                "[project]\npython = \"{}/bin/python\"\nreadable = [\"{}\"]\n{CASE}",
                venv.display(),
                venv.display()
            ),
            place,
        };
        for (name, text) in files {
            world.write(name, text);
        }
        world.configure("");
        world
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.place.path().join("project")
    }

    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    pub(crate) fn python(&self) -> String {
        clients().join("venv/bin/python").display().to_string()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let file = self.project().join(name);
        std::fs::create_dir_all(file.parent().expect("a parent")).expect("a directory");
        std::fs::write(file, text).expect("a file");
    }

    /// Adds to evolve.toml.
    pub(crate) fn configure(&self, more: &str) {
        self.write("evolve.toml", &format!("{}{more}", self.config));
    }

    pub(crate) fn state(&self) -> StateDir {
        StateDir::at(self.place.path().join("state")).expect("a state directory")
    }

    pub(crate) fn store(&self) -> Store {
        Store::of(self.state().path())
    }

    pub(crate) fn propose(&self, request: &str) -> Result<Proposal, StoreError> {
        self.store().propose(
            &self.project(),
            "request.yaml",
            request.as_bytes(),
            "operator:test",
        )
    }

    pub(crate) fn check(&self, request: &str) -> Judged {
        let mut proposal = self
            .propose(request)
            .unwrap_or_else(|error| panic!("{error:?}"));
        let (state, store) = (self.state(), self.store());
        let loaded = store.load(&proposal.id).expect("a proposal");
        let cached = Mutex::new(Vec::new());
        let tell = |progress: Progress<'_>| {
            if let Progress::Ended(result) = progress
                && result.cached
            {
                cached.lock().expect("a list").push(result.stage.clone());
            }
        };
        let outcome = Pipeline::new(&state, store.cache(), &loaded)
            .run(&tell)
            .expect("a judgement");
        store.settle(&mut proposal, &outcome).expect("a record");
        let cached = cached.into_inner().expect("a list");
        Judged {
            proposal,
            outcome,
            cached,
        }
    }

    /// Judges a project in which `agent.py` is this.
    pub(crate) fn check_agent(&self, text: &str) -> Judged {
        self.check(&rewritten(&[("agent.py", text)], "medium"))
    }
}

/// A request that replaces these files, or makes them.
pub(crate) fn rewritten(files: &[(&str, &str)], risk: &str) -> String {
    let mut targets = Vec::new();
    let mut changes = String::new();
    for (name, text) in files {
        targets.push(*name);
        let lines: String = text
            .lines()
            .map(|line| format!("        {line}\n"))
            .collect();
        changes.push_str(&format!("  - remove_file: {{file: {name}}}\n"));
        changes.push_str(&format!(
            "  - add_file:\n      file: {name}\n      text: |\n{lines}"
        ));
    }
    format!(
        "description: try\ntarget_files: [{}]\nrollback_plan: the tree before\nrisk: {risk}\nmodifications:\n{changes}",
        targets.join(", ")
    )
}

/// A request that makes these files and removes none.
pub(crate) fn added(files: &[(&str, &str)], risk: &str) -> String {
    rewritten(files, risk)
        .lines()
        .filter(|line| !line.contains("remove_file"))
        .map(|line| format!("{line}\n"))
        .collect()
}

pub(crate) fn clients() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .ancestors()
        .map(|directory| directory.join("test-clients"))
        .find(|place| place.join("ready").exists())
        .expect("the clients that these tests use are not installed: run `scripts/setup.sh test`")
}
