//! Figures of the egress engine, beside direct connections and beside mitmproxy: `cargo xtask bench egress`.
//!
//! Prints one JSON object. Contenders take turns, round by round, so that a noisy machine is noisy to all of them. The
//! engine runs in a process of its own, so that its memory and its processor time are its own.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    missing_docs,
    reason = "a measurement fails by panicking"
)]

mod bulk;
mod decisions;
mod engine;
mod idle;
mod inspected;
mod origin;
mod process;

use serde_json::{Map, Value};

const PARTS: [&str; 5] = ["decisions", "start", "idle", "bulk", "inspected"];
/// The host that every measurement is about: one that every contender finds at 127.0.0.1.
const NAME: &str = "localhost";

fn main() {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "engine") {
        return engine::serve(&words[1..]);
    }
    let mitmdump = match words.iter().position(|word| word == "--mitmdump") {
        Some(at) => words.drain(at..at + 2).nth(1),
        None => None,
    };
    let mut report = Map::new();
    for part in PARTS {
        if !words.is_empty() && !words.iter().any(|word| word == part) {
            continue;
        }
        eprintln!("measuring: {part}");
        let measured = match part {
            "decisions" => decisions::measure(),
            "start" => engine::measure_start(),
            "idle" => idle::measure(),
            "bulk" => bulk::measure(),
            _ => inspected::measure(mitmdump.as_deref()),
        };
        report.insert(part.to_owned(), measured);
    }
    println!("{}", Value::Object(report));
}

/// The middle one.
fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A runtime of one thread, as the engine's is.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}
