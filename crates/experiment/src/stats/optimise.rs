//! Looks for the loosest contract that meets a set of gates.

use serde::{Deserialize, Serialize};

use super::gate::{Gate, GateResult, Verdict, judge};
use crate::file::{Experiment, Parameter};
use crate::store::{StoreError, run_all};

/// Steps of the search along a parameter that is no whole number.
const STEPS: u64 = 64;

/// A parameter to be loosened.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// Which.
    pub parameter: Parameter,
    /// Its strictest value.
    pub strict: f64,
    /// Its loosest.
    pub loose: f64,
}

impl Range {
    fn steps(&self) -> u64 {
        match self.parameter {
            Parameter::MaxDepth | Parameter::MaxReplicas => {
                (self.loose - self.strict).abs().round() as u64
            }
            _ => STEPS,
        }
    }

    fn at(&self, step: u64) -> f64 {
        self.strict + (self.loose - self.strict) * step as f64 / self.steps().max(1) as f64
    }
}

/// What the search found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The value of each parameter; none if even the strictest do not meet the gates.
    pub values: Option<Vec<f64>>,
    /// What the gates say there, or at the strictest values.
    pub gates: Vec<GateResult>,
    /// How many experiments were run.
    pub experiments: u32,
}

/// From the strictest values on, each parameter in turn is loosened as far as the gates hold. All candidates draw the same random
/// numbers. The search halves each range, so that it assumes that what holds at a value holds at stricter ones; what it returns was
/// run and holds in any case.
///
/// # Errors
/// When a stop condition can't be compiled.
pub fn optimise(
    experiment: &Experiment,
    ranges: &[Range],
    gates: &[Gate],
    threads: usize,
) -> Result<Found, StoreError> {
    let mut plain = experiment.clone();
    plain.sweep = None;
    let mut experiments = 0;
    let mut ask = |steps: &[u64]| {
        experiments += 1;
        let mut candidate = plain.clone();
        for (range, step) in ranges.iter().zip(steps) {
            range
                .parameter
                .set(&mut candidate.scenario, range.at(*step));
        }
        run_all(&candidate, threads).map(|runs| judge(gates, 0, &runs))
    };
    let is_met =
        |results: &[GateResult]| results.iter().all(|result| result.verdict != Verdict::Fail);
    let mut steps = vec![0u64; ranges.len()];
    let mut best = ask(&steps)?;
    if !is_met(&best) {
        return Ok(Found {
            values: None,
            gates: best,
            experiments,
        });
    }
    for at in 0..ranges.len() {
        // `low` holds; `high` is the first that may not.
        let (mut low, mut high) = (0, ranges[at].steps() + 1);
        while high - low > 1 {
            // The loosest is asked first: often it holds.
            let middle = if high == ranges[at].steps() + 1 && low == 0 {
                ranges[at].steps()
            } else {
                low + (high - low) / 2
            };
            steps[at] = middle;
            let results = ask(&steps)?;
            if is_met(&results) {
                (low, best) = (middle, results);
            } else {
                high = middle;
            }
        }
        steps[at] = low;
    }
    let values = ranges
        .iter()
        .zip(&steps)
        .map(|(range, step)| range.at(*step))
        .collect();
    Ok(Found {
        values: Some(values),
        gates: best,
        experiments,
    })
}
