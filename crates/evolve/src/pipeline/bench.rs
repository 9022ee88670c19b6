//! Stage 5: is it slower? Base and candidate take turns (A B B A), timed by the clock on this side, in fresh boxes.
//!
//! What counts as a difference is for [`compare`](benchmark::compare) to say. The base is compared with itself too: where that shows
//! a difference, the machine is too restless to tell, and nobody is let through on a guess.

use serde_json::json;

use super::chamber::{ChamberError, Chambers, Job};
use super::finding::{Finding, finding};
use crate::compare::benchmark::{self, Abba, Speed, Threshold};
use crate::config::Benchmark;
use crate::tree::Tree;

pub(super) fn compare(
    chambers: &Chambers,
    before: &Tree,
    after: &Tree,
    benchmark: &Benchmark,
) -> Finding {
    let mut finding = finding();
    let timed = |tree: &Tree| -> Result<f64, ChamberError> {
        let place = chambers.place(tree)?;
        let job = Job {
            words: &benchmark.command,
            ..Job::default()
        };
        let result = chambers.run(&place, &job)?;
        match result.exit_code {
            Some(0) => Ok(result.duration_ms),
            other => Err(ChamberError::Ended(format!(
                "the benchmark ended with {other:?}"
            ))),
        }
    };
    let mut blocks = Vec::new();
    let mut measure = || -> Result<(), ChamberError> {
        // The first runs pay for what the system has not read yet.
        timed(before)?;
        timed(after)?;
        for _ in 0..benchmark.rounds {
            blocks.push(Abba {
                a1: timed(before)?,
                b1: timed(after)?,
                b2: timed(after)?,
                a2: timed(before)?,
            });
        }
        Ok(())
    };
    if let Err(error) = measure() {
        finding.refuse(
            "benchmark",
            None,
            &error.to_string(),
            "a benchmark that does not end well is a failure",
        );
        return finding;
    }
    let threshold = Threshold {
        effect: benchmark.max_slowdown,
        ..Threshold::default()
    };
    let found = benchmark::compare(&blocks, &control(&blocks), threshold);
    let middle = |times: Vec<f64>| {
        let mut sorted = times;
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    };
    let before = middle(blocks.iter().flat_map(|one| [one.a1, one.a2]).collect());
    let after = middle(blocks.iter().flat_map(|one| [one.b1, one.b2]).collect());
    finding.facts =
        json!({"rounds": benchmark.rounds, "found": found, "before_ms": before, "after_ms": after});
    match found.speed {
        Speed::Same | Speed::Faster => {}
        Speed::Slower => {
            let message = format!(
                "it takes {:.2} times as long (p = {:.4})",
                found.ratio, found.p
            );
            finding.refuse("slower", None, &message, "");
        }
        Speed::Noisy => finding.refuse(
            "benchmark_restless",
            None,
            "the same code differs from itself by more than is allowed",
            "run it on a quieter machine, or with more rounds",
        ),
        Speed::TooLittle => finding.refuse(
            "benchmark",
            None,
            "its times can't be compared",
            "a benchmark takes time that can be measured",
        ),
    }
    finding
}

/// The base against itself: its runs of two blocks, in both roles.
fn control(blocks: &[Abba]) -> Vec<Abba> {
    let pairs = blocks.chunks_exact(2);
    pairs
        .map(|pair| Abba {
            a1: pair[0].a1,
            b1: pair[0].a2,
            b2: pair[1].a1,
            a2: pair[1].a2,
        })
        .collect()
}
