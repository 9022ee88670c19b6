//! How a run went, as one object.

use serde::Serialize;

/// What ended a box before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KilledBy {
    /// `max_memory_mb`.
    Memory,
    /// `max_cpu_seconds`.
    Cpu,
    /// `max_wall_seconds` or `--timeout`.
    Timeout,
    /// `max_tokens`.
    Tokens,
    /// `max_cost_usd`.
    Cost,
    /// Somebody killed it from outside.
    Killed {
        /// Who, or why.
        by: KillCode,
    },
}

impl KilledBy {
    /// A stable word.
    pub fn as_str(self) -> &'static str {
        match self {
            KilledBy::Memory => "memory",
            KilledBy::Cpu => "cpu",
            KilledBy::Timeout => "timeout",
            KilledBy::Tokens => "tokens",
            KilledBy::Cost => "cost",
            KilledBy::Killed { by } => by.as_str(),
        }
    }
}

impl Serialize for KilledBy {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

/// Why somebody killed a box, as a stable word such as `kill_switch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KillCode(&'static str);

impl KillCode {
    /// A person, or a program that gives no other reason.
    pub const OPERATOR: Self = Self("operator");
    /// The kill switch.
    pub const KILL_SWITCH: Self = Self("kill_switch");
    /// Its time was up by contract.
    pub const EXPIRED: Self = Self("expired");
    /// It gave no sign of life.
    pub const REAPED: Self = Self("reaped");
    /// Its parent ended.
    pub const PARENT_EXIT: Self = Self("parent_exit");
    /// Its keeper was told to end, by a signal, and it did not end in time, or the signal came again.
    pub const SIGNALLED: Self = Self("signalled");
    /// It was to hold still, and did not in time.
    pub const NOT_FROZEN: Self = Self("not_frozen");
    /// Its pid 1 died, and nobody had ordered it.
    pub const INIT_DIED: Self = Self("init_died");

    /// Nobody came back to look after it.
    pub const ORPHANED: Self = Self("orphaned");

    /// A code of the caller's own.
    ///
    /// # Panics
    /// Unless it is made of lower-case letters and underscores. In a constant that is an error of compilation.
    pub const fn new(code: &'static str) -> Self {
        let bytes = code.as_bytes();
        assert!(!bytes.is_empty(), "a kill code is a word");
        let mut at = 0;
        while at < bytes.len() {
            assert!(
                bytes[at].is_ascii_lowercase() || bytes[at] == b'_',
                "a kill code is made of lower-case letters and underscores"
            );
            at += 1;
        }
        Self(code)
    }

    /// As text.
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

/// What the whole tree used.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResourceUsage {
    /// CPU time of all processes.
    pub cpu_seconds: f64,
    /// The most memory at any time, in MiB.
    pub peak_memory_mb: f64,
    /// The most processes and threads at any time, where they are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_processes: Option<u64>,
}

/// Something the box tried that a wall or a limit stopped, or something of it to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// `syscall` or `limit`; `cover` for a path that the host uncovered for a moment; `git` for what makes git run a program.
    pub kind: &'static str,
    /// The system call, the limit, or the path.
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
    /// The limit or person that ended it, if one did.
    pub killed_by: Option<KilledBy>,
    /// Processes that the program left behind when it ended, by name, if they were waited for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<String>,
    /// How it was frozen, if it was: `cgroup`, `tracing` or `signals`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen_by: Option<&'static str>,
    /// What it tried in vain.
    pub violations: Vec<Violation>,
    /// What it used of the network, and what it was refused there; nothing when the network is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<crate::network::NetworkUsage>,
    /// What it was seen to do, if it was watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<crate::observation::Observation>,
    /// The wall.
    pub tier: String,
    /// The image whose files it had, if not the host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<crate::UsedImage>,
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
