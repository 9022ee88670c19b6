//! What a tier's own kernel takes beside its program, where tests measure both together.

use super::{Difference, differs};

/// What a tier's own kernel and its machine may have beside the program, in megabytes.
pub(crate) fn machines_own() -> f64 {
    match differs(Difference::MachinesMemory) {
        true => 640.0,
        false => 0.0,
    }
}

/// Seconds of processor time that no start of a box uses up, and that a program soon does.
pub(crate) fn few_cpu_seconds() -> f64 {
    match differs(Difference::MachinesTime) {
        true => 5.0,
        false => 1.0,
    }
}

/// How long a box may last that only its timeout ends, in seconds: as long as it takes for its program to do its work.
pub(crate) fn patience() -> &'static str {
    if differs(Difference::MachinesTime) {
        "20"
    } else if differs(Difference::OwnProcesses) {
        "15"
    } else {
        "2"
    }
}

/// The same where the program has next to nothing to do.
pub(crate) fn shortest_patience() -> &'static str {
    match differs(Difference::MachinesTime) {
        true => patience(),
        false => "2",
    }
}
