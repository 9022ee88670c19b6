//! Benchmarks: contenders take turns in one run, and only ratios or stated bounds are judged.

mod egress;
mod engine;
mod evolve;
mod experiment;
mod image;
mod launch;
mod mcp;
mod replication;
mod supervisor;
mod tiers;

pub(crate) use egress::egress;
pub(crate) use evolve::evolve;
pub(crate) use experiment::experiment;
pub(crate) use image::image;
pub(crate) use launch::{calls, launch};
pub(crate) use mcp::{echo, echo_http, mcp};
pub(crate) use replication::{replication, stamp};
pub(crate) use supervisor::supervisor;
pub(crate) use tiers::tiers;

use crate::Failure;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Writes `target/bench/NAME.json`.
fn write_report(name: &str, report: &Value) -> Result<(), Failure> {
    let directory = target().join("bench");
    std::fs::create_dir_all(&directory)?;
    let file = directory.join(format!("{name}.json"));
    std::fs::write(&file, serde_json::to_string_pretty(report)?)?;
    println!("\nwritten to {}", file.display());
    Ok(())
}

/// Where cargo puts what it makes.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

/// A directory of this run's own, gone when it ends.
fn in_scratch<T>(work: impl FnOnce(&Path) -> Result<T, Failure>) -> Result<T, Failure> {
    let base = std::env::temp_dir().join(format!("belljar-bench-{}", std::process::id()));
    let outcome = work(&base);
    let _ = std::fs::remove_dir_all(&base);
    outcome
}
