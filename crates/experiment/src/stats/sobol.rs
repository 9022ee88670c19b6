//! How much of what varies is each parameter's doing: Sobol's indices.

use serde::{Deserialize, Serialize};

use super::Metric;
use super::estimate::mean;
use crate::rng::Stream;
use crate::store::Results;

/// How often rows are drawn anew for the interval.
const ROUNDS: usize = 400;

/// One parameter's part of the variance, with 95 % intervals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Index {
    /// The parameter.
    pub parameter: String,
    /// By itself.
    pub first: Part,
    /// Together with all that it acts on others.
    pub total: Part,
}

/// A part of the variance. Estimates of nothing may be a little below 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The estimate.
    pub value: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// Values at two random points, and at the first with each of its coordinates in turn taken from the second.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) a: f64,
    pub(crate) b: f64,
    pub(crate) mixed: Vec<f64>,
}

/// The indices, the largest total first. Empty unless the results are of a Sobol sweep that says anything.
#[must_use]
pub fn sobol(metric: Metric, results: &Results) -> Vec<Index> {
    let Some(sweep) = &results.experiment.sweep else {
        return Vec::new();
    };
    if sweep.method != crate::file::Method::Sobol {
        return Vec::new();
    }
    let value = |cell: usize| {
        let runs = results.cell(cell as u32);
        metric.estimate(runs).map(|estimate| estimate.mean)
    };
    let length = sweep.axes.len() + 2;
    let rows: Option<Vec<Row>> = (0..results.manifest.points.len() / length)
        .map(|row| {
            let from = row * length;
            let mixed = (from + 2..from + length).map(value);
            Some(Row {
                a: value(from)?,
                b: value(from + 1)?,
                mixed: mixed.collect::<Option<_>>()?,
            })
        })
        .collect();
    let mut found: Vec<Index> = rows
        .and_then(|rows| indices(&rows))
        .into_iter()
        .flatten()
        .zip(&sweep.axes)
        .map(|((first, total), axis)| Index {
            parameter: axis.parameter.name().to_owned(),
            first,
            total,
        })
        .collect();
    found.sort_by(|a, b| b.total.value.total_cmp(&a.total.value));
    found
}

/// First-order and total index of each coordinate; none where nothing varies.
pub(crate) fn indices(rows: &[Row]) -> Option<Vec<(Part, Part)>> {
    let axes = rows.first()?.mixed.len();
    let all: Vec<usize> = (0..rows.len()).collect();
    let exact = estimates(rows, &all, axes)?;
    let mut stream = Stream::of_run(rows.len() as u64, 0x50b0, 0);
    let mut draws: Vec<[Vec<f64>; 2]> = vec![[Vec::new(), Vec::new()]; axes];
    for _ in 0..ROUNDS {
        let drawn: Vec<usize> = all
            .iter()
            .map(|_| stream.below(rows.len() as u64) as usize)
            .collect();
        for (into, (first, total)) in draws
            .iter_mut()
            .zip(estimates(rows, &drawn, axes).into_iter().flatten())
        {
            into[0].push(first);
            into[1].push(total);
        }
    }
    let part = |value: f64, mut draws: Vec<f64>| {
        draws.sort_by(f64::total_cmp);
        let at = |part: f64| draws.get((draws.len() as f64 * part) as usize).copied();
        Part {
            value,
            low: at(0.025).unwrap_or(value),
            high: at(0.975).unwrap_or(value),
        }
    };
    let parts = exact.into_iter().zip(draws);
    Some(
        parts
            .map(|((first, total), [firsts, totals])| (part(first, firsts), part(total, totals)))
            .collect(),
    )
}

/// Saltelli's estimator of the first-order index (2010) and Jansen's of the total one (1999).
fn estimates(rows: &[Row], chosen: &[usize], axes: usize) -> Option<Vec<(f64, f64)>> {
    let values: Vec<f64> = chosen
        .iter()
        .flat_map(|at| [rows[*at].a, rows[*at].b])
        .collect();
    let middle = mean(&values);
    let squares: Vec<f64> = values.iter().map(|v| (v - middle).powi(2)).collect();
    let variance = mean(&squares);
    if variance <= 0.0 {
        return None;
    }
    let of = |axis: usize, term: &dyn Fn(&Row, f64) -> f64| {
        let terms: Vec<f64> = chosen
            .iter()
            .map(|at| term(&rows[*at], rows[*at].mixed[axis]))
            .collect();
        mean(&terms) / variance
    };
    Some(
        (0..axes)
            .map(|axis| {
                // The mean is taken off first: it would only add noise.
                let first = of(axis, &|row, mixed| (row.b - middle) * (mixed - row.a));
                let total = of(axis, &|row, mixed| (row.a - mixed).powi(2) / 2.0);
                (first, total)
            })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(axes: usize, count: usize, f: impl Fn(&[f64]) -> f64) -> Vec<Row> {
        let mut stream = Stream::of_run(4, 0, 0);
        let mut point = || (0..axes).map(|_| stream.uniform()).collect::<Vec<f64>>();
        (0..count)
            .map(|_| {
                let (a, b) = (point(), point());
                let mixed = (0..axes).map(|axis| {
                    let mut mixed = a.clone();
                    mixed[axis] = b[axis];
                    f(&mixed)
                });
                Row {
                    mixed: mixed.collect(),
                    a: f(&a),
                    b: f(&b),
                }
            })
            .collect()
    }

    fn check(found: &[(Part, Part)], truth: &[(f64, f64)]) {
        assert_eq!(found.len(), truth.len());
        for ((first, total), (s, t)) in found.iter().zip(truth) {
            // The seed is fixed.
            assert!((first.value - s).abs() < 0.03, "{first:?} {s}");
            assert!((total.value - t).abs() < 0.03, "{total:?} {t}");
            assert!(first.low <= first.value && first.value <= first.high);
        }
    }

    #[test]
    fn a_sum_is_shared_out_by_the_squares() {
        let found = indices(&rows(3, 4000, |x| 4.0 * x[0] + 2.0 * x[1])).expect("it varies");
        check(&found, &[(0.8, 0.8), (0.2, 0.2), (0.0, 0.0)]);
    }

    #[test]
    fn ishigamis_function_has_its_indices() {
        let turn = |u: f64| std::f64::consts::PI * (2.0 * u - 1.0);
        let ishigami = |x: &[f64]| {
            let (a, b, c) = (turn(x[0]), turn(x[1]), turn(x[2]));
            a.sin() + 7.0 * b.sin().powi(2) + 0.1 * c.powi(4) * a.sin()
        };
        let found = indices(&rows(3, 20_000, ishigami)).expect("it varies");
        check(&found, &[(0.3139, 0.5576), (0.4424, 0.4424), (0.0, 0.2437)]);
    }

    #[test]
    fn what_does_not_vary_has_none() {
        assert!(indices(&rows(2, 50, |_| 3.0)).is_none());
        assert!(indices(&[]).is_none());
    }
}
