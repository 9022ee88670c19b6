//! How a run went, as one object.

use serde::Serialize;

/// Which limit ended a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum KilledBy {
    /// `max_memory_mb`.
    Memory,
    /// `max_cpu_seconds`.
    Cpu,
    /// `max_wall_seconds` or `--timeout`.
    Timeout,
    /// Somebody killed it from outside.
    Operator,
}

/// What the whole tree used.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResourceUsage {
    /// CPU time of all processes.
    pub cpu_seconds: f64,
    /// The most memory at any time, in MiB.
    pub peak_memory_mb: f64,
}

/// Something the box tried that a wall or a limit stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// `syscall` or `limit`.
    pub kind: &'static str,
    /// The system call, or the limit.
    pub name: String,
    /// How often, at least.
    pub count: u64,
    /// Why it is stopped.
    pub why: String,
    /// What to change, where something can be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The result of one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunResult {
    /// Which box.
    pub sandbox_id: String,
    /// The program's exit code, unless a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// From start to the last process's end.
    pub duration_ms: f64,
    /// What it used.
    pub resource_usage: ResourceUsage,
    /// The limit that ended it, if one did.
    pub killed_by: Option<KilledBy>,
    /// What it tried in vain.
    pub violations: Vec<Violation>,
    /// The wall.
    pub tier: String,
    /// What is weaker here than on a full host.
    pub degraded: Vec<String>,
    /// What held its limits.
    pub limits_by: &'static str,
    /// Whether changes wait for `belljar diff | apply | discard`.
    pub changes_kept: bool,
    /// Things the user should know.
    pub notes: Vec<String>,
    /// The captured output, where it was captured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// The captured error output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// Whether there was more output than is kept.
    pub stdout_truncated: bool,
    /// Whether there was more error output than is kept.
    pub stderr_truncated: bool,
}
