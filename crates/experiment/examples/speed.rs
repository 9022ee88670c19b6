//! How fast simulations are, in processor time: `cargo run --release -p belljar-experiment --example speed`.
#![allow(clippy::print_stdout, clippy::expect_used)]

use std::time::Duration;

use belljar_experiment::law::Span;
use belljar_experiment::{Group, RunKey, Scenario, Strategy, simulate};
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

/// Everybody asks each second and lives for ten; the contract bounds depth, number, pace and age.
fn greedy(live: u32, total: u64) -> Scenario {
    let contract = Contract::new(
        1000,
        live,
        Duration::from_millis(500),
        Some(Duration::from_secs(100_000)),
    );
    let group = Group {
        lifetime: Span::Exponential(10.0),
        ..Group::new(Strategy::Greedy)
    };
    let mut scenario = Scenario::new(contract, group, 100_000 * SECOND);
    scenario.contract.on_parent_exit = belljar_policy::OnParentExit::Keep;
    scenario.max_workers = total;
    scenario
}

fn main() {
    for (live, total) in [
        (1_000_000, 20_000),
        (10_000_000, 2_000_000),
        (10_000_000, 10_000_000),
    ] {
        let scenario = greedy(live, total);
        let (mut took, mut workers) = (0.0, 0);
        let mut at = 0;
        while took < 1.0 {
            let begun = cpu_seconds();
            workers += simulate(&scenario, key(at)).expect("a run").workers;
            took += cpu_seconds() - begun;
            at += 1;
        }
        let rate = workers as f64 / took / 1e6;
        println!(
            "greedy, {total:>8} workers a run: {rate:.2} M workers/s, {:.0} MB",
            resident_mb()
        );
    }
}
