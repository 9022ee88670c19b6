//! Results as tables and pictures: CSV, SVG, PNG, and one HTML file that needs nothing else.

mod chart;
mod html;
mod plots;
mod raster;

pub use html::html;
pub use plots::{Plot, plots};
pub use raster::png;

use std::path::Path;

use crate::file::Output;
use crate::stats::Metric;
use crate::store::{Results, StoreError, live_place, read_whole, write_whole};
use crate::world::simulate_traced;
use crate::{Trace, tally};

/// The runs as a table: cell, replicate, the parameters that were varied, every metric.
#[must_use]
pub fn csv(results: &Results) -> String {
    let mut head = vec!["cell".to_owned(), "replicate".to_owned()];
    head.extend(results.manifest.parameters.iter().cloned());
    head.extend(Metric::NAMES.iter().map(|name| (*name).to_owned()));
    let mut text = head.join(",") + "\n";
    for run in &results.runs {
        let mut row = vec![run.cell.to_string(), run.replicate.to_string()];
        let point = results.manifest.points.get(run.cell as usize);
        row.extend(point.into_iter().flatten().map(ToString::to_string));
        // What a run does not say is an empty field.
        row.extend(Metric::ALL.iter().map(|metric| {
            metric
                .of(run)
                .map(|value| value.to_string())
                .unwrap_or_default()
        }));
        text.push_str(&row.join(","));
        text.push('\n');
    }
    text
}

/// One run of an experiment: the one whose lineage and replay are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Which cell.
    pub cell: u32,
    /// Which run of it.
    pub replicate: u32,
}

/// Who descended from whom in one run: it is simulated again, or, if its boxes were real, read from what was kept of it.
///
/// # Errors
/// When there is no such run, or what was kept of it can't be read.
pub fn trace(results: &Results, directory: &Path, chosen: Chosen) -> Result<Trace, StoreError> {
    let Chosen { cell, replicate } = chosen;
    let is_there = results
        .cell(cell)
        .iter()
        .any(|run| run.replicate == replicate);
    if !is_there {
        return Err(StoreError::NoRun { cell, replicate });
    }
    if results.experiment.is_live {
        let path = directory
            .join(live_place(cell, replicate))
            .join("lives.json");
        let lives = serde_json::from_slice(&read_whole(&path)?);
        return lives
            .map(Trace::of)
            .map_err(|_| StoreError::Damaged { path, line: 0 });
    }
    let no_point = Vec::new();
    let point = results
        .manifest
        .points
        .get(cell as usize)
        .unwrap_or(&no_point);
    let key = results.experiment.key(cell, replicate);
    Ok(simulate_traced(&results.experiment.scenario_at(point), key)?.1)
}

/// Writes what the experiment asks for besides its results. Returns the names of the files.
///
/// # Errors
/// When the directory can't be written.
pub fn write(
    results: &Results,
    directory: &Path,
    chosen: Chosen,
) -> Result<Vec<String>, StoreError> {
    let mut written = Vec::new();
    let mut put = |name: &str, bytes: &[u8]| {
        written.push(name.to_owned());
        write_whole(&directory.join(name), bytes)
    };
    let outputs = &results.experiment.outputs;
    if outputs.contains(&Output::Csv) {
        put("results.csv", csv(results).as_bytes())?;
    }
    let has = |output| outputs.contains(&output);
    if has(Output::Svg) || has(Output::Png) || has(Output::Html) {
        let trace = trace(results, directory, chosen)?;
        let plots = plots(results, &trace, chosen);
        for plot in &plots {
            if has(Output::Svg) {
                put(&format!("{}.svg", plot.name), plot.svg.as_bytes())?;
            }
            if let Some(picture) = has(Output::Png).then(|| png(&plot.svg)).flatten() {
                put(&format!("{}.png", plot.name), &picture)?;
            }
        }
        if has(Output::Html) {
            let page = html(results, &plots, &trace, chosen);
            put("report.html", page.as_bytes())?;
        }
    }
    Ok(written)
}

/// Text that is safe in HTML and SVG.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            _ => safe.push(c),
        }
    }
    safe
}

/// A number as people read it.
pub(crate) fn shown(value: f64) -> String {
    if value.is_infinite() {
        "∞".to_owned()
    } else if value == 0.0 {
        "0".to_owned()
    } else if value.abs() >= 1e6 {
        format!("{:.2}M", value / 1e6)
    } else if value.abs() >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        let digits = if value.abs() >= 1.0 { 2 } else { 4 };
        let text = format!("{value:.digits$}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

/// Whether a life goes on at a moment.
pub(crate) fn is_alive(life: &tally::Life, at: f64) -> bool {
    life.born <= at && life.ended.is_none_or(|ended| at < ended)
}
