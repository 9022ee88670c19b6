//! What many runs say together.

mod compare;
mod escape;
mod estimate;
mod gate;
mod morris;
mod optimise;
mod reproduction;
mod risk;
mod sobol;

pub use compare::{Comparison, compare};
pub use escape::{Escape, escape, upper_bound};
pub use estimate::{Estimate, bootstrap, wilson};
pub use gate::{Gate, GateResult, Op, Severity, Verdict, judge, parse_gates};
pub use morris::{Effect, morris};
pub use optimise::{Found, Range, optimise};
pub use reproduction::{LifeCounts, life_counts};
pub use risk::{Risk, risk};
pub use sobol::{Index, Part, sobol};

use serde::{Deserialize, Serialize};

use crate::tally::{Run, RunEnd};

macro_rules! metrics {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Something that is measured in each run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Metric { $($(#[$doc])* $variant,)* }

        impl Metric {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// Their names in documents.
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            /// The name in documents.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The one with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

metrics! {
    /// The most boxes that ran at once.
    Peak = "peak",
    /// How many workers lived.
    Workers = "workers",
    /// How many boxes ran at the end.
    Alive = "alive",
    /// Generations below the roots.
    Depth = "depth",
    /// Children of a root.
    R0 = "r0",
    /// The reproduction number: children of a worker in its life.
    R = "r",
    /// How unequal the numbers of children are: small is unequal.
    DispersionK = "dispersion_k",
    /// Whether the family died out: over many runs, the probability.
    Extinction = "extinction",
    /// When it died out, in seconds; of the runs in which it did.
    ExtinctionSeconds = "extinction_seconds",
    /// Requests refused.
    Denials = "denials",
    /// From the kill switch until no box ran, in seconds; of the runs in which that was so.
    ContainmentSeconds = "containment_seconds",
    /// Boxes that ran at the end though the kill switch was engaged.
    Survivors = "survivors",
    /// From the order to kill until the box was dead, 99th percentile, in seconds.
    KillP99Seconds = "kill_p99_seconds",
    /// CPU time used without being granted, in milliseconds.
    LeakedCpuMs = "leaked_cpu_ms",
    /// Tokens used without being granted.
    LeakedTokens = "leaked_tokens",
    /// Money spent without being granted, in millionths of a US dollar.
    LeakedMicroUsd = "leaked_micro_usd",
    /// Whether any control was broken: over many runs, the probability.
    Broken = "broken",
    /// How many times as many boxes ran at once as there were roots.
    Growth = "growth",
}

impl Metric {
    /// What one run says, if it says anything.
    #[must_use]
    pub fn of(self, run: &Run) -> Option<f64> {
        let ratio = |a: u64, b: u64| (b > 0).then(|| a as f64 / b as f64);
        Some(match self {
            Self::Peak => run.peak as f64,
            Self::Workers => run.workers as f64,
            Self::Alive => run.alive as f64,
            Self::Depth => f64::from(run.depth),
            Self::R0 => return ratio(run.root_children, run.roots),
            Self::R => return reproduction::reproduction(std::slice::from_ref(run)),
            Self::DispersionK => return dispersion(std::slice::from_ref(run)),
            Self::Extinction => f64::from(u8::from(run.end == RunEnd::Extinct)),
            Self::ExtinctionSeconds => return (run.end == RunEnd::Extinct).then_some(run.seconds),
            Self::Denials => run.denials.values().sum::<u64>() as f64,
            Self::ContainmentSeconds => return run.containment_seconds,
            Self::Survivors => run.survivors as f64,
            Self::KillP99Seconds => run.kill_p99_seconds,
            Self::LeakedCpuMs => run.leaked_cpu_ms as f64,
            Self::LeakedTokens => run.leaked_tokens as f64,
            Self::LeakedMicroUsd => run.leaked_micro_usd as f64,
            Self::Broken => f64::from(u8::from(!run.broken.is_empty())),
            Self::Growth => return ratio(run.peak, run.roots),
        })
    }

    /// Why these runs say nothing of it, where they might be expected to.
    #[must_use]
    pub fn missing(self, runs: &[Run]) -> Option<String> {
        if self.estimate(runs).is_some() {
            return None;
        }
        let LifeCounts { over, cut } = life_counts(runs);
        match self {
            Self::R if runs.iter().all(|run| run.ages.is_some()) => Some(format!(
                "the population doubled, and a limit or the end of the run stopped it: {cut} of {} lives were cut",
                over + cut
            )),
            Self::R => Some(format!(
                "{cut} of {} lives were cut, and results of this version do not say at what age",
                over + cut
            )),
            Self::DispersionK if !is_cut(runs) && is_curbed(runs) => Some(
                "limits, or ends that were not their own, kept workers from children they would have had"
                    .to_owned(),
            ),
            Self::DispersionK if is_cut(runs) => Some(format!(
                "{cut} of {} lives were cut: how many children they would have had is not known",
                over + cut
            )),
            Self::DispersionK => {
                Some("children are no more unequal than by chance (k is infinite)".to_owned())
            }
            _ => None,
        }
    }

    /// What it is called where there is room for words.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Peak => "most boxes at once",
            Self::Workers => "workers in all",
            Self::Alive => "boxes at the end",
            Self::Depth => "generations",
            Self::R0 => "children of a root",
            Self::R => "reproduction number R",
            Self::DispersionK => "dispersion k",
            Self::Extinction => "probability of extinction",
            Self::ExtinctionSeconds => "time to extinction (s)",
            Self::Denials => "requests refused",
            Self::ContainmentSeconds => "time to containment (s)",
            Self::Survivors => "survivors of the kill switch",
            Self::KillP99Seconds => "kill latency, 99th percentile (s)",
            Self::LeakedCpuMs => "CPU time leaked (ms)",
            Self::LeakedTokens => "tokens leaked",
            Self::LeakedMicroUsd => "money leaked (µUSD)",
            Self::Broken => "probability of a broken control",
            Self::Growth => "growth (most boxes per root)",
        }
    }

    /// Whether it is yes or no in each run.
    #[must_use]
    pub fn is_proportion(self) -> bool {
        matches!(self, Self::Extinction | Self::Broken)
    }

    /// What these runs say together, at 95 %. None if none of them says anything.
    #[must_use]
    pub fn estimate(self, runs: &[Run]) -> Option<Estimate> {
        let values: Vec<f64> = runs.iter().filter_map(|run| self.of(run)).collect();
        if self == Self::DispersionK {
            // Pooled over runs: a single one often has too few parents.
            return dispersion(runs).map(|k| Estimate::point(k, &values));
        }
        if self == Self::R {
            return reproduction::estimate(runs, &values);
        }
        if values.is_empty() {
            return None;
        }
        Some(if self.is_proportion() {
            wilson(&values)
        } else {
            bootstrap(&values)
        })
    }
}

/// Whether more than one life in a hundred was cut: those that were had fewer children than they would have had.
fn is_cut(runs: &[Run]) -> bool {
    let LifeCounts { over, cut } = life_counts(runs);
    100 * cut > over + cut
}

/// Whether limits kept workers from children, or more than one life in a hundred was ended by something else than itself.
fn is_curbed(runs: &[Run]) -> bool {
    let ends = runs.iter().flat_map(|run| &run.ends);
    let (own, others) = ends.fold((0, 0), |(own, others), (code, count)| match code.as_str() {
        "exited" => (own + count, others),
        _ => (own, others + count),
    });
    reproduction::is_bounded(runs) || 100 * others > own + others
}

/// Of a negative binomial law with this mean and variance; none where children are no more unequal than by chance, or lives were cut.
fn dispersion(runs: &[Run]) -> Option<f64> {
    if is_cut(runs) || is_curbed(runs) {
        return None;
    }
    let sum = |part: fn(&Run) -> u64| runs.iter().map(part).sum::<u64>() as f64;
    let (n, total, squares) = (
        sum(|run| run.parents),
        sum(|run| run.children),
        sum(|run| run.children_squared),
    );
    let mean = total / n;
    let variance = squares / n - mean * mean;
    (n > 1.0 && variance > mean).then(|| mean * mean / (variance - mean))
}

/// The reproduction number over time: children of those born in each step, for each of them.
#[must_use]
pub fn rt(runs: &[Run]) -> Vec<Option<f64>> {
    let steps = runs.first().map_or(0, |run| run.born.len());
    let sum = |at: usize, part: fn(&Run) -> &[u32]| {
        runs.iter()
            .map(|run| u64::from(part(run).get(at).copied().unwrap_or(0)))
            .sum::<u64>()
    };
    (0..steps)
        .map(|at| {
            let (born, children) = (sum(at, |run| &run.born), sum(at, |run| &run.born_children));
            (born > 0).then(|| children as f64 / born as f64)
        })
        .collect()
}
