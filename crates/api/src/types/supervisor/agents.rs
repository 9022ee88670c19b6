//! Agents that a daemon looks after.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::DeclaredView;
use crate::types::{AgentId, BudgetView, Command, Name, Reason, Shown};

/// Starts an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartRequest {
    /// What people call it.
    pub name: Name,
    /// What it runs.
    pub command: Command,
    /// Where; the daemon's own working directory where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// The text of a capability.yaml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<String>,
    /// The texts of the capability files that its `mcp.servers` name, by the names that stand there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub server_capabilities: BTreeMap<String, String>,
    /// A shipped profile, where no capability is given; `moderate` where neither is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Name>,
    /// What happens when it ends by itself.
    #[serde(default)]
    pub restart: RestartPolicy,
    /// Whether it is started again when it ran out of memory. Absent: with `always`, and not otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_on_oom: Option<bool>,
}

/// What happens when an agent ends by itself. Whoever was stopped, killed or met a limit of time or money stays ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RestartPolicy {
    /// It stays ended.
    #[default]
    Never,
    /// It is started again unless it ended with success.
    OnFailure,
    /// It is started again.
    Always,
}

/// Asks an agent to end, and ends it when it has not after the grace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StopRequest {
    /// Why; it goes to the ledger.
    pub reason: Reason,
    /// Milliseconds until it is killed; the daemon's own where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
}

/// Ends an agent kindly and starts it anew: the same command under the same capability, elsewhere if that is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RestartRequest {
    /// Why; it goes to the ledger.
    pub reason: Reason,
    /// Where it works from then on; where it did where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Milliseconds until it is killed; the daemon's own where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
}

/// Which agents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FleetQuery {
    /// Whether agents that have ended are told too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<bool>,
}

/// Agents, by start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentList {
    /// The agents.
    pub agents: Vec<AgentView>,
    /// Declared agents that do not run, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_running: Vec<DeclaredView>,
    /// The most that may live at once.
    pub max_agents: u64,
    /// When this was true.
    pub at_ms: u64,
}

/// An agent as a list shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentView {
    /// Who it is.
    pub id: AgentId,
    /// What people call it.
    pub name: Shown,
    /// Who asked for it; absent for a root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<AgentId>,
    /// Steps down from its root, which has 0.
    pub depth: u32,
    /// What it is doing.
    pub phase: AgentPhase,
    /// Since when it is.
    pub since_ms: u64,
    /// When it was started.
    pub started_at_ms: u64,
    /// How often it was started again.
    pub restarts: u32,
    /// When it will be started again, while it waits for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_at_ms: Option<u64>,
    /// What it runs, shortened.
    pub command: Shown,
    /// The capability it runs under: a profile's name or a file's.
    pub capability: Shown,
    /// What it uses now.
    pub usage: UsageNow,
    /// What it may use at most.
    pub limits: LimitsView,
    /// How its budget stands.
    pub budget: BudgetView,
    /// Alerts about it that nobody has resolved.
    pub open_alerts: u32,
    /// How it ended, where it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
}

/// What an agent is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AgentPhase {
    /// Its walls go up.
    Starting,
    /// It is at work.
    Running,
    /// It was told to hold still, and was not seen to yet: some of it may still run. One that does not in time is killed.
    Freezing,
    /// It is frozen, until somebody releases or ends it.
    Quarantined,
    /// It was asked to end.
    Stopping,
    /// It ended by itself and will be started again.
    Waiting,
    /// It ended too often in too short a time, and is not started again.
    CrashLoop,
    /// It is gone.
    Ended,
}

/// How an agent ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct End {
    /// What ended it.
    pub cause: EndCause,
    /// When.
    pub at_ms: u64,
    /// The program's exit code, unless a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The limit, or the reason somebody gave, or why it never started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Shown>,
}

/// What ended an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndCause {
    /// It ended with success.
    Finished,
    /// It ended with an error or by a signal of its own.
    Crashed,
    /// It used more memory than it may.
    OutOfMemory,
    /// It met another limit.
    Limit,
    /// Somebody asked it to end.
    Stopped,
    /// Somebody or some rule killed it.
    Killed,
    /// Its keeper ended, and so its box.
    KeeperLost,
    /// It never ran.
    NeverStarted,
}

impl EndCause {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Crashed => "crashed",
            Self::OutOfMemory => "out_of_memory",
            Self::Limit => "limit",
            Self::Stopped => "stopped",
            Self::Killed => "killed",
            Self::KeeperLost => "keeper_lost",
            Self::NeverStarted => "never_started",
        }
    }
}

/// What an agent uses now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UsageNow {
    /// Hundredths of one core, over the last sample.
    pub cpu_percent: f64,
    /// CPU time so far, in milliseconds.
    pub cpu_ms: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub processes: u64,
    /// Bytes read from disks so far.
    pub read_bytes: u64,
    /// Bytes written to disks so far.
    pub written_bytes: u64,
    /// Bytes sent through the gateway so far.
    pub sent_bytes: u64,
    /// Bytes received through it so far.
    pub received_bytes: u64,
    /// Tokens of models so far.
    pub tokens: u64,
    /// What they cost so far, in millionths of a US dollar.
    pub micro_usd: u64,
}

/// What an agent's own box may use at most; absent where nothing limits it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LimitsView {
    /// Bytes of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Hundredths of one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
    /// CPU time, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// Tokens of models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Millionths of a US dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_usd: Option<u64>,
}

/// Everything about one agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentDetail {
    /// As a list shows it.
    pub agent: AgentView,
    /// The keeper's process, while it lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper_pid: Option<u32>,
    /// Its own children.
    pub children: Vec<AgentId>,
    /// The directory it works in.
    pub workdir: String,
    /// The wall.
    pub tier: Shown,
    /// The image whose files it has, if not the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageView>,
    /// What holds its limits.
    pub limits_by: Shown,
    /// What is weaker here than on a full host.
    pub degraded: Vec<Shown>,
    /// Its capability, as a file that `belljar run --config` takes.
    pub policy: String,
    /// What it was refused, the newest first.
    pub denials: Vec<Denial>,
}

/// An image that an agent runs in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageView {
    /// What it was called when the agent was started.
    pub name: Shown,
    /// What it is known by: a name may come to mean another image, this can't.
    pub digest: Shown,
}

/// Something an agent was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Denial {
    /// What sort of thing.
    pub kind: DenialKind,
    /// A stable word, such as `deny_host`.
    pub code: Shown,
    /// The host and port, the path, the system call or the limit.
    pub what: Shown,
    /// How often, at least.
    pub count: u64,
    /// When last.
    pub last_at_ms: u64,
    /// Why.
    pub why: Shown,
    /// The line of policy that would allow it, where one could.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_with: Option<Shown>,
}

/// What sort of thing was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DenialKind {
    /// A host or a port.
    Network,
    /// A system call.
    SystemCall,
    /// A limit.
    Limit,
    /// A replica.
    Replication,
    /// A tool.
    Tool,
}

/// Processes of a box.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessList {
    /// The processes, parents first.
    pub processes: Vec<ProcessView>,
}

/// A process of a box.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessView {
    /// Its number on the host.
    pub pid: u32,
    /// Its parent's.
    pub parent: u32,
    /// Its command line, shortened.
    pub command: Shown,
    /// One letter: R, S, D, T or Z.
    pub state: Shown,
    /// CPU time so far, in milliseconds.
    pub cpu_ms: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Threads.
    pub threads: u64,
}

/// Which part of an agent's output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OutputQuery {
    /// Which stream; standard output where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<OutputStream>,
    /// From this byte on, as an earlier answer's `next` said; the last part where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// The most bytes; at most 256 KiB, which it is where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most: Option<u64>,
}

/// A stream of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    /// Standard output.
    #[default]
    Stdout,
    /// Error output.
    Stderr,
}

/// A part of an agent's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputReply {
    /// The text; what is not UTF-8 is replaced. It may hold anything: whoever shows it sees to that.
    pub text: String,
    /// Where this part begins.
    pub from: u64,
    /// Where the next begins.
    pub next: u64,
    /// Whether there will be no more.
    pub is_end: bool,
    /// Bytes before `from` that are not kept any more.
    pub dropped: u64,
}
