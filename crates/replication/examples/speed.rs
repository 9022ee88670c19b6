//! How fast decisions are, in processor time: `cargo run --release -p belljar-replication --example speed`.
#![allow(clippy::print_stdout, clippy::expect_used)]

use std::hint::black_box;
use std::time::Duration;

use belljar_policy::{Amount, Budget, Contract};
use belljar_replication::{
    Asked, BootId, Code, Controller, Jti, Now, Request, RootRequest, Scope, State, WorkerId,
};

/// Ids that are spread like random ones, without a source of randomness.
fn id(number: u64) -> u128 {
    let mut mixed = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    mixed ^= mixed >> 67;
    mixed.wrapping_mul(0xc2b2_ae3d_27d4_eb4f_1656_67b1_9e37_79f9)
}

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

fn now(ns: u64) -> Now {
    Now {
        boot_ns: ns,
        wall_ms: ns / 1_000_000,
    }
}

fn fleet() -> Controller {
    let mut contract = Contract::new(4, u32::MAX, Duration::ZERO, Some(Duration::from_secs(3600)));
    contract.heartbeat_timeout = Some(Duration::from_secs(30));
    contract.budget.tokens = Amount::of(1 << 50);
    let (mut controller, _) =
        Controller::start(State::default(), contract, BootId(1), now(0)).expect("no conditions");
    let root = RootRequest {
        worker: WorkerId(id(0)),
        jti: Jti(id(0)),
        asked: Asked::default(),
        need: need(),
        lifetime: None,
    };
    controller.admit_root(now(0), &root).result.expect("a root");
    controller
}

fn need() -> Budget {
    Budget {
        memory_mb: Amount::of(64),
        pids: Amount::of(16),
        ..Budget::ZERO
    }
}

/// The parent of number `n`: a hundred children each.
fn request(number: u64) -> Request {
    Request {
        parent: WorkerId(id(number / 100)),
        worker: WorkerId(id(number)),
        jti: Jti(id(number)),
        claimed_depth: None,
        asked: Asked {
            tokens: Some(Amount::of(1 << (46 - 10 * depth(number)))),
            ..Asked::default()
        },
        need: need(),
    }
}

fn depth(number: u64) -> u32 {
    match number {
        1..100 => 1,
        100..10_000 => 2,
        10_000..1_000_000 => 3,
        _ => 4,
    }
}

fn grow(controller: &mut Controller, from: u64, to: u64) {
    for number in from..to {
        let at = now(number * 10);
        let grant = controller
            .request(at, &request(number))
            .result
            .expect("a grant");
        let entered = controller.register(at, &grant.manifest());
        black_box(entered.result.expect("a worker"));
    }
}

fn beat(controller: &mut Controller, live: u64) -> f64 {
    let count = 10_000_000u64;
    let begun = cpu_seconds();
    for step in 0..count {
        // A stride that visits workers in no order that a cache could guess.
        let number = step.wrapping_mul(0x9e37_79b9) % live;
        let beaten = controller.heartbeat(now(20_000_000), WorkerId(id(number)));
        assert!(black_box(beaten).is_ok());
    }
    count as f64 / (cpu_seconds() - begun) / 1e6
}

/// Registers and ends workers of the last generation, so that as many live as before.
fn churn(controller: &mut Controller, live: u64) -> f64 {
    // The kernel counts in ticks, so that only sums over many of them are right.
    let (rounds, mut took) = (40, 0.0);
    for round in 0..rounds {
        let from = live + round * 10_000;
        let begun = cpu_seconds();
        for number in from..from + 10_000 {
            let at = now(number * 10);
            let grant = controller
                .request(at, &replacement(number, live))
                .result
                .expect("a grant");
            let entered = controller.register(at, &grant.manifest());
            black_box(entered.result.expect("a worker"));
        }
        took += cpu_seconds() - begun;
        for number in from..from + 10_000 {
            let ended = controller.end(now(from * 20), WorkerId(id(number)), Code::Exited);
            assert!(black_box(ended.result).is_ok());
        }
    }
    rounds as f64 * 10_000.0 / took / 1e6
}

/// A child of some worker that has room for one more generation.
fn replacement(number: u64, live: u64) -> Request {
    let parents = live / 100;
    let parent = number.wrapping_mul(0x9e37_79b9) % parents;
    Request {
        parent: WorkerId(id(parent)),
        asked: Asked {
            tokens: Some(Amount::of(1)),
            ..Asked::default()
        },
        ..request(number)
    }
}

fn main() {
    for live in [10_000u64, 1_000_000] {
        let mut controller = fleet();
        grow(&mut controller, 1, live);
        let decisions = churn(&mut controller, live);
        let beats = beat(&mut controller, live);
        println!("{live:>9} live: {decisions:.2} M issue+register/s, {beats:.2} M heartbeats/s");
    }
    let (rounds, mut took) = (100, 0.0);
    for _ in 0..rounds {
        let mut controller = fleet();
        grow(&mut controller, 1, 10_000);
        let begun = cpu_seconds();
        let killed = controller.engage_kill_switch(now(1_000_000_000), Scope::Fleet);
        took += cpu_seconds() - begun;
        assert_eq!(killed.result, 10_000);
    }
    let mean = took * 1e3 / f64::from(rounds);
    println!("kill switch of 10000 workers: {mean:.2} ms (mean of {rounds})");
}
