//! Chores of this repository that are too big for the Makefile: `cargo xtask <command>`.

// A command-line tool talks to its user through these.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod vm;

use std::process::ExitCode;

/// Any failure of a chore; the message is all its user needs.
type Failure = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "\
usage: cargo xtask vm-test [--guest-only] [--timeout SECONDS]
    run the limit tests in a virtual machine with cgroup v2 and an older kernel;
    --guest-only checks just the machine itself";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["vm-test", options @ ..] => {
            vm::Options::parse(options).and_then(|options| vm::test(&options))
        }
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}
