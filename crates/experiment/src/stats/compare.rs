//! Two policies on the same luck.

use serde::{Deserialize, Serialize};

use super::Metric;
use super::estimate::{Estimate, bootstrap, mean};
use crate::tally::Run;

/// How the second differs from the first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Of what.
    pub metric: Metric,
    /// The mean of the first.
    pub first: f64,
    /// The mean of the second.
    pub second: f64,
    /// Second minus first, pair by pair.
    pub difference: Estimate,
    /// The difference in units of its own spread (Cohen's d of pairs); none if all pairs differ alike.
    pub cohen_d: Option<f64>,
    /// How much more often a run of the second is above one of the first than below: from -1 to 1.
    pub cliff_delta: f64,
}

/// Compares runs with the same replicates, whose random numbers are the same. None if no pair says anything.
#[must_use]
pub fn compare(metric: Metric, first: &[Run], second: &[Run]) -> Option<Comparison> {
    let pairs: Vec<(f64, f64)> = first
        .iter()
        .filter_map(|run| {
            let other = second
                .iter()
                .find(|other| other.replicate == run.replicate)?;
            metric.of(run).zip(metric.of(other))
        })
        .collect();
    if pairs.is_empty() {
        return None;
    }
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let differences: Vec<f64> = pairs.iter().map(|(a, b)| b - a).collect();
    let middle = mean(&differences);
    let spread = (differences
        .iter()
        .map(|d| (d - middle).powi(2))
        .sum::<f64>()
        / (differences.len() as f64 - 1.0).max(1.0))
    .sqrt();
    Some(Comparison {
        metric,
        first: mean(&a),
        second: mean(&b),
        difference: bootstrap(&differences),
        cohen_d: (spread > 0.0).then(|| middle / spread),
        cliff_delta: cliff(&a, &b),
    })
}

fn cliff(a: &[f64], b: &[f64]) -> f64 {
    let mut sorted = a.to_vec();
    sorted.sort_by(f64::total_cmp);
    let score: f64 = b
        .iter()
        .map(|value| {
            let below = sorted.partition_point(|own| own < value) as f64;
            let above = (sorted.len() - sorted.partition_point(|own| own <= value)) as f64;
            below - above
        })
        .sum();
    score / (a.len() as f64 * b.len() as f64)
}
