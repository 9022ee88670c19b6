//! What the two protocols say.
//!
//! Requests refuse unknown fields: a misspelt limit must not be no limit. Replies allow them, so that an older client
//! understands a newer server within `/v1`.

mod agent;
mod budget;
mod command;
mod ids;
mod operator;
mod problem;
mod supervisor;
pub(crate) mod text;

pub use agent::{
    Child, ChildUsage, Done, Empty, HeartbeatReply, ManifestReply, Narrowing, ProposalView,
    ProposalsReply, ProposeRequest, Proposed, ReplicasReply, ReplicateRequest, Replicated,
    ShutdownRequest, StateText, TierName, UsageReply, UsageReport,
};
pub use budget::{Amounts, Budget, BudgetView};
pub use command::Command;
pub use ids::{AgentId, AlertId, HoldId, ProposalName, SilenceId, WorkerId};
pub use operator::{
    Because, ClockAcknowledged, ClockState, ClockView, ContractView, Counts, EndedBy,
    EngageRequest, Engagement, EpochBumped, KillReport, KillRequest, KillSwitchView, LedgerView,
    OnParentExit, OnTrigger, ResetRequest, RevokeRequest, Revoked, StatusView, StopCondition,
    SubtreeRequest, WorkerList, WorkerState, WorkerView,
};
pub use problem::Problem;
pub use supervisor::*;
pub use text::{InvalidText, Line, Name, Reason, Shown};
