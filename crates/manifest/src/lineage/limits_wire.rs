//! The limits in a capability document: whole numbers where there are any.

use std::time::Duration;

use belljar_policy::Limits;
use serde::{Deserialize, Serialize};

use super::capability_document::Unrepresentable;
use super::wire_text::DecimalText;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsWire {
    memory_bytes: Option<u64>,
    cpu_time_ns: Option<u64>,
    cpu_percent: Option<DecimalText>,
    wall_time_ns: Option<u64>,
    processes: Option<u32>,
    open_files: Option<u32>,
    file_size_bytes: Option<u64>,
    disk_bytes: Option<u64>,
    connections: Option<u32>,
    cost_usd: Option<DecimalText>,
    tokens: Option<u64>,
}

impl LimitsWire {
    pub(super) fn of(limits: &Limits) -> Result<Self, Unrepresentable> {
        let Limits {
            memory_bytes,
            cpu_time,
            cpu_percent,
            wall_time,
            processes,
            open_files,
            file_size_bytes,
            disk_bytes,
            connections,
            cost_usd,
            tokens,
        } = limits;
        let nanoseconds = |time: &Option<Duration>| {
            let wide = time.map(|time| u64::try_from(time.as_nanos()));
            wide.transpose().map_err(|_| Unrepresentable::Number)
        };
        Ok(Self {
            memory_bytes: *memory_bytes,
            cpu_time_ns: nanoseconds(cpu_time)?,
            cpu_percent: cpu_percent.map(DecimalText),
            wall_time_ns: nanoseconds(wall_time)?,
            processes: *processes,
            open_files: *open_files,
            file_size_bytes: *file_size_bytes,
            disk_bytes: *disk_bytes,
            connections: *connections,
            cost_usd: cost_usd.map(DecimalText),
            tokens: *tokens,
        })
    }

    pub(super) fn limits(self) -> Limits {
        Limits {
            memory_bytes: self.memory_bytes,
            cpu_time: self.cpu_time_ns.map(Duration::from_nanos),
            cpu_percent: self.cpu_percent.map(|number| number.0),
            wall_time: self.wall_time_ns.map(Duration::from_nanos),
            processes: self.processes,
            open_files: self.open_files,
            file_size_bytes: self.file_size_bytes,
            disk_bytes: self.disk_bytes,
            connections: self.connections,
            cost_usd: self.cost_usd.map(|number| number.0),
            tokens: self.tokens,
        }
    }
}
