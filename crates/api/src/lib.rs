//! The two protocols of Belljar: what an agent may ask its keeper, and what an operator may ask the supervisor.
//!
//! Both are HTTP/1.1 with JSON over Unix sockets. An agent is known by the socket its request came on, never by a name in
//! a payload. The routes are one table ([`AGENT_ROUTES`], [`OPERATOR_ROUTES`]); the server, the client and the OpenAPI documents
//! come from it.
//!
//! ```
//! use belljar_api::{AgentCall, Call, Client, Heartbeat, HeartbeatReply, Limits, Server, Side, Tag};
//! use belljar_api::Empty;
//! use std::os::unix::net::UnixListener;
//!
//! let directory = tempfile::tempdir()?;
//! let path = directory.path().join("agent.sock");
//!
//! let (server, handle) = Server::new(Limits::default())?;
//! let running = server.spawn(|request| {
//!     if let Call::Agent(AgentCall::Heartbeat(asked)) = request.call {
//!         asked.responder.reply(&HeartbeatReply { ok: true, next_within_ms: None });
//!     } // a responder that is dropped answers 500
//! })?;
//! handle.add_listener(UnixListener::bind(&path)?, Tag(7), Side::Agent)?;
//!
//! let mut client = Client::connect(&path)?;
//! assert!(client.call::<Heartbeat>(&Empty {})?.ok);
//! drop(running); // stops the server and waits for it
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod client;
mod http;
mod json;
mod limits;
mod openapi;
mod route;
mod routes;
mod server;
mod status;
mod types;

pub use client::{CallError, Client, Way};
pub use json::MOST_DEPTH;
pub use limits::{Limits, Rate};
pub use openapi::{bound, openapi, openapi_text};
pub use route::{Asker, Named, NoTarget, Route, RouteInfo, Side, Target};
pub use routes::{
    AGENT_ROUTES, AcknowledgeAlert, AcknowledgeClock, AgentCall, AnswerHold, BumpEpoch,
    CreateSilence, EndSilence, EngageKillSwitch, Heartbeat, Kill, ListAgents, ListAlerts,
    ListEntries, ListEvents, ListHolds, ListProcesses, ListProposals, ListSilences, ListWorkers,
    Manifest, OPERATOR_ROUTES, OperatorCall, Proposals, Propose, ProveEntry, Quarantine, ReadAgent,
    ReadContract, ReadKillSwitch, ReadLedger, ReadMetrics, ReadOutput, ReadProposal, ReadStatus,
    ReadTree, Release, Reload, Replicas, Replicate, ReportUsage, ResetKillSwitch, ResolveAlert,
    ResolveAlerts, RestartAgent, Revoke, ShutDown, Shutdown, StartAgent, StartDeclared, StopAgent,
    Usage, VerifyLedger,
};
pub use server::{Asked, Call, Handle, Request, Responder, Running, Server, Stopped, Tag};
pub use status::{Method, Status};
pub use types::*;
