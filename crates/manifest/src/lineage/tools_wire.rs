//! Rules about MCP servers in a capability document.

use std::collections::BTreeMap;

use belljar_policy::{
    BlockedTool, CallRule, Condition, McpServer, NameRules, PathGlob, Pointer, ResourcePattern,
    Rule, ServerHeader, ServerRequests, Test, ToolPattern, ToolRules, Verdict, WholeRegex,
    is_mcp_header, is_mcp_server,
};
use serde::{Deserialize, Serialize};

use super::capability_document::Unrepresentable;
use super::capability_wire::RuleWire;
use super::network_wire::{PlaceWire, SourceWire, one_file};
use super::wire_text::PathText;

/// The most layers of a document: one for each ancestor, and then some.
const MOST_LAYERS: usize = 64;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ToolsWire {
    allowed: Option<Vec<RuleWire<String>>>,
    blocked: Vec<RuleWire<String>>,
    rate_limit_per_min: Option<u32>,
    // Left out where there are none, as documents did before there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    servers: Option<Vec<NamedServer>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rules: Vec<RuleWire<CallRuleWire>>,
    #[serde(default, skip_serializing_if = "NamesWire::is_closed")]
    resources: NamesWire,
    #[serde(default, skip_serializing_if = "NamesWire::is_closed")]
    prompts: NamesWire,
    #[serde(default = "denied", skip_serializing_if = "is_denied")]
    sampling: Verdict,
    #[serde(default = "denied", skip_serializing_if = "is_denied")]
    elicitation: Verdict,
    #[serde(default = "denied", skip_serializing_if = "is_denied")]
    roots: Verdict,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hold_seconds: Option<u32>,
    #[serde(default = "held", skip_serializing_if = "is_held")]
    on_new_tool: Verdict,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    within: Vec<ToolsWire>,
}

fn denied() -> Verdict {
    Verdict::Deny
}

fn is_denied(verdict: &Verdict) -> bool {
    *verdict == Verdict::Deny
}

fn held() -> Verdict {
    Verdict::Hold
}

fn is_held(verdict: &Verdict) -> bool {
    *verdict == Verdict::Hold
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedServer {
    name: String,
    server: RuleWire<ServerWire>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ServerWire {
    Command {
        command: Vec<String>,
        capability: Option<String>,
        env: BTreeMap<String, String>,
    },
    Url(String),
    /// One that needs more than its address.
    Known {
        url: String,
        ca: Option<PathText>,
        headers: Vec<HeaderWire>,
    },
    Unix(String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderWire {
    place: PlaceWire,
    from: SourceWire,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallRuleWire {
    tool: String,
    verdict: Verdict,
    conditions: Vec<ConditionWire>,
    rate_limit_per_min: Option<u32>,
    redact: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionWire {
    at: String,
    test: TestWire,
}

/// Values and numbers are texts here: readers of JSON round differently.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum TestWire {
    Equals(String),
    In(Vec<String>),
    Glob(String),
    Regex(String),
    Range {
        minimum: Option<String>,
        maximum: Option<String>,
    },
    MaxBytes(u64),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamesWire {
    allowed: Option<Vec<RuleWire<String>>>,
    blocked: Vec<RuleWire<String>>,
}

impl Default for NamesWire {
    fn default() -> Self {
        Self {
            allowed: Some(Vec::new()),
            blocked: Vec::new(),
        }
    }
}

impl NamesWire {
    fn is_closed(&self) -> bool {
        self.allowed.as_ref().is_some_and(Vec::is_empty) && self.blocked.is_empty()
    }

    fn of<T: ToString>(rules: &NameRules<T>) -> Self {
        Self {
            allowed: rules.allowed.as_deref().map(texts),
            blocked: texts(&rules.blocked),
        }
    }

    fn names<T: ToString>(
        self,
        parse: impl Fn(&str) -> Option<T> + Copy,
    ) -> Result<NameRules<T>, Unrepresentable> {
        Ok(NameRules {
            allowed: self.allowed.map(|list| parsed(list, parse)).transpose()?,
            blocked: parsed(self.blocked, parse)?,
        })
    }
}

fn texts<T: ToString>(rules: &[Rule<T>]) -> Vec<RuleWire<String>> {
    let each = rules.iter();
    each.map(|rule| RuleWire::new(rule.value.to_string(), &rule.origin))
        .collect()
}

fn parsed<T: ToString>(
    list: Vec<RuleWire<String>>,
    parse: impl Fn(&str) -> Option<T> + Copy,
) -> Result<Vec<Rule<T>>, Unrepresentable> {
    let each = list.into_iter();
    each.map(|wire| wire.try_rule(|text| exactly(&text, parse)))
        .collect()
}

/// A text that reads back as itself: a document has one spelling.
fn exactly<T: ToString>(
    text: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, Unrepresentable> {
    parse(text)
        .filter(|value| value.to_string() == text)
        .ok_or(Unrepresentable::Rule)
}

impl ToolsWire {
    pub(super) fn of(rules: &ToolRules) -> Result<Self, Unrepresentable> {
        let ToolRules {
            servers,
            allowed,
            blocked,
            rules,
            resources,
            prompts,
            server_requests,
            rate_limit_per_min,
            hold_seconds,
            on_new_tool,
            within,
        } = rules;
        let ServerRequests {
            sampling,
            elicitation,
            roots,
        } = *server_requests;
        let call =
            |rule: &Rule<CallRule>| RuleWire::new(CallRuleWire::of(&rule.value), &rule.origin);
        let named = |(name, rule): (&String, &Rule<McpServer>)| {
            Ok(NamedServer {
                name: name.clone(),
                server: RuleWire::new(ServerWire::of(&rule.value)?, &rule.origin),
            })
        };
        if within.len() > MOST_LAYERS {
            return Err(Unrepresentable::Rule);
        }
        Ok(Self {
            allowed: allowed.as_deref().map(texts),
            blocked: texts(blocked),
            rate_limit_per_min: *rate_limit_per_min,
            servers: servers
                .as_ref()
                .map(|servers| servers.iter().map(named).collect::<Result<_, _>>())
                .transpose()?,
            rules: rules.iter().map(call).collect(),
            resources: NamesWire::of(resources),
            prompts: NamesWire::of(prompts),
            sampling,
            elicitation,
            roots,
            hold_seconds: *hold_seconds,
            on_new_tool: *on_new_tool,
            within: within.iter().map(Self::of).collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn tools(self) -> Result<ToolRules, Unrepresentable> {
        // Layers are flat.
        let nested = self.within.iter().any(|layer| !layer.within.is_empty());
        if nested || self.within.len() > MOST_LAYERS {
            return Err(Unrepresentable::Rule);
        }
        let tool = |text: &str| ToolPattern::parse(text).ok();
        let calls = self.rules.into_iter();
        Ok(ToolRules {
            servers: self.servers.map(servers).transpose()?,
            allowed: self.allowed.map(|list| parsed(list, tool)).transpose()?,
            blocked: parsed(self.blocked, |text| BlockedTool::parse(text).ok())?,
            rules: calls
                .map(|wire| wire.try_rule(CallRuleWire::rule))
                .collect::<Result<_, _>>()?,
            resources: self
                .resources
                .names(|text| ResourcePattern::parse(text).ok())?,
            prompts: self.prompts.names(tool)?,
            server_requests: ServerRequests {
                sampling: self.sampling,
                elicitation: self.elicitation,
                roots: self.roots,
            },
            rate_limit_per_min: self.rate_limit_per_min,
            hold_seconds: self.hold_seconds,
            on_new_tool: self.on_new_tool,
            within: self
                .within
                .into_iter()
                .map(Self::tools)
                .collect::<Result<_, _>>()?,
        })
    }
}

fn servers(list: Vec<NamedServer>) -> Result<BTreeMap<String, Rule<McpServer>>, Unrepresentable> {
    if !list.is_sorted_by(|a, b| a.name < b.name) {
        return Err(Unrepresentable::Order);
    }
    let each = list.into_iter().map(|named| {
        if !is_mcp_server(&named.name) {
            return Err(Unrepresentable::Rule);
        }
        Ok((named.name, named.server.try_rule(ServerWire::server)?))
    });
    each.collect()
}

impl ServerWire {
    fn of(server: &McpServer) -> Result<Self, Unrepresentable> {
        Ok(match server.clone() {
            McpServer::Command {
                command,
                capability,
                env,
            } => Self::Command {
                command,
                capability,
                env,
            },
            McpServer::Url { url, ca, headers } if ca.is_none() && headers.is_empty() => {
                Self::Url(url)
            }
            McpServer::Url { url, ca, headers } => Self::Known {
                url,
                ca: ca.as_ref().map(PathText::of).transpose()?,
                headers: headers
                    .iter()
                    .map(HeaderWire::of)
                    .collect::<Result<_, _>>()?,
            },
            McpServer::Unix { unix } => Self::Unix(unix),
        })
    }

    fn server(self) -> Result<McpServer, Unrepresentable> {
        Ok(match self {
            Self::Command {
                command,
                capability,
                env,
            } => McpServer::Command {
                command,
                capability,
                env,
            },
            Self::Url(url) => McpServer::at(url),
            Self::Known { url, ca, headers } => {
                // Each server has one spelling.
                if ca.is_none() && headers.is_empty() {
                    return Err(Unrepresentable::Rule);
                }
                let headers: Vec<ServerHeader> = headers
                    .into_iter()
                    .map(HeaderWire::header)
                    .collect::<Result<_, _>>()?;
                let in_order = |a: &ServerHeader, b: &ServerHeader| {
                    a.place.header_name() < b.place.header_name()
                };
                if !headers.is_sorted_by(in_order) {
                    return Err(Unrepresentable::Order);
                }
                McpServer::Url {
                    url,
                    ca: ca.map(one_file).transpose()?,
                    headers,
                }
            }
            Self::Unix(unix) => McpServer::Unix { unix },
        })
    }
}

impl HeaderWire {
    fn of(header: &ServerHeader) -> Result<Self, Unrepresentable> {
        Ok(Self {
            place: PlaceWire::of(&header.place),
            from: SourceWire::of(&header.source)?,
        })
    }

    fn header(self) -> Result<ServerHeader, Unrepresentable> {
        let place = self.place.into_place()?;
        if is_mcp_header(place.header_name()) {
            return Err(Unrepresentable::Rule);
        }
        let source = self.from.into_source()?;
        Ok(ServerHeader { place, source })
    }
}

impl CallRuleWire {
    fn of(rule: &CallRule) -> Self {
        let CallRule {
            tool,
            verdict,
            conditions,
            rate_limit_per_min,
            redact,
        } = rule;
        let condition = |own: &Condition| ConditionWire {
            at: own.at.to_string(),
            test: TestWire::of(&own.test),
        };
        Self {
            tool: tool.to_string(),
            verdict: *verdict,
            conditions: conditions.iter().map(condition).collect(),
            rate_limit_per_min: *rate_limit_per_min,
            redact: redact.iter().map(Pointer::to_string).collect(),
        }
    }

    fn rule(self) -> Result<CallRule, Unrepresentable> {
        let pointer = |text: &String| exactly(text, |text| Pointer::parse(text).ok());
        let conditions = self.conditions.into_iter().map(|wire| {
            Ok(Condition {
                at: pointer(&wire.at)?,
                test: wire.test.test()?,
            })
        });
        Ok(CallRule {
            tool: exactly(&self.tool, |text| ToolPattern::parse(text).ok())?,
            verdict: self.verdict,
            conditions: conditions.collect::<Result<_, _>>()?,
            rate_limit_per_min: self.rate_limit_per_min,
            redact: self.redact.iter().map(pointer).collect::<Result<_, _>>()?,
        })
    }
}

impl TestWire {
    fn of(test: &Test) -> Self {
        match test {
            Test::Equals(value) => Self::Equals(value.to_string()),
            Test::In(values) => Self::In(values.iter().map(ToString::to_string).collect()),
            Test::Glob(glob) => Self::Glob(glob.to_string()),
            Test::Regex(regex) => Self::Regex(regex.as_str().to_owned()),
            Test::Range { minimum, maximum } => Self::Range {
                minimum: minimum.map(|number| number.to_string()),
                maximum: maximum.map(|number| number.to_string()),
            },
            Test::MaxBytes(most) => Self::MaxBytes(*most),
        }
    }

    fn test(self) -> Result<Test, Unrepresentable> {
        let value = |text: &String| {
            exactly(text, |text| {
                serde_json::from_str::<serde_json::Value>(text).ok()
            })
        };
        let number = |text: Option<String>| {
            let read = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
            text.map(|text| exactly(&text, read)).transpose()
        };
        Ok(match self {
            Self::Equals(text) => Test::Equals(value(&text)?),
            Self::In(texts) => Test::In(texts.iter().map(value).collect::<Result<_, _>>()?),
            Self::Glob(text) => Test::Glob(exactly(&text, |text| PathGlob::parse(text).ok())?),
            Self::Regex(text) => {
                Test::Regex(WholeRegex::parse(&text).map_err(|_| Unrepresentable::Rule)?)
            }
            Self::Range { minimum, maximum } => Test::Range {
                minimum: number(minimum)?,
                maximum: number(maximum)?,
            },
            Self::MaxBytes(most) => Test::MaxBytes(most),
        })
    }
}
