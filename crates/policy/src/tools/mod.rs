//! What an agent may ask of MCP servers, and they of it.
//!
//! Rules come in *layers*: one as it was written, and one for each capability it was brought within. Each layer
//! decides by itself and the strictest decision counts, so that what two policies have in common needs no common
//! pattern. Within a layer deny wins over hold, and hold over allow.

mod condition;
mod decide;
mod glob;
mod name;
mod order;
mod path;
mod pattern;
mod server;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

pub use condition::{Condition, InvalidPointer, InvalidRegex, Pointer, Test, WholeRegex};
pub use decide::{RateUse, ToolAnswer, ToolQuestion, decide_tool};
pub use glob::Glob;
pub use name::{TextTrick, is_mcp_name, is_mcp_server, text_tricks};
pub use path::{InvalidPathGlob, Lexical, PathGlob, Paths};
pub use pattern::{BlockedTool, InvalidToolPattern, ResourcePattern, ToolPattern};
pub use server::{McpServer, ServerHeader, is_mcp_header};

use crate::{Rule, Verdict};

/// A rule about calls of some tools.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallRule {
    /// Which tools.
    pub tool: ToolPattern,
    /// What becomes of a call that meets all conditions.
    pub verdict: Verdict,
    /// What its arguments must be.
    #[serde(
        rename = "arguments",
        serialize_with = "as_texts",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<Condition>,
    /// Calls per minute that meet the conditions.
    #[serde(
        rename = "rate_limit_per_minute",
        skip_serializing_if = "Option::is_none"
    )]
    pub rate_limit_per_min: Option<u32>,
    /// Arguments that the record shows as their size and digest only.
    #[serde(serialize_with = "as_texts", skip_serializing_if = "Vec::is_empty")]
    pub redact: Vec<Pointer>,
}

impl fmt::Display for CallRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verdict.as_str(), self.tool)?;
        for (at, condition) in self.conditions.iter().enumerate() {
            write!(
                f,
                "{}{condition}",
                if at == 0 { " where " } else { " and " }
            )?;
        }
        match self.rate_limit_per_min {
            Some(rate) => write!(f, " at {rate}/min"),
            None => Ok(()),
        }
    }
}

/// Names that are allowed and names that are not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NameRules<T> {
    /// What may be used; `None` means that the policy draws no list.
    pub allowed: Option<Vec<Rule<T>>>,
    /// What may not.
    pub blocked: Vec<Rule<T>>,
}

impl<T> NameRules<T> {
    /// Nothing may be used.
    #[must_use]
    pub fn closed() -> Self {
        Self {
            allowed: Some(Vec::new()),
            blocked: Vec::new(),
        }
    }

    /// Everything may be used.
    #[must_use]
    pub fn open() -> Self {
        Self {
            allowed: None,
            blocked: Vec::new(),
        }
    }
}

/// What a server may ask of the agent's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ServerRequests {
    /// To have a model write something (`sampling/createMessage`).
    pub sampling: Verdict,
    /// To have a person answer something (`elicitation/create`).
    pub elicitation: Verdict,
    /// Which directories it is to work in (`roots/list`).
    pub roots: Verdict,
}

impl ServerRequests {
    /// Nothing.
    pub const NONE: Self = Self {
        sampling: Verdict::Deny,
        elicitation: Verdict::Deny,
        roots: Verdict::Deny,
    };
}

/// What an agent may ask of MCP servers. A blocked tool stays blocked though it is allowed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToolRules {
    /// The servers, by id; `None` means that the policy lists none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers: Option<BTreeMap<String, Rule<McpServer>>>,
    /// The tools it may call; `None` means that the policy draws no list.
    #[serde(rename = "allowed_tools")]
    pub allowed: Option<Vec<Rule<ToolPattern>>>,
    /// The tools it may not call.
    #[serde(rename = "blocked_tools")]
    pub blocked: Vec<Rule<BlockedTool>>,
    /// What becomes of calls, by tool and arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule<CallRule>>,
    /// The resources it may read.
    pub resources: NameRules<ResourcePattern>,
    /// The prompts it may get.
    pub prompts: NameRules<ToolPattern>,
    /// What servers may ask of it.
    pub server_requests: ServerRequests,
    /// Calls per minute.
    #[serde(rename = "rate_limit_per_minute")]
    pub rate_limit_per_min: Option<u32>,
    /// How long a held call waits for an answer; two minutes if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_seconds: Option<u32>,
    /// What becomes of calls of a tool that is new or changed since it was first seen: held or, if said so, allowed.
    pub on_new_tool: Verdict,
    /// The rules of those it was brought within.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<ToolRules>,
}

impl ToolRules {
    /// Nothing may be asked of anybody.
    #[must_use]
    pub fn closed() -> Self {
        Self {
            servers: None,
            allowed: Some(Vec::new()),
            blocked: Vec::new(),
            rules: Vec::new(),
            resources: NameRules::closed(),
            prompts: NameRules::closed(),
            server_requests: ServerRequests::NONE,
            rate_limit_per_min: None,
            hold_seconds: None,
            on_new_tool: Verdict::Hold,
            within: Vec::new(),
        }
    }

    /// Everything may be asked of servers.
    #[must_use]
    pub fn open() -> Self {
        Self {
            allowed: None,
            resources: NameRules::open(),
            prompts: NameRules::open(),
            ..Self::closed()
        }
    }

    /// The layers, the one written last first.
    pub fn layers(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.within)
    }

    /// The servers there are: those that every layer lists.
    #[must_use]
    pub fn all_servers(&self) -> BTreeMap<&str, &Rule<McpServer>> {
        let listed = |layer: &Self, name: &str, server: &McpServer| {
            let own = layer.servers.as_ref().and_then(|servers| servers.get(name));
            own.is_some_and(|own| own.value == *server)
        };
        let own = self.servers.iter().flatten();
        own.filter(|(name, rule)| {
            self.within
                .iter()
                .all(|layer| listed(layer, name, &rule.value))
        })
        .map(|(name, rule)| (name.as_str(), rule))
        .collect()
    }

    /// Takes the values of servers' variables out, so that whoever reads the rules does not read them; by server. A server
    /// of a child is still its parent's where both are without.
    pub fn withhold_server_env(&mut self) -> BTreeMap<String, BTreeMap<String, String>> {
        const WITHHELD: &str = "withheld";
        let mut taken = BTreeMap::new();
        for layer in std::iter::once(&mut self.servers)
            .chain(self.within.iter_mut().map(|layer| &mut layer.servers))
        {
            for (name, rule) in layer.iter_mut().flatten() {
                let McpServer::Command { env, .. } = &mut rule.value else {
                    continue;
                };
                let withheld = env.keys().map(|key| (key.clone(), WITHHELD.to_owned()));
                let withheld = withheld.collect();
                let values = std::mem::replace(env, withheld);
                // All layers have the same, or the server is none.
                taken.entry(name.clone()).or_insert(values);
            }
        }
        taken
    }

    /// How long a held call waits for an answer.
    #[must_use]
    pub fn hold_time(&self) -> std::time::Duration {
        const DEFAULT: u32 = 120;
        let least = self.layers().filter_map(|layer| layer.hold_seconds).min();
        std::time::Duration::from_secs(u64::from(least.unwrap_or(DEFAULT)))
    }

    /// What becomes of a tool that is new or changed.
    #[must_use]
    pub fn new_tools(&self) -> Verdict {
        self.layers()
            .map(|layer| layer.on_new_tool)
            .max()
            .unwrap_or(Verdict::Hold)
    }
}

fn as_texts<T: fmt::Display, S: serde::Serializer>(
    items: &[T],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(items.iter().map(T::to_string))
}
