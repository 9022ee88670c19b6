//! Whether a candidate in use is worse than what it replaces: looked at after every round, valid whenever it is stopped.

use serde::{Deserialize, Serialize};

use super::evidence::{Border, Counts, Often, TwoRates};

/// Ratios of rates that a bet on "worse" tries: from a little to twenty times.
const WORSE: &[f64] = &[1.1, 1.2, 1.4, 1.8, 3.0, 6.0, 20.0];
/// And a bet on "not worse".
const NOT_WORSE: &[f64] = &[1.0, 0.9, 0.7, 0.4];
const MORE_OFTEN: &[f64] = &[0.55, 0.6, 0.7, 0.8, 0.9, 0.99];
const LESS_OFTEN: &[f64] = &[0.45, 0.4, 0.3, 0.2, 0.1, 0.01];

/// What one instance reports of one round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// What it was asked.
    pub requests: u64,
    /// How many of those failed.
    pub errors: u64,
    /// How many broke a rule.
    pub violations: u64,
    /// How long one took, in milliseconds: the median or another figure, the same for all.
    pub latency_ms: f64,
    /// What one cost, in any unit, the same for all.
    pub cost: f64,
}

impl Sample {
    /// Whether the figures can be figures.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let is_figure = |value: f64| value.is_finite() && value >= 0.0;
        self.errors <= self.requests
            && self.violations <= self.requests
            && is_figure(self.latency_ms)
            && is_figure(self.cost)
    }
}

/// One round: what all instances of each side report of the same while.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Round {
    /// Those that run what is to be replaced.
    pub baseline: Vec<Sample>,
    /// Those that run the candidate.
    pub candidate: Vec<Sample>,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The share of requests that fail.
    ErrorRate,
    /// How long one takes.
    Latency,
    /// What one costs.
    Cost,
    /// The share of requests that break a rule.
    Violations,
}

impl Metric {
    /// The word in documents.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ErrorRate => "error_rate",
            Self::Latency => "latency",
            Self::Cost => "cost",
            Self::Violations => "violations",
        }
    }
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is not worse by more than is tolerated.
    Pass,
    /// It is worse in these.
    Fail(Vec<Metric>),
    /// Nobody can tell: figures are missing or can't be true. That is as bad as worse.
    Blind,
    /// Nobody can tell yet.
    Hold,
}

/// How sure one must be, and how much is too much.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bounds {
    /// The chance, for each metric and step, that a candidate that is not worse is called worse, at most.
    pub false_alarm: f64,
    /// The chance that one that is worse by the margin is called good, at most.
    pub missed: f64,
    /// What is not worth an alarm, as a share of the baseline's rate.
    pub floor: f64,
    /// More errors than this, as a share of all requests, are not tolerated; besides a tenth of the baseline's.
    pub error_margin: f64,
    /// The same for violations.
    pub violation_margin: f64,
    /// How much slower or dearer is tolerated.
    pub slower: f64,
    /// The fewest rounds before a candidate is called good.
    pub least_rounds: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            false_alarm: 0.0005,
            missed: 0.05,
            floor: 0.05,
            error_margin: 0.005,
            violation_margin: 0.002,
            slower: 0.1,
            least_rounds: 10,
        }
    }
}

/// Two rates, and both questions about them.
#[derive(Clone, Debug)]
struct Rates {
    worse: TwoRates,
    not_worse: TwoRates,
}

impl Rates {
    fn new(margin: f64) -> Self {
        let even = Border {
            slope: 1.0,
            offset: 0.0,
        };
        let tolerated = Border {
            slope: 1.1,
            offset: margin,
        };
        Self {
            worse: TwoRates::new(even, WORSE),
            not_worse: TwoRates::new(tolerated, NOT_WORSE),
        }
    }

    fn observe(&mut self, baseline: Counts, candidate: Counts) {
        self.worse.observe(baseline, candidate);
        self.not_worse.observe(baseline, candidate);
    }

    fn is_worse(&self, bounds: &Bounds) -> bool {
        let (before, after) = (self.worse.baseline.rate(), self.worse.candidate.rate());
        self.worse.log_e() >= -bounds.false_alarm.ln() && after > before * (1.0 + bounds.floor)
    }

    fn is_good(&self, bounds: &Bounds) -> bool {
        self.not_worse.log_e() >= -bounds.missed.ln()
    }
}

/// Two sides measured side by side: how often the candidate is above what is tolerated of its neighbour.
///
/// Nothing is assumed of how the figures are spread: of two that are alike, either is the larger as often as not.
#[derive(Clone, Debug)]
struct Pairs {
    above: Often,
    below: Often,
}

impl Pairs {
    fn new() -> Self {
        Self {
            above: Often::new(MORE_OFTEN),
            below: Often::new(LESS_OFTEN),
        }
    }

    fn observe(&mut self, baseline: f64, candidate: f64, tolerated: f64) {
        let is_above = candidate > baseline * (1.0 + tolerated);
        self.above.observe(is_above);
        self.below.observe(is_above);
    }
}

/// The comparison of one step of a rollout.
#[derive(Clone, Debug)]
pub struct Canary {
    bounds: Bounds,
    rounds: u32,
    errors: Rates,
    violations: Rates,
    latency: Pairs,
    cost: Pairs,
    is_blind: bool,
}

impl Canary {
    /// A comparison without observations.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            rounds: 0,
            errors: Rates::new(bounds.error_margin),
            violations: Rates::new(bounds.violation_margin),
            latency: Pairs::new(),
            cost: Pairs::new(),
            is_blind: false,
        }
    }

    /// Takes a round in.
    pub fn observe(&mut self, round: &Round) {
        let all = || round.baseline.iter().chain(&round.candidate);
        if round.baseline.is_empty() || round.candidate.is_empty() || !all().all(Sample::is_sound) {
            self.is_blind = true;
            return;
        }
        self.rounds += 1;
        let sum = |samples: &[Sample], hits: fn(&Sample) -> u64| {
            let mut counts = Counts::default();
            for sample in samples {
                counts.add(Counts {
                    trials: sample.requests,
                    hits: hits(sample),
                });
            }
            counts
        };
        let of = |hits| (sum(&round.baseline, hits), sum(&round.candidate, hits));
        let (before, after) = of(|sample| sample.errors);
        self.errors.observe(before, after);
        let (before, after) = of(|sample| sample.violations);
        self.violations.observe(before, after);
        // Whoever was asked nothing has no latency. Each figure is used once: a pair is a trial of its own.
        let busy = |samples: &[Sample]| -> Vec<Sample> {
            samples
                .iter()
                .filter(|sample| sample.requests > 0)
                .copied()
                .collect()
        };
        for (before, after) in busy(&round.baseline).iter().zip(&busy(&round.candidate)) {
            let tolerated = self.bounds.slower;
            self.latency
                .observe(before.latency_ms, after.latency_ms, tolerated);
            self.cost.observe(before.cost, after.cost, tolerated);
        }
    }

    /// What follows so far.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        if self.is_blind {
            return Outcome::Blind;
        }
        let bounds = &self.bounds;
        let alarm = -bounds.false_alarm.ln();
        let failed: Vec<Metric> = [
            (Metric::ErrorRate, self.errors.is_worse(bounds)),
            (
                Metric::Latency,
                self.latency.above.log_e() >= alarm && self.latency.above.share() > 0.5,
            ),
            (
                Metric::Cost,
                self.cost.above.log_e() >= alarm && self.cost.above.share() > 0.5,
            ),
            (Metric::Violations, self.violations.is_worse(bounds)),
        ]
        .into_iter()
        .filter(|(_, is_worse)| *is_worse)
        .map(|(metric, _)| metric)
        .collect();
        if !failed.is_empty() {
            return Outcome::Fail(failed);
        }
        let sure = -bounds.missed.ln();
        let good = self.rounds >= bounds.least_rounds
            && self.errors.is_good(bounds)
            && self.violations.is_good(bounds)
            && self.latency.below.log_e() >= sure
            && self.cost.below.log_e() >= sure;
        if good { Outcome::Pass } else { Outcome::Hold }
    }

    /// Rounds taken in.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// The shares of requests that failed, before and after.
    #[must_use]
    pub fn error_rates(&self) -> (f64, f64) {
        (
            self.errors.worse.baseline.rate(),
            self.errors.worse.candidate.rate(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// SplitMix64: the same numbers on every machine.
    struct Dice(u64);

    impl Dice {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        }

        fn of(&mut self, trials: u64, rate: f64) -> u64 {
            (0..trials).filter(|_| self.next() < rate).count() as u64
        }

        /// Right-skewed, as latencies are.
        fn around(&mut self, middle: f64) -> f64 {
            let sum: f64 = (0..6).map(|_| self.next()).sum::<f64>() - 3.0;
            middle * (0.3 * sum).exp()
        }
    }

    #[derive(Clone, Copy)]
    struct World {
        error_rate: f64,
        violation_rate: f64,
        latency: f64,
        cost: f64,
    }

    const CALM: World = World {
        error_rate: 0.05,
        violation_rate: 0.001,
        latency: 80.0,
        cost: 0.4,
    };

    fn sample(dice: &mut Dice, world: World, requests: u64) -> Sample {
        Sample {
            requests,
            errors: dice.of(requests, world.error_rate),
            violations: dice.of(requests, world.violation_rate),
            latency_ms: dice.around(world.latency),
            cost: dice.around(world.cost),
        }
    }

    /// Looked at after every round, as the rollout does, until it says something or the rounds are over.
    fn run(seed: u64, before: World, after: World, rounds: u32) -> (Outcome, u32) {
        let mut dice = Dice(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut canary = Canary::new(Bounds::default());
        for round in 1..=rounds {
            // Rates move together over the day; that must not look like a difference.
            let tide = 1.0 + 0.5 * (f64::from(round) / 20.0).sin();
            let at = |world: World| World {
                error_rate: world.error_rate * tide,
                ..world
            };
            let round_of =
                |dice: &mut Dice, world| (0..2).map(|_| sample(dice, at(world), 150)).collect();
            let baseline = round_of(&mut dice, before);
            let candidate = round_of(&mut dice, after);
            canary.observe(&Round {
                baseline,
                candidate,
            });
            match canary.outcome() {
                Outcome::Hold => {}
                outcome => return (outcome, round),
            }
        }
        (Outcome::Hold, rounds)
    }

    #[test]
    fn identical_code_is_never_rolled_back_and_mostly_passes() {
        let mut passed = 0;
        for seed in 0..300 {
            match run(seed, CALM, CALM, 400) {
                (Outcome::Pass, _) => passed += 1,
                (Outcome::Hold, _) => {}
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        assert!(passed >= 270, "{passed} of 300 passed");
    }

    /// The same, with nobody to stop it when it passes: however long one looks, there is no alarm.
    #[test]
    fn identical_code_raises_no_alarm_however_long_it_is_watched() {
        for seed in 0..100 {
            let mut dice = Dice(seed + 77_000);
            let mut canary = Canary::new(Bounds::default());
            for _ in 0..500 {
                let mut side = || vec![sample(&mut dice, CALM, 60)];
                let (baseline, candidate) = (side(), side());
                canary.observe(&Round {
                    baseline,
                    candidate,
                });
                let outcome = canary.outcome();
                assert!(
                    matches!(outcome, Outcome::Pass | Outcome::Hold),
                    "seed {seed}: {outcome:?}"
                );
            }
        }
    }

    #[test]
    fn a_fifth_more_errors_are_found_nine_times_in_ten() {
        let worse = World {
            error_rate: CALM.error_rate * 1.2,
            ..CALM
        };
        let mut found = 0;
        let mut passed = 0;
        for seed in 0..100 {
            match run(seed + 1000, CALM, worse, 400) {
                (Outcome::Fail(metrics), _) => {
                    assert_eq!(metrics, [Metric::ErrorRate]);
                    found += 1;
                }
                (Outcome::Pass, _) => passed += 1,
                _ => {}
            }
        }
        assert!(found >= 90, "{found} of 100 found, {passed} let through");
    }

    #[test]
    fn slower_dearer_and_lawless_candidates_are_found() {
        let worlds = [
            (
                Metric::Latency,
                World {
                    latency: CALM.latency * 1.5,
                    ..CALM
                },
            ),
            (
                Metric::Cost,
                World {
                    cost: CALM.cost * 1.5,
                    ..CALM
                },
            ),
            (
                Metric::Violations,
                World {
                    violation_rate: 0.01,
                    ..CALM
                },
            ),
        ];
        for (metric, world) in worlds {
            for seed in 0..30 {
                let (outcome, _) = run(seed, CALM, world, 400);
                assert_eq!(outcome, Outcome::Fail(vec![metric]), "seed {seed}");
            }
        }
    }

    #[test]
    fn a_crash_loop_is_found_within_a_few_rounds() {
        let broken = World {
            error_rate: 1.0,
            ..CALM
        };
        let (outcome, rounds) = run(1, CALM, broken, 400);
        assert_eq!(outcome, Outcome::Fail(vec![Metric::ErrorRate]));
        assert!(rounds <= 3, "{rounds}");
    }

    #[test]
    fn what_can_not_be_seen_is_not_good() {
        let mut dice = Dice(5);
        let fine = sample(&mut dice, CALM, 100);
        let lies = [
            Sample {
                errors: 101,
                ..fine
            },
            Sample {
                latency_ms: f64::NAN,
                ..fine
            },
            Sample { cost: -1.0, ..fine },
            Sample {
                violations: 101,
                ..fine
            },
        ];
        let rounds = lies.into_iter().map(|lie| vec![lie]).chain([vec![]]);
        for candidate in rounds {
            let mut canary = Canary::new(Bounds::default());
            let baseline = vec![fine];
            canary.observe(&Round {
                baseline,
                candidate,
            });
            assert_eq!(canary.outcome(), Outcome::Blind);
        }
        // Nobody asked it anything: that is no evidence either way.
        let mut canary = Canary::new(Bounds::default());
        let idle = Sample {
            requests: 0,
            errors: 0,
            violations: 0,
            ..fine
        };
        for _ in 0..1000 {
            canary.observe(&Round {
                baseline: vec![fine],
                candidate: vec![idle],
            });
        }
        assert_eq!(canary.outcome(), Outcome::Hold);
    }

    proptest! {
        #[test]
        fn any_figures_give_an_outcome_and_more_errors_never_help(
            requests in 1..500u64, before in 0.0..1.0f64, after in 0.0..1.0f64, more in 0..100u64,
        ) {
            let fine = Sample { requests, errors: 0, violations: 0, latency_ms: 5.0, cost: 1.0 };
            let of = |share: f64| ((requests as f64) * share) as u64;
            let play = |extra: u64| {
                let mut canary = Canary::new(Bounds::default());
                for _ in 0..20 {
                    let baseline = vec![Sample { errors: of(before), ..fine }];
                    let errors = (of(after) + extra).min(requests);
                    canary.observe(&Round { baseline, candidate: vec![Sample { errors, ..fine }] });
                }
                canary.outcome()
            };
            if let Outcome::Fail(_) = play(0) {
                prop_assert!(matches!(play(more), Outcome::Fail(_)));
            }
            if play(more) == Outcome::Pass {
                prop_assert!(!matches!(play(0), Outcome::Fail(_)));
            }
        }
    }
}
