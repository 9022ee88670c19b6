//! Runs many simulations at once and keeps what they find: lines appended as runs finish, so that nothing is lost by a kill, and one
//! sorted file at the end, whose bytes do not depend on the number of threads.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use belljar_replication::InvalidCondition;
use serde::{Deserialize, Serialize};

use crate::file::Experiment;
use crate::scenario::Scenario;
use crate::stats::{Risk, risk};
use crate::tally::Run;
use crate::world::{RunKey, Simulator};

/// The most bytes of a line, and of the description of an experiment.
const MAX_LINE: u64 = 1 << 20;

const PROGRESS: &str = "progress.jsonl";
/// The results, in the experiment's directory.
pub const RESULTS: &str = "results.jsonl";
const EXPERIMENT: &str = "experiment.json";
const MANIFEST: &str = "manifest.json";

/// What results came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Belljar's version.
    pub version: String,
    /// The experiment as the user named it.
    pub experiment: String,
    /// The digest of all that the results depend on.
    pub config_sha256: String,
    /// The seed.
    pub seed: u64,
    /// Repetitions of each cell.
    pub replicates: u32,
    /// The names of the parameters that were varied.
    pub parameters: Vec<String>,
    /// Their values, by cell.
    pub points: Vec<Vec<f64>>,
    /// The digest of the results' file.
    pub results_sha256: String,
}

/// Why results can't be made or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk refused.
    #[error("cannot use {}", path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The directory holds something else.
    #[error("{} holds results of another experiment", .0.display())]
    OtherExperiment(PathBuf),
    /// There is nothing to go on with.
    #[error("{} holds no experiment", .0.display())]
    NoExperiment(PathBuf),
    /// The experiment was not finished.
    #[error("the experiment in {} is not finished", .0.display())]
    NotFinished(PathBuf),
    /// A file is not as it was written.
    #[error("{}:{line}: not as it was written", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Which line; 0 for the whole file.
        line: usize,
    },
    /// A stop condition can't be compiled.
    #[error("a stop condition is not valid")]
    Condition(#[from] InvalidCondition),
    /// No such run.
    #[error("there is no run {replicate} of cell {cell}")]
    NoRun {
        /// Of which cell.
        cell: u32,
        /// Which.
        replicate: u32,
    },
    /// A run with real boxes came to nothing.
    #[error("a live run failed: {0}")]
    Live(String),
}

impl StoreError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Io { .. } => "name a directory that you can write to",
            Self::OtherExperiment(_) => "name another directory with --out",
            Self::NoExperiment(_) => "`belljar experiment run` makes one",
            Self::NotFinished(_) => "`belljar experiment resume` finishes it",
            Self::Damaged { .. } => "run the experiment again into another directory",
            Self::Condition(_) => "`belljar replication contract validate` explains it",
            Self::NoRun { .. } => "cells and their runs are counted from 0; results.csv lists them",
            Self::Live(_) => {
                "`belljar doctor` says what boxes need; `belljar experiment resume` goes on"
            }
        }
    }
}

/// Where a live run has its boxes' workspace, its state and its record, below the experiment's directory.
#[must_use]
pub fn live_place(cell: u32, replicate: u32) -> PathBuf {
    PathBuf::from(format!("live/{cell}-{replicate}"))
}

/// Results, read back.
#[derive(Clone, Debug)]
pub struct Results {
    /// What was run.
    pub experiment: Experiment,
    /// What the results came from.
    pub manifest: Manifest,
    /// The runs, by cell and replicate.
    pub runs: Vec<Run>,
}

impl Results {
    /// The runs of a cell.
    #[must_use]
    pub fn cell(&self, cell: u32) -> &[Run] {
        let from = self.runs.partition_point(|run| run.cell < cell);
        let to = self.runs.partition_point(|run| run.cell <= cell);
        &self.runs[from..to]
    }

    /// How grave a cell is.
    #[must_use]
    pub fn risk(&self, cell: u32) -> Risk {
        let point = self.manifest.points.get(cell as usize);
        let scenario = self
            .experiment
            .scenario_at(point.map_or(&[][..], Vec::as_slice));
        risk(self.cell(cell), scenario.contract.max_replicas)
    }
}

/// Runs an experiment into a directory, or finishes what was begun there. `progress` is told how many runs are done and how many there are.
///
/// # Errors
/// When the directory can't be used, or holds something else.
pub fn run_into(
    experiment: &Experiment,
    directory: &Path,
    threads: usize,
    progress: impl FnMut(u64, u64),
) -> Result<Results, StoreError> {
    run_into_by(experiment, directory, threads, simulating, progress)
}

/// The same, with runs made by somebody else: with real boxes, say. Each thread hires a maker of its own.
///
/// # Errors
/// When the directory can't be used, or holds something else; or what a maker says.
pub fn run_into_by<M: FnMut(&Scenario, RunKey) -> Result<Run, StoreError>>(
    experiment: &Experiment,
    directory: &Path,
    threads: usize,
    hire: impl Fn() -> M + Sync,
    mut progress: impl FnMut(u64, u64),
) -> Result<Results, StoreError> {
    std::fs::create_dir_all(directory).map_err(io(directory))?;
    claim(experiment, directory)?;
    if directory.join(RESULTS).exists() {
        return load(directory);
    }
    let path = directory.join(PROGRESS);
    let mut lines = read_progress(&path)?;
    let points = experiment.points();
    let wanted = points.len() as u64 * u64::from(experiment.replicates);
    let jobs = missing(experiment, points.len(), &lines);
    let mut file = BufWriter::new(
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(io(&path))?,
    );
    progress(lines.len() as u64, wanted);
    each(experiment, &points, &jobs, threads, &hire, |run, line| {
        // One write for each line: a kill leaves whole lines, and at most one that is torn.
        file.write_all(line.as_bytes())
            .and_then(|()| file.flush())
            .map_err(io(&path))?;
        lines.insert((run.cell, run.replicate), line);
        progress(lines.len() as u64, wanted);
        Ok(())
    })?;
    finish(experiment, directory, points, &lines)?;
    let _ = std::fs::remove_file(&path);
    load(directory)
}

/// The experiment that was begun in a directory.
///
/// # Errors
/// When there is none.
pub fn begun(directory: &Path) -> Result<Experiment, StoreError> {
    let path = directory.join(EXPERIMENT);
    if !path.exists() {
        return Err(StoreError::NoExperiment(directory.to_owned()));
    }
    let bytes = read_whole(&path)?;
    serde_json::from_slice(&bytes).map_err(|_| StoreError::Damaged { path, line: 0 })
}

/// Reads results back.
///
/// # Errors
/// When there are none, or they are not as they were written.
pub fn load(directory: &Path) -> Result<Results, StoreError> {
    let experiment = begun(directory)?;
    let path = directory.join(MANIFEST);
    // The results are written last.
    if !directory.join(RESULTS).exists() {
        return Err(StoreError::NotFinished(directory.to_owned()));
    }
    let manifest: Manifest = serde_json::from_slice(&read_whole(&path)?)
        .map_err(|_| StoreError::Damaged { path, line: 0 })?;
    let path = directory.join(RESULTS);
    let mut runs = Vec::new();
    let mut hasher = Hasher::default();
    for (at, line) in bounded_lines(&path)?.enumerate() {
        let line = line.map_err(io(&path))?;
        hasher.add(&line);
        let damaged = || StoreError::Damaged {
            path: path.clone(),
            line: at + 1,
        };
        runs.push(serde_json::from_slice::<Run>(&line).map_err(|_| damaged())?);
    }
    if hasher.finish() != manifest.results_sha256 {
        return Err(StoreError::Damaged { path, line: 0 });
    }
    Ok(Results {
        experiment,
        manifest,
        runs,
    })
}

/// Runs an experiment in memory. The runs come by cell and replicate.
///
/// # Errors
/// When a stop condition can't be compiled.
pub fn run_all(experiment: &Experiment, threads: usize) -> Result<Vec<Run>, StoreError> {
    let points = experiment.points();
    let jobs = missing(experiment, points.len(), &BTreeMap::new());
    let mut runs = Vec::with_capacity(jobs.len());
    each(
        experiment,
        &points,
        &jobs,
        threads,
        &simulating,
        |run, _| {
            runs.push(run);
            Ok(())
        },
    )?;
    runs.sort_by_key(|run| (run.cell, run.replicate));
    Ok(runs)
}

type Lines = BTreeMap<(u32, u32), String>;

fn missing(experiment: &Experiment, cells: usize, done: &Lines) -> Vec<(u32, u32)> {
    let cells = 0..u32::try_from(cells).unwrap_or(u32::MAX);
    let all =
        cells.flat_map(|cell| (0..experiment.replicates).map(move |replicate| (cell, replicate)));
    all.filter(|job| !done.contains_key(job)).collect()
}

/// A maker of simulated runs.
fn simulating() -> impl FnMut(&Scenario, RunKey) -> Result<Run, StoreError> {
    let mut simulator = Simulator::default();
    move |scenario, key| Ok(simulator.simulate(scenario, key)?)
}

/// Runs the jobs on threads; `take` has each run and its line, in the order in which they finish.
fn each<M: FnMut(&Scenario, RunKey) -> Result<Run, StoreError>>(
    experiment: &Experiment,
    points: &[Vec<f64>],
    jobs: &[(u32, u32)],
    threads: usize,
    hire: &(impl Fn() -> M + Sync),
    mut take: impl FnMut(Run, String) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let scenarios: Vec<Scenario> = points
        .iter()
        .map(|point| experiment.scenario_at(point))
        .collect();
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        // Bounded, so that a slow disk slows the runs and not the memory.
        let (sender, receiver) = mpsc::sync_channel(256);
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            let sender = sender.clone();
            let (next, stop, scenarios) = (&next, &stop, &scenarios);
            scope.spawn(move || {
                let mut make = hire();
                while !stop.load(Ordering::Relaxed) {
                    let Some((cell, replicate)) = jobs.get(next.fetch_add(1, Ordering::Relaxed))
                    else {
                        return;
                    };
                    let key = experiment.key(*cell, *replicate);
                    let run = make(&scenarios[*cell as usize], key).map(|run| {
                        let mut line = serde_json::to_string(&run).unwrap_or_default();
                        line.push('\n');
                        (run, line)
                    });
                    if sender.send(run).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut outcome = Ok(());
        for run in &receiver {
            let taken = run.and_then(|(run, line)| take(run, line));
            if taken.is_err() {
                stop.store(true, Ordering::Relaxed);
                outcome = taken;
                break;
            }
        }
        drop(receiver);
        outcome
    })
}

/// Makes the directory this experiment's, unless it is another's.
fn claim(experiment: &Experiment, directory: &Path) -> Result<(), StoreError> {
    let path = directory.join(EXPERIMENT);
    if path.exists() {
        return match begun(directory)?.digest() == experiment.digest() {
            true => Ok(()),
            false => Err(StoreError::OtherExperiment(directory.to_owned())),
        };
    }
    let text = serde_json::to_vec_pretty(experiment).unwrap_or_default();
    write_whole(&path, &text)
}

/// The lines that are whole. One that was torn by a kill is cut off.
fn read_progress(path: &Path) -> Result<Lines, StoreError> {
    let mut lines = Lines::new();
    if !path.exists() {
        return Ok(lines);
    }
    let mut whole = 0u64;
    for line in bounded_lines(path)? {
        let line = line.map_err(io(path))?;
        let run = serde_json::from_slice::<Run>(&line)
            .ok()
            .filter(|_| line.ends_with(b"\n"));
        let (Some(run), Ok(text)) = (run, String::from_utf8(line)) else {
            break;
        };
        whole += text.len() as u64;
        lines.insert((run.cell, run.replicate), text);
    }
    let file = OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(io(path))?;
    file.set_len(whole).map_err(io(path))?;
    Ok(lines)
}

/// Writes the results, sorted, and then what they came from: whoever finds the latter finds all of the former.
fn finish(
    experiment: &Experiment,
    directory: &Path,
    points: Vec<Vec<f64>>,
    lines: &Lines,
) -> Result<(), StoreError> {
    let mut hasher = Hasher::default();
    let text: Vec<u8> = lines.values().flat_map(|line| line.bytes()).collect();
    lines.values().for_each(|line| hasher.add(line.as_bytes()));
    let manifest = Manifest {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        experiment: experiment.name.clone(),
        config_sha256: experiment.digest(),
        seed: experiment.seed,
        replicates: experiment.replicates,
        parameters: experiment
            .sweep
            .iter()
            .flat_map(|sweep| &sweep.axes)
            .map(|axis| axis.parameter.name().to_owned())
            .collect(),
        points,
        results_sha256: hasher.finish(),
    };
    let manifest = serde_json::to_vec_pretty(&manifest).unwrap_or_default();
    write_whole(&directory.join(MANIFEST), &manifest)?;
    write_whole(&directory.join(RESULTS), &text)
}

#[derive(Default)]
struct Hasher(sha2::Sha256);

impl Hasher {
    fn add(&mut self, bytes: &[u8]) {
        sha2::Digest::update(&mut self.0, bytes);
    }

    fn finish(self) -> String {
        sha2::Digest::finalize(self.0)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

/// Lines with their ends; one that is too long is an error.
fn bounded_lines(
    path: &Path,
) -> Result<impl Iterator<Item = std::io::Result<Vec<u8>>>, StoreError> {
    let mut reader = BufReader::new(File::open(path).map_err(io(path))?);
    Ok(std::iter::from_fn(move || {
        let mut line = Vec::new();
        match reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(read) if read as u64 == MAX_LINE => {
                Some(Err(std::io::Error::other("a line is too long")))
            }
            Ok(_) => Some(Ok(line)),
            Err(error) => Some(Err(error)),
        }
    }))
}

pub(crate) fn read_whole(path: &Path) -> Result<Vec<u8>, StoreError> {
    const MOST: u64 = 64 << 20;
    let file = File::open(path).map_err(io(path))?;
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes).map_err(io(path))?;
    Ok(bytes)
}

/// Writes a file that is there whole or not at all.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    belljar_files::replace(path, bytes, 0o644).map_err(io(path))
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> StoreError {
    move |source| StoreError::Io {
        path: path.to_owned(),
        source,
    }
}
