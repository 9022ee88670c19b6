//! `belljar experiment` with the real binary: runs, interruptions, gates, mistakes.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const SLOW: &str = "\
contract: {max_depth: 12, max_replicas: 3000, cooldown_seconds: 1}
population: [{strategy: greedy, lifetime: {law: exponential, seconds: 30}}]
horizon_seconds: 60
replicates: 60
max_workers: 3000
";

fn belljar(directory: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command
        .args(words)
        .current_dir(directory)
        .stdin(Stdio::null());
    command
}

fn output(directory: &Path, words: &[&str]) -> Output {
    belljar(directory, words).output().unwrap()
}

#[test]
fn gates_tell_by_the_exit_code() {
    let scratch = tempfile::tempdir().unwrap();
    let ran = output(
        scratch.path(),
        &["experiment", "run", "minimal", "--out", "out"],
    );
    assert!(ran.status.success(), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stdout).contains("every control held"));
    for (gate, code) in [
        ("{metric: peak, op: '<=', threshold: 5}", 0),
        ("{metric: peak, op: '<', threshold: 5}", 1),
        ("{metric: peak, op: '<', threshold: 5, severity: warn}", 2),
    ] {
        std::fs::write(
            scratch.path().join("gates.yaml"),
            format!("gates: [{gate}]\n"),
        )
        .unwrap();
        let judged = output(scratch.path(), &["experiment", "gate", "gates.yaml", "out"]);
        assert_eq!(judged.status.code(), Some(code), "{gate}");
    }
    let compared = output(
        scratch.path(),
        &["experiment", "compare", "out", "out", "--output", "json"],
    );
    let compared: serde_json::Value = serde_json::from_slice(&compared.stdout).unwrap();
    assert_eq!(compared["metrics"][0]["difference"]["mean"], 0.0);
}

/// A population that doubles every second and is still far below its quota when the run ends.
#[test]
fn a_population_that_doubles_passes_no_gate_on_r() {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::write(
        scratch.path().join("doubling.yaml"),
        "contract: {max_depth: 100, max_replicas: 100000, on_parent_exit: keep}\n\
         population: [{strategy: greedy, step_seconds: 1}]\n\
         horizon_seconds: 9.5\nreplicates: 3\nseed: 1\noutputs: [csv]\n",
    )
    .unwrap();
    let words = ["experiment", "run", "doubling.yaml", "--out", "out"];
    let ran = output(scratch.path(), &words);
    assert!(ran.status.success(), "{ran:?}");
    let told = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(told.contains("(risk: elevated)"), "{told}");
    assert!(
        told.contains("no bound") && told.contains("1536 of 1536 lives were cut"),
        "{told}"
    );
    let gate = |gate: &str| {
        let text = format!("gates: [{gate}]\n");
        std::fs::write(scratch.path().join("gates.yaml"), text).unwrap();
        let words = ["experiment", "gate", "gates.yaml", "out"];
        output(scratch.path(), &words).status.code()
    };
    for statistic in ["mean", "high", "low"] {
        let r = format!("{{metric: r, statistic: {statistic}, op: '<', threshold: 1}}");
        assert_eq!(gate(&r), Some(1), "{statistic}");
    }
    // Results of a version that did not count ages are compared, and what can't be is said.
    let results = scratch.path().join("out/results.jsonl");
    let text = std::fs::read_to_string(&results).unwrap();
    let old: String = text
        .lines()
        .map(|line| {
            let mut run: serde_json::Value = serde_json::from_str(line).unwrap();
            run.as_object_mut().unwrap().remove("ages");
            format!("{run}\n")
        })
        .collect();
    let before = scratch.path().join("before");
    std::fs::create_dir(&before).unwrap();
    for name in ["experiment.json", "manifest.json"] {
        let bytes = std::fs::read(scratch.path().join("out").join(name)).unwrap();
        std::fs::write(before.join(name), bytes).unwrap();
    }
    std::fs::write(before.join("results.jsonl"), &old).unwrap();
    let digest = belljar_gate::record::sha256_hex(old.as_bytes());
    let manifest = std::fs::read_to_string(before.join("manifest.json")).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    manifest["results_sha256"] = digest.into();
    std::fs::write(before.join("manifest.json"), manifest.to_string()).unwrap();
    let words = ["experiment", "compare", "before", "out", "--output", "json"];
    let compared = output(scratch.path(), &words);
    let compared: serde_json::Value = serde_json::from_slice(&compared.stdout).unwrap();
    assert!(compared["note"].as_str().unwrap().contains("r is left out"));
    let names = compared["metrics"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|row| row["metric"].as_str().unwrap()).collect();
    assert!(
        names.contains(&"peak") && !names.contains(&"r"),
        "{names:?}"
    );
}

#[test]
fn a_run_that_was_killed_goes_on_to_the_same_bytes() {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::write(scratch.path().join("slow.yaml"), SLOW).unwrap();
    let whole = output(
        scratch.path(),
        &[
            "experiment",
            "run",
            "slow.yaml",
            "--out",
            "whole",
            "--threads",
            "2",
        ],
    );
    assert!(whole.status.success(), "{whole:?}");
    let mut child = belljar(
        scratch.path(),
        &[
            "experiment",
            "run",
            "slow.yaml",
            "--out",
            "cut",
            "--threads",
            "1",
        ],
    )
    .stdout(Stdio::null())
    .stderr(Stdio::null())
    .spawn()
    .unwrap();
    // Killed once something is done; on a quick machine all of it may be, which must do no harm either.
    let progress = scratch.path().join("cut/progress.jsonl");
    let until = Instant::now() + Duration::from_secs(60);
    while std::fs::metadata(&progress).map_or(0, |data| data.len()) == 0
        && child.try_wait().unwrap().is_none()
    {
        assert!(Instant::now() < until, "nothing was done");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let resumed = output(
        scratch.path(),
        &["experiment", "resume", "cut", "--threads", "2"],
    );
    assert!(resumed.status.success(), "{resumed:?}");
    for file in [
        "results.jsonl",
        "manifest.json",
        "results.csv",
        "report.html",
    ] {
        let [one, two] = ["whole", "cut"]
            .map(|name| std::fs::read(scratch.path().join(name).join(file)).unwrap());
        assert!(one == two, "{file} differs");
    }
}

#[test]
fn mistakes_are_told_with_their_place_and_costs_before_the_start() {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::write(
        scratch.path().join("bad.yaml"),
        SLOW.replace("greedy", "greedi"),
    )
    .unwrap();
    let bad = output(
        scratch.path(),
        &["experiment", "run", "bad.yaml", "--out", "out"],
    );
    let told = String::from_utf8_lossy(&bad.stderr).into_owned();
    assert_eq!(bad.status.code(), Some(121));
    assert!(
        told.contains("bad.yaml:2:25") && told.contains("did you mean 'greedy'"),
        "{told}"
    );
    std::fs::write(
        scratch.path().join("long.yaml"),
        format!("{SLOW}limits: {{workers: 1000}}\n"),
    )
    .unwrap();
    let long = output(
        scratch.path(),
        &["experiment", "run", "long.yaml", "--out", "out"],
    );
    let told = String::from_utf8_lossy(&long.stderr).into_owned();
    assert_eq!(long.status.code(), Some(121));
    assert!(
        told.contains("180000 workers") && told.contains("limits.workers"),
        "{told}"
    );
    assert!(!scratch.path().join("out").exists(), "nothing was begun");
}

#[test]
fn the_loosest_contract_is_printed() {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::write(
        scratch.path().join("gates.yaml"),
        "gates: [{metric: peak, op: '<=', threshold: 3}]\n",
    )
    .unwrap();
    let words = [
        "experiment",
        "optimise",
        "minimal",
        "--gates",
        "gates.yaml",
        "--vary",
        "max_replicas=1..5",
    ];
    let found = output(scratch.path(), &words);
    assert_eq!(String::from_utf8_lossy(&found.stdout), "max_replicas: 3\n");
    let no_range = output(
        scratch.path(),
        &[
            "experiment",
            "optimise",
            "minimal",
            "--gates",
            "gates.yaml",
            "--vary",
            "max_replica=1..5",
        ],
    );
    assert_eq!(no_range.status.code(), Some(2));
}

/// Real boxes whose processes resist their end in every way they can; nobody survives, and the record says what happened.
#[test]
fn a_live_run_has_real_boxes_and_none_outlives_the_kill_switch() {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::write(
        scratch.path().join("live.yaml"),
        "contract: {max_depth: 1, max_replicas: 4}\n\
         population: [{strategy: shutdown_resister, step_seconds: 0.05}]\n\
         operator: [{at: 4, act: kill_switch}]\n\
         horizon_seconds: 20\n\
         replicates: 2\n",
    )
    .unwrap();
    let words = [
        "experiment",
        "run",
        "live.yaml",
        "--live",
        "--out",
        "out",
        "--output",
        "json",
    ];
    let ran = output(scratch.path(), &words);
    assert!(ran.status.success(), "{ran:?}");
    let told: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    // How many boxes there are after four seconds is the machine's matter; that there was one at least, and none is, is ours.
    let kills = told["escape"]["kills"].as_u64().unwrap();
    assert!((2..=8).contains(&kills), "{kills}");
    assert_eq!(told["escape"]["survivors"], 0);
    let metrics = &told["cells"][0]["metrics"];
    assert_eq!(metrics["broken"]["mean"], 0.0);
    assert_eq!(metrics["extinction"]["mean"], 1.0);
    assert!(metrics["containment_seconds"]["max"].as_f64().unwrap() > 0.0);
    assert_eq!(metrics["workers"]["mean"], kills as f64 / 2.0);
    // The record that it was told from can be verified, and is whole.
    for run in ["0-0", "0-1"] {
        let state = scratch.path().join("out/live").join(run).join("state");
        let mut verify = belljar(scratch.path(), &["audit", "verify", "--log", "fleet"]);
        let verified = verify.env("BELLJAR_STATE_DIR", state).output().unwrap();
        assert!(verified.status.success(), "{verified:?}");
    }
    let page = std::fs::read_to_string(scratch.path().join("out/report.html")).unwrap();
    assert!(page.contains("real boxes") && page.contains("Time to containment"));
    // Another run's lineage, from what was kept of it; one that there is not is told.
    let other = ["experiment", "report", "out", "--replicate", "1"];
    assert!(output(scratch.path(), &other).status.success());
    let lineage = std::fs::read_to_string(scratch.path().join("out/lineage.svg")).unwrap();
    assert!(lineage.contains("Lineage of run 1"), "{lineage}");
    let none = ["experiment", "report", "out", "--replicate", "9"];
    assert!(!output(scratch.path(), &none).status.success());
}

#[test]
fn what_real_boxes_cannot_do_is_refused_before_any_is_started() {
    let scratch = tempfile::tempdir().unwrap();
    for (preset, why) in [
        ("adversarial", "faults are simulated"),
        ("burst", "100 boxes at once are more than 64"),
    ] {
        let words = [
            "experiment",
            "run",
            preset,
            "--live",
            "--replicates",
            "1",
            "--out",
            "out",
        ];
        let refused = output(scratch.path(), &words);
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(121), "{told}");
        assert!(told.contains(why), "{told}");
    }
    assert!(!scratch.path().join("out/live").exists());
}
