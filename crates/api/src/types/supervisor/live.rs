//! What a supervisor tells whoever watches it, as it happens: messages of `GET /v1/stream`, each a server-sent event whose name is
//! the case and whose data is what is in it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AgentView, AlertView, EventKind, EventView, HoldView, Severity};
use crate::types::{AgentId, Shown, StatusView};

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", content = "data", rename_all = "snake_case")]
pub enum Live {
    /// Agents that are new or have changed. The first message of a stream holds all of them.
    Agents(Vec<AgentView>),
    /// Agents that are remembered no longer.
    Forgotten(Vec<AgentId>),
    /// Something happened.
    Event(EventView),
    /// An alert was raised or changed.
    Alert(AlertView),
    /// The calls of MCP tools that wait for an operator, all of them, the oldest first: when one begins to wait or no longer
    /// does, and at the beginning.
    Holds(Vec<HoldView>),
    /// How the supervisor does; now and then, and when it changes.
    Status(StatusView),
    /// The reader was too slow, and messages are lost: it asks for everything again.
    Lost,
}

impl Live {
    /// The name of the server-sent event.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Agents(_) => "agents",
            Self::Forgotten(_) => "forgotten",
            Self::Event(_) => "event",
            Self::Alert(_) => "alert",
            Self::Holds(_) => "holds",
            Self::Status(_) => "status",
            Self::Lost => "lost",
        }
    }
}

/// Something that happened, before it has a number and a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// To whom; absent where it is about the daemon.
    pub agent: Option<AgentId>,
    /// What kind.
    pub kind: EventKind,
    /// How bad.
    pub severity: Severity,
    /// What happened.
    pub text: Shown,
    /// A stable word where there is one.
    pub code: Option<Shown>,
    /// What to change, where something can be.
    pub hint: Option<Shown>,
}
