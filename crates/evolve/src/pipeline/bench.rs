//! Stage 5: is it slower? Base and candidate take turns (A B B A), timed by the clock on this side, in fresh boxes.
//!
//! A difference counts when the medians differ by more than is allowed *and* ranks say it is no accident. The base runs against
//! itself the same way: where that shows a difference, the machine is too restless to tell, and nobody is let through on a guess.

use serde_json::json;

use super::chamber::{ChamberError, Chambers, Job, Watched};
use super::finding::{Finding, finding};
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
            shows: Vec::new(),
            watched: Watched::No,
        };
        let result = chambers.run(&place, &job)?;
        match result.exit_code {
            Some(0) => Ok(result.duration_ms),
            other => Err(ChamberError::Ended(format!(
                "the benchmark ended with {other:?}"
            ))),
        }
    };
    let mut times = Times::default();
    let mut measure = || -> Result<(), ChamberError> {
        // The first runs pay for what the system has not read yet.
        timed(before)?;
        timed(after)?;
        for round in 0..benchmark.rounds {
            if round % 2 == 0 {
                times.base.push(timed(before)?);
                times.candidate.push(timed(after)?);
                times.again.push(timed(before)?);
            } else {
                times.again.push(timed(before)?);
                times.candidate.push(timed(after)?);
                times.base.push(timed(before)?);
            }
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
    let verdict = times.judge(benchmark.max_slowdown);
    finding.facts = json!({
        "rounds": benchmark.rounds, "median_before_ms": median(&times.base), "median_after_ms": median(&times.candidate),
        "ratio": verdict.ratio, "p": verdict.p, "null_ratio": verdict.null_ratio, "null_p": verdict.null_p,
    });
    if verdict.is_restless {
        finding.refuse(
            "benchmark_restless",
            None,
            "the same code differs from itself by more than is allowed",
            "run it on a quieter machine, or with more rounds",
        );
    } else if verdict.is_slower {
        let message = format!(
            "it takes {:.2} times as long (p = {:.4})",
            verdict.ratio, verdict.p
        );
        finding.refuse("slower", None, &message, "");
    }
    finding
}

#[derive(Debug, Default)]
struct Times {
    base: Vec<f64>,
    candidate: Vec<f64>,
    /// The base again, in the same places: a null control.
    again: Vec<f64>,
}

#[derive(Debug)]
struct Verdict {
    ratio: f64,
    p: f64,
    null_ratio: f64,
    null_p: f64,
    is_slower: bool,
    is_restless: bool,
}

impl Times {
    fn judge(&self, allowed: f64) -> Verdict {
        let ratio = median(&self.candidate) / median(&self.base).max(f64::MIN_POSITIVE);
        let null_ratio = median(&self.again) / median(&self.base).max(f64::MIN_POSITIVE);
        let (p, null_p) = (
            mann_whitney(&self.base, &self.candidate),
            mann_whitney(&self.base, &self.again),
        );
        let differs = |ratio: f64| ratio > 1.0 + allowed || ratio < 1.0 / (1.0 + allowed);
        Verdict {
            ratio,
            p,
            null_ratio,
            null_p,
            is_slower: ratio > 1.0 + allowed && p < 0.05,
            is_restless: differs(null_ratio) && null_p < 0.05,
        }
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The probability that two samples of one thing differ so in rank (Mann-Whitney, two-sided, normal approximation with ties).
fn mann_whitney(one: &[f64], other: &[f64]) -> f64 {
    let (n, m) = (one.len() as f64, other.len() as f64);
    if one.is_empty() || other.is_empty() {
        return 1.0;
    }
    let mut all: Vec<(f64, bool)> = one
        .iter()
        .map(|value| (*value, true))
        .chain(other.iter().map(|value| (*value, false)))
        .collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut ranks, mut ties, mut at) = (0.0, 0.0, 0);
    while at < all.len() {
        let same = all[at..]
            .iter()
            .take_while(|(value, _)| *value == all[at].0)
            .count();
        let rank = at as f64 + (same as f64 + 1.0) / 2.0;
        ranks += rank
            * all[at..at + same]
                .iter()
                .filter(|(_, is_one)| *is_one)
                .count() as f64;
        ties += (same as f64).powi(3) - same as f64;
        at += same;
    }
    let u = ranks - n * (n + 1.0) / 2.0;
    let total = n + m;
    let variance = n * m / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let z = ((u - n * m / 2.0).abs() - 0.5).max(0.0) / variance.sqrt();
    erfc(z / std::f64::consts::SQRT_2)
}

/// Abramowitz and Stegun 7.1.26, to seven places: enough to tell .049 from .051.
fn erfc(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let poly = t
        * (0.254_829_592
            + t * (-0.284_496_736
                + t * (1.421_413_741 + t * (-1.453_152_027 + t * 1.061_405_429))));
    poly * (-x * x).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random and are the same every time.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> f64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 33) as f64) / f64::from(1u32 << 31)
        }

        fn times(&mut self, mean: f64) -> Vec<f64> {
            // Long to the right, as times are.
            (0..12)
                .map(|_| {
                    mean * (1.0 + 0.05 * self.next() + if self.next() > 0.9 { 0.5 } else { 0.0 })
                })
                .collect()
        }
    }

    #[test]
    fn the_same_code_is_never_slower_and_a_third_more_is_always_seen() {
        let mut noise = Noise(7);
        for _ in 0..100 {
            let same = Times {
                base: noise.times(10.0),
                candidate: noise.times(10.0),
                again: noise.times(10.0),
            }
            .judge(0.1);
            assert!(!same.is_slower && !same.is_restless, "{same:?}");
            let slow = Times {
                base: noise.times(10.0),
                candidate: noise.times(13.3),
                again: noise.times(10.0),
            }
            .judge(0.1);
            assert!(slow.is_slower, "{slow:?}");
        }
    }

    #[test]
    fn ranks_give_the_textbook_probabilities() {
        let p = mann_whitney(
            &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
            &[9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0],
        );
        assert!((p - 0.000_939).abs() < 0.000_05, "{p}");
        assert!(mann_whitney(&[1.0, 1.0, 1.0], &[1.0, 1.0, 1.0]) > 0.99);
    }
}
