//! What another process uses.

use std::fs::read_to_string;

/// Memory that is in use, in KiB.
pub(crate) fn resident(id: u32) -> f64 {
    let status = read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Processor time that a process has used, in seconds.
pub(crate) fn processor_seconds(id: u32) -> f64 {
    const TICKS: f64 = 100.0;
    let stat = read_to_string(format!("/proc/{id}/stat")).unwrap();
    // The name in brackets may hold anything; user and system time are the 12th and 13th words after it.
    let rest = &stat[stat.rfind(')').unwrap() + 1..];
    let ticks = rest.split_whitespace().skip(11).take(2);
    ticks.map(|word| word.parse::<f64>().unwrap()).sum::<f64>() / TICKS
}
