//! Results that are known without a simulation. Seeds are fixed, so each assertion holds always or never.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use belljar_experiment::law::{Offspring, Span};
use belljar_experiment::stats::{Gate, Metric, Op, Risk, Severity, Verdict, judge, risk};
use belljar_experiment::{
    Experiment, Group, Latency, Operation, PRESETS, Run, RunEnd, RunKey, Scenario, Simulator,
    Strategy, simulate,
};
use belljar_policy::{Contract, OnParentExit};

const SECOND: u64 = 1_000_000_000;

fn run(scenario: &Scenario, replicate: u32) -> Run {
    let key = RunKey {
        seed: 20_260_101,
        cell: 0,
        replicate,
        stream: 0,
    };
    let run = simulate(scenario, key).unwrap();
    assert!(run.broken.is_empty(), "{:?}", run.broken);
    run
}

/// A family without bounds, in which everybody wants a number of children by a law and then exits.
fn branching(offspring: Offspring, max_workers: u64) -> Scenario {
    let mut contract = Contract::new(10_000, 1_000_000, Duration::ZERO, None);
    contract.on_parent_exit = OnParentExit::Keep;
    let group = Group {
        offspring,
        lifetime: Span::Fixed(1.0),
        pace_ns: 1_000_000,
        ..Group::new(Strategy::Greedy)
    };
    let mut scenario = Scenario::new(contract, group, 4000 * SECOND);
    scenario.max_workers = max_workers;
    scenario
}

/// Wilson's interval at 99.9 %.
fn wilson(hits: u32, of: u32) -> (f64, f64) {
    let (n, p, z) = (f64::from(of), f64::from(hits) / f64::from(of), 3.29);
    let middle = (p + z * z / (2.0 * n)) / (1.0 + z * z / n);
    let half = z / (1.0 + z * z / n) * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    (middle - half, middle + half)
}

#[test]
fn families_die_out_as_often_as_theory_says() {
    let runs = 1000;
    for (offspring, expected) in [
        (Offspring::Poisson(1.5), 0.417_188),
        (Offspring::Poisson(2.0), 0.203_188),
        (Offspring::Poisson(3.0), 0.059_520),
        (Offspring::NegativeBinomial { mean: 2.0, k: 0.1 }, 0.890_440),
        (Offspring::NegativeBinomial { mean: 2.0, k: 1.0 }, 0.5),
        (
            Offspring::NegativeBinomial { mean: 2.0, k: 10.0 },
            0.245_079,
        ),
    ] {
        // A family of two hundred dies out with a probability far below what is measured here.
        let scenario = branching(offspring, 200);
        let extinct = (0..runs)
            .filter(|at| run(&scenario, *at).end == RunEnd::Extinct)
            .count();
        let (low, high) = wilson(extinct as u32, runs);
        assert!(
            (low..=high).contains(&expected),
            "{offspring:?}: {extinct} of {runs}"
        );
        assert!(high - low < 0.12, "the interval says something");
    }
}

#[test]
fn families_that_die_out_are_as_large_as_theory_says() {
    // The variance of the total progeny is R / (1 - R)³.
    for (mean, runs) in [(0.5, 2000u32), (0.9, 1500)] {
        let scenario = branching(Offspring::Poisson(mean), 100_000);
        let total: u64 = (0..runs).map(|at| run(&scenario, at).workers).sum();
        let measured = total as f64 / f64::from(runs);
        let expected = 1.0 / (1.0 - mean);
        let error = (mean / (1.0f64 - mean).powi(3) / f64::from(runs)).sqrt();
        assert!(
            (measured - expected).abs() < 3.3 * error,
            "{mean}: {measured} of {expected} ± {error}"
        );
    }
}

#[test]
fn a_cooldown_spaces_children_as_arithmetic_says() {
    // The root alone may have children: one at once, then one each cooldown.
    for (cooldown, expected) in [(1, 101), (5, 21), (10, 11), (25, 5)] {
        let contract = Contract::new(1, 1000, Duration::from_secs(cooldown), None);
        let group = Group {
            pace_ns: SECOND,
            ..Group::new(Strategy::Greedy)
        };
        let scenario = Scenario::new(contract, group, 101 * SECOND);
        let run = run(&scenario, 0);
        // Asks at 1 s, 1 s + cooldown, … up to 101 s.
        assert_eq!(run.workers - 1, expected, "cooldown {cooldown}");
        assert_eq!(run.peak, run.workers);
    }
}

#[test]
fn a_full_family_doubles_at_each_step() {
    let contract = Contract::new(20, 100_000, Duration::ZERO, None);
    let scenario = Scenario::new(contract, Group::new(Strategy::Greedy), 10 * SECOND);
    assert_eq!(run(&scenario, 0).workers, 1 << 10);
}

#[test]
fn what_takes_time_puts_steps_and_ends_off_by_as_much() {
    let contract = Contract::new(1, 1000, Duration::ZERO, None);
    let group = Group {
        lifetime: Span::Fixed(9.0),
        ..Group::new(Strategy::Greedy)
    };
    let mut scenario = Scenario::new(contract, group, 60 * SECOND);
    // Children at 1, 2, … 8 s; at 9 s its life is over.
    let prompt = run(&scenario, 0);
    assert_eq!((prompt.root_children, prompt.seconds), (8, 9.0));
    scenario.latency = Latency {
        start: Span::Fixed(0.5),
        request: Span::Fixed(0.25),
        exit: Span::Fixed(0.125),
    };
    // At 1.5, 2.75, 4, 5.25, 6.5, 7.75 and 9 s; a life that begins at 0.5 s is over at 9.5 s, which is known at 9.625 s.
    let slow = run(&scenario, 0);
    assert_eq!((slow.root_children, slow.seconds), (7, 9.625));
    scenario.latency.start = Span::Exponential(0.5);
    assert_eq!(run(&scenario, 3), run(&scenario, 3));
    assert_ne!(run(&scenario, 3).seconds, run(&scenario, 4).seconds);
}

#[test]
fn expiry_ends_a_family_with_its_root() {
    // Nobody lives longer than its parent, so that all are gone when the root's time is over.
    let contract = Contract::new(20, 100_000, Duration::ZERO, Some(Duration::from_secs(5)));
    let scenario = Scenario::new(contract, Group::new(Strategy::Greedy), 60 * SECOND);
    let expired = run(&scenario, 0);
    assert_eq!((expired.end, expired.seconds), (RunEnd::Extinct, 5.0));
    // At the fifth second the timer comes before the steps: doublings at seconds 1 to 4.
    assert_eq!(expired.workers, 1 << 4);
}

#[test]
fn a_chain_is_a_line_and_greed_is_not() {
    let contract = || Contract::new(15, 1000, Duration::from_secs(1), None);
    let chain = run(
        &Scenario::new(contract(), Group::new(Strategy::Chain), 30 * SECOND),
        0,
    );
    assert_eq!((chain.workers, chain.depth, chain.children), (16, 15, 15));
    let greedy = run(
        &Scenario::new(contract(), Group::new(Strategy::Greedy), 30 * SECOND),
        0,
    );
    assert_eq!(greedy.workers, 1000, "the quota is full");
    assert!(greedy.denials["deny_quota"] > 0);
    assert_ne!(chain.population, greedy.population);
    let burst = run(
        &Scenario::new(contract(), Group::new(Strategy::Burst(5)), 30 * SECOND),
        0,
    );
    assert!(burst.denials["deny_cooldown"] > 0);
}

#[test]
fn a_kill_switch_contains_at_once_and_slow_kills_take_their_time() {
    let contract = Contract::new(20, 500, Duration::ZERO, None);
    let mut scenario = Scenario::new(contract, Group::new(Strategy::Greedy), 60 * SECOND);
    scenario.operations = vec![(20 * SECOND, Operation::KillSwitch)];
    let quick = run(&scenario, 0);
    assert_eq!((quick.containment_seconds, quick.survivors), (Some(0.0), 0));
    scenario.faults.kill_delay = Span::Fixed(2.5);
    let slow = run(&scenario, 0);
    assert_eq!((slow.containment_seconds, slow.survivors), (Some(2.5), 0));
    assert_eq!((slow.kill_p50_seconds, slow.kill_max_seconds), (2.5, 2.5));
    scenario.faults.kill_delay = Span::Forever;
    let never = run(&scenario, 0);
    assert_eq!((never.containment_seconds, never.survivors), (None, 500));
}

#[test]
fn nobody_outlives_a_crash_of_the_controller() {
    let contract = Contract::new(20, 64, Duration::ZERO, None);
    let mut scenario = Scenario::new(contract, Group::new(Strategy::Greedy), 60 * SECOND);
    scenario.faults.crashes_ns = vec![10 * SECOND];
    scenario.faults.restart_ns = 3 * SECOND;
    let crashed = run(&scenario, 0);
    assert_eq!(
        (crashed.end, crashed.seconds, crashed.restarts),
        (RunEnd::Extinct, 13.0, 1)
    );
    assert_eq!(crashed.ends["lost"], 64);
    assert!(crashed.unanswered > 0);
}

#[test]
fn lost_heartbeats_and_partitions_reap() {
    let mut contract = Contract::new(5, 64, Duration::from_secs(1), None);
    contract.heartbeat_timeout = Some(Duration::from_secs(6));
    contract.on_parent_exit = OnParentExit::Keep;
    let mut scenario = Scenario::new(contract, Group::new(Strategy::Greedy), 120 * SECOND);
    assert!(!run(&scenario, 0).ends.contains_key("reap_stale"));
    scenario.faults.lost_heartbeats = 0.3;
    assert!(run(&scenario, 0).ends["reap_stale"] > 0);
    scenario.faults.lost_heartbeats = 0.0;
    scenario.faults.partition = Some(belljar_experiment::Partition {
        from_ns: 20 * SECOND,
        until_ns: 40 * SECOND,
        fraction: 0.5,
    });
    let parted = run(&scenario, 0);
    assert!(
        parted.ends["reap_stale"] > 0 && parted.kill_max_seconds > 5.0,
        "{parted:?}"
    );
}

#[test]
fn what_is_used_beyond_the_budget_has_leaked() {
    let mut contract = Contract::new(0, 10, Duration::ZERO, None);
    contract.budget.tokens = belljar_policy::Amount::of(1000);
    let mut group = Group::new(Strategy::Greedy);
    group.use_per_second.tokens = 300;
    let mut scenario = Scenario::new(contract, group, 20 * SECOND);
    // 300 · 4 is 200 beyond 1000.
    let quick = run(&scenario, 0);
    assert_eq!((quick.leaked_tokens, quick.ends["killed_budget"]), (200, 1));
    // Three more seconds until its box is dead.
    scenario.faults.kill_delay = Span::Fixed(3.5);
    assert_eq!(run(&scenario, 0).leaked_tokens, 200 + 3 * 300);
}

#[test]
fn a_run_is_a_function_of_its_key() {
    let contract = Contract::new(
        6,
        200,
        Duration::from_secs(1),
        Some(Duration::from_secs(20)),
    );
    let group = Group {
        lifetime: Span::Exponential(8.0),
        ..Group::new(Strategy::Random(0.4))
    };
    let scenario = Scenario::new(contract, group, 60 * SECOND);
    assert_eq!(run(&scenario, 3), run(&scenario, 3));
    assert_ne!(run(&scenario, 3).population, run(&scenario, 4).population);
}

#[test]
fn what_was_simulated_before_in_the_same_memory_makes_no_difference() {
    let mut simulator = Simulator::default();
    // Twice, so that each is simulated after every other: after a large one, after one that was killed, after a crash.
    for name in PRESETS.iter().chain(PRESETS) {
        let scenario = Experiment::preset(name).unwrap().unwrap().scenario;
        let key = RunKey {
            seed: 7,
            cell: 0,
            replicate: 0,
            stream: 0,
        };
        assert_eq!(
            simulator.simulate(&scenario, key).unwrap(),
            simulate(&scenario, key).unwrap(),
            "{name}"
        );
    }
}

/// What many runs of a scenario say of R, k and the risk.
fn runs(scenario: &Scenario, count: u32) -> Vec<Run> {
    (0..count).map(|at| run(scenario, at)).collect()
}

#[test]
fn the_reproduction_number_is_the_laws_though_most_lives_are_cut() {
    // Supercritical families are cut at 300 workers, when hardly a life is over; subcritical ones die out.
    for (offspring, expected, count) in [
        (Offspring::Poisson(1.5), 1.5, 300),
        (Offspring::NegativeBinomial { mean: 2.0, k: 0.5 }, 2.0, 300),
        (Offspring::Poisson(0.7), 0.7, 800),
        (Offspring::NegativeBinomial { mean: 0.7, k: 0.5 }, 0.7, 800),
    ] {
        let runs = runs(&branching(offspring, 300), count);
        let r = Metric::R.estimate(&runs).unwrap();
        // Half as wide again: 99.7 %.
        let room = (r.high - r.low) / 4.0;
        assert!(
            r.low - room <= expected && expected <= r.high + room,
            "{offspring:?}: {r:?}"
        );
        assert!(r.high - r.low < 0.2, "the interval says something: {r:?}");
        let is_safe = |metric, statistic: &str| {
            let gate = Gate {
                metric,
                statistic: statistic.to_owned(),
                op: Op::Below,
                threshold: 1.0,
                severity: Severity::Fail,
            };
            judge(&[gate], 0, &runs)[0].verdict == Verdict::Pass
        };
        assert_eq!(is_safe(Metric::R, "mean"), expected < 1.0, "{offspring:?}");
        assert_eq!(is_safe(Metric::R, "high"), expected < 1.0, "{offspring:?}");
        // A law's k is told where lives were seen to their end, and nowhere else.
        let k = Metric::DispersionK.estimate(&runs);
        match (offspring, expected < 1.0) {
            (Offspring::NegativeBinomial { k: truth, .. }, true) => {
                let k = k.unwrap().mean;
                assert!((k - truth).abs() < 0.12, "{k}");
            }
            (_, false) => {
                assert_eq!(k, None, "{offspring:?}");
                let why = Metric::DispersionK.missing(&runs).unwrap();
                assert!(why.contains("lives were cut"), "{why}");
            }
            _ => {}
        }
    }
}

#[test]
fn a_population_that_doubles_is_never_of_low_risk_and_passes_no_gate() {
    let greedy = |until: u64, quota, change: &dyn Fn(&mut Scenario)| {
        let mut contract = Contract::new(100, quota, Duration::ZERO, None);
        contract.on_parent_exit = OnParentExit::Keep;
        let mut scenario =
            Scenario::new(contract, Group::new(Strategy::Greedy), until * SECOND / 2);
        change(&mut scenario);
        scenario
    };
    let nothing = |_: &mut Scenario| {};
    for (name, scenario) in [
        ("it goes on", greedy(23, 100_000, &nothing)),
        ("for a long time", greedy(40, 500, &nothing)),
        (
            "it is killed",
            greedy(30, 100_000, &|scenario| {
                scenario.operations = vec![(9 * SECOND, Operation::KillSwitch)];
            }),
        ),
        (
            "its time is over",
            greedy(8000, 100_000, &|scenario| {
                scenario.contract.expiration = Some(Duration::from_millis(6500));
            }),
        ),
        (
            "lives end, and more begin",
            greedy(30, 100_000, &|scenario| {
                scenario.groups[0].lifetime = Span::Exponential(1.6);
            }),
        ),
        (
            "it is too many",
            greedy(60, 100_000, &|scenario| scenario.max_workers = 300),
        ),
    ] {
        let quota = scenario.contract.max_replicas;
        let runs = runs(&scenario, if name.starts_with("lives") { 60 } else { 2 });
        let r = Metric::R.estimate(&runs).unwrap();
        assert!(r.mean >= 1.0 && r.high >= 1.0, "{name}: {r:?}");
        assert!(risk(&runs, quota) >= Risk::Elevated, "{name}: {r:?}");
    }
    // And one that shrinks is low, or nothing would be.
    let small = runs(&branching(Offspring::Poisson(0.2), 300), 300);
    assert_eq!(risk(&small, 1_000_000), Risk::Low);
}

#[test]
fn what_limits_stop_after_it_doubled_passes_no_gate() {
    let scenario = |depth, quota, roots, strategy| {
        let mut contract = Contract::new(depth, quota, Duration::ZERO, None);
        contract.on_parent_exit = OnParentExit::Keep;
        let mut group = Group::new(strategy);
        group.roots = roots;
        Scenario::new(contract, group, 31 * SECOND / 2)
    };
    // Twenty that want no children beside one that wants as many as it can have.
    let mut sterile = scenario(100, 42, 1, Strategy::Greedy);
    let mut group = Group::new(Strategy::Greedy);
    group.roots = 20;
    group.offspring = Offspring::Fixed(0);
    sterile.groups.push(group);
    for (name, scenario) in [
        ("at two", scenario(100, 2, 1, Strategy::Greedy)),
        ("at three", scenario(100, 3, 1, Strategy::Greedy)),
        ("ten at twenty", scenario(100, 20, 10, Strategy::Greedy)),
        ("a short line", scenario(2, 1000, 5, Strategy::Chain)),
        ("a long line", scenario(10, 1000, 1, Strategy::Chain)),
        ("beside others", sterile),
    ] {
        let runs = runs(&scenario, 3);
        assert!(
            Metric::Growth.estimate(&runs).unwrap().mean >= 2.0,
            "{name}"
        );
        for statistic in ["mean", "high", "low", "p95", "max"] {
            let gate = Gate {
                metric: Metric::R,
                statistic: statistic.to_owned(),
                op: Op::Below,
                threshold: 1.0,
                severity: Severity::Fail,
            };
            let told = judge(&[gate], 0, &runs);
            assert_eq!(told[0].verdict, Verdict::Fail, "{name}: {told:?}");
        }
        let r = Metric::R.estimate(&runs);
        assert_eq!(r.is_none(), Metric::R.missing(&runs).is_some(), "{name}");
        assert!(
            risk(&runs, scenario.contract.max_replicas) >= Risk::Elevated,
            "{name}"
        );
        // What children limits left is not what anybody wanted.
        assert_eq!(Metric::DispersionK.estimate(&runs), None, "{name}");
    }
}

#[test]
fn k_is_refused_where_lives_did_not_end_by_themselves() {
    let law = Offspring::NegativeBinomial { mean: 0.7, k: 0.5 };
    let mut expiring = branching(law, 300);
    expiring.contract.expiration = Some(Duration::from_millis(3));
    let mut full = branching(law, 300);
    full.contract.max_replicas = 3;
    for scenario in [expiring, full] {
        let runs = runs(&scenario, 200);
        assert_eq!(Metric::DispersionK.estimate(&runs), None);
        let why = Metric::DispersionK.missing(&runs).unwrap();
        assert!(why.contains("kept workers from children"), "{why}");
    }
}

#[test]
fn results_of_before_are_read_and_say_what_they_can() {
    let runs = runs(&branching(Offspring::Poisson(0.7), 300), 3);
    let mut old = serde_json::to_value(&runs[0]).unwrap();
    old.as_object_mut().unwrap().remove("ages");
    let old: Run = serde_json::from_value(old).unwrap();
    assert_eq!(old.ages, None);
    let old = [Run {
        parents: old.parents + 1,
        ..old
    }];
    assert_eq!(Metric::R.estimate(&old), None);
    let why = Metric::R.missing(&old).unwrap();
    assert!(why.contains("1 of"), "{why}");
    // What has no bound has none in JSON either.
    let open = belljar_experiment::stats::Estimate {
        high: f64::INFINITY,
        ..Metric::Peak.estimate(&runs).unwrap()
    };
    let text = serde_json::to_string(&open).unwrap();
    assert!(text.contains("\"high\":null"), "{text}");
    assert_eq!(
        serde_json::from_str::<belljar_experiment::stats::Estimate>(&text).unwrap(),
        open
    );
}
