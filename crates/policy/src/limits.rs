//! What the whole process tree may use. `None` means no limit.

use std::time::Duration;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// Bytes in a mebibyte, the unit policy files use.
pub(crate) const MIB: u64 = 1024 * 1024;

/// Limits on the whole process tree of a box. `None` means no limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// CPU time, summed over the tree.
    pub cpu_time: Option<Duration>,
    /// Share of one CPU, in percent; 200 is two whole CPUs.
    pub cpu_percent: Option<f64>,
    /// Wall-clock time.
    pub wall_time: Option<Duration>,
    /// Processes and threads alive at once.
    pub processes: Option<u32>,
    /// Open files per process.
    pub open_files: Option<u32>,
    /// Size of any one file written, in bytes.
    pub file_size_bytes: Option<u64>,
    /// Bytes written to disk in all.
    pub disk_bytes: Option<u64>,
    /// Open outbound connections at once.
    pub connections: Option<u32>,
    /// What the agent may spend on metered services, in US dollars.
    pub cost_usd: Option<f64>,
    /// Model tokens it may use.
    pub tokens: Option<u64>,
}

/// Serialised under the names and units of the policy file, so a report reads like the file.
impl Serialize for Limits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut view = serializer.serialize_struct("Limits", 11)?;
        view.serialize_field("max_memory_mb", &self.memory_bytes.map(Mebibytes))?;
        view.serialize_field("max_cpu_seconds", &self.cpu_time.map(|t| t.as_secs_f64()))?;
        view.serialize_field("max_cpu_percent", &self.cpu_percent)?;
        view.serialize_field("max_wall_seconds", &self.wall_time.map(|t| t.as_secs_f64()))?;
        view.serialize_field("max_processes", &self.processes)?;
        view.serialize_field("max_open_files", &self.open_files)?;
        view.serialize_field("max_file_size_mb", &self.file_size_bytes.map(Mebibytes))?;
        view.serialize_field("max_disk_mb", &self.disk_bytes.map(Mebibytes))?;
        view.serialize_field("max_connections", &self.connections)?;
        view.serialize_field("max_cost_usd", &self.cost_usd)?;
        view.serialize_field("max_tokens", &self.tokens)?;
        view.end()
    }
}

/// A byte count shown in mebibytes: whole where it is whole.
struct Mebibytes(u64);

impl Serialize for Mebibytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(MIB) {
            serializer.serialize_u64(self.0 / MIB)
        } else {
            serializer.serialize_f64(self.0 as f64 / MIB as f64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_show_the_units_of_the_file() {
        let limits = Limits {
            memory_bytes: Some(512 * MIB),
            cpu_time: Some(Duration::from_millis(1500)),
            disk_bytes: Some(MIB / 2),
            ..Limits::default()
        };
        let view = serde_json::to_value(&limits).unwrap();
        assert_eq!(view["max_memory_mb"], 512);
        assert_eq!(view["max_cpu_seconds"], 1.5);
        assert_eq!(view["max_disk_mb"], 0.5);
        assert!(view["max_tokens"].is_null());
    }
}
