//! What an operator and the supervisor say to each other. Times are milliseconds since 1970 where not said otherwise.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Budget, BudgetView, Reason, Shown, WorkerId};

/// A request that needs a reason and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Because {
    /// Why; it goes to the ledger.
    pub reason: Reason,
}

/// Quarantines or releases a worker, alone or with all below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubtreeRequest {
    /// Why; it goes to the ledger.
    pub reason: Reason,
    /// All below it too.
    #[serde(default)]
    pub subtree: bool,
}

impl From<Because> for SubtreeRequest {
    fn from(because: Because) -> Self {
        Self {
            reason: because.reason,
            subtree: false,
        }
    }
}

/// How the supervisor does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatusView {
    /// Belljar's version.
    pub version: Shown,
    /// When the supervisor started.
    pub started_at_ms: u64,
    /// How long ago that was, by a clock that nobody sets.
    pub uptime_ms: u64,
    /// Workers by state.
    pub workers: Counts,
    /// What is stopped for good.
    pub kill_switch: KillSwitchView,
    /// The epoch that manifests must carry.
    pub epoch: u64,
    /// Whether the wall clock can be trusted.
    pub clock: ClockView,
    /// Whether decisions can be recorded.
    pub ledger: LedgerView,
}

/// Workers by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Counts {
    /// Granted, and their box not up yet.
    pub starting: u64,
    /// At work.
    pub running: u64,
    /// Told to hold still, and not seen to yet.
    pub freezing: u64,
    /// Frozen.
    pub quarantined: u64,
    /// Gone, and still remembered.
    pub ended: u64,
}

/// Whether the wall clock can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClockView {
    /// Its state.
    pub state: ClockState,
    /// The latest time ever seen.
    pub high_water_ms: u64,
}

/// A clock that went back denies every grant until an operator acknowledges it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClockState {
    /// It has only gone forward.
    Steady,
    /// It was set back.
    WentBack,
}

/// Whether decisions can be recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerView {
    /// Entries in it.
    pub entries: u64,
    /// Why it can't be written; grants are refused as long as this is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Shown>,
}

/// Workers. In `GET /v1/workers` by start, in `GET /v1/tree` depth first: each parent is followed by all below it.
///
/// A tree comes as a list so that a deep lineage is no deeper JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerList {
    /// The workers.
    pub workers: Vec<WorkerView>,
}

/// A worker as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerView {
    /// Its name.
    pub id: WorkerId,
    /// Who asked for it; absent for a root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<WorkerId>,
    /// Steps down from its root, which has 0.
    pub depth: u32,
    /// What it is doing.
    pub state: WorkerState,
    /// When it was granted.
    pub started_at_ms: u64,
    /// How long ago that was, by a clock that nobody sets; until its end where it has ended.
    pub age_ms: u64,
    /// Milliseconds until it is ended; absent where nothing ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
    /// Milliseconds since it last said that it lives; absent where it never did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_ms: Option<u64>,
    /// What it runs, shortened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Shown>,
    /// How its budget stands.
    pub budget: BudgetView,
    /// What ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<EndedBy>,
}

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// Granted, and its box not up yet.
    Starting,
    /// At work.
    Running,
    /// Told to hold still, and not seen to yet: some of it may still run. One that does not in time is killed.
    Freezing,
    /// Frozen, evidence kept, until an operator releases or kills it.
    Quarantined,
    /// Gone.
    Ended,
}

/// What ended a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EndedBy {
    /// A stable word, such as `exited`, `reap_stale` or `kill_switch_engaged`.
    pub code: Shown,
    /// The reason somebody gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Shown>,
}

/// Ends a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KillRequest {
    /// Why; it goes to the ledger.
    pub reason: Reason,
    /// Whether everything below it ends too.
    pub subtree: bool,
}

/// What a kill did. The kill comes first and its record after.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KillReport {
    /// Workers ended.
    pub killed: u64,
    /// Boxes that were up and are gone.
    pub boxes: u64,
    /// Boxes that still have a live process. Anything but 0 needs a person.
    pub survivors: u64,
    /// From the request to the end of the last process, in microseconds.
    pub elapsed_us: u64,
    /// The ledger's entry about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<u64>,
    /// Why there is no entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_recorded: Option<Shown>,
    /// What holds the kill switch, where that was engaged; absent where nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<Shown>,
}

/// Ends everything and refuses every grant until it is reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngageRequest {
    /// Why; it goes to the ledger.
    pub reason: Reason,
}

/// Lets grants through again. Nothing that was killed comes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResetRequest {
    /// Why; it goes to the ledger.
    pub reason: Reason,
}

/// Whether the kill switch is engaged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KillSwitchView {
    /// Since when and why; absent where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engaged: Option<Engagement>,
}

/// An engaged kill switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Engagement {
    /// Why.
    pub reason: Shown,
    /// Since when.
    pub since_ms: u64,
    /// What holds it: the state directory, or where that could not be written to something that does not last as long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<Shown>,
}

/// Revokes a worker's manifest, and with it every manifest below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeRequest {
    /// Whose.
    pub worker_id: WorkerId,
    /// Why; it goes to the ledger.
    pub reason: Reason,
}

/// What a revocation did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Revoked {
    /// Manifests that are void now.
    pub manifests: u64,
    /// What became of the workers that held them.
    pub report: KillReport,
}

/// A new epoch began: every manifest of the old one is void.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EpochBumped {
    /// The new epoch.
    pub epoch: u64,
    /// What became of the old one's workers.
    pub report: KillReport,
}

/// The clock counts as steady again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClockAcknowledged {
    /// The clock as it is now.
    pub clock: ClockView,
}

/// The contract that replication is held to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContractView {
    /// Steps down from a root.
    pub max_depth: u32,
    /// Workers alive at once, roots included.
    pub max_replicas: u64,
    /// Between two children of one parent, in milliseconds.
    pub cooldown_ms: u64,
    /// Until a worker is ended, in milliseconds; absent where nothing says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiration_ms: Option<u64>,
    /// What becomes of children whose parent is gone.
    pub on_parent_exit: OnParentExit,
    /// What a root is given.
    pub budget: Budget,
    /// What stops replication.
    pub stop_conditions: Vec<StopCondition>,
}

/// What becomes of children whose parent is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnParentExit {
    /// They go on.
    Keep,
    /// They end too.
    Kill,
}

/// What stops replication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StopCondition {
    /// Its name.
    pub name: Shown,
    /// The expression, as in the file, shortened.
    pub expression: Shown,
    /// What happens when it holds.
    pub on_trigger: OnTrigger,
}

/// What happens when a stop condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTrigger {
    /// Grants are refused.
    Deny,
    /// The worker is frozen.
    Quarantine,
    /// The worker is ended.
    Kill,
}
