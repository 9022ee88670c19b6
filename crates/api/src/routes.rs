//! The routes: one table for serving, asking and OpenAPI.

use crate::json;
use crate::route::{Asker, NoTarget, Route, RouteInfo, Target, find};
use crate::server::{Answer, Asked, Call, Responder};
use crate::types::{
    AgentDetail, AgentId, AgentList, AgentView, AlertId, AlertList, AlertQuery, AlertView,
    AlertsResolved, Because, ClockAcknowledged, ContractView, DeclaredReply, Done, Empty,
    EngageRequest, EpochBumped, EventList, EventQuery, FleetQuery, HeartbeatReply,
    HoldAnswerRequest, HoldId, HoldList, HoldView, KillReport, KillRequest, KillSwitchView,
    LedgerEntries, LedgerQuery, LedgerReport, ManifestReply, MetricsQuery, MetricsReply,
    OutputQuery, OutputReply, Problem, ProcessList, ProofReply, ProposalDetail, ProposalList,
    ProposalName, ProposalsReply, ProposeRequest, Proposed, ReloadReply, ReloadRequest,
    ReplicasReply, ReplicateRequest, Replicated, ResetRequest, ResolveAlertsRequest,
    RestartRequest, RevokeRequest, Revoked, ShutdownRequest, SilenceId, SilenceList,
    SilenceRequest, SilenceView, StartDeclaredRequest, StartRequest, StatusView, StopRequest,
    SubtreeRequest, UsageReply, UsageReport, WorkerId, WorkerList, WorkerView,
};
use crate::{Method, Status};

/// Makes of each line: a type that names the route, its place in the table, and its case of the calls' enum. So a route
/// can't be served without being documented, nor the other way round.
macro_rules! routes {
    (
        $(#[$about_calls:meta])* enum $calls:ident as $side:ident;
        $(#[$about_table:meta])* const $table:ident;
        $(
            $(#[doc = $doc:literal])+
            $name:ident = $method:ident $path:literal ($target:ty) $request:ty => $status:ident $response:ty, by $asker:ident;
        )+
    ) => {
        $(
            $(#[doc = $doc])+
            #[derive(Debug)]
            pub enum $name {}

            impl Route for $name {
                type Target = $target;
                type Request = $request;
                type Response = $response;
                const METHOD: Method = Method::$method;
                const PATH: &'static str = $path;
                const SUCCESS: Status = Status::$status;
                const ASKER: Asker = Asker::$asker;
            }
        )+

        $(#[$about_table])*
        pub const $table: &[RouteInfo] = &[
            $(RouteInfo::of::<$name>(stringify!($name), concat!($($doc),+)),)+
        ];

        $(#[$about_calls])*
        #[derive(Debug)]
        pub enum $calls {
            $($(#[doc = $doc])+ $name(Asked<$name>),)+
        }

        impl $calls {
            /// Refuses, whatever was asked.
            pub fn refuse(self, status: Status, problem: &Problem) {
                match self {
                    $(Self::$name(asked) => asked.responder.refuse(status, problem),)+
                }
            }

            /// The route's name, for records.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($name),)+
                }
            }

            /// The line of the table that a request is for: who may ask is known before its body is read.
            pub fn route(method: &str, path: &str) -> Result<&'static RouteInfo, (Status, Problem)> {
                find($table, method, path).map(|found| &$table[found.index]).map_err(|error| error.told(method))
            }

            /// Reads a request that another server carries, with the line of the table it is for. What comes of it is
            /// carried back as a status and a body of JSON, of at most `most_bytes`.
            pub fn carried(
                method: &str,
                path: &str,
                body: &[u8],
                most_bytes: usize,
                carry: impl FnOnce(Status, Vec<u8>) + Send + 'static,
            ) -> Result<(&'static RouteInfo, Self), (Status, Problem)> {
                let found = find($table, method, path).map_err(|error| error.told(method))?;
                let answer = || Answer::elsewhere(most_bytes, carry);
                let call = Self::read(found.index, found.target, found.query, body, answer)
                    .map_err(|problem| (Status::BAD_REQUEST, problem))?;
                match call {
                    Call::$side(call) => Ok((&$table[found.index], call)),
                    #[allow(unreachable_patterns)]
                    _ => Err((Status::NOT_FOUND, Problem::new("not_found", "there is nothing at this path"))),
                }
            }

            /// Reads the body of a request for the line `index` of the table.
            pub(crate) fn read(
                index: usize,
                target: Option<&str>,
                query: &str,
                body: &[u8],
                answer: impl FnOnce() -> Answer,
            ) -> Result<Call, Problem> {
                let mut line = 0;
                $(
                    if index == line {
                        return Ok(Call::from(Self::$name(Asked {
                            target: <$target as Target>::from_path(target)?,
                            request: match Method::$method {
                                Method::Get if !query.is_empty() => json::read_query(query)?,
                                _ => json::read_request(body)?,
                            },
                            responder: Responder::new(answer()),
                        })));
                    }
                    line += 1;
                )+
                let known = line;
                Err(Problem::new("not_found", format!("line {index} of {known} routes")))
            }
        }

        impl From<$calls> for Call {
            fn from(call: $calls) -> Self {
                Self::$side(call)
            }
        }
    };
}

routes! {
    /// What an agent asks. Who it is, the socket says.
    enum AgentCall as Agent;
    /// The routes of an agent's socket.
    const AGENT_ROUTES;

    /// Asks for a child. Refused with 403 and a code such as `deny_quota`.
    Replicate = Post "/v1/replicate" (NoTarget) ReplicateRequest => CREATED Replicated, by Agent;
    /// Says that the agent lives.
    Heartbeat = Post "/v1/heartbeat" (NoTarget) Empty => OK HeartbeatReply, by Agent;
    /// The agent's own signed manifest.
    Manifest = Get "/v1/manifest" (NoTarget) Empty => OK ManifestReply, by Agent;
    /// How the agent's budget stands.
    Usage = Get "/v1/usage" (NoTarget) Empty => OK UsageReply, by Agent;
    /// Reports what was used, where nothing outside the agent measures it.
    ReportUsage = Post "/v1/usage" (NoTarget) UsageReport => OK Done, by Agent;
    /// The agent's live children.
    Replicas = Get "/v1/replicas" (NoTarget) Empty => OK ReplicasReply, by Agent;
    /// Proposes a change to the agent's own code. It is kept until an operator has it judged.
    Propose = Post "/v1/proposals" (NoTarget) ProposeRequest => CREATED Proposed, by Agent;
    /// What the agent proposed, and what became of it.
    Proposals = Get "/v1/proposals" (NoTarget) Empty => OK ProposalsReply, by Agent;
    /// Ends the agent and everything in its box.
    Shutdown = Post "/v1/shutdown" (NoTarget) ShutdownRequest => OK Done, by Agent;
}

routes! {
    /// What an operator asks.
    enum OperatorCall as Operator;
    /// The routes of the operator's socket.
    const OPERATOR_ROUTES;

    /// How the supervisor does.
    ReadStatus = Get "/v1/status" (NoTarget) Empty => OK StatusView, by Viewer;
    /// All workers, by start.
    ListWorkers = Get "/v1/workers" (NoTarget) Empty => OK WorkerList, by Viewer;
    /// All workers, depth first.
    ReadTree = Get "/v1/tree" (NoTarget) Empty => OK WorkerList, by Viewer;
    /// Freezes a worker, alone or with all below it: no process runs, no grant is given, evidence is kept.
    Quarantine = Post "/v1/workers/{id}/quarantine" (WorkerId) SubtreeRequest => OK WorkerView, by Operator;
    /// Lets a quarantined worker go on, alone or with all below it.
    Release = Post "/v1/workers/{id}/release" (WorkerId) SubtreeRequest => OK WorkerView, by Operator;
    /// Ends a worker, alone or with all below it.
    Kill = Post "/v1/workers/{id}/kill" (WorkerId) KillRequest => OK KillReport, by Operator;
    /// The kill switches that are engaged.
    ReadKillSwitch = Get "/v1/kill-switch" (NoTarget) Empty => OK KillSwitchView, by Viewer;
    /// Ends everything and refuses every grant until it is reset.
    EngageKillSwitch = Post "/v1/kill-switch" (NoTarget) EngageRequest => OK KillReport, by Operator;
    /// Lets grants through again. Nothing that was killed comes back.
    ResetKillSwitch = Post "/v1/kill-switch/reset" (NoTarget) ResetRequest => OK KillSwitchView, by Admin;
    /// Revokes a worker's manifest and every manifest below it.
    Revoke = Post "/v1/revoke" (NoTarget) RevokeRequest => OK Revoked, by Admin;
    /// Begins a new epoch: every manifest of the old one is void.
    BumpEpoch = Post "/v1/epoch/bump" (NoTarget) Because => OK EpochBumped, by Admin;
    /// Accepts that the wall clock was set back.
    AcknowledgeClock = Post "/v1/clock/acknowledge" (NoTarget) Because => OK ClockAcknowledged, by Admin;
    /// The contract that replication is held to.
    ReadContract = Get "/v1/contract" (NoTarget) Empty => OK ContractView, by Viewer;

    /// The agents of the daemon, by start.
    ListAgents = Get "/v1/agents" (NoTarget) FleetQuery => OK AgentList, by Viewer;
    /// Starts an agent: the answer comes when its first instruction may run.
    StartAgent = Post "/v1/agents" (NoTarget) StartRequest => CREATED AgentView, by Operator;
    /// Everything about one agent.
    ReadAgent = Get "/v1/agents/{id}" (AgentId) Empty => OK AgentDetail, by Viewer;
    /// The processes in an agent's box.
    ListProcesses = Get "/v1/agents/{id}/processes" (AgentId) Empty => OK ProcessList, by Viewer;
    /// A part of what an agent wrote.
    ReadOutput = Get "/v1/agents/{id}/output" (AgentId) OutputQuery => OK OutputReply, by Viewer;
    /// Asks an agent to end, and ends it when it does not.
    StopAgent = Post "/v1/agents/{id}/stop" (AgentId) StopRequest => OK AgentView, by Operator;
    /// Ends an agent kindly and starts it anew, elsewhere if that is said. The answer comes when its first instruction may run.
    RestartAgent = Post "/v1/agents/{id}/restart" (AgentId) RestartRequest => OK AgentView, by Operator;
    /// What agents used, over time.
    ReadMetrics = Get "/v1/metrics" (NoTarget) MetricsQuery => OK MetricsReply, by Viewer;
    /// What happened, the newest first.
    ListEvents = Get "/v1/events" (NoTarget) EventQuery => OK EventList, by Viewer;
    /// What needs attention, the newest first.
    ListAlerts = Get "/v1/alerts" (NoTarget) AlertQuery => OK AlertList, by Viewer;
    /// Says that somebody has seen an alert.
    AcknowledgeAlert = Post "/v1/alerts/{id}/acknowledge" (AlertId) Because => OK AlertView, by Operator;
    /// Says that an alert is dealt with.
    ResolveAlert = Post "/v1/alerts/{id}/resolve" (AlertId) Because => OK AlertView, by Operator;
    /// Says that many alerts are dealt with: those of a kind, about an agent, or all.
    ResolveAlerts = Post "/v1/alerts/resolve" (NoTarget) ResolveAlertsRequest => OK AlertsResolved, by Operator;
    /// Silences that hold, the newest first.
    ListSilences = Get "/v1/silences" (NoTarget) Empty => OK SilenceList, by Viewer;
    /// Has nobody told of some alerts for a while. They are raised and listed all the same.
    CreateSilence = Post "/v1/silences" (NoTarget) SilenceRequest => CREATED SilenceView, by Operator;
    /// Ends a silence before its time.
    EndSilence = Post "/v1/silences/{id}/end" (SilenceId) Because => OK SilenceView, by Operator;
    /// Calls of MCP tools that wait for an operator, the oldest first.
    ListHolds = Get "/v1/holds" (NoTarget) Empty => OK HoldList, by Viewer;
    /// Answers a call that waits, once.
    AnswerHold = Post "/v1/holds/{id}/answer" (HoldId) HoldAnswerRequest => OK HoldView, by Operator;
    /// Changes that were proposed to agents' code, the newest first.
    ListProposals = Get "/v1/proposals" (NoTarget) Empty => OK ProposalList, by Viewer;
    /// One of them: what changes, what the stages found, what people said, where its rollout is.
    ReadProposal = Get "/v1/proposals/{id}" (ProposalName) Empty => OK ProposalDetail, by Viewer;
    /// How the log stands.
    ReadLedger = Get "/v1/ledger" (NoTarget) Empty => OK LedgerReport, by Viewer;
    /// Entries of the log, the newest first.
    ListEntries = Get "/v1/ledger/entries" (NoTarget) LedgerQuery => OK LedgerEntries, by Viewer;
    /// The proof that an entry is in the log.
    ProveEntry = Get "/v1/ledger/proof" (NoTarget) LedgerQuery => OK ProofReply, by Viewer;
    /// Reads the whole log again and says whether it is whole.
    VerifyLedger = Post "/v1/ledger/verify" (NoTarget) Empty => OK LedgerReport, by Operator;
    /// Makes declared agents wanted again, whatever ended them, and starts them.
    StartDeclared = Post "/v1/declared/start" (NoTarget) StartDeclaredRequest => OK DeclaredReply, by Operator;
    /// Reads the supervisor's file again: agents that are new are started, those that are gone end, those that changed are started anew.
    Reload = Post "/v1/reload" (NoTarget) ReloadRequest => OK ReloadReply, by Admin;
    /// Ends every agent and then the daemon.
    ShutDown = Post "/v1/shutdown" (NoTarget) StopRequest => OK Done, by Admin;
}
