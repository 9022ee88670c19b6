//! `cargo xtask bench image`: a build of an image whose source is unchanged, on a directory of ten thousand files.

use super::launch::Spread;
use crate::Failure;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const FILES: usize = 10_000;
const PER_DIRECTORY: usize = 50;
const ROUNDS: usize = 20;
const MOST_CACHED_MS: f64 = 50.0;

/// Prints the figures and writes `target/bench/image.json`.
pub(crate) fn image(belljar: &Path) -> Result<(), Failure> {
    let report = super::in_scratch(|base| measure(belljar, base))?;
    super::write_report("image", &report)
}

fn measure(belljar: &Path, base: &Path) -> Result<Value, Failure> {
    let belljar = &std::path::absolute(belljar)?;
    let source = base.join("source");
    for number in 0..FILES {
        let directory = source.join(format!("usr/lib/{:03}", number / PER_DIRECTORY));
        if number % PER_DIRECTORY == 0 {
            std::fs::create_dir_all(&directory)?;
        }
        let text = format!("file {number}\n").repeat(200);
        std::fs::write(directory.join(format!("{number}.txt")), text)?;
    }
    let build = |expected: bool| -> Result<f64, Failure> {
        let began = Instant::now();
        let output = Command::new(belljar)
            .args(["image", "build", "bench", "--output", "json", "--from-dir"])
            .arg(&source)
            .env("BELLJAR_STATE_DIR", base.join("state"))
            .stderr(Stdio::inherit())
            .output()?;
        let took = began.elapsed().as_secs_f64() * 1000.0;
        let told: Value = serde_json::from_slice(&output.stdout)?;
        if told["cached"] != json!(expected) {
            return Err(format!("cached should be {expected}: {told}").into());
        }
        Ok(took)
    };
    let first = build(false)?;
    let mut again = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        again.push(build(true)?);
    }
    let again = Spread::of(again);
    println!("  first build of {FILES} files      {first:>9.1} ms");
    println!(
        "  unchanged source   median {:>9.1} ms   p95 {:>9.1} ms   (bound {MOST_CACHED_MS})",
        again.median, again.p95
    );
    Ok(json!({
        "files": FILES, "first_ms": first, "cached_ms": again.json(),
        "bound_ms": MOST_CACHED_MS, "holds": again.median <= MOST_CACHED_MS,
    }))
}
