//! How much each parameter matters, of sweeps that were made to say so.

use belljar_experiment::Results;
use belljar_experiment::stats::{Metric, morris, sobol};
use serde_json::json;

/// Every metric that says something, for programs.
pub(super) fn json(results: &Results) -> serde_json::Value {
    let of = |metric: &Metric| {
        let (effects, indices) = (morris(*metric, results), sobol(*metric, results));
        let says = !(effects.is_empty() && indices.is_empty());
        says.then(|| {
            let found = json!({"morris": effects, "sobol": indices});
            (metric.name().to_owned(), found)
        })
    };
    let found: serde_json::Map<_, _> = Metric::ALL.iter().filter_map(of).collect();
    found.into()
}

/// Tables for people. Empty unless the sweep was made to say so.
pub(super) fn lines(results: &Results) -> String {
    let mut text = String::new();
    for metric in [Metric::Peak, Metric::Workers] {
        let effects = morris(metric, results);
        if !effects.is_empty() {
            text.push_str(&format!(
                "what moves {:<22} {:>12} {:>12} {:>12}\n",
                metric.name(),
                "mean size",
                "mean effect",
                "spread"
            ));
        }
        for effect in effects {
            text.push_str(&format!(
                "  {:<31} {:>12.3} {:>12.3} {:>12.3}\n",
                effect.parameter, effect.mu_star, effect.mu, effect.sigma
            ));
        }
        let indices = sobol(metric, results);
        if !indices.is_empty() {
            text.push_str(&format!(
                "whose doing the variance of {:<12} {:>18}   {:>22}\n",
                metric.name(),
                "by itself",
                "with what it acts on"
            ));
        }
        for index in indices {
            let part = |part: belljar_experiment::stats::Part| {
                format!("[{:.2}, {:.2}]", part.low, part.high)
            };
            text.push_str(&format!(
                "  {:<31} {:>8.2} {:<14} {:>8.2} {}\n",
                index.parameter,
                index.first.value,
                part(index.first),
                index.total.value,
                part(index.total)
            ));
        }
    }
    text
}
