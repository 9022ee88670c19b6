//! The commands about experiments.

use clap::{Args, Subcommand};
use std::path::PathBuf;

use super::Format;

/// Exit codes of `belljar experiment gate`.
const GATE_HELP: &str = "\
Exit codes:
    0  every gate holds
    1  a gate fails
    2  a gate warns, none fails";

#[derive(Debug, Subcommand)]
pub(crate) enum Experiment {
    /// Simulate an experiment and write results and a report
    ///
    /// Decisions are made by the controller that guards real boxes; boxes and time are simulated. The same seed gives the same bytes on
    /// any number of threads. A run that was interrupted goes on where it was.
    Run(RunExperiment),
    /// Finish what was interrupted
    Resume {
        /// The experiment's directory
        directory: PathBuf,
        #[command(flatten)]
        threads: Threads,
        #[command(flatten)]
        format: Format,
    },
    /// Compare two experiments pair by pair of runs with the same random numbers, with effect sizes
    Compare {
        /// The directory of the first
        first: PathBuf,
        /// The directory of the second
        second: PathBuf,
        /// Which cell of both
        #[arg(long, value_name = "N", default_value_t = 0)]
        cell: u32,
        #[command(flatten)]
        format: Format,
    },
    /// Write the report and the tables again, with the lineage and the replay of a chosen run
    Report {
        /// The experiment's directory
        directory: PathBuf,
        /// The cell of the run whose lineage and replay are shown
        #[arg(long, value_name = "N", default_value_t = 0)]
        cell: u32,
        /// Its number in that cell
        #[arg(long, value_name = "N", default_value_t = 0)]
        replicate: u32,
    },
    /// Presets, contract templates, metrics, parameters
    List(Format),
    /// Print a preset, to start from
    Show {
        /// Which
        #[arg(value_parser = belljar_experiment::PRESETS.to_vec())]
        name: String,
    },
    /// Check results against policy gates, for CI
    #[command(after_help = GATE_HELP)]
    Gate {
        /// A gates.yaml
        gates: PathBuf,
        /// The experiment's directory
        directory: PathBuf,
        #[command(flatten)]
        format: Format,
    },
    /// Find the loosest contract that meets a set of gates
    Optimise(Optimise),
}

#[derive(Debug, Args)]
pub(crate) struct Threads {
    /// How many runs at once; as many as there are processors if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
}

#[derive(Debug, Args)]
pub(crate) struct RunExperiment {
    /// An experiment.yaml, or the name of a preset
    pub(crate) experiment: PathBuf,
    /// Where results go
    #[arg(long, short, value_name = "DIRECTORY")]
    pub(crate) out: PathBuf,
    /// Another seed than the file's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=u64::from(u32::MAX)))]
    pub(crate) seed: Option<u64>,
    /// Another number of runs than the file's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) replicates: Option<u32>,
    /// With real boxes instead of simulated ones: a small scenario, in real time, one run after the other
    #[arg(long)]
    pub(crate) live: bool,
    #[command(flatten)]
    pub(crate) threads: Threads,
    #[command(flatten)]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct Optimise {
    /// An experiment.yaml, or the name of a preset; its sweep is left out
    pub(crate) experiment: PathBuf,
    /// A gates.yaml
    #[arg(long, value_name = "FILE")]
    pub(crate) gates: PathBuf,
    /// A parameter to loosen, from its strictest value to its loosest; the first is loosened first
    #[arg(long, value_name = "PARAMETER=STRICT..LOOSE", required = true, value_parser = range)]
    pub(crate) vary: Vec<belljar_experiment::stats::Range>,
    #[command(flatten)]
    pub(crate) threads: Threads,
    #[command(flatten)]
    pub(crate) format: Format,
}

fn range(text: &str) -> Result<belljar_experiment::stats::Range, String> {
    let (name, values) = text
        .split_once('=')
        .ok_or("write PARAMETER=STRICT..LOOSE")?;
    let (strict, loose) = values
        .split_once("..")
        .ok_or("write PARAMETER=STRICT..LOOSE")?;
    let number = |text: &str| match text.parse::<f64>() {
        Ok(number) if (0.0..=1e9).contains(&number) => Ok(number),
        _ => Err(format!("{text} is not a number from 0 to 1000000000")),
    };
    let parameter = belljar_experiment::Parameter::from_name(name).ok_or_else(|| {
        format!(
            "no parameter {name}; there are {}",
            belljar_experiment::Parameter::NAMES.join(", ")
        )
    })?;
    Ok(belljar_experiment::stats::Range {
        parameter,
        strict: number(strict)?,
        loose: number(loose)?,
    })
}
