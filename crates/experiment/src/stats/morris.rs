//! How much each parameter matters: Morris's elementary effects.

use serde::{Deserialize, Serialize};

use super::Metric;
use super::estimate::mean;
use crate::store::Results;

/// The effect of moving one parameter over its whole range, other things being equal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// The parameter.
    pub parameter: String,
    /// The mean effect.
    pub mu: f64,
    /// The mean of its size: how much the parameter matters.
    pub mu_star: f64,
    /// Its spread: how much that depends on the others, or on where one is.
    pub sigma: f64,
}

/// The effects, the largest first. Empty unless the results are of a Morris sweep.
#[must_use]
pub fn morris(metric: Metric, results: &Results) -> Vec<Effect> {
    let Some(sweep) = &results.experiment.sweep else {
        return Vec::new();
    };
    let values: Vec<Option<f64>> = (0..results.manifest.points.len())
        .map(|cell| {
            metric
                .estimate(results.cell(cell as u32))
                .map(|estimate| estimate.mean)
        })
        .collect();
    let length = sweep.axes.len() + 1;
    let mut effects: Vec<Vec<f64>> = vec![Vec::new(); sweep.axes.len()];
    if sweep.method != crate::file::Method::Morris {
        return Vec::new();
    }
    for path in 0..results.manifest.points.len() / length {
        for step in path * length..(path + 1) * length - 1 {
            let (from, to) = (
                &results.manifest.points[step],
                &results.manifest.points[step + 1],
            );
            let Some(axis) = (0..sweep.axes.len()).find(|axis| from[*axis] != to[*axis]) else {
                continue;
            };
            let range = sweep.axes[axis].values[1] - sweep.axes[axis].values[0];
            if let (Some(before), Some(after)) = (values[step], values[step + 1]) {
                effects[axis].push((after - before) / ((to[axis] - from[axis]) / range));
            }
        }
    }
    let mut found: Vec<Effect> = sweep
        .axes
        .iter()
        .zip(&effects)
        .map(|(axis, effects)| {
            let mu = mean(effects);
            let sizes: Vec<f64> = effects.iter().map(|effect| effect.abs()).collect();
            let squares: f64 = effects.iter().map(|effect| (effect - mu).powi(2)).sum();
            Effect {
                parameter: axis.parameter.name().to_owned(),
                mu,
                mu_star: mean(&sizes),
                sigma: (squares / (effects.len() as f64 - 1.0).max(1.0)).sqrt(),
            }
        })
        .collect();
    found.sort_by(|a, b| b.mu_star.total_cmp(&a.mu_star));
    found
}
