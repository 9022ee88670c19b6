//! One word for a cell, for whoever looks at many.

use serde::{Deserialize, Serialize};

use super::{Metric, Run};
use crate::tally::RunEnd;

/// How much stands between a population and harm. Ordered by gravity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Risk {
    /// The population shrinks, and stays far below what the contract allows.
    Low,
    /// One run in twenty uses more than half of the quota; the population doubles; or lives were not seen to their end.
    Guarded,
    /// One run in twenty is stopped by the quota or the experiment's limit, or each worker may have one child or more.
    Elevated,
    /// The quota, or the experiment's limit, alone stops every other run: nothing else bounds the population.
    High,
    /// A control was broken, or a box outlived the kill switch.
    Critical,
}

impl Risk {
    /// The word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Guarded => "guarded",
            Self::Elevated => "elevated",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }
}

/// The risk of a cell with this quota.
#[must_use]
pub fn risk(runs: &[Run], quota: u32) -> Risk {
    let is_broken = |run: &Run| !run.broken.is_empty() || run.survivors > 0;
    if runs.iter().any(is_broken) {
        return Risk::Critical;
    }
    let part = |of: &dyn Fn(&Run) -> bool| {
        runs.iter().filter(|run| of(run)).count() as f64 / runs.len().max(1) as f64
    };
    let is_stopped = |run: &Run| run.peak >= u64::from(quota) || run.end == RunEnd::TooMany;
    let full = part(&is_stopped);
    let r = Metric::R.estimate(runs);
    // Without an upper bound it may be anything; that alone says little.
    let grows = r.is_some_and(|r| r.mean >= 1.0 || (r.high >= 1.0 && r.high.is_finite()));
    let doubles = super::reproduction::doubles(runs);
    let is_open = r.is_none_or(|r| r.high.is_infinite());
    let r0 = Metric::R0.estimate(runs).is_some_and(|r0| r0.mean >= 1.0);
    if full > 0.5 {
        Risk::High
    } else if full >= 0.05 || grows || (is_open && doubles && (r0 || r.is_none())) {
        Risk::Elevated
    } else if doubles || is_open || part(&|run| 2 * run.peak > u64::from(quota)) >= 0.05 {
        Risk::Guarded
    } else {
        Risk::Low
    }
}
