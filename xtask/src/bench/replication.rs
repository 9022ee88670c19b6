//! `cargo xtask bench replication`: what replication costs, from a decision in memory to boxes of real processes.

use crate::Failure;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Boxes of the kill switch's measurement, and processes in each.
const BOXES: usize = 200;
const PROCESSES: usize = 5;
/// Replicas whose start is timed.
const STARTS: usize = 60;

/// Runs the parts that are named, or all. What makes files comes before what leaves thousands of deleted ones: ext4 is slow to
/// give out their numbers again, for minutes.
pub(crate) fn replication(parts: &[&str], belljar: &Path) -> Result<(), Failure> {
    const ALL: &[&str] = &["memory", "gate", "ledger", "boxes"];
    let parts = if parts.is_empty() { ALL } else { parts };
    if let Some(unknown) = parts.iter().find(|part| !ALL.contains(part)) {
        return Err(format!("no such part: {unknown}; there are {}", ALL.join(", ")).into());
    }
    let mut report = serde_json::Map::new();
    for part in parts {
        println!("\n{part}");
        let measured = match *part {
            "memory" => example("belljar-replication", "speed")?,
            "ledger" => example("belljar-ledger", "measure")?,
            "gate" => example("belljar-gate", "grants")?,
            _ => super::in_scratch(|base| boxes(belljar, base))?,
        };
        report.insert((*part).to_owned(), measured);
    }
    super::write_report("replication", &Value::Object(report))
}

/// A crate's own measurement; its lines are the report.
pub(super) fn example(package: &str, name: &str) -> Result<Value, Failure> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "run",
            "--quiet",
            "--release",
            "--package",
            package,
            "--example",
            name,
        ])
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    print!("{text}");
    if !output.status.success() {
        return Err(format!("{package}'s {name} failed: {}", output.status).into());
    }
    Ok(json!(text.lines().collect::<Vec<_>>()))
}

/// Real boxes: how soon a replica runs, and how soon all are dead.
fn boxes(belljar: &Path, base: &Path) -> Result<Value, Failure> {
    let work = base.join("work");
    std::fs::create_dir_all(&work)?;
    let own = base.join("work/xtask");
    std::fs::copy(std::env::current_exe()?, &own)?;
    std::fs::copy(belljar, base.join("belljar"))?;
    std::fs::write(
        work.join("contract.yaml"),
        "max_depth: 1\nmax_replicas: 1000\ncooldown_seconds: 0\n",
    )?;
    let start = first_instruction(base, &work)?;
    let kill = kill_switch(base, &work)?;
    Ok(json!({"first_instruction_ms": start, "kill": kill}))
}

fn belljar(base: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(base.join("belljar"));
    command
        .args(words)
        .current_dir(base.join("work"))
        .env("BELLJAR_STATE_DIR", base.join("state"))
        .stdin(Stdio::null());
    command
}

/// A family whose root runs this script; ended by its own pid.
struct Family(Child);

impl Family {
    fn start(base: &Path, script: &str) -> Result<Self, Failure> {
        let words = [
            "run",
            "--quiet",
            "--contract",
            "contract.yaml",
            "--",
            "/usr/bin/python3",
            "-c",
            script,
        ];
        Ok(Self(belljar(base, &words).spawn()?))
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks its keeper without starting another program, so that only the start of the replica is measured.
const ASK: &str = r#"
import json, socket, sys, time
def ask(command):
    door = socket.socket(socket.AF_UNIX)
    door.connect("/belljar/agent.sock")
    body = json.dumps({"reason": "bench", "command": command}).encode()
    head = "POST /v1/replicate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    door.sendall(head.encode() + body)
    answer = door.makefile("rb").read()
    if b" 201 " not in answer.split(b"\r\n")[0]:
        sys.exit(answer.decode())
"#;

/// From the request to the replica's first instruction of its own, in milliseconds.
fn first_instruction(base: &Path, work: &Path) -> Result<Value, Failure> {
    let script = format!(
        r#"{ASK}
import os
for number in range({STARTS}):
    name = "stamp-%d" % number
    began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    ask(["./xtask", "bench", "stamp", name])
    while not os.path.exists(name + ".done"):
        time.sleep(0.001)
    with open("asked", "a") as file:
        print(began, file=file)
    time.sleep(0.05)
"#
    );
    let mut family = Family::start(base, &script)?;
    let status = family.0.wait()?;
    if !status.success() {
        return Err(format!("the family ended with {status}").into());
    }
    let asked = std::fs::read_to_string(work.join("asked"))?;
    let mut times = Vec::new();
    for (number, began) in asked.lines().enumerate() {
        let stamped = std::fs::read_to_string(work.join(format!("stamp-{number}.done")))?;
        let took = stamped.trim().parse::<f64>()? - began.parse::<f64>()?;
        times.push(took / 1e6);
    }
    times.sort_by(f64::total_cmp);
    let at = |part: f64| {
        times
            .get((times.len() as f64 * part) as usize)
            .copied()
            .unwrap_or(f64::NAN)
    };
    println!(
        "  {:<36} {:>8.1} ms median, {:.1} p95 (bound 15)",
        "request to first instruction",
        at(0.5),
        at(0.95)
    );
    Ok(json!({"median": at(0.5), "p95": at(0.95)}))
}

/// Writes when it was started: the first thing it does.
pub(crate) fn stamp(file: &str) -> Result<(), Failure> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let now = u128::try_from(now.tv_sec)? * 1_000_000_000 + u128::try_from(now.tv_nsec)?;
    let done = PathBuf::from(format!("{file}.done"));
    let fresh = PathBuf::from(format!("{file}.new"));
    std::fs::write(&fresh, now.to_string())?;
    std::fs::rename(fresh, done)?;
    Ok(())
}

/// From the order to zero processes.
fn kill_switch(base: &Path, work: &Path) -> Result<Value, Failure> {
    let script = format!(
        r#"{ASK}
for number in range({BOXES} - 1):
    ask(["/bin/sh", "-c", "trap '' TERM; for i in 2 3 4 {PROCESSES}; do sleep 1000 & done; echo up >> up; wait"])
print("asked", flush=True)
time.sleep(1000)
"#
    );
    let family = Family::start(base, &script)?;
    let until = Instant::now() + Duration::from_secs(180);
    let up = work.join("up");
    while std::fs::read_to_string(&up).map_or(0, |text| text.lines().count()) < BOXES - 1 {
        if Instant::now() > until {
            return Err("the boxes did not come up".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_secs(2));
    let output = belljar(
        base,
        &[
            "replication",
            "kill-switch",
            "engage",
            "--reason",
            "bench",
            "--output",
            "json",
        ],
    )
    .output()?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    drop(family);
    let elapsed = report["elapsed_us"].as_f64().ok_or("no elapsed_us")? / 1000.0;
    println!(
        "  {:<36} {elapsed:>8.1} ms for {} boxes, {} survivors (bound 500)",
        "kill switch to zero processes", report["boxes"], report["survivors"]
    );
    Ok(report)
}
