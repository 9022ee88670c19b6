//! `cargo xtask bench tiers`: what a box of each tier costs, beside gVisor's own `runsc do` and an engine's `docker run`.

use super::launch::{Spread, Stage, stages};
use crate::Failure;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

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
    let image = measure_image(stage, native.median)?;
    Ok(json!({
        "image": image,
        "native_ms": native.json(), "gvisor_ms": gvisor.json(), "runsc_do_ms": runsc.json(), "microvm_ms": microvm.json(),
        "gvisor_over_runsc_do_ms": over, "bound_ms": BOUND_MS, "holds": over <= BOUND_MS,
    }))
}

/// What we may add to an engine's own start.
const ENGINE_BOUND_MS: f64 = 20.0;
const IMAGE: &str = "belljar-bench";

/// A box in an image, and, where an engine answers, a container of its own of the same files.
fn measure_image(stage: &Stage, native: f64) -> Result<Value, Failure> {
    let tree = make_tree(&stage.path("tree"))?;
    stage.belljar(&["image", "build", IMAGE, "--from-dir", &tree])?;
    let policy = "image.yaml";
    stage.write(
        policy,
        &format!("extends: moderate\nsandbox_tier: container\nimage: {IMAGE}\n"),
    )?;
    let program = ["/bin/true"];
    let boxed = stage.boxed(&["--config", policy], &program);
    let row = |name: &str, spread: &Spread| {
        println!(
            "    {name:<26} median {:>7.2} ms   p95 {:>7.2} ms   {:>6.1} x seccomp",
            spread.median,
            spread.p95,
            spread.median / native
        );
    };
    if !has_engine(stage, &tree) {
        let [container] = stage.race(&[("container", boxed)], ROUNDS)?;
        row("belljar run, container", &container);
        println!("    docker run                 not measured: no engine answers");
        return Ok(json!({ "container_ms": container.json() }));
    }
    let docker = vec![
        "docker",
        "run",
        "--rm",
        "--network=none",
        IMAGE,
        "/bin/true",
    ];
    let raced = stage.race(&[("container", boxed), ("docker run", docker)], ROUNDS);
    let _ = stage.run(&["docker", "rmi", "--force", IMAGE]);
    let [container, docker] = raced?;
    row("belljar run, container", &container);
    row("docker run", &docker);
    let over = container.median - docker.median;
    println!("    over docker run            {over:>14.2} ms   (bound {ENGINE_BOUND_MS})");
    Ok(json!({
        "container_ms": container.json(), "docker_run_ms": docker.json(),
        "container_over_docker_run_ms": over, "bound_ms": ENGINE_BOUND_MS, "holds": over <= ENGINE_BOUND_MS,
    }))
}

/// Gives an engine the same files, if one answers to this user.
fn has_engine(stage: &Stage, tree: &str) -> bool {
    let archive = format!("{tree}.tar");
    stage.run(&["docker", "version"]).is_ok()
        && stage
            .run(&["tar", "-C", tree, "-cf", &archive, "."])
            .is_ok()
        && stage.run(&["docker", "import", &archive, IMAGE]).is_ok()
}

/// `/bin/true` and what it is linked to.
fn make_tree(tree: &Path) -> Result<String, Failure> {
    let linked = Command::new("ldd").arg("/bin/true").output()?;
    let linked = String::from_utf8_lossy(&linked.stdout).into_owned();
    let files = linked
        .split_whitespace()
        .filter(|word| word.starts_with('/'));
    for file in files.chain(["/bin/true"]) {
        let to = tree.join(file.trim_start_matches('/'));
        std::fs::create_dir_all(to.parent().unwrap_or(tree))?;
        std::fs::copy(file, to)?;
    }
    Ok(tree.to_string_lossy().into_owned())
}
