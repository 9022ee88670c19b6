//! Kills as trials: what nobody's survival proves.

use belljar_replication::Code;
use serde::{Deserialize, Serialize};

use crate::tally::Run;

/// What the kill switch did in all runs together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Escape {
    /// Workers that it killed, survivors included.
    pub kills: u64,
    /// Boxes that still ran at the end.
    pub survivors: u64,
    /// With 95 % confidence, a worker escapes with no more than this probability (Clopper and Pearson, one-sided).
    pub bound: f64,
}

/// What these runs say about escape; none if nobody was killed by the switch. Of simulated runs it says how the simulation went:
/// only real kills prove anything about boxes.
#[must_use]
pub fn escape(runs: &[Run]) -> Option<Escape> {
    let killed = |run: &Run| run.ends.get(Code::KilledKillSwitch.code()).copied();
    let kills: u64 = runs.iter().filter_map(killed).sum();
    let survivors: u64 = runs.iter().map(|run| run.survivors).sum();
    let kills = kills.max(survivors);
    (kills > 0).then(|| Escape {
        kills,
        survivors,
        bound: upper_bound(survivors, kills),
    })
}

/// The largest probability under which so few of `trials` would still be seen once in twenty times.
#[must_use]
pub fn upper_bound(seen: u64, trials: u64) -> f64 {
    const ALPHA: f64 = 0.05;
    if seen >= trials {
        return 1.0;
    }
    let (mut low, mut high) = (seen as f64 / trials as f64, 1.0);
    // The probability of at most `seen` falls as p rises.
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if at_most(seen, trials, middle) > ALPHA {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The probability of at most `seen` of `trials`, each with probability `p`. Summed by logarithms, so that none vanishes.
fn at_most(seen: u64, trials: u64, p: f64) -> f64 {
    let (yes, no) = (p.ln(), (-p).ln_1p());
    let mut choose = 0.0;
    let mut sum = 0.0;
    for k in 0..=seen {
        if k > 0 {
            choose += ((trials - k + 1) as f64).ln() - (k as f64).ln();
        }
        // 0 · ln 0 is none.
        let hits = if k == 0 { 0.0 } else { k as f64 * yes };
        sum += (choose + hits + (trials - k) as f64 * no).exp();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::upper_bound;

    #[test]
    fn none_of_299_is_below_one_percent_and_none_of_298_is_not() {
        assert!(upper_bound(0, 299) < 0.01);
        assert!(upper_bound(0, 298) > 0.01);
        assert!(upper_bound(0, 2995) < 0.001);
        assert!(upper_bound(0, 2994) > 0.001);
    }

    #[test]
    fn bounds_are_those_of_the_tables() {
        // One-sided 95 %: Beta(0.95; k + 1, n - k).
        for (seen, trials, bound) in [
            (0, 10, 0.2589),
            (1, 10, 0.3942),
            (5, 100, 0.1023),
            (3, 3, 1.0),
        ] {
            let found = upper_bound(seen, trials);
            assert!((found - bound).abs() < 1e-4, "{seen} of {trials}: {found}");
        }
    }
}
