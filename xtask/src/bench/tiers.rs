//! `cargo xtask bench tiers`: what a box of each tier costs, beside gVisor's own `runsc do` and an engine's `docker run`.

use super::engine::Engine;
use super::launch::{Spread, Stage, stages};
use crate::Failure;
use belljar_sandbox::microvm::{Parts, try_kvm};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

const ROUNDS: usize = 40;
/// A guest takes seconds to start where its processor is emulated.
const GUEST_ROUNDS: usize = 5;
const PROGRAM: &[&str] = &["/bin/true"];
/// What we may add to gVisor's own start.
const BOUND_MS: f64 = 5.0;
const BARE_RUNSC: &[&str] = &[
    "runsc",
    "--rootless",
    "--network=none",
    "--ignore-cgroups",
    "do",
];

const PARTS: &[&str] = &["gvisor", "microvm", "firecracker", "container"];

/// Measures as root, if it is root, and as an ordinary user; prints a table and writes `target/bench/tiers.json`. All of it
/// unless parts are named.
pub(crate) fn tiers(parts: &[&str], belljar: &Path) -> Result<(), Failure> {
    if let Some(unknown) = parts.iter().find(|part| !PARTS.contains(part)) {
        return Err(format!("no part {unknown}: there are {}", PARTS.join(", ")).into());
    }
    let wanted = |part: &str| parts.is_empty() || parts.contains(&part);
    let report = super::in_scratch(|base| {
        let mut report = serde_json::Map::new();
        for stage in stages(belljar, base)? {
            report.insert(stage.name().to_owned(), measure(&stage, &wanted)?);
        }
        Ok(Value::Object(report))
    })?;
    super::write_report("tiers", &report)
}

fn measure(stage: &Stage, wanted: &dyn Fn(&str) -> bool) -> Result<Value, Failure> {
    println!("\nas {}", stage.name());
    let mut report = serde_json::Map::new();
    let [native] = stage.race(&[("native", stage.boxed(&[], PROGRAM))], ROUNDS)?;
    let table = Table {
        native: native.median,
    };
    table.row("belljar run, seccomp", &native);
    report.insert("native_ms".to_owned(), native.json());
    for (part, measured) in [
        ("gvisor", measure_gvisor as Part),
        ("microvm", measure_microvm),
        ("firecracker", measure_firecracker),
        ("container", measure_container),
    ] {
        if wanted(part) {
            report.insert(part.to_owned(), measured(stage, &table)?);
        }
    }
    Ok(Value::Object(report))
}

type Part = fn(&Stage, &Table) -> Result<Value, Failure>;

/// What is printed.
struct Table {
    native: f64,
}

impl Table {
    fn row(&self, name: &str, spread: &Spread) {
        println!(
            "    {name:<26} median {:>7.2} ms   p95 {:>7.2} ms   {:>6.1} x seccomp",
            spread.median,
            spread.p95,
            spread.median / self.native
        );
    }

    /// What we add to what somebody else needs.
    fn over(other: &str, [ours, theirs]: [&Spread; 2], bound: f64) -> Value {
        let over = ours.median - theirs.median;
        let ratio = ours.median / theirs.median;
        let name = format!("over {other}");
        println!("    {name:<26} {over:>14.2} ms   (bound {bound})   {ratio:.2} x {other}");
        json!({
            "ours_ms": ours.json(), "theirs_ms": theirs.json(), "theirs": other,
            "over_ms": over, "ratio": ratio, "bound_ms": bound, "holds": over <= bound,
        })
    }
}

fn measure_gvisor(stage: &Stage, table: &Table) -> Result<Value, Failure> {
    let policy = "tier.yaml";
    stage.write(policy, "extends: moderate\nsandbox_tier: gvisor\n")?;
    let bare: Vec<&str> = BARE_RUNSC.iter().chain(PROGRAM).copied().collect();
    let [gvisor, runsc] = stage.race(
        &[
            ("gvisor", stage.boxed(&["--config", policy], PROGRAM)),
            ("runsc do", bare),
        ],
        ROUNDS,
    )?;
    table.row("belljar run, gvisor", &gvisor);
    table.row("runsc do", &runsc);
    Ok(Table::over("runsc do", [&gvisor, &runsc], BOUND_MS))
}

/// How long a box may take whose guest goes on from where one was kept, where the processor carries it.
const RESUMED_BOUND_MS: f64 = 30.0;

fn measure_microvm(stage: &Stage, table: &Table) -> Result<Value, Failure> {
    measure_guests("microvm", stage, table)
}

fn measure_firecracker(stage: &Stage, table: &Table) -> Result<Value, Failure> {
    match Parts::find_firecracker(None) {
        Ok(_) => measure_guests("firecracker", stage, table),
        Err(missing) => {
            println!(
                "    belljar run, firecracker   not measured: {}",
                missing.what
            );
            Ok(json!({ "not_measured": missing.what }))
        }
    }
}

fn measure_guests(tier: &'static str, stage: &Stage, table: &Table) -> Result<Value, Failure> {
    let policy = format!("{tier}.yaml");
    stage.write(
        &policy,
        &format!("extends: moderate\nsandbox_tier: {tier}\nallow_emulation: true\n"),
    )?;
    let boxed = stage.boxed(&["--config", &policy], PROGRAM);
    // The first of the warm-up starts the guest that all others resume.
    let [guest] = stage.race(&[(tier, boxed)], GUEST_ROUNDS)?;
    table.row(&format!("belljar run, {tier}"), &guest);
    let mut report = json!({ "ms": guest.json() });
    if try_kvm().is_ok() {
        println!("    its bound with KVM         {RESUMED_BOUND_MS:>14.2} ms");
        report["bound_ms"] = json!(RESUMED_BOUND_MS);
        report["holds"] = json!(guest.median <= RESUMED_BOUND_MS);
    }
    Ok(report)
}

/// What we may add to an engine's own start.
const ENGINE_BOUND_MS: f64 = 20.0;
/// An engine takes the better part of a second for a start.
const ENGINE_ROUNDS: usize = 20;
const IMAGE: &str = "belljar-bench";

/// A box in an image, and, beside it, what an engine of our own needs for a container of the same files.
fn measure_container(stage: &Stage, table: &Table) -> Result<Value, Failure> {
    let tree = make_tree(&stage.path("tree"))?;
    stage.belljar(&["image", "build", IMAGE, "--from-dir", &tree])?;
    let policy = "image.yaml";
    stage.write(
        policy,
        &format!("extends: moderate\nsandbox_tier: container\nimage: {IMAGE}\n"),
    )?;
    let boxed = stage.boxed(&["--config", policy], PROGRAM);
    let missing = match stage.name() {
        "root" => Engine::missing(),
        _ => Some("dockerd is for root alone"),
    };
    if let Some(why) = missing {
        let [container] = stage.race(&[("container", boxed)], ROUNDS)?;
        table.row("belljar run, container", &container);
        println!("    docker run --rm            not measured: {why}");
        return Ok(json!({ "ours_ms": container.json(), "theirs_not_measured": why }));
    }
    let engine = Engine::start(&stage.path("engine"))?;
    let archive = format!("{tree}.tar");
    stage.run(&["tar", "-C", &tree, "-cf", &archive, "."])?;
    stage.run(&engine.words(&["import", &archive, IMAGE]))?;
    let words = [&["run", "--rm", "--network=none", IMAGE], PROGRAM].concat();
    let contenders = [("container", boxed), ("docker run", engine.words(&words))];
    let [container, docker] = stage.race(&contenders, ENGINE_ROUNDS)?;
    table.row("belljar run, container", &container);
    table.row("docker run --rm", &docker);
    Ok(Table::over(
        "docker run --rm",
        [&container, &docker],
        ENGINE_BOUND_MS,
    ))
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
