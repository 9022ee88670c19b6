//! Who decides. The gateway reads messages and carries verdicts out; a [`Judge`] gives them.

use serde_json::Value;
use std::time::Duration;

use crate::holds::HoldId;

/// A rule said no.
pub const DENIED: i64 = -32010;
/// An operator said no, or nobody answered in time.
pub const HOLD_REFUSED: i64 = -32011;
/// Too many calls.
pub const RATE_LIMITED: i64 = -32012;

/// What one side asks of the other.
#[derive(Debug, Clone, Copy)]
pub enum Ask<'a> {
    /// `tools/call`.
    Tool {
        /// The operator's name for the server.
        server: &'a str,
        /// The server's name for the tool.
        tool: &'a str,
        /// What it is called with; null if nothing.
        arguments: &'a Value,
    },
    /// `resources/read`, `resources/subscribe`, `resources/unsubscribe`.
    Resource {
        /// The operator's name for the server.
        server: &'a str,
        /// Which.
        uri: &'a str,
    },
    /// `prompts/get`.
    Prompt {
        /// The operator's name for the server.
        server: &'a str,
        /// Which.
        prompt: &'a str,
    },
    /// A server asks its client: `sampling/createMessage`, `elicitation/create`, `roots/list`.
    FromServer {
        /// The operator's name for the server.
        server: &'a str,
        /// What it asks.
        method: &'a str,
    },
    /// `tasks/get`, `tasks/result`, `tasks/cancel`, `tasks/update`, `tasks/list`.
    Task {
        /// The operator's name for the server.
        server: &'a str,
        /// What is asked.
        method: &'a str,
        /// Which; nothing for the list.
        task: Option<&'a str>,
        /// The tool whose call became the task, if this session made that call and the task lasts.
        tool: Option<&'a str>,
    },
    /// Any other request or notification that is passed on: `logging/setLevel` and what nobody knows.
    Other {
        /// The operator's name for the server.
        server: &'a str,
        /// What is asked.
        method: &'a str,
    },
}

/// What is to become of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ruling {
    /// It goes on.
    Allow,
    /// It is answered with an error.
    Deny(Denial),
    /// It waits for an operator.
    Hold(HoldTicket),
}

/// Why not, as the JSON-RPC error that the asker gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// [`DENIED`], [`HOLD_REFUSED`] or [`RATE_LIMITED`].
    pub code: i64,
    /// A stable word, such as `deny_blocked`.
    pub reason: String,
    /// The same for people.
    pub message: String,
    /// The rule that decided, with where it stands.
    pub rule: String,
    /// What to change, if it should be otherwise.
    pub hint: Option<String>,
}

/// A question that waits for an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldTicket {
    /// Its name, for the operator.
    pub id: HoldId,
    /// How long it waits.
    pub deadline: Duration,
}

/// What the operator said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldAnswer {
    /// Yes.
    Allowed,
    /// No.
    Refused {
        /// Who.
        by: String,
        /// Why.
        reason: String,
    },
    /// Nothing, in time.
    TimedOut,
}

/// Gives verdicts, and is told what came of them.
pub trait Judge: Send + Sync {
    /// What is to become of it? Must not block.
    fn judge(&self, ask: &Ask<'_>) -> Ruling;

    /// Blocks (the gateway calls it on a thread of its own) until an operator answers or the deadline passes.
    fn wait(&self, ticket: &HoldTicket) -> HoldAnswer;

    /// Whoever asked no longer waits: what is said about it is of no use any more.
    fn withdraw(&self, ticket: &HoldTicket) {
        let _ = ticket;
    }

    /// The tools a server lists, as it told them: which are shown and callable. Pins are looked at here.
    fn list(&self, server: &str, tools: Vec<Value>) -> Vec<Value>;

    /// The same for resources and prompts, by URI or name: one answer for each.
    fn list_names(&self, server: &str, kind: Listed, names: &[&str]) -> Vec<bool>;

    /// After a call: for the record, metrics and suspicion.
    fn finished(&self, call: Finished<'_>);

    /// Something on the wire that was refused before it could be judged: a duplicate key, a batch, a bad name.
    fn malformed(&self, server: &str, why: &str);

    /// A server's program ended while somebody used it.
    fn server_ended(&self, server: &str) {
        let _ = server;
    }
}

/// A list that names things other than tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// `resources/list`, by URI.
    Resources,
    /// `resources/templates/list`, by URI template.
    ResourceTemplates,
    /// `prompts/list`, by name.
    Prompts,
}

/// A call that is over, or was refused.
#[derive(Debug, Clone, Copy)]
pub struct Finished<'a> {
    /// The operator's name for the server.
    pub server: &'a str,
    /// The server's name for the tool.
    pub tool: &'a str,
    /// What it was called with.
    pub arguments: &'a Value,
    /// `allow`, `deny`, `hold_allowed` or `hold_refused`.
    pub verdict: &'a str,
    /// From the question to the answer.
    pub duration: Duration,
    /// The size of the answer's line or body.
    pub result_bytes: usize,
    /// Whether the answer was an error, of the protocol's or the tool's.
    pub is_error: bool,
}
