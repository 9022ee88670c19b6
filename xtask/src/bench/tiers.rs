//! `cargo xtask bench tiers`: what a box of each tier costs, beside gVisor's own `runsc do`.

use super::launch::{Stage, stages};
use crate::Failure;
use serde_json::{Value, json};
use std::path::Path;

const ROUNDS: usize = 40;
/// A guest takes seconds to start where its processor is emulated.
const GUEST_ROUNDS: usize = 5;
/// What we may add to gVisor's own start.
const BOUND_MS: f64 = 5.0;
const BARE_RUNSC: &[&str] = &[
    "runsc",
    "--rootless",
    "--network=none",
    "--ignore-cgroups",
    "do",
];

/// Measures as root, if it is root, and as an ordinary user; prints a table and writes `target/bench/tiers.json`.
pub(crate) fn tiers(belljar: &Path) -> Result<(), Failure> {
    let report = super::in_scratch(|base| {
        let mut report = serde_json::Map::new();
        for stage in stages(belljar, base)? {
            report.insert(stage.name().to_owned(), measure(&stage)?);
        }
        Ok(Value::Object(report))
    })?;
    super::write_report("tiers", &report)
}

fn measure(stage: &Stage) -> Result<Value, Failure> {
    println!("\nas {}", stage.name());
    let policy = "tier.yaml";
    stage.write(policy, "extends: moderate\nsandbox_tier: gvisor\n")?;
    let program = ["/bin/true"];
    let bare: Vec<&str> = BARE_RUNSC.iter().chain(&program).copied().collect();
    let [native, gvisor, runsc] = stage.race(
        &[
            ("native", stage.boxed(&[], &program)),
            ("gvisor", stage.boxed(&["--config", policy], &program)),
            ("runsc do", bare),
        ],
        ROUNDS,
    )?;
    let guest = "guest.yaml";
    stage.write(
        guest,
        "extends: moderate\nsandbox_tier: microvm\nallow_emulation: true\n",
    )?;
    // The first of the warm-up starts the guest that all others resume.
    let [microvm] = stage.race(
        &[("microvm", stage.boxed(&["--config", guest], &program))],
        GUEST_ROUNDS,
    )?;
    for (name, spread) in [
        ("belljar run, seccomp", &native),
        ("belljar run, gvisor", &gvisor),
        ("belljar run, microvm", &microvm),
        ("runsc do", &runsc),
    ] {
        println!(
            "    {name:<26} median {:>7.2} ms   p95 {:>7.2} ms   {:>6.1} x seccomp",
            spread.median,
            spread.p95,
            spread.median / native.median
        );
    }
    let over = gvisor.median - runsc.median;
    println!("    over runsc do              {over:>14.2} ms   (bound {BOUND_MS})");
    Ok(json!({
        "native_ms": native.json(), "gvisor_ms": gvisor.json(), "runsc_do_ms": runsc.json(), "microvm_ms": microvm.json(),
        "gvisor_over_runsc_do_ms": over, "bound_ms": BOUND_MS, "holds": over <= BOUND_MS,
    }))
}
