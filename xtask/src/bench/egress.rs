//! `cargo xtask bench egress`: what the way out costs, side by side with direct connections and with mitmproxy.

use crate::Failure;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Prints a table and writes `target/bench/egress.json`. The engine's own example measures; `scripts/setup.sh bench` installs
/// the mitmproxy it measures against.
pub(crate) fn egress(parts: &[&str]) -> Result<(), Failure> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["run", "--quiet", "--release", "--package", "belljar-egress"]);
    command.args(["--example", "measure", "--"]).args(parts);
    let mitmdump = mitmdump();
    match &mitmdump {
        Some(path) => {
            command.arg("--mitmdump").arg(path);
        }
        None => println!("mitmproxy is not there: scripts/setup.sh bench installs it"),
    }
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("the measurement failed: {}", output.status).into());
    }
    let report: Value = serde_json::from_slice(&output.stdout)?;
    print(&report);
    super::write_report("egress", &report)
}

/// What `scripts/setup.sh bench` installs.
fn mitmdump() -> Option<PathBuf> {
    let path = super::target().join("bench-venv/bin/mitmdump");
    // An absolute path, as the measurement has a directory of its own.
    path.canonicalize().ok()
}

fn print(report: &Value) {
    let number = |path: &str| report.pointer(path).and_then(Value::as_f64);
    let line = |what: &str, value: Option<f64>, unit: &str, bound: &str| {
        if let Some(value) = value {
            println!("  {what:<44} {value:>12.2} {unit:<8} {bound}");
        }
    };
    line(
        "decisions with 1,000 rules",
        number("/decisions/per_second").map(|rate| rate / 1e6),
        "M/s",
        "(bound 2)",
    );
    // What egress adds to a launch and to a keeper's memory in earnest is measured with real boxes, in `bench launch`.
    line(
        "start of an engine",
        number("/start/engine_us").map(|time| time / 1e3),
        "ms",
        "(bound 0.3)",
    );
    line(
        "start of an engine that looks inside",
        number("/start/inspecting_engine_us").map(|time| time / 1e3),
        "ms",
        "(bound 0.3)",
    );
    line(
        "a box's certificate authority",
        number("/start/authority_us").map(|time| time / 1e3),
        "ms",
        "",
    );
    for (what, path, bound) in [
        ("idle process with an engine", "engine_process_kib", ""),
        ("  that looks inside", "inspecting_process_kib", ""),
        (
            "  and has read whom the host trusts",
            "with_host_roots_kib",
            "(bound 12288 for a keeper)",
        ),
        ("idle connection, spliced", "spliced_kib", "(bound 64)"),
        ("  inspected, HTTP/1.1", "inspected_http1_kib", "(bound 64)"),
        ("  inspected, HTTP/2", "inspected_http2_kib", "(bound 64)"),
    ] {
        line(what, number(&format!("/idle/{path}")), "KiB", bound);
    }
    for (what, path, unit, bound) in [
        ("bulk, direct", "direct_gb_per_second", "GB/s", ""),
        ("bulk, spliced", "spliced_gb_per_second", "GB/s", ""),
        (
            "  spliced to direct",
            "spliced_to_direct",
            "x",
            "(bound 0.5)",
        ),
        ("message and answer, direct", "direct_message_us", "us", ""),
        (
            "message and answer, spliced",
            "spliced_message_us",
            "us",
            "",
        ),
    ] {
        line(what, number(&format!("/bulk/{path}")), unit, bound);
    }
    print_inspected(report);
}

/// Requests that are looked at: each contender, and what lies between them.
fn print_inspected(report: &Value) {
    let number = |name: &str, path: &str| {
        report
            .pointer(&format!("/inspected/{name}/{path}"))
            .and_then(Value::as_f64)
    };
    for name in ["direct", "belljar", "mitmproxy"] {
        let (Some(rate), Some(p50), Some(p99), Some(used)) = (
            number(name, "full/per_second"),
            number(name, "full/p50_us"),
            number(name, "full/p99_us"),
            number(name, "full/processor_us_per_request"),
        ) else {
            continue;
        };
        let calm = number(name, "calm/p50_us").unwrap_or(f64::NAN);
        let calm_rate = number(name, "calm_rate").unwrap_or(f64::NAN);
        println!(
            "  HTTPS, 850 B, 16 connections, {name:<10} {rate:>9.0} /s   p50 {p50:>7.0} us   p99 {p99:>8.0} us   \
             {used:>5.0} us of processor   p50 {calm:.0} us at {calm_rate:.0}/s"
        );
    }
    let (Some(direct), Some(own)) = (
        number("direct", "full/p50_us"),
        number("belljar", "full/p50_us"),
    ) else {
        return;
    };
    let calm = |name| number(name, "calm/p50_us").unwrap_or(f64::NAN);
    println!(
        "  added p50: {:.2} ms at full speed, {:.2} ms at {:.0} requests/s (bound 0.5)",
        (own - direct) / 1e3,
        (calm("belljar") - calm("direct")) / 1e3,
        number("belljar", "calm_rate").unwrap_or(f64::NAN),
    );
    if let (Some(own), Some(other)) = (
        number("belljar", "full/per_second"),
        number("mitmproxy", "full/per_second"),
    ) {
        println!(
            "  belljar to mitmproxy: {:.1} x (bound 10; at least 5,000/s)",
            own / other
        );
    }
}
