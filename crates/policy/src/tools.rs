//! Which MCP tools an agent may call.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::{Decision, Origin, Reason, Rule};

/// Which tools a rule is about: `server:tool`, or every tool of a server as `server:*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ToolPattern {
    /// One tool.
    Exact(String),
    /// Every tool whose name starts so (`server:*`).
    Starting(String),
}

/// Why a text names no tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidToolPattern {
    /// No `server:` in front.
    #[error("a tool is named without its server")]
    NoServer,
    /// A `*` that is not the whole tool name.
    #[error("a `*` is accepted only for every tool of a server")]
    Wildcard,
}

impl InvalidToolPattern {
    /// What to write instead.
    #[must_use]
    pub fn hint(self) -> &'static str {
        "write `server:tool`, or `server:*` for every tool of a server"
    }
}

impl ToolPattern {
    /// Reads `server:tool` or `server:*`.
    ///
    /// # Errors
    /// When the text is neither; see [`InvalidToolPattern`].
    pub fn parse(text: &str) -> Result<Self, InvalidToolPattern> {
        let (server, tool) = text.split_once(':').ok_or(InvalidToolPattern::NoServer)?;
        if server.is_empty() || tool.is_empty() {
            return Err(InvalidToolPattern::NoServer);
        }
        if tool == "*" && !server.contains('*') {
            return Ok(Self::Starting(format!("{server}:")));
        }
        if text.contains('*') {
            return Err(InvalidToolPattern::Wildcard);
        }
        Ok(Self::Exact(text.to_owned()))
    }

    fn matches(&self, tool: &str) -> bool {
        match self {
            Self::Exact(name) => name == tool,
            Self::Starting(front) => tool.starts_with(front.as_str()),
        }
    }

    /// Whether every tool of `other` is one of this pattern's.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(a), Self::Exact(b)) => a == b,
            (Self::Exact(_), Self::Starting(_)) => false,
            (Self::Starting(front), Self::Exact(name) | Self::Starting(name)) => {
                name.starts_with(front.as_str())
            }
        }
    }

    /// The tools both patterns are about. Patterns nest or are apart, so it is one of the two.
    pub(crate) fn intersect(&self, other: &Self) -> Option<Self> {
        if self.covers(other) {
            Some(other.clone())
        } else if other.covers(self) {
            Some(self.clone())
        } else {
            None
        }
    }
}

impl fmt::Display for ToolPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Starting(front) => write!(f, "{front}*"),
        }
    }
}

impl Serialize for ToolPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Which MCP tools an agent may call. A blocked tool stays blocked though it is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ToolRules {
    /// The tools it may call; `None` means the policy draws no list.
    #[serde(rename = "allowed_tools")]
    pub allowed: Option<Vec<Rule<ToolPattern>>>,
    /// The tools it may not call.
    #[serde(rename = "blocked_tools")]
    pub blocked: Vec<Rule<ToolPattern>>,
    /// Calls per minute.
    #[serde(rename = "rate_limit_per_minute")]
    pub rate_limit_per_min: Option<u32>,
}

/// Decides whether `tool`, named `server:tool`, may be called.
#[must_use]
pub fn decide_tool(rules: &ToolRules, tool: &str) -> Decision {
    if let Some(rule) = rules.blocked.iter().find(|rule| rule.value.matches(tool)) {
        let hint = format!("remove the rule at {} that blocks it", rule.origin);
        return Decision::deny(Reason::DenyToolBlocked, rule.origin.clone(), Some(hint));
    }
    let Some(allowed) = &rules.allowed else {
        return Decision::allow(Reason::AllowTool, Origin::built_in());
    };
    match allowed.iter().find(|rule| rule.value.matches(tool)) {
        Some(rule) => Decision::allow(Reason::AllowTool, rule.origin.clone()),
        None => {
            let hint = format!("add to sandbox.toml: [sandbox.mcp] allowed_tools = [{tool:?}]");
            Decision::deny(Reason::DenyToolNotListed, Origin::built_in(), Some(hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(patterns: &[&str]) -> Vec<Rule<ToolPattern>> {
        let rule = |p: &&str| Rule::new(ToolPattern::parse(p).unwrap(), Origin::built_in());
        patterns.iter().map(rule).collect()
    }

    #[test]
    fn a_block_wins_and_a_list_excludes_the_rest() {
        let open = ToolRules {
            blocked: rules(&["shell:execute"]),
            ..ToolRules::default()
        };
        assert_eq!(
            decide_tool(&open, "shell:execute").reason(),
            Reason::DenyToolBlocked
        );
        assert_eq!(decide_tool(&open, "fs:read").reason(), Reason::AllowTool);

        let listed = ToolRules {
            allowed: Some(rules(&["fs:*", "shell:*"])),
            ..open
        };
        assert_eq!(decide_tool(&listed, "fs:read").reason(), Reason::AllowTool);
        assert_eq!(
            decide_tool(&listed, "shell:execute").reason(),
            Reason::DenyToolBlocked
        );
        assert_eq!(
            decide_tool(&listed, "web:get").reason(),
            Reason::DenyToolNotListed
        );
        assert_eq!(
            decide_tool(&listed, "fsx:read").reason(),
            Reason::DenyToolNotListed
        );
    }

    #[test]
    fn patterns_are_read_strictly() {
        for text in ["execute", ":x", "x:", "*:x", "a:b*", "*", "*:*"] {
            assert!(ToolPattern::parse(text).is_err(), "{text}");
        }
    }
}
