//! What an operator and the supervisor daemon say about a fleet of agents. Times are milliseconds since 1970.
//!
//! Everything an agent had a hand in is [`Shown`]: cut to length and without control characters. What is asked with `GET`
//! stands in the query, so its fields are plain words and numbers.

mod agents;
mod alerts;
mod declared;
mod events;
mod holds;
mod ledger;
mod live;
mod metrics;
mod proposals;

pub use agents::{
    AgentDetail, AgentList, AgentPhase, AgentView, Denial, DenialKind, End, EndCause, FleetQuery,
    ImageView, LimitsView, OutputQuery, OutputReply, OutputStream, ProcessList, ProcessView,
    RestartPolicy, RestartRequest, StartRequest, StopRequest, UsageNow,
};
pub use alerts::{
    AlertKind, AlertList, AlertQuery, AlertState, AlertView, AlertsResolved, ResolveAlertsRequest,
    Response, ResponseTaken, Severity, SilenceList, SilenceRequest, SilenceView,
};
pub use declared::{
    AgentChange, ChangeOfAgent, DeclaredReply, DeclaredState, DeclaredView, ReloadReply,
    ReloadRequest, StartDeclaredRequest,
};
pub use events::{EventKind, EventList, EventQuery, EventView};
pub use holds::{HoldAnswerRequest, HoldList, HoldView};
pub use ledger::{LedgerEntries, LedgerEntry, LedgerQuery, LedgerReport, ProofReply};
pub use live::{Live, NewEvent};
pub use metrics::{MetricsQuery, MetricsReply, Sample};
pub use proposals::{
    CodeLine, CodePart, CodeTint, ProposalCommand, ProposalDetail, ProposalDigests, ProposalFile,
    ProposalImpact, ProposalList, ProposalReason, ProposalReview, ProposalRisk, ProposalRow,
    ProposalStage, ProposalStats, ProposalStatus, ReviewStatement, RolloutInstance, RolloutStep,
    RolloutView, StageFact, StageVerdict,
};
