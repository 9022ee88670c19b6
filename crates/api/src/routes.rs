//! The routes: one table for serving, asking and OpenAPI.

use crate::json;
use crate::route::{NoTarget, Route, RouteInfo, Target};
use crate::server::{Answer, Asked, Call, Responder};
use crate::types::{
    Because, ClockAcknowledged, ContractView, Done, Empty, EngageRequest, EpochBumped,
    HeartbeatReply, KillReport, KillRequest, KillSwitchView, ManifestReply, Problem, ReplicasReply,
    ReplicateRequest, Replicated, ResetRequest, RevokeRequest, Revoked, ShutdownRequest,
    StatusView, UsageReply, UsageReport, WorkerId, WorkerList, WorkerView,
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
            $name:ident = $method:ident $path:literal ($target:ty) $request:ty => $status:ident $response:ty;
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

            /// Reads the body of a request for the line `index` of the table.
            pub(crate) fn read(
                index: usize,
                target: Option<&str>,
                body: &[u8],
                answer: impl FnOnce() -> Answer,
            ) -> Result<Call, Problem> {
                let mut line = 0;
                $(
                    if index == line {
                        return Ok(Call::from(Self::$name(Asked {
                            target: <$target as Target>::from_path(target)?,
                            request: json::read_request(body)?,
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
    Replicate = Post "/v1/replicate" (NoTarget) ReplicateRequest => CREATED Replicated;
    /// Says that the agent lives.
    Heartbeat = Post "/v1/heartbeat" (NoTarget) Empty => OK HeartbeatReply;
    /// The agent's own signed manifest.
    Manifest = Get "/v1/manifest" (NoTarget) Empty => OK ManifestReply;
    /// How the agent's budget stands.
    Usage = Get "/v1/usage" (NoTarget) Empty => OK UsageReply;
    /// Reports what was used, where nothing outside the agent measures it.
    ReportUsage = Post "/v1/usage" (NoTarget) UsageReport => OK Done;
    /// The agent's live children.
    Replicas = Get "/v1/replicas" (NoTarget) Empty => OK ReplicasReply;
    /// Ends the agent and everything in its box.
    Shutdown = Post "/v1/shutdown" (NoTarget) ShutdownRequest => OK Done;
}

routes! {
    /// What an operator asks.
    enum OperatorCall as Operator;
    /// The routes of the operator's socket.
    const OPERATOR_ROUTES;

    /// How the supervisor does.
    ReadStatus = Get "/v1/status" (NoTarget) Empty => OK StatusView;
    /// All workers, by start.
    ListWorkers = Get "/v1/workers" (NoTarget) Empty => OK WorkerList;
    /// All workers, depth first.
    ReadTree = Get "/v1/tree" (NoTarget) Empty => OK WorkerList;
    /// Freezes a worker: no process runs, no grant is given, evidence is kept.
    Quarantine = Post "/v1/workers/{id}/quarantine" (WorkerId) Because => OK WorkerView;
    /// Lets a quarantined worker go on.
    Release = Post "/v1/workers/{id}/release" (WorkerId) Because => OK WorkerView;
    /// Ends a worker, alone or with all below it.
    Kill = Post "/v1/workers/{id}/kill" (WorkerId) KillRequest => OK KillReport;
    /// The kill switches that are engaged.
    ReadKillSwitch = Get "/v1/kill-switch" (NoTarget) Empty => OK KillSwitchView;
    /// Ends everything and refuses every grant until it is reset.
    EngageKillSwitch = Post "/v1/kill-switch" (NoTarget) EngageRequest => OK KillReport;
    /// Lets grants through again. Nothing that was killed comes back.
    ResetKillSwitch = Post "/v1/kill-switch/reset" (NoTarget) ResetRequest => OK KillSwitchView;
    /// Revokes a worker's manifest and every manifest below it.
    Revoke = Post "/v1/revoke" (NoTarget) RevokeRequest => OK Revoked;
    /// Begins a new epoch: every manifest of the old one is void.
    BumpEpoch = Post "/v1/epoch/bump" (NoTarget) Because => OK EpochBumped;
    /// Accepts that the wall clock was set back.
    AcknowledgeClock = Post "/v1/clock/acknowledge" (NoTarget) Because => OK ClockAcknowledged;
    /// The contract that replication is held to.
    ReadContract = Get "/v1/contract" (NoTarget) Empty => OK ContractView;
}
