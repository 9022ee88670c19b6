//! Policy gates: what an experiment must show, for CI.

use belljar_manifest::ManifestError;
use belljar_manifest::document::{
    self, Node, Object, Problem, Shape, field, number, required, text, unexpected, words,
};
use serde::{Deserialize, Serialize};

use super::Metric;
use crate::tally::Run;

/// What must hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// What is measured.
    pub metric: Metric,
    /// Which number of it: `mean`, `low`, `high`, `p95` or `max`.
    pub statistic: String,
    /// How it is compared.
    pub op: Op,
    /// With what.
    pub threshold: f64,
    /// What it means if it does not hold.
    pub severity: Severity,
}

/// How numbers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// `<`
    #[serde(rename = "<")]
    Below,
    /// `<=`
    #[serde(rename = "<=")]
    AtMost,
    /// `>`
    #[serde(rename = ">")]
    Above,
    /// `>=`
    #[serde(rename = ">=")]
    AtLeast,
    /// `==`
    #[serde(rename = "==")]
    Equal,
}

impl Op {
    fn holds(self, value: f64, threshold: f64) -> bool {
        match self {
            Self::Below => value < threshold,
            Self::AtMost => value <= threshold,
            Self::Above => value > threshold,
            Self::AtLeast => value >= threshold,
            Self::Equal => value == threshold,
        }
    }

    /// As it is written.
    #[must_use]
    pub fn sign(self) -> &'static str {
        match self {
            Self::Below => "<",
            Self::AtMost => "<=",
            Self::Above => ">",
            Self::AtLeast => ">=",
            Self::Equal => "==",
        }
    }
}

/// What a gate means that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing.
    Warn,
    /// Not to be merged.
    Fail,
}

/// What all gates say together. Ordered by strictness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// All hold.
    Pass,
    /// One that warns does not.
    Warn,
    /// One that fails does not.
    Fail,
}

/// What a gate says of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GateResult {
    /// Which cell.
    pub cell: u32,
    /// The gate.
    pub gate: Gate,
    /// What was measured; none if no run says anything, which holds nothing.
    pub value: Option<f64>,
    /// Whether it holds.
    pub verdict: Verdict,
}

static GATES: Object = Object {
    name: "",
    doc: "What an experiment must show.",
    fields: &[required(
        "gates",
        Shape::List {
            item: &Shape::Object(&GATE),
            most: 100,
        },
        "All of them must hold.",
    )],
};

static GATE: Object = Object {
    name: "a gates item",
    doc: "One thing that must hold, in every cell.",
    fields: &[
        required(
            "metric",
            Shape::Choice(&words(Metric::NAMES)),
            "What is measured.",
        ),
        field(
            "statistic",
            Shape::Choice(&words(&["mean", "low", "high", "p95", "max"])),
            "Which number of it; low and high are the ends of the 95 % interval. Without it, mean.",
        ),
        required(
            "op",
            Shape::Choice(&words(&["<", "<=", ">", ">=", "=="])),
            "How it is compared.",
        ),
        required(
            "threshold",
            Shape::NumberFrom {
                least: -1e12,
                most: 1e12,
            },
            "With what.",
        ),
        field(
            "severity",
            Shape::Choice(&words(&["fail", "warn"])),
            "What it means if it does not hold. Without it, fail.",
        ),
    ],
};

/// Reads `gates.yaml`.
///
/// # Errors
/// The first thing wrong with the file, with its place.
pub fn parse_gates(file_name: &str, bytes: &[u8]) -> Result<Vec<Gate>, ManifestError> {
    document::parse(
        file_name,
        bytes,
        "the file is empty; write gates: and a list",
        |root| {
            Shape::Object(&GATES).check(root, "a gates file")?;
            let items = root.get("gates").map_or(&[][..], |list| list.items());
            if items.is_empty() {
                return Err(Problem::new(root.span, "there are no gates")
                    .with_hint("a list without gates would always pass"));
            }
            items.iter().map(gate).collect()
        },
    )
}

fn gate(item: &Node<'_>) -> Result<Gate, Problem> {
    let need = |key: &str| item.get(key).ok_or_else(|| unexpected(item));
    let word = |key: &str, usual: &'static str| match item.get(key) {
        Some(node) => text(node).map(str::to_owned),
        None => Ok(usual.to_owned()),
    };
    let op = need("op")?;
    Ok(Gate {
        metric: Metric::from_name(text(need("metric")?)?).ok_or_else(|| unexpected(item))?,
        statistic: word("statistic", "mean")?,
        op: match text(op)? {
            "<" => Op::Below,
            "<=" => Op::AtMost,
            ">" => Op::Above,
            ">=" => Op::AtLeast,
            "==" => Op::Equal,
            _ => return Err(unexpected(op)),
        },
        threshold: number(need("threshold")?)?,
        severity: if word("severity", "fail")? == "warn" {
            Severity::Warn
        } else {
            Severity::Fail
        },
    })
}

/// What the gates say of the runs of a cell.
#[must_use]
pub fn judge(gates: &[Gate], cell: u32, runs: &[Run]) -> Vec<GateResult> {
    gates
        .iter()
        .map(|gate| {
            let value = gate
                .metric
                .estimate(runs)
                .map(|estimate| match gate.statistic.as_str() {
                    "low" => estimate.low,
                    "high" => estimate.high,
                    "p95" => estimate.p95,
                    "max" => estimate.max,
                    _ => estimate.mean,
                });
            let holds = value.is_some_and(|value| gate.op.holds(value, gate.threshold));
            let verdict = match (holds, gate.severity) {
                (true, _) => Verdict::Pass,
                (false, Severity::Warn) => Verdict::Warn,
                (false, Severity::Fail) => Verdict::Fail,
            };
            GateResult {
                cell,
                gate: gate.clone(),
                value,
                verdict,
            }
        })
        .collect()
}
