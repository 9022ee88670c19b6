//! Thousands of random histories, played to the controller and to a plain reference at once. They must agree on every
//! answer and on everything there is to see, and the invariants must hold after every step.
#![allow(clippy::unwrap_used, missing_docs)]

mod compare;
mod play;
mod reference;
mod steps;

use belljar_policy::{Amount, Budget};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use play::Play;
use reference::Rules;
use steps::Step;

fn bounded(least: u64, most: u64) -> impl Strategy<Value = Amount> {
    prop_oneof![2 => Just(Amount::UNBOUNDED), 3 => (least..=most).prop_map(Amount::of)]
}

fn rules() -> impl Strategy<Value = Rules> {
    let counts = (
        1u32..4,
        2u32..9,
        prop_oneof![Just(0u64), Just(500), Just(3_000)],
    );
    let times = (
        proptest::option::of(8_000u64..90_000),
        proptest::option::of(3_000u64..40_000),
        any::<bool>(),
    );
    let budget = (
        bounded(3, 12),
        bounded(200, 3_000),
        bounded(40, 400),
        bounded(200, 3_000),
    );
    let stops = (2u64..9, 60u64..600, 300u64..4_000);
    (counts, times, budget, stops).prop_map(|(counts, times, budget, stops)| Rules {
        max_depth: counts.0,
        max_replicas: counts.1,
        cooldown_ms: counts.2,
        expiration_ms: times.0,
        silence_ms: times.1,
        keeps_orphans: times.2,
        budget: Budget {
            replicas: budget.0,
            cpu_ms: budget.1,
            memory_mb: budget.2,
            tokens: budget.3,
            ..Budget::UNBOUNDED
        },
        crowd: stops.0,
        glutton: stops.1,
        feast: stops.2,
    })
}

/// Workers and grants are picked by a number; the play turns it into one that exists, or existed.
fn step() -> impl Strategy<Value = Step> {
    let asked = || {
        (
            proptest::option::of(0u64..200),
            proptest::option::of(0u64..4),
        )
    };
    let pick = || any::<u8>();
    prop_oneof![
        9 => (asked(), 1u64..8).prop_map(|(asked, need)| Step::Root { asked, need }),
        34 => (pick(), asked(), 1u64..8, 0u8..20)
            .prop_map(|(parent, asked, need, spoof)| Step::Request { parent, asked, need, spoof }),
        36 => (pick(), 0u8..24).prop_map(|(grant, forgery)| Step::Register { grant, forgery }),
        10 => (pick(), asked(), 1u64..8).prop_map(|(parent, asked, need)| Step::Adopt { parent, asked, need }),
        12 => Just(Step::Tick),
        20 => (1u64..5_000).prop_map(Step::Wait),
        2 => (10_000u64..40_000).prop_map(Step::Wait),
        6 => pick().prop_map(Step::Beat),
        3 => pick().prop_map(Step::Started),
        4 => pick().prop_map(Step::End),
        4 => pick().prop_map(Step::Quarantine),
        6 => pick().prop_map(Step::Release),
        2 => pick().prop_map(Step::KillSubtree),
        1 => pick().prop_map(Step::KillWorker),
        1 => Just(Step::KillFleet),
        5 => Just(Step::Reset),
        1 => pick().prop_map(Step::Revoke),
        1 => Just(Step::BumpEpoch),
        14 => (pick(), 0u64..60, 0u64..80).prop_map(|(worker, cpu, tokens)| Step::Spend { worker, cpu, tokens }),
        1 => prop_oneof![Just(-5_000i64), Just(-3_000), Just(-1_000), Just(1_500)].prop_map(Step::MoveClock),
        5 => Just(Step::Acknowledge),
        2 => pick().prop_map(Step::Withdraw),
        8 => (1u32..4, 2u32..9).prop_map(|(depth, replicas)| Step::SetContract { depth, replicas }),
        1 => Just(Step::Restart),
        2 => Just(Step::Resume),
    ]
}

/// A thousand take a few seconds in a debug build; a longer hunt is `BELLJAR_HISTORIES=100000` in a release build.
fn histories_to_play() -> u32 {
    let wanted = std::env::var("BELLJAR_HISTORIES").ok();
    wanted
        .and_then(|number| number.parse().ok())
        .unwrap_or(1_000)
}

/// The same histories on every run: a failure must never depend on luck.
fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        rng_seed: RngSeed::Fixed(0x0be1_11a6),
        failure_persistence: None,
        ..Config::default()
    })
}

#[test]
fn the_controller_and_the_reference_agree_on_every_history() {
    let histories = (rules(), proptest::collection::vec(step(), 1..80));
    let seen = std::cell::RefCell::new(std::collections::BTreeMap::new());
    runner(histories_to_play())
        .run(&histories, |(rules, steps)| {
            let mut play = Play::new(rules);
            let root = Step::Root {
                asked: (Some(150), None),
                need: 2,
            };
            play.step(&root).map_err(TestCaseError::fail)?;
            for (number, step) in steps.iter().enumerate() {
                if let Err(difference) = play.step(step) {
                    return Err(TestCaseError::fail(format!(
                        "step {number}, {step:?}: {difference}"
                    )));
                }
            }
            play.finish().map_err(TestCaseError::fail)?;
            for (answer, count) in play.answers {
                *seen.borrow_mut().entry(answer).or_insert(0u32) += count;
            }
            Ok(())
        })
        .unwrap();
    // Histories that never come to a rule prove nothing about it.
    let seen = seen.into_inner();
    for answer in steps::ANSWERS {
        assert!(
            seen.get(*answer).is_some_and(|count| *count >= 3),
            "{answer} hardly came up: {seen:?}"
        );
    }
}
