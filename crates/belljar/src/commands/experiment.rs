//! `belljar experiment`: contracts studied with the controller that enforces them.

mod live;
mod sensitivity;
mod twin;

use crate::cli::OutputFormat;
use crate::cli::experiment::{Experiment as Command, Optimise, RunExperiment, Threads};
use crate::exit::{self, Failure};
use crate::print::{self, Line, harmless};
use belljar_experiment::stats::{
    Comparison, Estimate, GateResult, Metric, Verdict, compare, escape, judge, life_counts,
    optimise, parse_gates,
};
use belljar_experiment::{
    Experiment, PRESETS, Parameter, Results, TEMPLATES, preset_source, report,
};
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) fn experiment(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Run(arguments) => run(arguments),
        Command::Resume {
            directory,
            threads,
            format,
        } => {
            let experiment = belljar_experiment::begun(directory)?;
            carry_out(&experiment, directory, threads, format.output)
        }
        Command::Compare {
            first,
            second,
            cell,
            format,
        } => compare_two(first, second, *cell, format.output),
        Command::Report {
            directory,
            cell,
            replicate,
        } => {
            let results = belljar_experiment::load(directory)?;
            let chosen = report::Chosen {
                cell: *cell,
                replicate: *replicate,
            };
            for name in report::write(&results, directory, chosen)? {
                print::out(&format!("{}\n", directory.join(name).display()));
            }
            Ok(exit::OK)
        }
        Command::List(format) => Ok(list(format.output)),
        Command::Show { name } => {
            print::out(preset_source(name).unwrap_or_default());
            Ok(exit::OK)
        }
        Command::Gate {
            gates,
            directory,
            format,
        } => gate(gates, directory, format.output),
        Command::Optimise(arguments) => find_loosest(arguments),
    }
}

/// A file, or a preset where there is no such file.
fn read(path: &Path) -> Result<Experiment, Failure> {
    let name = path.to_str().unwrap_or_default();
    if !path.exists()
        && let Some(preset) = Experiment::preset(name)
    {
        return Ok(preset.map_err(belljar_manifest::ReadError::from)?);
    }
    Ok(Experiment::read(path)?)
}

fn count(threads: &Threads) -> usize {
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    threads.threads.map_or_else(processors, usize::from)
}

fn run(arguments: &RunExperiment) -> Result<u8, Failure> {
    let mut experiment = read(&arguments.experiment)?;
    experiment.seed = arguments.seed.unwrap_or(experiment.seed);
    experiment.replicates = arguments.replicates.unwrap_or(experiment.replicates);
    experiment.is_live = arguments.live;
    carry_out(
        &experiment,
        &arguments.out,
        &arguments.threads,
        arguments.format.output,
    )
}

fn carry_out(
    experiment: &Experiment,
    directory: &Path,
    threads: &Threads,
    output: OutputFormat,
) -> Result<u8, Failure> {
    let threads = count(threads);
    check_cost(experiment, threads)?;
    let mut bar = Bar::new();
    let show = |done, of| bar.show(done, of);
    let results = match experiment.is_live {
        true => live::run_into(experiment, directory, show)?,
        false => belljar_experiment::run_into(experiment, directory, threads, show)?,
    };
    bar.clear();
    let written = report::write(&results, directory, report::Chosen::default())?;
    let twins = match experiment.is_live {
        true => live::twins(&results, directory),
        false => Vec::new(),
    };
    if output == OutputFormat::Json {
        let twins = twin::json(&results, &twins);
        print::json(
            &json!({"manifest": results.manifest, "cells": cells_json(&results), "sensitivity": sensitivity::json(&results), "escape": escape(&results.runs).filter(|_| results.experiment.is_live), "twins": twins, "written": written}),
        );
    } else {
        print::out(&summary(&results));
        print::out(&twin::table(&results, &twins));
        print::line(
            Line::Summary,
            &format!("written to {}", directory.display()),
        );
    }
    Ok(exit::OK)
}

fn check_cost(experiment: &Experiment, threads: usize) -> Result<(), Failure> {
    experiment
        .check_cost(threads)
        .map_err(|error| Failure::Invalid(error.to_string(), error.hint().to_owned()))
}

/// Progress on a terminal, with the time that is left; nothing elsewhere.
struct Bar {
    begun: Instant,
    shown: Option<Instant>,
    first: Option<u64>,
    is_on: bool,
}

impl Bar {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            shown: None,
            first: None,
            is_on: std::io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, done: u64, of: u64) {
        const PAUSE: Duration = Duration::from_millis(100);
        let first = *self.first.get_or_insert(done);
        if !self.is_on || self.shown.is_some_and(|shown| shown.elapsed() < PAUSE) {
            return;
        }
        self.shown = Some(Instant::now());
        let made = done.saturating_sub(first);
        let left = if made == 0 {
            String::new()
        } else {
            let seconds = self.begun.elapsed().as_secs_f64() / made as f64 * (of - done) as f64;
            format!(", {seconds:.0} s left")
        };
        let filled = (30 * done).checked_div(of).unwrap_or(30) as usize;
        let (full, empty) = ("█".repeat(filled), "░".repeat(30 - filled.min(30)));
        let _ = write!(
            std::io::stderr(),
            "\r\x1b[K{full}{empty} {done} of {of} runs{left}"
        );
    }

    fn clear(&self) {
        if self.is_on {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn cells_json(results: &Results) -> serde_json::Value {
    let cell = |cell: usize| {
        let runs = results.cell(cell as u32);
        let metrics: serde_json::Map<_, _> = Metric::ALL
            .iter()
            .filter_map(|metric| Some((metric.name().to_owned(), json!(metric.estimate(runs)?))))
            .collect();
        // Why there is no number where one might be expected.
        let missing: serde_json::Map<_, _> = Metric::ALL
            .iter()
            .filter_map(|metric| Some((metric.name().to_owned(), json!(metric.missing(runs)?))))
            .collect();
        json!({"cell": cell, "point": results.manifest.points[cell], "risk": results.risk(cell as u32), "metrics": metrics, "missing": missing, "lives": life_counts(runs), "rt": belljar_experiment::stats::rt(runs)})
    };
    (0..results.manifest.points.len()).map(cell).collect()
}

/// The parameters of a cell, as people read them.
fn cell_name(results: &Results, cell: usize) -> String {
    let point = &results.manifest.points[cell];
    let named = results.manifest.parameters.iter().zip(point);
    let name: Vec<String> = named
        .map(|(name, value)| {
            let digits = format!("{value:.4}");
            let digits = digits.trim_end_matches('0').trim_end_matches('.');
            format!("{name}={digits}")
        })
        .collect();
    match name.is_empty() {
        true => "all runs".to_owned(),
        false => name.join(" "),
    }
}

/// A table of the cells; of many, the first.
fn summary(results: &Results) -> String {
    const MOST: usize = 20;
    const SHOWN: [Metric; 8] = [
        Metric::Peak,
        Metric::Growth,
        Metric::Workers,
        Metric::Depth,
        Metric::R0,
        Metric::R,
        Metric::Extinction,
        Metric::Denials,
    ];
    let mut text = sensitivity::lines(results);
    // Where points were chosen to say what matters, each by itself says little.
    let most = if text.is_empty() { MOST } else { 0 };
    for cell in 0..results.manifest.points.len().min(most) {
        let name = cell_name(results, cell);
        let risk = results.risk(cell as u32).word();
        text.push_str(&format!("{name}  (risk: {risk})\n"));
        for metric in SHOWN {
            if let Some(estimate) = metric.estimate(results.cell(cell as u32)) {
                text.push_str(&format!(
                    "  {:<28} {}\n",
                    metric.label(),
                    interval(&estimate)
                ));
            } else if let Some(why) = metric.missing(results.cell(cell as u32)) {
                text.push_str(&format!("  {:<28} unknown: {why}\n", metric.label()));
            }
        }
        let lives = life_counts(results.cell(cell as u32));
        if lives.cut > 0 {
            text.push_str(&format!(
                "  {} of {} lives were cut by the end of their run\n",
                lives.cut,
                lives.cut + lives.over
            ));
        }
    }
    if results.manifest.points.len() > MOST && most > 0 {
        text.push_str(&format!(
            "… and {} more cells\n",
            results.manifest.points.len() - MOST
        ));
    }
    if let Some(escape) = escape(&results.runs) {
        // A simulated kill proves nothing about boxes.
        let bound = match results.experiment.is_live {
            true => format!(
                "; escape is below {:.3} % at 95 % (Clopper-Pearson)",
                escape.bound * 100.0
            ),
            false => String::new(),
        };
        let (kills, survivors) = (escape.kills, escape.survivors);
        text.push_str(&format!(
            "kill switch: {kills} killed, {survivors} survived{bound}\n"
        ));
    }
    let mut broken: Vec<&str> = results
        .runs
        .iter()
        .flat_map(|run| run.broken.keys().map(String::as_str))
        .collect();
    broken.sort_unstable();
    broken.dedup();
    match broken.is_empty() {
        true => text.push_str("every control held in every run\n"),
        false => text.push_str(&format!("BROKEN: {}\n", broken.join(", "))),
    }
    text
}

fn interval(estimate: &Estimate) -> String {
    let Estimate {
        mean, low, high, ..
    } = estimate;
    match high.is_finite() {
        true => format!("{mean:>10.3}  [{low:.3}, {high:.3}]"),
        false => {
            format!("{mean:>10.3}  [{low:.3}, no bound: too few lives were seen to their end]")
        }
    }
}

const OTHER_R: &str = "one of the two is of a version that did not count at what age children come: its r was children by workers, \
    which is below 1 always, so r is left out; run it again to compare it";

fn compare_two(
    first: &Path,
    second: &Path,
    cell: u32,
    output: OutputFormat,
) -> Result<u8, Failure> {
    let (a, b) = (
        belljar_experiment::load(first)?,
        belljar_experiment::load(second)?,
    );
    let is_paired = a.manifest.seed == b.manifest.seed;
    // What one of them counted otherwise is not compared, and that is said.
    let aged = |results: &Results| results.cell(cell).iter().all(|run| run.ages.is_some());
    let is_other_r = aged(&a) != aged(&b);
    let found: Vec<Comparison> = Metric::ALL
        .iter()
        .filter(|metric| !(is_other_r && **metric == Metric::R))
        .filter_map(|metric| compare(*metric, a.cell(cell), b.cell(cell)))
        .collect();
    if found.is_empty() {
        return Err(Failure::Invalid(
            format!("there is no cell {cell} in both"),
            "cells are counted from 0".into(),
        ));
    }
    if output == OutputFormat::Json {
        let note = is_other_r.then_some(OTHER_R);
        print::json(&json!({"same_random_numbers": is_paired, "metrics": found, "note": note}));
        return Ok(exit::OK);
    }
    print::out(&format!(
        "{:<20} {:>12} {:>12} {:>12}  95 % interval       d      delta\n",
        "metric", "first", "second", "difference"
    ));
    for row in found
        .iter()
        .filter(|row| row.first != 0.0 || row.second != 0.0)
    {
        let d = row.cohen_d.map_or("–".to_owned(), |d| format!("{d:.2}"));
        let range = format!("[{:.3}, {:.3}]", row.difference.low, row.difference.high);
        print::out(&format!(
            "{:<20} {:>12.3} {:>12.3} {:>12.3}  {range:<18} {d:>6} {:>6.2}\n",
            row.metric.name(),
            row.first,
            row.second,
            row.difference.mean,
            row.cliff_delta
        ));
    }
    if is_other_r {
        print::line(Line::Note, OTHER_R);
    }
    if !is_paired {
        print::line(
            Line::Note,
            "the seeds differ, so that runs are paired by number only",
        );
    }
    Ok(exit::OK)
}

fn list(output: OutputFormat) -> u8 {
    if output == OutputFormat::Json {
        print::json(
            &json!({"presets": PRESETS, "templates": TEMPLATES, "metrics": Metric::NAMES, "parameters": Parameter::NAMES}),
        );
        return exit::OK;
    }
    print::out(&format!(
        "presets     {}\ntemplates   {}\nmetrics     {}\nparameters  {}\n",
        PRESETS.join(", "),
        TEMPLATES.join(", "),
        Metric::NAMES.join(", "),
        Parameter::NAMES.join(", ")
    ));
    exit::OK
}

fn read_gates(path: &Path) -> Result<Vec<belljar_experiment::stats::Gate>, Failure> {
    let name = path.display().to_string();
    let bytes = belljar_manifest::read_bounded(path, &name)?;
    Ok(parse_gates(&name, &bytes).map_err(belljar_manifest::ReadError::from)?)
}

fn gate(gates: &Path, directory: &Path, output: OutputFormat) -> Result<u8, Failure> {
    let gates = read_gates(gates)?;
    let results = belljar_experiment::load(directory)?;
    let cells = 0..results.manifest.points.len() as u32;
    let judged: Vec<GateResult> = cells
        .flat_map(|cell| judge(&gates, cell, results.cell(cell)))
        .collect();
    let verdict = judged
        .iter()
        .map(|result| result.verdict)
        .max()
        .unwrap_or(Verdict::Pass);
    if output == OutputFormat::Json {
        print::json(&json!({"verdict": verdict, "gates": judged}));
    } else {
        print::out(&gate_lines(&judged));
    }
    Ok(match verdict {
        Verdict::Pass => exit::OK,
        Verdict::Fail => exit::GATE_FAILS,
        Verdict::Warn => exit::GATE_WARNS,
    })
}

fn gate_lines(judged: &[GateResult]) -> String {
    let mut text = String::new();
    for result in judged {
        let word = match result.verdict {
            Verdict::Pass => "pass",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        let value = result.value.map_or("nothing measured".to_owned(), |value| {
            match value.is_finite() {
                true => format!("{value:.4}"),
                false => "without bound".to_owned(),
            }
        });
        let gate = &result.gate;
        text.push_str(&format!(
            "{word}  cell {}: {} of {} is {value}, must be {} {}\n",
            result.cell,
            harmless(&gate.statistic),
            gate.metric.name(),
            gate.op.sign(),
            gate.threshold
        ));
    }
    text
}

fn find_loosest(arguments: &Optimise) -> Result<u8, Failure> {
    let mut experiment = read(&arguments.experiment)?;
    experiment.sweep = None;
    let gates = read_gates(&arguments.gates)?;
    let threads = count(&arguments.threads);
    check_cost(&experiment, threads)?;
    let found = optimise(&experiment, &arguments.vary, &gates, threads)?;
    if arguments.format.output == OutputFormat::Json {
        print::json(&found);
    } else if let Some(values) = &found.values {
        for (range, value) in arguments.vary.iter().zip(values) {
            print::out(&format!("{}: {value}\n", range.parameter.name()));
        }
        print::line(
            Line::Summary,
            &format!(
                "the loosest that meets the gates, after {} experiments",
                found.experiments
            ),
        );
    } else {
        print::out(&gate_lines(&found.gates));
        print::line(
            Line::Denied,
            "even the strictest values do not meet the gates",
        );
    }
    Ok(if found.values.is_some() {
        exit::OK
    } else {
        exit::NO
    })
}
