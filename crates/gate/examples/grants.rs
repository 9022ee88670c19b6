//! How many durable, signed grants a fleet's gate makes: `cargo run --release -p belljar-gate --example grants [DIRECTORY]`.
#![allow(clippy::print_stdout, clippy::expect_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belljar_gate::keyring::KeySource;
use belljar_gate::{FleetGate, FleetOptions, Hands, Papers, Standing, Wish};
use belljar_manifest::lineage::{CapabilityDocument, Digest};
use belljar_policy::{Budget, Contract, Places};
use belljar_replication::{Asked, Code, Jti, WorkerId};

const CLIENTS: u64 = 64;
const MILLION: u64 = 1_000_000;

/// There are no boxes to act on.
struct Idle;

impl Hands for Idle {
    fn kill(&self, _: WorkerId, _: Code) {}
    fn freeze(&self, _: WorkerId) {}
    fn thaw(&self, _: WorkerId) {}
}

fn main() {
    let at = std::env::args_os()
        .nth(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let scratch = tempfile::tempdir_in(at).expect("a scratch directory");
    let gate = Arc::new(open(scratch.path()));
    let ids = Arc::new(AtomicU64::new(1));
    let root = {
        let wish = wish(&ids);
        let permit = gate.admit_root(wish, Jti(1)).expect("a root");
        permit.spend().papers
    };
    for under_way in [1, 16] {
        let spent = cpu_time();
        let (grants, took) = race(&gate, &ids, &root, under_way);
        let spent = (cpu_time() - spent).as_secs_f64() / grants as f64;
        println!(
            "durable signed grants, {CLIENTS} clients, {under_way} under way each: {:.0}/s (bound 20000), {:.1} us of processor time each",
            grants as f64 / took.as_secs_f64(),
            spent * 1e6
        );
    }
    while gate.log_state().expect("a log").0 < MILLION {
        race(&gate, &ids, &root, 16);
    }
    let entries = gate.log_state().expect("a log").0;
    drop(gate);
    for (how, file) in [
        ("with its snapshot", None),
        ("without a snapshot", Some("fleet/ledger/snapshot")),
    ] {
        if let Some(file) = file {
            let _ = std::fs::remove_file(scratch.path().join(file));
        }
        let began = Instant::now();
        drop(open(scratch.path()));
        println!(
            "cold start, {entries} entries, {how}: {:.2} s (bound 3 s for a million)",
            began.elapsed().as_secs_f64()
        );
    }
}

fn open(state: &std::path::Path) -> FleetGate {
    let options = FleetOptions {
        contract: Contract::new(2, 10_000_000, Duration::ZERO, None),
        predicates: Vec::new(),
        keys: KeySource::Directory,
        hands: Box::new(Idle),
    };
    FleetGate::open(state, options).expect("a fleet")
}

/// Unlike the clock on the wall, not stretched by what else runs on the machine.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Every client asks for replicas, one after the other: each is decided, debited, on record through a power cut, and has its
/// manifest signed before its client hears of it and asks for the next.
fn race(
    gate: &Arc<FleetGate>,
    ids: &Arc<AtomicU64>,
    root: &Papers,
    under_way: u64,
) -> (u64, Duration) {
    let clients = CLIENTS * under_way;
    let each = 24_000 / clients;
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..clients {
            let builder = std::thread::Builder::new().stack_size(256 * 1024);
            builder
                .spawn_scoped(scope, || {
                    for _ in 0..each {
                        let number = Jti(u128::from(ids.fetch_add(1, Ordering::Relaxed)) << 64);
                        let permit = gate.replicate(root, wish(ids), number).expect("a grant");
                        std::hint::black_box(permit.spend());
                    }
                })
                .expect("a thread");
        }
    });
    (clients * each, began.elapsed())
}

fn wish(ids: &AtomicU64) -> Wish {
    use std::sync::OnceLock;
    static DOCUMENT: OnceLock<CapabilityDocument> = OnceLock::new();
    let document = DOCUMENT.get_or_init(|| {
        let capability = belljar_manifest::profile("moderate").expect("a shipped profile");
        let places = Places {
            home: "/home/agent".into(),
            work: "/home/agent/work".into(),
            homes: vec!["/home".into()],
        };
        CapabilityDocument::new(&capability, &places).expect("a document")
    });
    Wish {
        worker: WorkerId(
            u128::from(ids.fetch_add(1, Ordering::Relaxed))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
        ),
        asked: Asked::default(),
        need: Budget::ZERO,
        standing: Standing {
            capability: document.clone(),
            program: Digest::of(b"program"),
            state: None,
        },
        reason: "bench".to_owned(),
    }
}
