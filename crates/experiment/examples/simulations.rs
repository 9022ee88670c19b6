//! How fast simulations are, in processor time: `cargo run --release -p belljar-experiment --example simulations`.
#![allow(clippy::print_stdout, clippy::expect_used)]

use std::time::{Duration, Instant};

use belljar_experiment::law::{Offspring, Span};
use belljar_experiment::{
    Experiment, Group, RunKey, Scenario, Simulator, Strategy, load, report, run_all, run_into,
};
use belljar_policy::Contract;

const SECOND: u64 = 1_000_000_000;

/// Seconds this thread has had on a processor: what others do on the machine is not counted.
fn cpu_seconds() -> f64 {
    let text =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux with schedstat");
    let ns = text
        .split_whitespace()
        .next()
        .and_then(|ns| ns.parse::<f64>().ok());
    ns.expect("a number of nanoseconds") / 1e9
}

fn key(replicate: u32) -> RunKey {
    RunKey {
        seed: 1,
        cell: 0,
        replicate,
        stream: 0,
    }
}

fn resident_mb() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = text
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .expect("VmHWM");
    line.split_whitespace()
        .nth(1)
        .and_then(|kb| kb.parse::<f64>().ok())
        .expect("kilobytes")
        / 1024.0
}

/// Everybody asks each second; the contract bounds depth, number, pace and age, and ends children with their parent.
fn growth(total: u64) -> Scenario {
    let contract = Contract::new(
        1000,
        u32::MAX,
        Duration::from_millis(500),
        Some(Duration::from_secs(3600)),
    );
    let mut scenario = Scenario::new(contract, Group::new(Strategy::Greedy), 3000 * SECOND);
    scenario.max_workers = total;
    scenario
}

/// Everybody exits after ten seconds and has had one child on average, which goes on: as many come as go.
fn churn(total: u64) -> Scenario {
    let mut scenario = growth(total);
    scenario.contract.on_parent_exit = belljar_policy::OnParentExit::Keep;
    scenario.groups[0].roots = u32::try_from(total / 50).expect("a small number");
    scenario.groups[0].offspring = Offspring::Poisson(1.0);
    scenario.groups[0].lifetime = Span::Fixed(10.0);
    scenario
}

/// Workers simulated in a second of processor time.
fn rate(scenario: &Scenario) -> f64 {
    let (mut took, mut workers, mut at) = (0.0, 0, 0);
    let mut simulator = Simulator::default();
    while took < 1.0 {
        let begun = cpu_seconds();
        workers += simulator
            .simulate(scenario, key(at))
            .expect("a run")
            .workers;
        took += cpu_seconds() - begun;
        at += 1;
    }
    workers as f64 / took / 1e6
}

/// How much faster two threads are than one, by the clock on the wall: it needs two idle processors.
fn two_cores() {
    let text = "contract: {max_depth: 40, max_replicas: 5000, cooldown_seconds: 0.5}\n\
                population: [{strategy: greedy, lifetime: {law: exponential, seconds: 30}}]\n\
                horizon_seconds: 40\nreplicates: 60\n";
    let experiment = Experiment::parse("two", text.as_bytes(), None).expect("valid");
    let took = |threads| {
        let (begun, used) = (Instant::now(), process_seconds());
        run_all(&experiment, threads).expect("runs");
        (begun.elapsed().as_secs_f64(), process_seconds() - used)
    };
    // The best of three, in turns: what others do on the machine comes and goes.
    let (mut wall, mut cpu) = ([f64::MAX; 2], [f64::MAX; 2]);
    for _ in 0..3 {
        for at in 0..2 {
            let (clock, processor) = took(at + 1);
            wall[at] = wall[at].min(clock);
            cpu[at] = cpu[at].min(processor);
        }
    }
    println!(
        "two threads: {:.2} times as fast as one, for {:.2} times the processor time",
        wall[0] / wall[1],
        cpu[1] / cpu[0]
    );
}

/// Seconds that all threads of this process have had on processors, to a hundredth.
fn process_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let after_name = text.rsplit(')').next().expect("a name in brackets");
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("ticks");
    (ticks(11) + ticks(12)) / 100.0
}

/// A report of ten thousand runs, with tables and pictures.
fn report() {
    let text = "contract: {max_depth: 3, max_replicas: 20}\n\
                population: [{strategy: greedy, lifetime: {law: exponential, seconds: 20}}]\n\
                horizon_seconds: 30\nreplicates: 100\nsweep: {axes: [\
                {parameter: cooldown_seconds, values: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]},\
                {parameter: max_replicas, values: [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]}]}\n";
    let experiment = Experiment::parse("report", text.as_bytes(), None).expect("valid");
    let directory = std::env::temp_dir().join(format!("belljar-report-{}", std::process::id()));
    run_into(&experiment, &directory, 2, |_, _| {}).expect("runs");
    let begun = cpu_seconds();
    let results = load(&directory).expect("results");
    report::write(&results, &directory, report::Chosen::default()).expect("a report");
    println!(
        "report of {} runs: {:.2} s",
        results.runs.len(),
        cpu_seconds() - begun
    );
    std::fs::remove_dir_all(&directory).expect("removed");
}

fn main() {
    for total in [10_000, 100_000, 1_000_000] {
        println!(
            "greedy, growth to {total:>8}: {:.2} M workers/s, {:.0} MB",
            rate(&growth(total)),
            resident_mb()
        );
    }
    for total in [1_000_000, 10_000_000] {
        println!(
            "greedy, churn of {total:>9}: {:.2} M workers/s, {:.0} MB",
            rate(&churn(total)),
            resident_mb()
        );
    }
    two_cores();
    report();
    let balanced = Experiment::preset("balanced")
        .expect("shipped")
        .expect("valid");
    let (mut took, rounds) = (0.0, 50);
    let mut simulator = Simulator::default();
    for _ in 0..rounds {
        let begun = cpu_seconds();
        for replicate in 0..200 {
            assert!(
                simulator
                    .simulate(&balanced.scenario, key(replicate))
                    .expect("a run")
                    .broken
                    .is_empty()
            );
        }
        took += cpu_seconds() - begun;
    }
    println!(
        "200 balanced runs: {:.2} ms",
        took / f64::from(rounds) * 1e3
    );
    // Last, as it takes the most memory: all of them are alive at the end.
    println!(
        "greedy, growth to 10000000: {:.2} M workers/s, {:.0} MB",
        rate(&growth(10_000_000)),
        resident_mb()
    );
}
