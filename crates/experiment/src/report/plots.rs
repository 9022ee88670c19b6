//! The pictures of a report.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::chart::{COLOURS, Chart, FAINT, HEIGHT, INK, WIDTH};
use super::{Chosen, escaped, shown};
use crate::scenario::SAMPLES;
use crate::stats::Metric;
use crate::store::Results;
use crate::tally::{Run, RunEnd, Trace};

/// How many cells get a line of their own.
const MOST_LINES: usize = 6;
/// How many workers the lineage shows.
const MOST_LIVES: usize = 400;

/// A picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plot {
    /// Its name: the file's, without the extension.
    pub name: &'static str,
    /// What it shows.
    pub caption: String,
    /// The picture.
    pub svg: String,
}

/// All pictures that these results have something to show in.
#[must_use]
pub fn plots(results: &Results, trace: &Trace, chosen: Chosen) -> Vec<Plot> {
    let mut plots = vec![
        population(results),
        survival(results),
        denials(results),
        lineage(results, trace, chosen),
    ];
    plots.extend(containment(results));
    plots.extend(heat_map(results));
    plots
}

/// The name of a cell: its parameters.
pub(super) fn cell_name(results: &Results, cell: usize) -> String {
    let point = results.manifest.points.get(cell);
    let named = results
        .manifest
        .parameters
        .iter()
        .zip(point.into_iter().flatten());
    let name: Vec<String> = named
        .map(|(name, value)| format!("{name} {}", shown(*value)))
        .collect();
    if name.is_empty() {
        "all runs".to_owned()
    } else {
        name.join(", ")
    }
}

/// The name of a run: its number and its cell's parameters.
pub(super) fn run_name(results: &Results, chosen: Chosen) -> String {
    let run = format!("run {}", chosen.replicate);
    if results.manifest.parameters.is_empty() {
        return run;
    }
    format!("{run}, {}", cell_name(results, chosen.cell as usize))
}

/// Cells that are shown: the first, the last and some between.
fn chosen(results: &Results) -> Vec<usize> {
    let cells = results.manifest.points.len();
    if cells <= MOST_LINES {
        return (0..cells).collect();
    }
    (0..MOST_LINES)
        .map(|at| at * (cells - 1) / (MOST_LINES - 1))
        .collect()
}

/// Which cells a picture shows, where it does not show all.
fn which(results: &Results) -> String {
    let (shown, all) = (chosen(results), results.manifest.points.len());
    if shown.len() == all {
        return String::new();
    }
    let numbers: Vec<String> = shown.iter().map(ToString::to_string).collect();
    format!(
        " Of {all} cells, {} are shown, evenly chosen: {}.",
        shown.len(),
        numbers.join(", ")
    )
}

fn legend(results: &Results, cells: &[usize]) -> Vec<(String, &'static str)> {
    let named = cells.iter().zip(COLOURS.iter().cycle());
    named
        .map(|(cell, colour)| (cell_name(results, *cell), *colour))
        .collect()
}

fn horizon(results: &Results) -> f64 {
    results.experiment.scenario.horizon_ns as f64 / 1e9
}

/// Boxes at a step. Those of a family that died out are none; of one that grew too large, as many as there were.
fn population_at(run: &Run, step: usize) -> f64 {
    let after = if run.end == RunEnd::Extinct {
        0
    } else {
        run.alive
    };
    run.population.get(step).copied().unwrap_or(after) as f64
}

fn population(results: &Results) -> Plot {
    let seconds = |step: usize| horizon(results) * step as f64 / SAMPLES as f64;
    let cells = chosen(results);
    let mut lines = Vec::new();
    for cell in &cells {
        let runs = results.cell(*cell as u32);
        let mut parts = [Vec::new(), Vec::new(), Vec::new()];
        for step in 0..=SAMPLES {
            let mut values: Vec<f64> = runs.iter().map(|run| population_at(run, step)).collect();
            values.sort_by(f64::total_cmp);
            let at = |part: f64| {
                values
                    .get((values.len() as f64 * part) as usize)
                    .copied()
                    .unwrap_or(0.0)
            };
            for (line, part) in parts.iter_mut().zip([0.05, 0.5, 0.95]) {
                line.push((seconds(step), at(part)));
            }
        }
        lines.push(parts);
    }
    let top = lines
        .iter()
        .flat_map(|parts| &parts[2])
        .map(|(_, y)| *y)
        .fold(1.0, f64::max);
    let mut chart = Chart::new(
        "Population over time",
        (0.0, horizon(results)),
        (0.0, top * 1.05),
        ("seconds", "boxes"),
        &legend(results, &cells),
    );
    for (at, [low, middle, high]) in lines.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        chart.band(low, high, colour);
        chart.line(middle, colour);
    }
    Plot {
        name: "population",
        caption: format!(
            "The median of all runs, and the band that holds nine of ten.{}",
            which(results)
        ),
        svg: chart.finish(),
    }
}

/// The part of families that are alive, over time.
fn survival(results: &Results) -> Plot {
    let cells = chosen(results);
    let mut chart = Chart::new(
        "Families alive",
        (0.0, horizon(results)),
        (0.0, 1.0),
        ("seconds", "part of runs"),
        &legend(results, &cells),
    );
    for (at, cell) in cells.iter().enumerate() {
        let runs = results.cell(*cell as u32);
        let mut ends: Vec<f64> = runs
            .iter()
            .filter(|run| run.end == RunEnd::Extinct)
            .map(|run| run.seconds)
            .collect();
        ends.sort_by(f64::total_cmp);
        let mut points = vec![(0.0, 1.0)];
        for (dead, end) in ends.iter().enumerate() {
            let part = |dead: usize| 1.0 - dead as f64 / runs.len() as f64;
            points.extend([(*end, part(dead)), (*end, part(dead + 1))]);
        }
        points.push((horizon(results), points.last().map_or(1.0, |point| point.1)));
        let colour = COLOURS[at % COLOURS.len()];
        chart.line(&points, colour);
    }
    Plot {
        name: "survival",
        caption: "How many families have anybody left.".to_owned(),
        svg: chart.finish(),
    }
}

/// The part of runs in which no box was left, by the time since the kill switch.
fn containment(results: &Results) -> Option<Plot> {
    let is_tried = |run: &Run| run.containment_seconds.is_some() || run.survivors > 0;
    let last = results
        .runs
        .iter()
        .filter_map(|run| run.containment_seconds)
        .fold(0.0, f64::max);
    if !results.runs.iter().any(is_tried) {
        return None;
    }
    let end = if last > 0.0 { last * 1.1 } else { 1.0 };
    let cells = chosen(results);
    let mut chart = Chart::new(
        "Time to containment",
        (0.0, end),
        (0.0, 1.05),
        ("seconds since the kill switch", "part of runs"),
        &legend(results, &cells),
    );
    for (at, cell) in cells.iter().enumerate() {
        let runs = results.cell(*cell as u32);
        let tried = runs.iter().filter(|run| is_tried(run)).count().max(1) as f64;
        let mut times: Vec<f64> = runs
            .iter()
            .filter_map(|run| run.containment_seconds)
            .collect();
        times.sort_by(f64::total_cmp);
        let mut points = vec![(0.0, 0.0)];
        for (done, time) in times.iter().enumerate() {
            points.extend([
                (*time, done as f64 / tried),
                (*time, (done + 1) as f64 / tried),
            ]);
        }
        points.push((end, times.len() as f64 / tried));
        chart.line(&points, COLOURS[at % COLOURS.len()]);
    }
    Some(Plot {
        name: "containment",
        caption: "In how many runs no box was left, by the time since the kill switch.".to_owned(),
        svg: chart.finish(),
    })
}

fn denials(results: &Results) -> Plot {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (code, count) in results.runs.iter().flat_map(|run| &run.denials) {
        *counts.entry(code).or_default() += count;
    }
    let mut counts: Vec<(&str, f64)> = counts
        .into_iter()
        .map(|(code, count)| (code, count as f64 / results.runs.len().max(1) as f64))
        .collect();
    counts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let height = 60.0 + 26.0 * counts.len().max(1) as f64;
    let mut chart = Chart::blank("Refusals by reason, mean of a run", height);
    let most = counts.first().map_or(1.0, |(_, count)| *count);
    let mut marks = String::new();
    if counts.is_empty() {
        marks.push_str("<text x=\"16\" y=\"56\">Nothing was refused.</text>");
    }
    for (at, (code, count)) in counts.iter().enumerate() {
        let y = 44.0 + 26.0 * at as f64;
        let width = (WIDTH - 260.0) * count / most;
        let _ = write!(
            marks,
            "<text x=\"168\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"176\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"18\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            y + 13.0,
            escaped(code),
            COLOURS[0],
            182.0 + width,
            y + 13.0,
            shown(*count)
        );
    }
    chart.raw(&marks);
    Plot {
        name: "denials",
        caption: "Why requests were refused.".to_owned(),
        svg: chart.finish(),
    }
}

/// Each life is a line from its birth to its end; a thin line leads to its parent.
fn lineage(results: &Results, trace: &Trace, chosen: Chosen) -> Plot {
    let shown_lives = trace.lives.len().min(MOST_LIVES);
    let rows = order(trace, shown_lives);
    let deepest = trace
        .lives
        .iter()
        .take(shown_lives)
        .map(|life| life.depth)
        .max()
        .unwrap_or(0) as usize;
    let names: Vec<(String, &str)> = (0..=deepest.min(COLOURS.len() - 1))
        .map(|depth| (format!("depth {depth}"), COLOURS[depth]))
        .collect();
    let mut chart = Chart::new(
        &format!("Lineage of {}", run_name(results, chosen)),
        (0.0, horizon(results)),
        (0.0, shown_lives.max(1) as f64),
        ("seconds", "workers, by branch"),
        &names,
    );
    let mut marks = String::new();
    let stroke = (220.0 / shown_lives.max(1) as f64).clamp(0.8, 6.0);
    for (row, at) in rows.iter().enumerate() {
        let life = &trace.lives[*at];
        let end = life.ended.unwrap_or(horizon(results));
        let (x1, x2, y) = (
            chart.at_x(life.born),
            chart.at_x(end),
            chart.at_y(shown_lives as f64 - row as f64 - 0.5),
        );
        let colour = COLOURS[life.depth as usize % COLOURS.len()];
        if let Some(parent) = life.parent
            && let Some(above) = rows.iter().position(|own| *own == parent as usize)
        {
            let top = chart.at_y(shown_lives as f64 - above as f64 - 0.5);
            let _ = write!(
                marks,
                "<path d=\"M{x1:.1} {top:.1}V{y:.1}\" stroke=\"{FAINT}\" fill=\"none\"/>"
            );
        }
        let _ = write!(
            marks,
            "<line class=\"life\" x1=\"{x1:.1}\" x2=\"{x2:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" stroke-width=\"{stroke:.1}\"/>"
        );
    }
    chart.raw(&marks);
    let rest = trace.lives.len() - shown_lives;
    let more = if rest > 0 {
        format!(" The first {shown_lives} workers are shown.")
    } else {
        String::new()
    };
    Plot {
        name: "lineage",
        caption: format!(
            "Each line is a life, from its birth to its end; its colour is its depth.{more}"
        ),
        svg: chart.finish(),
    }
}

/// Each worker followed by its descendants.
fn order(trace: &Trace, most: usize) -> Vec<usize> {
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); most];
    let mut stack = Vec::new();
    for (at, life) in trace.lives.iter().take(most).enumerate() {
        match life.parent {
            Some(parent) if (parent as usize) < most => children[parent as usize].push(at),
            _ => stack.push(at),
        }
    }
    stack.reverse();
    let mut order = Vec::with_capacity(most);
    while let Some(at) = stack.pop() {
        order.push(at);
        stack.extend(children[at].iter().rev());
    }
    order
}

/// The peak over a grid of one or two parameters.
fn heat_map(results: &Results) -> Option<Plot> {
    let sweep = results.experiment.sweep.as_ref()?;
    let (first, second) = (sweep.axes.first()?, sweep.axes.get(1));
    if sweep.method != crate::file::Method::Grid {
        return None;
    }
    let rows = second.map_or(1, |axis| axis.values.len());
    let columns = first.values.len();
    let mut sums = vec![(0.0, 0.0); rows * columns];
    for (cell, point) in results.manifest.points.iter().enumerate() {
        let column = first.values.iter().position(|value| *value == point[0])?;
        let row = second.map_or(Some(0), |axis| {
            axis.values.iter().position(|value| *value == point[1])
        })?;
        let peak = Metric::Peak.estimate(results.cell(cell as u32))?.mean;
        let sum = &mut sums[row * columns + column];
        *sum = (sum.0 + peak, sum.1 + 1.0);
    }
    let values: Vec<f64> = sums
        .iter()
        .map(|(sum, count)| if *count > 0.0 { sum / count } else { 0.0 })
        .collect();
    let (left, top) = (110.0, 44.0);
    let (width, height) = (
        (WIDTH - left - 20.0) / columns as f64,
        (HEIGHT - top - 56.0) / rows as f64,
    );
    let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(a, b), value| {
        (a.min(*value), b.max(*value))
    });
    let mut marks = String::new();
    for (at, value) in values.iter().enumerate() {
        let (column, row) = ((at % columns) as f64, (at / columns) as f64);
        let part = if most > least {
            (value - least) / (most - least)
        } else {
            0.5
        };
        let (x, y) = (left + column * width, top + row * height);
        let ink = if part > 0.55 { "#ffffff" } else { INK };
        let _ = write!(
            marks,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{}\" stroke=\"#ffffff\"/>",
            blue(part)
        );
        if width > 30.0 && height > 14.0 {
            let _ = write!(
                marks,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"{ink}\">{}</text>",
                x + width / 2.0,
                y + height / 2.0 + 4.0,
                shown(*value)
            );
        }
    }
    for (at, value) in first
        .values
        .iter()
        .enumerate()
        .filter(|(at, _)| at % columns.div_ceil(16) == 0)
    {
        let _ = write!(
            marks,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            left + (at as f64 + 0.5) * width,
            HEIGHT - 34.0,
            shown(*value)
        );
    }
    if let Some(axis) = second {
        for (at, value) in axis
            .values
            .iter()
            .enumerate()
            .filter(|(at, _)| at % rows.div_ceil(16) == 0)
        {
            let _ = write!(
                marks,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 8.0,
                top + (at as f64 + 0.5) * height + 4.0,
                shown(*value)
            );
        }
        let _ = write!(
            marks,
            "<text transform=\"translate(20 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            HEIGHT / 2.0,
            axis.parameter.name()
        );
    }
    let _ = write!(
        marks,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        (left + WIDTH) / 2.0,
        HEIGHT - 12.0,
        first.parameter.name()
    );
    let mut chart = Chart::blank("Peak population by parameters", HEIGHT);
    chart.raw(&marks);
    Some(Plot {
        name: "sweep",
        caption: "The mean peak of each cell; darker is more.".to_owned(),
        svg: chart.finish(),
    })
}

fn blue(part: f64) -> String {
    let mixed = |from: f64, to: f64| (from + (to - from) * part).round() as u8;
    format!(
        "#{:02x}{:02x}{:02x}",
        mixed(232.0, 8.0),
        mixed(241.0, 64.0),
        mixed(250.0, 129.0)
    )
}
