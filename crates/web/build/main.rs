//! Puts the built dashboard into the library, where the feature `dashboard` is on.

#![allow(clippy::print_stdout, reason = "cargo hears a build script this way")]

mod pack;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build");
    if env::var_os("CARGO_FEATURE_DASHBOARD").is_none() {
        return ExitCode::SUCCESS;
    }
    let place = |name| PathBuf::from(env::var_os(name).unwrap_or_default());
    let dist = place("CARGO_MANIFEST_DIR").join("../../dashboard/dist");
    println!("cargo::rerun-if-changed={}", dist.display());
    match pack::pack(&dist, &place("OUT_DIR")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            for line in problem.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}
