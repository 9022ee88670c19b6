//! Experiments as files: `experiment.yaml`, what it says, and what it would cost.

mod decode;
mod parameter;
mod presets;
mod shape;

use std::path::Path;

use belljar_manifest::{ManifestError, ReadError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use parameter::Parameter;
pub use presets::{PRESETS, TEMPLATES, preset_source, template, template_source};
pub use shape::{MAX_CELLS, MAX_RUNS, schema};

use crate::rng::Stream;
use crate::scenario::Scenario;
use crate::world::RunKey;

/// Memory that one live worker takes in a simulation: 180 were seen, 420 under a budget, and tables double when they grow.
const BYTES_PER_WORKER: u64 = 600;

/// Workers that a processor simulates in a second, at a careful pace: a million at once is the slowest that was seen.
const WORKERS_PER_SECOND: u64 = 250_000;

/// An experiment: a scenario, how often it is run, and what is varied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The file as the user named it.
    pub name: String,
    /// What is simulated.
    pub scenario: Scenario,
    /// How often each cell is run.
    pub replicates: u32,
    /// Where random numbers come from.
    pub seed: u64,
    /// Whether all cells draw the same numbers.
    pub is_common: bool,
    /// What is varied.
    pub sweep: Option<Sweep>,
    /// What it may cost.
    pub limits: Limits,
    /// What is written besides JSON lines.
    pub outputs: Vec<Output>,
    /// Whether its boxes are real ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_live: bool,
}

/// What is varied, and how points are chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// How.
    pub method: Method,
    /// Points, or paths.
    pub samples: u32,
    /// The parameters.
    pub axes: Vec<Axis>,
}

/// How the points of a sweep are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Every combination.
    Grid,
    /// Each axis is cut into as many parts as there are points, and each part has one.
    LatinHypercube,
    /// Paths on which one parameter changes at a time: how much each matters.
    Morris,
    /// Pairs of points, and between them points with one parameter of the other: what part of the variance is each one's.
    Sobol,
}

/// A parameter and its values: a list for a grid, else the least and the most.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// Which.
    pub parameter: Parameter,
    /// Its values.
    pub values: Vec<f64>,
}

/// What an experiment may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Simulated workers of all runs together.
    pub workers: u64,
    /// Memory of all threads together, in MiB.
    pub memory_mb: u64,
    /// Time, in seconds, as a machine with a processor for each thread would need at a careful pace.
    #[serde(default = "two_hours")]
    pub seconds: u64,
}

fn two_hours() -> u64 {
    7200
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            workers: 2_000_000_000,
            memory_mb: 4096,
            seconds: two_hours(),
        }
    }
}

/// A file that is written besides JSON lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// A table of runs.
    Csv,
    /// The report.
    Html,
    /// Its pictures.
    Svg,
    /// The same, as dots.
    Png,
}

/// An experiment that would cost more than it may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// Too many runs.
    #[error("{runs} runs ({cells} cells, {replicates} replicates each) are more than {MAX_RUNS}")]
    Runs {
        /// Points of the sweep.
        cells: u64,
        /// Repetitions of each.
        replicates: u32,
        /// Both together.
        runs: u64,
    },
    /// Too many simulated workers, and so too much time.
    #[error(
        "up to {workers} workers may be simulated ({runs} runs, max_workers each); limits.workers is {limit}"
    )]
    Workers {
        /// How many, at most.
        workers: u64,
        /// In how many runs.
        runs: u64,
        /// What is allowed.
        limit: u64,
    },
    /// Too much time.
    #[error("up to {seconds} s may be needed on {threads} threads; limits.seconds is {limit}")]
    Time {
        /// How much, at most.
        seconds: u64,
        /// On so many threads.
        threads: u64,
        /// What is allowed.
        limit: u64,
    },
    /// Too much memory.
    #[error(
        "up to {memory_mb} MiB may be needed on {threads} threads; limits.memory_mb is {limit}"
    )]
    Memory {
        /// How much, at most.
        memory_mb: u64,
        /// On so many threads.
        threads: u64,
        /// What is allowed.
        limit: u64,
    },
}

impl TooLarge {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Runs { .. } => "lower replicates, or vary fewer values",
            Self::Workers { .. } => "lower max_workers or replicates, or raise limits.workers",
            Self::Time { .. } => {
                "lower max_workers, replicates or (with --live) horizon_seconds, or raise limits.seconds"
            }
            Self::Memory { .. } => {
                "lower max_workers or the contract's max_replicas, use fewer threads, or raise limits.memory_mb"
            }
        }
    }
}

impl Experiment {
    pub(crate) fn new(name: &str, scenario: Scenario) -> Self {
        Self {
            name: name.to_owned(),
            scenario,
            replicates: 100,
            seed: 1,
            is_common: true,
            sweep: None,
            limits: Limits::default(),
            outputs: vec![Output::Csv, Output::Html, Output::Svg, Output::Png],
            is_live: false,
        }
    }

    /// Reads an experiment from its bytes; a contract's file is looked for in `directory`.
    ///
    /// # Errors
    /// The first thing wrong with the file, with its place.
    pub fn parse(
        file_name: &str,
        bytes: &[u8],
        directory: Option<&Path>,
    ) -> Result<Self, ReadError> {
        decode::parse(file_name, bytes, directory)
    }

    /// Reads an experiment from the disk.
    ///
    /// # Errors
    /// When the file can't be read, or the first thing wrong with it.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let name = path.display().to_string();
        let bytes = belljar_manifest::read_bounded(path, &name)?;
        Self::parse(&name, &bytes, path.parent())
    }

    /// A shipped experiment.
    ///
    /// # Errors
    /// Never, as tests read every one of them; a mistake in one is told like any other.
    pub fn preset(name: &str) -> Option<Result<Self, ManifestError>> {
        let source = preset_source(name)?;
        Some(
            Self::parse(name, source.as_bytes(), None).map_err(|error| match error {
                ReadError::Manifest(error) => error,
                ReadError::Io { .. } => unreachable!("presets name no files"),
            }),
        )
    }

    /// The points of the sweep: values by axis, in the order of cells. Without a sweep there is one without values.
    #[must_use]
    pub fn points(&self) -> Vec<Vec<f64>> {
        match &self.sweep {
            None => vec![Vec::new()],
            Some(sweep) => sweep.points(Stream::of_run(self.seed, u64::MAX, 0)),
        }
    }

    /// Where the random numbers of a run come from.
    #[must_use]
    pub fn key(&self, cell: u32, replicate: u32) -> RunKey {
        RunKey {
            seed: self.seed,
            cell,
            replicate,
            stream: if self.is_common { 0 } else { cell },
        }
    }

    /// The scenario of a point.
    #[must_use]
    pub fn scenario_at(&self, point: &[f64]) -> Scenario {
        let mut scenario = self.scenario.clone();
        let axes = self.sweep.iter().flat_map(|sweep| &sweep.axes);
        for (axis, value) in axes.zip(point) {
            axis.parameter.set(&mut scenario, *value);
        }
        scenario
    }

    /// Refuses an experiment that would cost more than it may.
    ///
    /// # Errors
    /// What it would cost.
    pub fn check_cost(&self, threads: usize) -> Result<(), TooLarge> {
        let cells = self.sweep.as_ref().map_or(1, Sweep::cells);
        let runs = cells.saturating_mul(u64::from(self.replicates));
        if runs > MAX_RUNS || cells > MAX_CELLS {
            return Err(TooLarge::Runs {
                cells,
                replicates: self.replicates,
                runs,
            });
        }
        let workers = runs.saturating_mul(self.scenario.max_workers);
        if workers > self.limits.workers {
            return Err(TooLarge::Workers {
                workers,
                runs,
                limit: self.limits.workers,
            });
        }
        // Real boxes take the time they are given, one run after the other.
        let threads = match self.is_live {
            true => 1,
            false => (threads as u64).min(runs).max(1),
        };
        let seconds = match self.is_live {
            true => runs.saturating_mul(self.scenario.horizon_ns.div_ceil(1_000_000_000) + 2),
            false => workers / WORKERS_PER_SECOND / threads,
        };
        if seconds > self.limits.seconds {
            return Err(TooLarge::Time {
                seconds,
                threads,
                limit: self.limits.seconds,
            });
        }
        let most = self
            .points()
            .iter()
            .map(|point| u64::from(self.scenario_at(point).contract.max_replicas))
            .max();
        let alive = most.unwrap_or(0).min(self.scenario.max_workers);
        let memory_mb = alive
            .saturating_mul(BYTES_PER_WORKER)
            .saturating_mul(threads)
            >> 20;
        if memory_mb > self.limits.memory_mb {
            return Err(TooLarge::Memory {
                memory_mb,
                threads,
                limit: self.limits.memory_mb,
            });
        }
        Ok(())
    }

    /// What tells this experiment from others: the digest of all that its results depend on.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut plain = self.clone();
        plain.name.clear();
        plain.scenario.contract.name.clear();
        plain.outputs.clear();
        plain.limits = Limits::default();
        let bytes = serde_json::to_vec(&plain).unwrap_or_default();
        Sha256::digest(&bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

impl Sweep {
    /// How many points there are.
    #[must_use]
    pub fn cells(&self) -> u64 {
        match self.method {
            Method::Grid => self.axes.iter().fold(1u64, |all, axis| {
                all.saturating_mul(axis.values.len() as u64)
            }),
            Method::LatinHypercube => u64::from(self.samples),
            Method::Morris => u64::from(self.samples).saturating_mul(self.axes.len() as u64 + 1),
            Method::Sobol => u64::from(self.samples).saturating_mul(self.axes.len() as u64 + 2),
        }
    }

    fn points(&self, mut stream: Stream) -> Vec<Vec<f64>> {
        match self.method {
            Method::Grid => self.grid(),
            Method::LatinHypercube => self.latin(&mut stream),
            Method::Morris => self.morris(&mut stream),
            Method::Sobol => self.sobol(&mut stream),
        }
    }

    /// The last axis changes first.
    fn grid(&self) -> Vec<Vec<f64>> {
        let mut points = vec![Vec::new()];
        for axis in &self.axes {
            let longer = |point: &Vec<f64>| {
                axis.values
                    .iter()
                    .map(|value| [point.as_slice(), &[*value]].concat())
                    .collect::<Vec<_>>()
            };
            points = points.iter().flat_map(longer).collect();
        }
        points
    }

    fn latin(&self, stream: &mut Stream) -> Vec<Vec<f64>> {
        let count = self.samples as usize;
        let mut points = vec![Vec::with_capacity(self.axes.len()); count];
        for axis in &self.axes {
            let mut parts: Vec<usize> = (0..count).collect();
            for at in (1..count).rev() {
                parts.swap(at, stream.below(at as u64 + 1) as usize);
            }
            for (point, part) in points.iter_mut().zip(parts) {
                point.push(axis.at((part as f64 + stream.uniform()) / count as f64));
            }
        }
        points
    }

    /// Each path begins at a random point of a grid of four levels and moves along every axis once, in random order.
    fn morris(&self, stream: &mut Stream) -> Vec<Vec<f64>> {
        let mut points = Vec::new();
        for _ in 0..self.samples {
            let mut units: Vec<f64> = self
                .axes
                .iter()
                .map(|_| stream.below(4) as f64 / 3.0)
                .collect();
            let mut order: Vec<usize> = (0..self.axes.len()).collect();
            for at in (1..order.len()).rev() {
                order.swap(at, stream.below(at as u64 + 1) as usize);
            }
            points.push(self.at(&units));
            for axis in order {
                units[axis] = if units[axis] < 0.5 {
                    units[axis] + 2.0 / 3.0
                } else {
                    units[axis] - 2.0 / 3.0
                };
                points.push(self.at(&units));
            }
        }
        points
    }

    /// For each pair: the first, the second, and the first with one coordinate of the second, for each of them.
    fn sobol(&self, stream: &mut Stream) -> Vec<Vec<f64>> {
        let (first, second) = (self.latin(stream), self.latin(stream));
        let mut points = Vec::new();
        for (a, b) in first.into_iter().zip(second) {
            let mixed = (0..self.axes.len()).map(|axis| {
                let mut mixed = a.clone();
                mixed[axis] = b[axis];
                mixed
            });
            let mixed: Vec<_> = mixed.collect();
            points.extend([a, b]);
            points.extend(mixed);
        }
        points
    }

    fn at(&self, units: &[f64]) -> Vec<f64> {
        self.axes
            .iter()
            .zip(units)
            .map(|(axis, unit)| axis.at(*unit))
            .collect()
    }
}

impl Axis {
    /// The value at a part of the way from the least to the most.
    fn at(&self, unit: f64) -> f64 {
        let (from, to) = (
            self.values.first().copied().unwrap_or(0.0),
            self.values.last().copied().unwrap_or(0.0),
        );
        from + (to - from) * unit
    }
}
