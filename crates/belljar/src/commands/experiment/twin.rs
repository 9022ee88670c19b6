//! What real boxes did, beside what a simulation with the same luck and the same latencies says.

use belljar_experiment::law::Span;
use belljar_experiment::stats::{Comparison, Metric, compare};
use belljar_experiment::{Latency, Results};
use serde_json::json;

use super::live::Twin;

/// What simulation and reality are compared by.
const COMPARED: [Metric; 6] = [
    Metric::Peak,
    Metric::Workers,
    Metric::Depth,
    Metric::R0,
    Metric::Denials,
    Metric::ExtinctionSeconds,
];

/// Real minus simulated.
fn comparisons<'a>(results: &'a Results, twin: &'a Twin) -> impl Iterator<Item = Comparison> + 'a {
    let real = results.cell(twin.cell);
    let compared = COMPARED.iter();
    compared.filter_map(move |metric| compare(*metric, &twin.runs, real))
}

/// Whether the interval of the difference holds none.
fn agrees(row: &Comparison) -> bool {
    row.difference.low <= 0.0 && row.difference.high >= 0.0
}

pub(super) fn table(results: &Results, twins: &[Twin]) -> String {
    let mut text = String::new();
    if !twins.is_empty() {
        text.push_str(&format!(
            "\nreal boxes beside a simulation on the same luck, with what took time:\n{:<26} {:>10} {:>10} {:>10}  95 % interval\n",
            "", "simulated", "real", "difference"
        ));
    }
    for twin in twins {
        let name = super::cell_name(results, twin.cell as usize);
        let Latency {
            start,
            request,
            exit,
        } = twin.latency;
        text.push_str(&format!(
            "{name}  (start {}, request {}, exit {})\n",
            milliseconds(start),
            milliseconds(request),
            milliseconds(exit)
        ));
        for row in comparisons(results, twin) {
            text.push_str(&format!(
                "  {:<24} {:>10.3} {:>10.3} {:>10.3}  [{:.3}, {:.3}]{}\n",
                row.metric.name(),
                row.first,
                row.second,
                row.difference.mean,
                row.difference.low,
                row.difference.high,
                if agrees(&row) { "" } else { "  differs" }
            ));
        }
    }
    text
}

/// The mean of a latency that was measured.
fn milliseconds(span: Span) -> String {
    match span {
        Span::Fixed(seconds) | Span::Exponential(seconds) => format!("{:.0} ms", seconds * 1e3),
        Span::Forever => "for ever".to_owned(),
    }
}

pub(super) fn json(results: &Results, twins: &[Twin]) -> serde_json::Value {
    let cells: Vec<_> = twins
        .iter()
        .map(|twin| {
            let metrics: Vec<Comparison> = comparisons(results, twin).collect();
            json!({"cell": twin.cell, "latency": twin.latency, "metrics": metrics})
        })
        .collect();
    json!(cells)
}
