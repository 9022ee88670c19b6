//! `cargo xtask bench evolve`: what judging a change costs beside the tools that judge, on a project of ten thousand files.
//!
//! The tools do nothing (`true`, `echo`), so that all the time that passes is the pipeline's own. Copies by other means take turns
//! with it in each round.

use crate::Failure;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const FILES: usize = 10_000;
const ROUNDS: usize = 10;

const MOST_WORKSPACE_MS: f64 = 150.0;
const MOST_OVERHEAD_MS: f64 = 1_000.0;
const MOST_CACHED_MS: f64 = 300.0;

/// One command for each stage that runs any, but the benchmark: how often that one runs is its own choice.
const RULES: &str = "[tests]\nfiles = []\n[[checks]]\nname = \"none\"\ncommand = [\"/bin/true\"]\n\
    [[cases]]\nname = \"none\"\ncommand = [\"/bin/echo\", \"x\"]\nexpect = \"x\"\n\
    [[scanners]]\nname = \"none\"\ncommand = [\"/bin/echo\", \"[]\"]\nfindings = \"/\"\n\
    [behaviour]\ncommand = [\"/bin/true\"]\n";
/// Commands that these rules run: the scanner and the behaviour on both trees.
const COMMANDS: f64 = 6.0;

/// Runs all measurements, prints a table and writes `target/bench/evolve.json`.
pub(crate) fn evolve(belljar: &Path, rounds: Option<&str>) -> Result<(), Failure> {
    let rounds = rounds.map_or(Ok(ROUNDS), str::parse)?.max(1);
    let report = super::in_scratch(|base| measure(belljar, base, rounds))?;
    super::write_report("evolve", &report)
}

fn measure(belljar: &Path, base: &Path, rounds: usize) -> Result<Value, Failure> {
    let belljar = &std::path::absolute(belljar)?;
    let project = base.join("project");
    make_project(&project)?;
    // The same with a history, for git, which tidies up in the background unless it is told not to.
    let repository = base.join("repository");
    make_project(&repository)?;
    git(&repository, &["init", "-q"])?;
    for (name, value) in [
        ("user.name", "bench"),
        ("user.email", "bench@localhost"),
        ("maintenance.auto", "false"),
        ("gc.auto", "0"),
    ] {
        git(&repository, &["config", name, value])?;
    }
    git(&repository, &["add", "-A"])?;
    git(&repository, &["commit", "-q", "-m", "all"])?;
    let evolve = |words: &[&str]| -> Result<(f64, Value), Failure> {
        let began = Instant::now();
        let output = Command::new(belljar)
            .arg("evolve")
            .args(words)
            .args(["--output", "json"])
            .current_dir(&project)
            .env("BELLJAR_STATE_DIR", base.join("state"))
            .stderr(Stdio::piped())
            .output()?;
        let took = ms(began);
        match output.status.success() {
            true => Ok((took, serde_json::from_slice(&output.stdout)?)),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
        }
    };
    let [
        mut copy,
        mut worktree,
        mut workspace,
        mut tool,
        mut whole,
        mut cached,
    ] = [const { Vec::new() }; 6];
    // The first round pays for what nobody has read yet.
    for round in 0..=rounds {
        let note = |times: &mut Vec<f64>, time: f64| {
            if round > 0 {
                times.push(time);
            }
        };
        let to = base.join(format!("copy-{round}"));
        let mut cp = Command::new("cp");
        note(&mut copy, timed(cp.arg("-r").args([&project, &to]))?);
        std::fs::remove_dir_all(&to)?;

        let began = Instant::now();
        let place = to.display().to_string();
        git(&repository, &["worktree", "add", "-q", "--detach", &place])?;
        note(&mut worktree, ms(began));
        git(&repository, &["worktree", "remove", "--force", &place])?;

        note(&mut tool, timed(&mut Command::new("/bin/true"))?);

        let request = base.join("request.yaml");
        std::fs::write(&request, request_of(round))?;
        let request = request.display().to_string();
        let (took, told) = evolve(&["propose", &request])?;
        note(&mut whole, took);
        let id = told["proposal"]["id"].as_str().ok_or("no proposal")?;
        let stages = told["evidence"].as_array().ok_or("no evidence")?;
        let made = stages
            .iter()
            .find_map(|stage| stage["predicate"]["facts"]["workspace_ms"].as_f64());
        note(&mut workspace, made.ok_or("no workspace was made")?);

        let (took, _) = evolve(&["check", id])?;
        note(&mut cached, took);
    }
    let [copy, worktree, workspace, tool, whole, cached] =
        [copy, worktree, workspace, tool, whole, cached].map(median);
    let overhead = whole - COMMANDS * tool;
    println!("{FILES} files, {rounds} rounds, medians");
    for (what, time) in [
        ("cp -r", copy),
        ("git worktree add", worktree),
        ("a fresh workspace for stages", workspace),
        ("propose and judge, without the tools' time", overhead),
        ("judge again, nothing changed", cached),
    ] {
        println!("{what:44} {time:>9.1} ms");
    }
    let verdicts = [
        ("a workspace within 150 ms", workspace <= MOST_WORKSPACE_MS),
        ("at most 1 s beside the tools", overhead <= MOST_OVERHEAD_MS),
        ("judged again within 300 ms", cached <= MOST_CACHED_MS),
    ];
    for (what, holds) in verdicts {
        println!("{} {what}", if holds { "ok  " } else { "MISS" });
    }
    Ok(json!({
        "files": FILES, "rounds": rounds,
        "copy_ms": copy, "git_worktree_ms": worktree, "workspace_ms": workspace,
        "overhead_ms": overhead, "cached_ms": cached,
        "holds": verdicts.iter().all(|(_, holds)| *holds),
    }))
}

/// Modules of a few kilobytes in directories of a hundred.
fn make_project(place: &Path) -> Result<(), Failure> {
    let line = "    total = total * 31 + value  # as code has it\n";
    for number in 0..FILES {
        let directory = place.join(format!("package_{}", number / 100));
        if number % 100 == 0 {
            std::fs::create_dir_all(&directory)?;
        }
        let text = format!(
            "\"\"\"Module {number}.\"\"\"\n\n\ndef work(total, value):\n{}    return total\n",
            line.repeat(10 + number % 70)
        );
        std::fs::write(directory.join(format!("module_{number}.py")), text)?;
    }
    std::fs::write(place.join("evolve.toml"), RULES)?;
    Ok(())
}

/// A change that no earlier round made.
fn request_of(round: usize) -> String {
    format!(
        "description: a function\ntarget_files: [package_0/more_{round}.py]\nrollback_plan: the tree before\nmodifications:\n  \
         - add_file:\n      file: package_0/more_{round}.py\n      text: |\n        def more():\n            return {round}\n"
    )
}

fn git(place: &Path, words: &[&str]) -> Result<(), Failure> {
    timed(Command::new("git").arg("-C").arg(place).args(words)).map(drop)
}

/// How long a command takes, in milliseconds. One that fails is an error.
fn timed(command: &mut Command) -> Result<f64, Failure> {
    let began = Instant::now();
    let status = command.stdin(Stdio::null()).status()?;
    match status.success() {
        true => Ok(ms(began)),
        false => Err(format!("{:?}: {status}", command.get_program()).into()),
    }
}

fn ms(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}
