//! What an agent and its keeper say to each other.

use std::borrow::Cow;
use std::num::NonZeroU64;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::{Budget, BudgetView, Command, InvalidText, Name, Reason, WorkerId, WorkerState};

/// A request that says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Empty {}

/// A reply that says only that it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Done {
    /// Always true: everything else is an error reply.
    pub ok: bool,
}

impl Done {
    /// It is done.
    pub const DONE: Self = Self { ok: true };
}

/// Asks for a child of the asking agent. Who asks is known by the socket, so no field says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicateRequest {
    /// Why a child is wanted.
    pub reason: Reason,
    /// What the child runs; the parent's own command where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Command>,
    /// What the child is to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateText>,
    /// Limits narrower than the parent's.
    #[serde(
        default,
        deserialize_with = "crate::json::optional_object",
        skip_serializing_if = "Option::is_none"
    )]
    pub capability: Option<Narrowing>,
    /// The part of the parent's budget that the child is to have.
    #[serde(
        default,
        deserialize_with = "crate::json::optional_object",
        skip_serializing_if = "Option::is_none"
    )]
    pub budget: Option<Budget>,
}

/// Limits that a child gets below its parent's, and a wall that may be stronger. Everything else is as the parent has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Narrowing {
    /// Memory, in mebibytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_memory_mb: Option<NonZeroU64>,
    /// Seconds of CPU time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cpu_seconds: Option<NonZeroU64>,
    /// Seconds until the child is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<NonZeroU64>,
    /// Processes and threads alive at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_processes: Option<NonZeroU64>,
    /// What stands between the child and the host's kernel: as strong as the parent's, or stronger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_tier: Option<TierName>,
}

/// A tier, as policies name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TierName {
    /// The host kernel's own walls.
    Seccomp,
    /// The same around the files of an image.
    Container,
    /// A kernel in user space.
    Gvisor,
    /// A virtual machine by QEMU.
    Microvm,
    /// A virtual machine by Firecracker.
    Firecracker,
}

/// What a child is to know: UTF-8 text of at most 1 MiB. With its JSON escapes it must also fit in a request's body, which leaves
/// a quarter more for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct StateText(String);

impl StateText {
    /// The most bytes of it, before JSON escapes.
    pub const MOST: usize = 1024 * 1024;

    /// Takes a text that is not too long.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidText> {
        let text = text.into();
        match text.len() {
            have if have > Self::MOST => Err(InvalidText::TooLong {
                have,
                most: Self::MOST,
            }),
            _ => Ok(Self(text)),
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Gives the text away.
    #[must_use]
    pub fn into_string(self) -> String {
        self.0
    }
}

impl<'de> Deserialize<'de> for StateText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl JsonSchema for StateText {
    fn schema_name() -> Cow<'static, str> {
        "StateText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": StateText::MOST,
            "description": "Text, at most 1 MiB of UTF-8.",
        })
    }
}

/// The child exists. Its id is all that the parent learns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Replicated {
    /// The child.
    pub worker_id: WorkerId,
}

/// Proposes a change to the asking agent's own code. Nothing is changed by it: it is kept for an operator, who has it judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProposeRequest {
    /// A request.yaml.
    pub request: StateText,
}

/// The proposal is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Proposed {
    /// What it is called from now on. The same request has the same name.
    pub name: String,
}

/// What the asking agent proposed, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProposalsReply {
    /// Each, by name.
    pub proposals: Vec<ProposalView>,
}

/// One proposal of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProposalView {
    /// What it is called.
    pub name: String,
    /// Its status, its risk and the reasons for both; nothing as long as nobody has had it judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Map<String, Value>>,
}

/// The keeper knows that the agent lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeartbeatReply {
    /// Always true: everything else is an error reply.
    pub ok: bool,
    /// When the next one is due, where silence has consequences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_within_ms: Option<u64>,
}

/// The asking agent's lineage manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestReply {
    /// The signed envelope, byte for byte.
    pub envelope: String,
    /// Its payload, decoded for reading. Only the envelope is signed.
    pub payload: Map<String, Value>,
}

/// How the asking agent's budget stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UsageReply {
    /// The whole of it.
    #[serde(flatten)]
    pub budget: BudgetView,
    /// The live children's parts.
    pub children: Vec<ChildUsage>,
}

/// A live child's part of its parent's budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChildUsage {
    /// The child.
    pub id: WorkerId,
    /// What it was given.
    pub granted: Budget,
}

/// What an agent says it used, where nothing outside it measures. At least one number is wanted by the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UsageReport {
    /// Tokens sent to a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_in: Option<u64>,
    /// Tokens a model wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_out: Option<u64>,
    /// Tokens read from a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_cached: Option<u64>,
    /// Cost, in millionths of a US dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_usd: Option<u64>,
    /// Which model it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Name>,
}

/// The asking agent's live children.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplicasReply {
    /// Oldest first.
    pub replicas: Vec<Child>,
}

/// A child as its parent may see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Child {
    /// Its name.
    pub id: WorkerId,
    /// What it is doing.
    pub state: WorkerState,
    /// Since when it is in that state: milliseconds since 1970.
    pub since_ms: u64,
}

/// The agent asks to be ended, with everything in its box.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShutdownRequest {
    /// Why.
    pub reason: Reason,
}
