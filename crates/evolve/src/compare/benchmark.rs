//! Whether a candidate is faster or slower, from runs that took turns.
//!
//! Four runs make a block: the baseline, the candidate, the candidate, the baseline (ABBA), so that a machine that grows
//! slower or faster all the while favours neither. A difference counts if its median is more than a floor *and* chance
//! makes one like it less often than one time in twenty, by an exact test; and only on a machine that finds no difference
//! between the baseline and itself.

use serde::{Deserialize, Serialize};

/// The fewest blocks: with less, no result could be told from chance.
pub const LEAST_BLOCKS: usize = 6;
/// The most that are looked at.
pub const MOST_BLOCKS: usize = 200;

/// One block of four runs, in seconds by a clock that the candidate can't reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Abba {
    /// The baseline, first.
    pub a1: f64,
    /// The candidate, second.
    pub b1: f64,
    /// The candidate, third.
    pub b2: f64,
    /// The baseline, last.
    pub a2: f64,
}

impl Abba {
    /// The candidate's time as a share of the baseline's, as a logarithm; nothing if a time is none.
    fn effect(&self) -> Option<f64> {
        let all = [self.a1, self.b1, self.b2, self.a2];
        let is_time = |time: &f64| time.is_finite() && *time > 0.0;
        all.iter()
            .all(is_time)
            .then(|| (self.b1.ln() + self.b2.ln() - self.a1.ln() - self.a2.ln()) / 2.0)
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speed {
    /// The candidate takes less time.
    Faster,
    /// It takes more.
    Slower,
    /// No difference that counts.
    Same,
    /// Too few blocks, or times that can't be.
    TooLittle,
    /// The machine finds a difference between the baseline and itself.
    Noisy,
}

/// What came of it, with the figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The verdict.
    pub speed: Speed,
    /// The candidate's time as a share of the baseline's: the median.
    pub ratio: f64,
    /// How often chance alone makes a difference like it.
    pub p: f64,
    /// The same for the baseline against itself.
    pub control_p: f64,
}

/// What counts as a difference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Threshold {
    /// The smallest median that does, as a share.
    pub effect: f64,
    /// The chance that it is none, at most.
    pub p: f64,
}

impl Default for Threshold {
    fn default() -> Self {
        Self {
            effect: 0.05,
            p: 0.05,
        }
    }
}

/// Decides. `control` is the baseline in both roles, measured among the blocks.
#[must_use]
pub fn compare(blocks: &[Abba], control: &[Abba], threshold: Threshold) -> Comparison {
    let effects = |blocks: &[Abba]| -> Option<Vec<f64>> {
        if !(LEAST_BLOCKS..=MOST_BLOCKS).contains(&blocks.len()) {
            return None;
        }
        blocks.iter().map(Abba::effect).collect()
    };
    let (Some(found), Some(null)) = (effects(blocks), effects(control)) else {
        return Comparison {
            speed: Speed::TooLittle,
            ratio: f64::NAN,
            p: 1.0,
            control_p: 1.0,
        };
    };
    let (middle, p) = (median(&found), signed_rank(&found));
    let (null_middle, control_p) = (median(&null), signed_rank(&null));
    let floor = threshold.effect.ln_1p();
    let counts = |middle: f64, p: f64| middle.abs() > floor && p < threshold.p;
    let speed = match counts(middle, p) {
        _ if counts(null_middle, control_p) => Speed::Noisy,
        true if middle > 0.0 => Speed::Slower,
        true => Speed::Faster,
        false => Speed::Same,
    };
    Comparison {
        speed,
        ratio: middle.exp(),
        p,
        control_p,
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}

/// Wilcoxon's signed-rank test, two-sided and exact: the distribution of the sum of ranks over all ways to flip the signs. Ties
/// share their ranks, which are doubled to stay whole; differences of exactly zero say nothing and are left out.
fn signed_rank(effects: &[f64]) -> f64 {
    let mut sorted: Vec<f64> = effects
        .iter()
        .copied()
        .filter(|effect| *effect != 0.0)
        .collect();
    if sorted.is_empty() {
        return 1.0;
    }
    sorted.sort_by(|one, other| one.abs().total_cmp(&other.abs()));
    let mut doubled = vec![0usize; sorted.len()];
    let mut at = 0;
    while at < sorted.len() {
        let same = sorted[at..]
            .iter()
            .take_while(|effect| effect.abs() == sorted[at].abs())
            .count();
        // Ranks at+1 ..= at+same, on average, twice.
        doubled[at..at + same].fill(2 * at + same + 1);
        at += same;
    }
    let total: usize = doubled.iter().sum();
    let positive: usize = sorted
        .iter()
        .zip(&doubled)
        .filter(|(effect, _)| **effect > 0.0)
        .map(|(_, rank)| rank)
        .sum();
    // The chance of each sum.
    let mut chance = vec![0.0f64; total + 1];
    chance[0] = 1.0;
    let mut reach = 0;
    for rank in &doubled {
        reach += rank;
        for sum in (0..=reach).rev() {
            let with = if sum >= *rank {
                chance[sum - rank]
            } else {
                0.0
            };
            chance[sum] = f64::midpoint(chance[sum], with);
        }
    }
    let extreme = positive.min(total - positive);
    let tail: f64 = chance.iter().take(extreme + 1).sum();
    (2.0 * tail).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Dice(u64);

    impl Dice {
        fn next(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }

        /// A noisy machine: a tenth of spread, a drift, and now and then a pause.
        fn time(&mut self, middle: f64, drift: f64) -> f64 {
            let pause = if self.next() < 0.05 { 2.0 } else { 1.0 };
            middle * pause * drift * (1.0 + 0.2 * (self.next() - 0.5))
        }

        fn blocks(&mut self, factor: f64, count: usize) -> Vec<Abba> {
            let one = |dice: &mut Self, block: usize| {
                let drift = 1.0 + 0.02 * block as f64;
                Abba {
                    a1: dice.time(1.0, drift),
                    b1: dice.time(factor, drift + 0.005),
                    b2: dice.time(factor, drift + 0.010),
                    a2: dice.time(1.0, drift + 0.015),
                }
            };
            (0..count).map(|block| one(self, block)).collect()
        }
    }

    fn speed(seed: u64, factor: f64) -> Speed {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (blocks, control) = (dice.blocks(factor, 20), dice.blocks(1.0, 20));
        compare(&blocks, &control, Threshold::default()).speed
    }

    #[test]
    fn identical_code_is_called_different_less_than_one_time_in_a_hundred_on_a_noisy_machine() {
        let different = (1..=1000)
            .filter(|seed| matches!(speed(*seed, 1.0), Speed::Faster | Speed::Slower))
            .count();
        assert!(different < 10, "{different} of 1000");
    }

    #[test]
    fn a_seventh_slower_or_faster_is_found_nine_times_in_ten() {
        for (factor, expected) in [(1.15, Speed::Slower), (0.85, Speed::Faster)] {
            let found = (1..=100)
                .filter(|seed| speed(*seed, factor) == expected)
                .count();
            assert!(found >= 90, "{found} of 100 at {factor}");
        }
    }

    #[test]
    fn a_machine_that_finds_a_difference_where_there_is_none_decides_nothing() {
        let mut dice = Dice(9);
        let (blocks, control) = (dice.blocks(0.5, 20), dice.blocks(1.3, 20));
        assert_eq!(
            compare(&blocks, &control, Threshold::default()).speed,
            Speed::Noisy
        );
    }

    #[test]
    fn too_few_blocks_and_impossible_times_decide_nothing() {
        let mut dice = Dice(9);
        let good = dice.blocks(0.5, 20);
        let few = &good[..LEAST_BLOCKS - 1];
        assert_eq!(
            compare(few, &good, Threshold::default()).speed,
            Speed::TooLittle
        );
        assert_eq!(
            compare(&good, few, Threshold::default()).speed,
            Speed::TooLittle
        );
        for time in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let mut bad = good.clone();
            bad[3].b1 = time;
            assert_eq!(
                compare(&bad, &good, Threshold::default()).speed,
                Speed::TooLittle
            );
        }
    }

    #[test]
    fn the_test_is_exact() {
        // Six of one sign: two of the 64 ways to flip are as extreme.
        let p = signed_rank(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert!((p - 2.0 / 64.0).abs() < 1e-12);
        // From the published table: n = 10, the smaller sum 8 is significant at 0.05, 9 is not.
        let of = |negative: &[f64]| {
            let ranks = (1..=10).map(f64::from);
            let signed = ranks.map(|rank| {
                if negative.contains(&rank) {
                    -rank
                } else {
                    rank
                }
            });
            signed_rank(&signed.collect::<Vec<_>>())
        };
        assert!(of(&[8.0]) < 0.05 && of(&[9.0]) > 0.05);
    }

    proptest! {
        #[test]
        fn sides_are_treated_alike(effects in prop::collection::vec(-1.0..1.0f64, 6..40)) {
            let mirrored: Vec<f64> = effects.iter().map(|effect| -effect).collect();
            let (one, other) = (signed_rank(&effects), signed_rank(&mirrored));
            prop_assert!((one - other).abs() < 1e-9);
            prop_assert!((0.0..=1.0).contains(&one));
        }
    }
}
