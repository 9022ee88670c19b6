//! Means and proportions with intervals.

use serde::{Deserialize, Serialize};

use crate::rng::Stream;

/// A mean with its 95 % interval, and how values are spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// How many values there are.
    pub n: u64,
    /// Their mean.
    pub mean: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end; infinite, and `null` in JSON, where nothing bounds it.
    #[serde(with = "unbounded")]
    pub high: f64,
    /// The median.
    pub median: f64,
    /// Nineteen of twenty values are at most this.
    pub p95: f64,
    /// The largest.
    pub max: f64,
}

/// JSON has no infinity.
mod unbounded {
    use serde::{Deserialize as _, Deserializer, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
    pub(super) fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        match value.is_finite() {
            true => to.serialize_f64(*value),
            false => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::INFINITY))
    }
}

impl Estimate {
    /// A number without an interval: of values that are pooled.
    pub(crate) fn point(value: f64, values: &[f64]) -> Self {
        let mut estimate = Self::spread(values);
        (estimate.mean, estimate.low, estimate.high) = (value, value, value);
        if values.is_empty() {
            (estimate.median, estimate.p95, estimate.max) = (value, value, value);
        }
        estimate
    }

    fn spread(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = values.len();
        let at = |part: f64| {
            sorted
                .get(((n as f64 * part) as usize).min(n.saturating_sub(1)))
                .copied()
                .unwrap_or(0.0)
        };
        Self {
            n: n as u64,
            mean: mean(values),
            low: 0.0,
            high: 0.0,
            median: at(0.5),
            p95: at(0.95),
            max: at(1.0),
        }
    }
}

/// A proportion with Wilson's interval, which holds at 0 and 1 too.
#[must_use]
pub fn wilson(values: &[f64]) -> Estimate {
    const Z: f64 = 1.959_964;
    let n = values.len() as f64;
    let mut estimate = Estimate::spread(values);
    let (p, shrink) = (estimate.mean, 1.0 + Z * Z / n);
    let middle = (p + Z * Z / (2.0 * n)) / shrink;
    let half = Z / shrink * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    estimate.low = (middle - half).max(0.0);
    estimate.high = (middle + half).min(1.0);
    estimate
}

/// A mean with its bootstrap interval: the middle 95 % of means of values drawn anew from these. It is the same each time.
#[must_use]
pub fn bootstrap(values: &[f64]) -> Estimate {
    let mut estimate = Estimate::spread(values);
    let n = values.len();
    if values.iter().all(|value| *value == values[0]) {
        (estimate.low, estimate.high) = (estimate.mean, estimate.mean);
        return estimate;
    }
    // Means of many values differ little: fewer of them do.
    let rounds = (400_000 / n).clamp(200, 1000);
    let mut stream = Stream::of_run(n as u64, 0xb007, 0);
    let mut means: Vec<f64> = (0..rounds)
        .map(|_| {
            (0..n)
                .map(|_| values[stream.below(n as u64) as usize])
                .sum::<f64>()
                / n as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    estimate.low = means[rounds / 40];
    estimate.high = means[rounds - 1 - rounds / 40];
    estimate
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proportion_has_wilsons_interval() {
        // Two-sided: the exact one-sided bound for none of 299 is 1 %.
        let estimate = wilson(&[0.0; 299]);
        assert_eq!(estimate.low, 0.0);
        assert!((estimate.high - 0.012_68).abs() < 1e-4, "{}", estimate.high);
        // The textbook's: 10 of 100.
        let tenth: Vec<f64> = (0..100).map(|at| f64::from(u8::from(at < 10))).collect();
        let estimate = wilson(&tenth);
        assert!((estimate.low - 0.0552).abs() < 1e-4 && (estimate.high - 0.1744).abs() < 1e-4);
    }

    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        let mut stream = Stream::of_run(9, 0, 0);
        let hits = (0..400).filter(|_| {
            let values: Vec<f64> = (0..60).map(|_| stream.uniform()).collect();
            let estimate = bootstrap(&values);
            estimate.low <= 0.5 && 0.5 <= estimate.high
        });
        // Nominally 380; the seed is fixed.
        let hits = hits.count();
        assert!((360..=396).contains(&hits), "{hits}");
    }

    #[test]
    fn values_that_are_alike_need_no_interval() {
        let estimate = bootstrap(&[4.0; 9]);
        assert_eq!(
            (estimate.low, estimate.mean, estimate.high, estimate.max),
            (4.0, 4.0, 4.0, 4.0)
        );
    }
}
