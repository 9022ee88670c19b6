//! How fast decisions are: `cargo run --release -p belljar-replication --example speed`.
#![allow(clippy::print_stdout, clippy::expect_used)]

use std::hint::black_box;
use std::time::{Duration, Instant};

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
    let count = 4_000_000u64;
    let begun = Instant::now();
    for step in 0..count {
        // A stride that visits workers in no order that a cache could guess.
        let number = step.wrapping_mul(0x9e37_79b9) % live;
        let beaten = controller.heartbeat(now(20_000_000), WorkerId(id(number)));
        black_box(beaten.expect("alive"));
    }
    count as f64 / begun.elapsed().as_secs_f64() / 1e6
}

/// Registers and ends workers of the last generation, so that as many live as before.
fn churn(controller: &mut Controller, live: u64) -> f64 {
    let mut best = 0f64;
    for round in 0..20 {
        let from = live + round * 10_000;
        let begun = Instant::now();
        for number in from..from + 10_000 {
            let at = now(number * 10);
            let grant = controller
                .request(at, &replacement(number, live))
                .result
                .expect("a grant");
            let entered = controller.register(at, &grant.manifest());
            black_box(entered.result.expect("a worker"));
        }
        let rate = 10_000.0 / begun.elapsed().as_secs_f64() / 1e6;
        for number in from..from + 10_000 {
            let ended = controller.end(now(from * 20), WorkerId(id(number)), Code::Exited);
            black_box(ended.result.expect("it was alive"));
        }
        best = best.max(rate);
    }
    best
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
        let beats = (0..5)
            .map(|_| beat(&mut controller, live))
            .fold(0.0, f64::max);
        println!(
            "{live:>9} live: {decisions:.2} M issue+register/s, {beats:.2} M heartbeats/s (best rounds)"
        );
    }
    let mut best = f64::MAX;
    for _ in 0..20 {
        let mut controller = fleet();
        grow(&mut controller, 1, 10_000);
        let begun = Instant::now();
        let killed = controller.engage_kill_switch(now(1_000_000_000), Scope::Fleet);
        let took = begun.elapsed().as_secs_f64() * 1e3;
        assert_eq!(killed.result, 10_000);
        best = best.min(took);
    }
    println!("kill switch of 10000 workers: {best:.2} ms (best of 20)");
}
