//! Evidence that may be looked at after every observation: e-processes.
//!
//! An e-process is a bet against a hypothesis. If the hypothesis is true, the expected winnings are at most the stake, at
//! any time; so by Ville's inequality they ever reach `1/α` with a probability of at most `α`, however often somebody looks.

/// Trials and hits of one side in one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) trials: u64,
    pub(super) hits: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: Self) {
        self.trials = self.trials.saturating_add(other.trials);
        self.hits = self.hits.saturating_add(other.hits);
    }

    pub(super) fn rate(self) -> f64 {
        if self.trials == 0 {
            0.0
        } else {
            self.hits as f64 / self.trials as f64
        }
    }
}

/// The border of a hypothesis about two rates: `candidate = slope · baseline + offset`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Border {
    pub(super) slope: f64,
    pub(super) offset: f64,
}

/// A bet, block by block, that the two rates lie on one side of a border; against the hypothesis that they lie on
/// the other side or on it.
///
/// In each block the bet is the likelihood under some alternative beyond the border, divided by the likelihood under
/// the point of the border nearest to it (in relative entropy). Its expectation, at rates (x, y), is
/// `g(x)^n · h(y)^m` with g and h affine. The logarithm of that is concave, is 0 with gradient 0 along the border at the nearest
/// point, and falls away from the border into the hypothesis: so it is at most 0 on all of it. The alternatives
/// are made of earlier blocks only. Several are tried side by side, and the mean of their winnings counts.
#[derive(Clone, Debug)]
pub(super) struct TwoRates {
    border: Border,
    /// Alternatives, as the ratio of the candidate's rate to the baseline's.
    ratios: &'static [f64],
    winnings: Vec<f64>,
    pub(super) baseline: Counts,
    pub(super) candidate: Counts,
}

impl TwoRates {
    pub(super) fn new(border: Border, ratios: &'static [f64]) -> Self {
        Self {
            border,
            ratios,
            winnings: vec![0.0; ratios.len()],
            baseline: Counts::default(),
            candidate: Counts::default(),
        }
    }

    pub(super) fn observe(&mut self, baseline: Counts, candidate: Counts) {
        let seen = self.baseline.trials + self.candidate.trials;
        if seen > 0 && baseline.trials > 0 && candidate.trials > 0 {
            let hits = self.baseline.hits + self.candidate.hits;
            let rate = (hits as f64 + 0.5) / (seen as f64 + 1.0);
            for (ratio, won) in self.ratios.iter().zip(&mut self.winnings) {
                let base = 2.0 * rate / (1.0 + ratio);
                let alternative = (inside(base), inside(base * ratio));
                *won += log_bet(baseline, candidate, alternative, self.border);
            }
        }
        self.baseline.add(baseline);
        self.candidate.add(candidate);
    }

    /// The logarithm of what was won.
    pub(super) fn log_e(&self) -> f64 {
        log_mean_exp(&self.winnings)
    }
}

/// Rates of exactly 0 or 1 would lose everything at the first surprise.
fn inside(rate: f64) -> f64 {
    rate.clamp(1e-9, 1.0 - 1e-9)
}

fn log_bet(baseline: Counts, candidate: Counts, alternative: (f64, f64), border: Border) -> f64 {
    let (n, m) = (baseline.trials as f64, candidate.trials as f64);
    let (p, q) = alternative;
    let x = nearest(n, m, alternative, border);
    let y = border.slope * x + border.offset;
    likelihood(baseline, p, x) + likelihood(candidate, q, y)
}

fn likelihood(counts: Counts, of: f64, against: f64) -> f64 {
    let (hits, misses) = (counts.hits as f64, (counts.trials - counts.hits) as f64);
    hits * (of / against).ln() + misses * ((1.0 - of) / (1.0 - against)).ln()
}

/// The baseline's rate at the point of the border nearest to the alternative: where the derivative of the relative
/// entropy, which rises all along, is zero.
fn nearest(n: f64, m: f64, (p, q): (f64, f64), border: Border) -> f64 {
    let Border { slope, offset } = border;
    let end = ((1.0 - offset) / slope).min(1.0);
    let (mut low, mut high) = (1e-12_f64.min(end / 2.0), end * (1.0 - 1e-12));
    for _ in 0..100 {
        let x = f64::midpoint(low, high);
        let y = slope * x + offset;
        let rises = n * (x - p) / (x * (1.0 - x)) + m * slope * (y - q) / (y * (1.0 - y)) > 0.0;
        if rises { high = x } else { low = x }
    }
    f64::midpoint(low, high)
}

fn log_mean_exp(logs: &[f64]) -> f64 {
    let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if !most.is_finite() {
        return f64::NEG_INFINITY;
    }
    let sum: f64 = logs.iter().map(|log| (log - most).exp()).sum();
    most + (sum / logs.len() as f64).ln()
}

/// A bet that something happens more (or less) often than not, against the hypothesis that it does not.
#[derive(Clone, Debug)]
pub(super) struct Often {
    odds: &'static [f64],
    hits: u64,
    misses: u64,
}

impl Often {
    /// `odds` are the chances that are bet on: all above one half, or all below it.
    pub(super) fn new(odds: &'static [f64]) -> Self {
        Self {
            odds,
            hits: 0,
            misses: 0,
        }
    }

    pub(super) fn observe(&mut self, is_hit: bool) {
        if is_hit {
            self.hits += 1;
        } else {
            self.misses += 1;
        }
    }

    pub(super) fn log_e(&self) -> f64 {
        let bets = self.odds.iter().map(|chance| {
            self.hits as f64 * (2.0 * chance).ln()
                + self.misses as f64 * (2.0 * (1.0 - chance)).ln()
        });
        log_mean_exp(&bets.collect::<Vec<_>>())
    }

    pub(super) fn share(&self) -> f64 {
        let all = self.hits + self.misses;
        if all == 0 {
            0.0
        } else {
            self.hits as f64 / all as f64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The expectation of a bet at rates of the hypothesis: each trial's factor has one, and trials are independent.
    fn expectation(n: i32, m: i32, at: (f64, f64), alternative: (f64, f64), border: Border) -> f64 {
        let x = nearest(f64::from(n), f64::from(m), alternative, border);
        let y = border.slope * x + border.offset;
        let mean = |rate: f64, of: f64, against: f64| {
            rate * of / against + (1.0 - rate) * (1.0 - of) / (1.0 - against)
        };
        mean(at.0, alternative.0, x).powi(n) * mean(at.1, alternative.1, y).powi(m)
    }

    proptest! {
        #[test]
        fn nobody_wins_by_betting_against_what_is_true(
            n in 1..200i32, m in 1..200i32, rate in 0.001..0.6f64, beyond in 0.01..0.99f64,
            x in 0.0..1.0f64, below in 0.0..1.0f64, slope in 1.0..1.5f64, offset in 0.0..0.05f64,
        ) {
            let border = Border { slope, offset };
            // An alternative beyond the border, and rates on this side of it.
            let p = rate;
            let edge = slope * p + offset;
            let q = edge + (0.999 - edge) * beyond;
            let y = ((slope * x + offset) * below).min(1.0);
            prop_assert!(expectation(n, m, (x, y), (p, q), border) <= 1.0 + 1e-6);
        }

        #[test]
        fn the_same_holds_on_the_other_side(
            n in 1..200i32, m in 1..200i32, rate in 0.001..0.8f64, share in 0.01..0.99f64,
            x in 0.0..1.0f64, above in 0.0..1.0f64, slope in 1.0..1.5f64, offset in 0.001..0.05f64,
        ) {
            let border = Border { slope, offset };
            let (p, q) = (rate, (slope * rate + offset).min(0.999) * share);
            let edge = slope * x + offset;
            prop_assume!(edge < 1.0);
            let y = edge + (1.0 - edge) * above;
            prop_assert!(expectation(n, m, (x, y), (p, q), border) <= 1.0 + 1e-6);
        }
    }
}
