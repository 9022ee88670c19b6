//! The stages. What counts is read on this side; a stage that can't be understood has failed.

mod bench;
mod chamber;
mod finding;
mod footprint;
mod runner;
mod scan;
mod statics;
mod syntax;
mod tools;
mod trial;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use belljar_gate::record::{RunEvent, words_sha256};
use belljar_gate::{Durability, LogError, RunGate};
use belljar_supervisor::StateDir;
use serde_json::json;

use crate::config::Config;
use crate::evidence::{
    PREDICATE, STATEMENT, StageResult, Statement, Subject, TreeDigests, Verdict,
};
use crate::lang::Lang;
use crate::proposal::{ProposalId, Reason, Risk};
use crate::request::Request;
use crate::scope::{self, Change};
use crate::store::Loaded;
use crate::tree::Tree;
use crate::{risk, signals};
use chamber::Chambers;
use finding::{Finding, finding, not_asked, reason};
use runner::{Runner, Suite};
use trial::Coverage;

/// The rules' own version: another one is another judge, and no earlier result counts.
const EDITION: &str = concat!("belljar evolve ", env!("CARGO_PKG_VERSION"), " 1");

/// What became of a proposal.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Whether every stage passed.
    pub passed: bool,
    /// The computed risk.
    pub risk: Risk,
    /// Why it was refused; or why it is as risky as it is.
    pub reasons: Vec<Reason>,
    /// What each stage found.
    pub statements: Vec<Statement>,
}

/// The stages could not be run at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// What is not on record has not happened.
    #[error("what a stage found can't be put on record")]
    Log(#[from] LogError),
    /// An entry can't be put in words.
    #[error("what a stage found can't be encoded")]
    Encode(#[from] serde_json::Error),
    /// No box can be made.
    #[error("no box can be made: {0}")]
    Boxes(String),
}

/// Something that happens while stages run.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A stage begins.
    Started(&'a str),
    /// A stage ended.
    Ended(&'a StageResult),
}

/// What stages look at.
pub(crate) struct Work<'a> {
    pub(crate) request: &'a Request,
    pub(crate) config: &'a Config,
    pub(crate) changes: Vec<Change<'a>>,
}

impl Work<'_> {
    /// New lines outside of tests of some languages, by file, where the tree has them.
    fn changed(
        &self,
        tree: &Tree,
        is_wanted: impl Fn(Lang) -> bool,
    ) -> BTreeMap<String, Vec<usize>> {
        let wanted = self
            .changes
            .iter()
            .filter(|change| Lang::of(change.path).is_some_and(&is_wanted));
        let there =
            wanted.filter(|change| change.after.is_some() && tree.get(change.path) == change.after);
        there
            .map(|change| (change.path.to_string(), change.lines().0))
            .collect()
    }
}

/// Runs the stages of a proposal.
#[derive(Debug)]
pub struct Pipeline<'a> {
    state: &'a StateDir,
    cache: PathBuf,
    loaded: &'a Loaded,
    /// What the tools are that its rules name.
    tools: String,
}

impl<'a> Pipeline<'a> {
    /// For this proposal. Results of earlier runs on the same inputs are taken from `cache`, where no box can write.
    #[must_use]
    pub fn new(state: &'a StateDir, cache: PathBuf, loaded: &'a Loaded) -> Self {
        Self {
            state,
            cache,
            loaded,
            tools: tools::digest(&loaded.config),
        }
    }

    /// Runs every stage that the ones before allow.
    ///
    /// # Errors
    /// When a result can't be put on record. Whatever a candidate does ends as an [`Outcome`].
    pub fn run(&self, tell: &(dyn Fn(Progress<'_>) + Sync)) -> Result<Outcome, PipelineError> {
        let Loaded {
            request,
            base,
            candidate,
            config,
            ..
        } = self.loaded;
        let work = Work {
            request,
            config,
            changes: scope::changes(base, candidate),
        };
        let (risk, because) = risk::assess(&work.changes, config, request.claimed_risk);
        let mut judged = Judged {
            pipeline: self,
            gate: RunGate::of(self.state.path(), belljar_supervisor::key_source()),
            tell,
            risk,
            because,
            results: Vec::new(),
        };

        judged.stage("0-freeze", &[], || {
            let mut found = finding();
            found.facts = json!({"base_tree": base.digest(), "candidate_tree": candidate.digest(), "git_tree": candidate.git_hash(), "files": candidate.len()});
            found
        })?;
        judged.stage(scope::STAGE, &[], || {
            let scope = scope::judge(base, candidate, config, request.claimed_risk);
            let raised = if scope.risk > Risk::Low {
                vec![(
                    scope.risk,
                    reason(
                        "guarded",
                        None,
                        "it touches what it is tested with, built with or made of",
                        "",
                    ),
                )]
            } else {
                Vec::new()
            };
            Finding {
                reasons: scope.reasons,
                raised,
                facts: scope.facts,
                not_asked: false,
            }
        })?;
        if judged.has_failed() {
            return Ok(judged.outcome());
        }
        let chambers = Chambers::new(self.state, config)
            .map_err(|error| PipelineError::Boxes(error.to_string()))?;
        let trusted = trial::trusted(base, candidate, &config.test_files);
        judged.stage(signals::STAGE, &[], || {
            statics::check(&work, &chambers, &trusted)
        })?;
        if judged.has_failed() {
            return Ok(judged.outcome());
        }
        self.in_boxes(&mut judged, &work, &chambers, &trusted)?;
        Ok(judged.outcome())
    }

    /// Stages 3, 4, 6 and 7 do not know of each other and run at once; 5 is about time, and runs alone.
    fn in_boxes(
        &self,
        judged: &mut Judged<'_>,
        work: &Work<'_>,
        chambers: &Chambers,
        trusted: &Tree,
    ) -> Result<(), PipelineError> {
        let Loaded {
            base,
            config,
            proposal,
            ..
        } = self.loaded;
        let suites = runner::suites(config, trusted);
        let held_out = self.held_out(base, trusted);
        let held_digest = match &held_out {
            Some(Ok((_, after, _))) => after.digest(),
            _ => String::new(),
        };
        let unit = || match (config.test_files.is_empty(), config.cases.is_empty()) {
            (false, _) => {
                trial::compare_all(work, chambers, [base, trusted], &suites, Coverage::Counts)
            }
            // Exit codes of other languages' tests are a candidate's to choose; what a case prints is compared here.
            (true, false) => not_asked(),
            (true, true) => {
                let mut found = finding();
                let hint =
                    "declare `cases` in evolve.toml: what they print is compared outside the box";
                found.refuse("no_tests", None, "there is nothing to judge it by", hint);
                found
            }
        };
        let behaviour = || {
            if held_out.is_none() && config.cases.is_empty() {
                return not_asked();
            }
            let mut found = match &held_out {
                Some(Ok((before, after, suites))) => {
                    let trees = [before, after];
                    trial::compare_all(work, chambers, trees, suites, Coverage::Ignored)
                }
                Some(Err(error)) => {
                    let mut found = finding();
                    found.refuse(
                        "held_out",
                        None,
                        error,
                        "see `tests.held_out` in evolve.toml",
                    );
                    found
                }
                None => finding(),
            };
            trial::cases(&mut found, chambers, trusted, &config.cases);
            // Where an answer stands, or a held-out test is named, the next candidate would read it.
            if held_out.is_some() {
                found.facts = json!({});
                for reason in &mut found.reasons {
                    reason.at = None;
                    reason.message = "a held-out test or a case does not go as it should".into();
                }
            }
            found
        };
        let security = || scan::scan(chambers, base, trusted, &config.scanners, &work.changes);
        let doings = || match &config.behaviour {
            Some(words) => footprint::compare(chambers, base, trusted, words, &config.readable),
            None => not_asked(),
        };
        let stages: [(&str, &str, &(dyn Fn() -> Finding + Sync)); 4] = [
            ("3-unit", "", &unit),
            ("4-behaviour", &held_digest, &behaviour),
            ("6-security", "", &security),
            ("7-footprint", "", &doings),
        ];
        let tell = judged.tell;
        let found: Vec<StageResult> = std::thread::scope(|scope| {
            let running: Vec<_> = stages
                .iter()
                .map(|(name, more, run)| scope.spawn(move || self.result(name, more, tell, *run)))
                .collect();
            let lost = |name: &str| {
                let mut found = finding();
                found.refuse("lost", None, "the stage was lost", "");
                self.settled(&proposal.id, name, "", found, 0)
            };
            running
                .into_iter()
                .zip(&stages)
                .map(|(stage, (name, ..))| stage.join().unwrap_or_else(|_| lost(name)))
                .collect()
        });
        for result in found {
            judged.add(result)?;
        }
        if let Some(benchmark) = config.benchmark.as_ref().filter(|_| !judged.has_failed()) {
            judged.stage("5-benchmark", &[], || {
                bench::compare(chambers, base, trusted, benchmark)
            })?;
        }
        Ok(())
    }

    /// Both trees with the held-out tests in them, and their names.
    #[allow(clippy::type_complexity)]
    fn held_out(
        &self,
        base: &Tree,
        trusted: &Tree,
    ) -> Option<Result<(Tree, Tree, Vec<Suite>), String>> {
        const PLACE: &str = "belljar_held_out";
        let config = &self.loaded.config;
        let directory = config.held_out.as_ref()?;
        let place = Path::new(&self.loaded.proposal.project).join(directory);
        let read = || -> Result<_, String> {
            let place = place
                .canonicalize()
                .map_err(|error| format!("{}: {error}", place.display()))?;
            if place.starts_with(&self.loaded.proposal.project) {
                return Err(format!(
                    "{} is inside the project, where authors see it",
                    place.display()
                ));
            }
            let tests = Tree::read(&place, &config.exclude).map_err(|error| error.to_string())?;
            let (mut before, mut after) = (base.clone(), trusted.clone());
            let mut names = Vec::new();
            for (path, entry) in tests.iter() {
                // Cargo looks for tests in one place only.
                let inside = match Lang::of(path) {
                    Some(Lang::Rust) => format!("tests/{PLACE}_{path}"),
                    _ => format!("{PLACE}/{path}"),
                };
                let inside = crate::TreePath::new(inside).map_err(|error| error.to_string())?;
                before.put(inside.clone(), entry.clone());
                after.put(inside.clone(), entry.clone());
                names.push(inside);
            }
            let suites = runner::suites(config, &before).into_iter();
            let own = |suite: Suite| {
                let is_own = |file: &crate::TreePath| match suite.runner {
                    Runner::Cargo => Lang::of(file) == Some(Lang::Rust),
                    _ => suite.files.contains(file),
                };
                let files: Vec<_> = names.iter().filter(|file| is_own(file)).cloned().collect();
                (!files.is_empty()).then_some(Suite { files, ..suite })
            };
            let suites = suites.filter_map(own).collect();
            Ok((before, after, suites))
        };
        Some(read())
    }

    /// The result of a stage: of an earlier run on the same inputs, if it passed, else of a new one.
    fn result(
        &self,
        name: &str,
        more: &str,
        tell: &(dyn Fn(Progress<'_>) + Sync),
        run: &(dyn Fn() -> Finding + Sync),
    ) -> StageResult {
        tell(Progress::Started(name));
        let file = self.cache.join(format!("{}.json", self.inputs(name, more)));
        let known = std::fs::read(&file)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<StageResult>(&bytes).ok());
        if let Some(mut known) = known
            .filter(|known| known.stage == name && known.inputs_sha256 == self.inputs(name, more))
        {
            known.proposal = self.loaded.proposal.id.clone();
            known.cached = true;
            tell(Progress::Ended(&known));
            return known;
        }
        let start = Instant::now();
        let found = run();
        let has_passed = found.reasons.is_empty() && !found.not_asked;
        let took = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let result = self.settled(&self.loaded.proposal.id, name, more, found, took);
        // Only what passed is worth keeping: a failure may have been the machine's. That it can't be kept costs time alone.
        if has_passed && std::fs::create_dir_all(&self.cache).is_ok() {
            let _ = crate::disk::replace(&file, &serde_json::to_vec(&result).unwrap_or_default());
        }
        tell(Progress::Ended(&result));
        result
    }

    fn inputs(&self, name: &str, more: &str) -> String {
        let Loaded {
            request,
            base,
            candidate,
            config,
            ..
        } = self.loaded;
        let request = format!("{:?} {:?}", request.tests, request.claimed_risk);
        let (before, after) = (base.digest(), candidate.digest());
        let words = [
            EDITION,
            &runner::TEXTS.concat(),
            &syntax::TEXTS.concat(),
            name,
            &before,
            &after,
            &config.digest,
            &self.tools,
            &request,
            more,
        ];
        words_sha256(words.map(str::as_bytes))
    }

    fn settled(
        &self,
        id: &ProposalId,
        name: &str,
        more: &str,
        found: Finding,
        duration_ms: u64,
    ) -> StageResult {
        let verdict = match (found.reasons.is_empty(), found.not_asked) {
            (false, _) => Verdict::Fail,
            (true, true) => Verdict::NotAsked,
            (true, false) => Verdict::Pass,
        };
        let named = |mut reason: Reason| {
            reason.stage = name.to_owned();
            reason
        };
        StageResult {
            proposal: id.clone(),
            stage: name.to_owned(),
            verdict,
            reasons: found.reasons.into_iter().map(named).collect(),
            raised: found
                .raised
                .into_iter()
                .map(|(risk, reason)| (risk, named(reason)))
                .collect(),
            facts: found.facts,
            inputs_sha256: self.inputs(name, more),
            cached: false,
            duration_ms,
        }
    }
}

/// What is known so far.
struct Judged<'a> {
    pipeline: &'a Pipeline<'a>,
    gate: RunGate,
    tell: &'a (dyn Fn(Progress<'_>) + Sync),
    risk: Risk,
    because: Vec<Reason>,
    results: Vec<Statement>,
}

impl Judged<'_> {
    fn stage(
        &mut self,
        name: &str,
        more: &[&str],
        run: impl Fn() -> Finding + Sync,
    ) -> Result<(), PipelineError> {
        let result = self.pipeline.result(name, &more.join(" "), self.tell, &run);
        self.add(result)
    }

    /// Puts a result on record. What is not there has not happened.
    fn add(&mut self, result: StageResult) -> Result<(), PipelineError> {
        for (risk, reason) in &result.raised {
            self.risk = self.risk.max(*risk);
            self.because.push(reason.clone());
        }
        let proposal = &self.pipeline.loaded.proposal;
        let statement = Statement {
            kind: STATEMENT.to_owned(),
            subject: vec![Subject {
                name: "candidate".to_owned(),
                digest: TreeDigests {
                    sha256: proposal.candidate_tree.clone(),
                    git_tree: proposal.git_tree.clone(),
                },
            }],
            predicate_type: PREDICATE.to_owned(),
            predicate: result,
        };
        let event = RunEvent::Attested {
            statement: serde_json::to_value(&statement)?,
        };
        self.gate.note(event, Durability::Crash)?;
        self.results.push(statement);
        Ok(())
    }

    fn has_failed(&self) -> bool {
        self.results
            .iter()
            .any(|statement| statement.predicate.verdict == Verdict::Fail)
    }

    fn outcome(self) -> Outcome {
        let passed = !self.has_failed();
        let refused = self
            .results
            .iter()
            .flat_map(|statement| statement.predicate.reasons.clone());
        let reasons = refused.chain(self.because).collect();
        Outcome {
            passed,
            risk: self.risk,
            reasons,
            statements: self.results,
        }
    }
}
