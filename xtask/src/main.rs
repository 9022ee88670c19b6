//! Chores of this repository that are too big for the Makefile: `cargo xtask <command>`.

// A command-line tool talks to its user through these.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod vm;

use std::process::ExitCode;

/// Any failure of a chore; the message is all its user needs.
type Failure = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "\
usage: cargo xtask vm-test [--guest-only | --kvm] [--timeout SECONDS]
    run the limit tests in a virtual machine with cgroup v2 and an older kernel;
    --guest-only checks just the machine itself; --kvm runs the microvm tier with KVM, in one whose processor has virtualisation
usage: cargo xtask bench launch
    start time, file system calls, CPU limit and memory of a box, against bare processes and bwrap;
    measures target/release/belljar, which `make bench` builds first
usage: cargo xtask bench experiment
    simulated workers a second, and memory
usage: cargo xtask bench egress [decisions | start | idle | bulk | inspected]
    the way out: rules, start, memory, bulk data, and inspected HTTPS against direct connections and mitmproxy
usage: cargo xtask bench tiers [gvisor | microvm | firecracker | container]
    start time of a box of each tier, beside `runsc do` and, as root with Debian's docker.io, `docker run`; measures target/release/belljar
usage: cargo xtask bench image
    a second build of an image of 10,000 files; measures target/release/belljar
usage: cargo xtask bench mcp
    what the gateway adds to a call of a tool, on pipes and over HTTP; measures target/release/belljar
usage: cargo xtask bench evolve [ROUNDS]
    judging a change to a project of 10,000 files, beside the tools' own time; measures target/release/belljar
usage: cargo xtask bench supervisor
    a real daemon: starts, a fleet of 500, answers, kills; measures target/release/belljar
usage: cargo xtask bench replication [memory | ledger | gate | boxes]
    decisions in memory, the log, durable grants of many clients, and real boxes: starting and killing them";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["vm-test", options @ ..] => {
            vm::Options::parse(options).and_then(|options| vm::test(&options))
        }
        ["bench", "launch"] => bench::launch(&release_binary()),
        ["bench", "experiment"] => bench::experiment(),
        ["bench", "egress", parts @ ..] => bench::egress(parts),
        ["bench", "replication", parts @ ..] => bench::replication(parts, &release_binary()),
        ["bench", "supervisor"] => bench::supervisor(&release_binary()),
        ["bench", "evolve"] => bench::evolve(&release_binary(), None),
        ["bench", "evolve", rounds] => bench::evolve(&release_binary(), Some(rounds)),
        ["bench", "tiers", parts @ ..] => bench::tiers(parts, &release_binary()),
        ["bench", "image"] => bench::image(&release_binary()),
        ["bench", "mcp"] => bench::mcp(&release_binary()),
        ["bench", "mcp-echo"] => bench::echo(),
        ["bench", "mcp-echo-http"] => bench::echo_http(),
        ["bench", "calls"] => bench::calls(),
        ["bench", "stamp", file] => bench::stamp(file),
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

fn release_binary() -> std::path::PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    std::path::Path::new(&target).join("release/belljar")
}
