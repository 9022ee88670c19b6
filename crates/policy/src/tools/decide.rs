//! What becomes of a call, a resource, a prompt or a server's request.

use serde_json::Value;

use super::name::is_mcp_name;
use super::path::PlainPath;
use super::{BlockedTool, CallRule, Lexical, NameRules, Paths, ServerRequests, ToolRules};
use crate::{Decision, Origin, Reason, Verdict};

/// A call of a tool.
#[derive(Clone, Copy)]
pub struct ToolQuestion<'a> {
    /// The server's id.
    pub server: &'a str,
    /// The tool's name.
    pub tool: &'a str,
    /// The arguments; null where there are none.
    pub arguments: &'a Value,
    /// What is known of the file system that paths among them are looked up in.
    pub paths: &'a dyn Paths,
}

impl std::fmt::Debug for ToolQuestion<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{} {}", self.server, self.tool, self.arguments)
    }
}

impl<'a> ToolQuestion<'a> {
    /// A call without arguments of a tool named `server:tool`; `None` when the text names none.
    #[must_use]
    pub fn named(text: &'a str) -> Option<Self> {
        let (server, tool) = text.split_once(':')?;
        Some(Self {
            server,
            tool,
            arguments: &Value::Null,
            paths: &Lexical,
        })
    }
}

/// A rate that a call counts against. The numbers are those of the layer and of the rule in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateUse {
    /// Which layer, as [`ToolRules::layers`] counts them.
    pub layer: usize,
    /// Which rule of it; `None` is the layer's own rate.
    pub rule: Option<usize>,
    /// The most per minute.
    pub per_minute: u32,
    /// Where that was written, if a rule says it.
    pub origin: Option<Origin>,
}

/// What becomes of a call, and what follows from it.
#[derive(Clone, Debug)]
pub struct ToolAnswer {
    /// The decision.
    pub decision: Decision,
    /// The rates it counts against, if it is not denied.
    pub rates: Vec<RateUse>,
}

/// Decides a call. Rates are not looked at: they need a clock.
#[must_use]
pub fn decide_tool(rules: &ToolRules, question: &ToolQuestion<'_>) -> Decision {
    rules.answer_tool(question).decision
}

impl ToolRules {
    /// Decides a call, and says which rates it counts against.
    #[must_use]
    pub fn answer_tool(&self, question: &ToolQuestion<'_>) -> ToolAnswer {
        if !is_mcp_name(question.tool) {
            let hint = "a name is letters, digits, `_`, `.` and `-`, at most 128";
            let decision = Decision::deny(
                Reason::DenyToolName,
                Origin::built_in(),
                Some(hint.to_owned()),
            );
            return ToolAnswer {
                decision,
                rates: Vec::new(),
            };
        }
        let mut rates = Vec::new();
        let mut decided: Option<Decision> = None;
        for (at, layer) in self.layers().enumerate() {
            let decision = layer.tool(question);
            decided = Some(match decided {
                Some(other) => other.strictest(decision),
                None => decision,
            });
            rates.extend(layer.rates(at, question));
        }
        let decision = decided.unwrap_or_else(|| not_listed(question));
        if decision.verdict() == Verdict::Deny {
            rates.clear();
        }
        ToolAnswer { decision, rates }
    }

    /// The places of arguments that the record shows by size and digest only.
    #[must_use]
    pub fn redacted<'s>(&'s self, server: &str, tool: &str) -> Vec<&'s super::Pointer> {
        let rules = self.layers().flat_map(|layer| &layer.rules);
        let about = rules.filter(|rule| rule.value.tool.matches(server, tool));
        about.flat_map(|rule| &rule.value.redact).collect()
    }

    /// Whether a tool is worth listing: some call of it is let through or held.
    #[must_use]
    pub fn lists_tool(&self, server: &str, tool: &str) -> bool {
        let listed = |layer: &Self| {
            let whole_block = layer
                .blocked
                .iter()
                .any(|rule| rule.value.path.is_none() && rule.value.tool.matches(server, tool));
            let mut about = layer
                .rules
                .iter()
                .filter(|rule| rule.value.tool.matches(server, tool));
            let denied = about.clone().any(|rule| {
                rule.value.verdict == Verdict::Deny && rule.value.conditions.is_empty()
            });
            let let_through = about.any(|rule| rule.value.verdict != Verdict::Deny);
            !whole_block && !denied && (let_through || layer.unruled(server, tool).is_allow())
        };
        is_mcp_name(tool) && self.layers().all(listed)
    }

    /// Decides the reading of a resource.
    #[must_use]
    pub fn decide_resource(&self, server: &str, uri: &str) -> Decision {
        let codes = [
            Reason::AllowResource,
            Reason::DenyResourceBlocked,
            Reason::DenyResourceNotListed,
        ];
        let hint = || {
            format!(
                "add to mcp: resources: {{allowed: [{:?}]}}",
                format!("{server}:{uri}")
            )
        };
        let layer = |layer: &Self| {
            layer.named(
                &layer.resources,
                server,
                codes,
                &hint,
                |rule, ask| match ask {
                    Ask::Surely => rule.surely(server, uri),
                    Ask::Maybe => rule.maybe(server, uri),
                },
            )
        };
        strictest(self.layers().map(layer))
    }

    /// Decides the getting of a prompt.
    #[must_use]
    pub fn decide_prompt(&self, server: &str, prompt: &str) -> Decision {
        let codes = [
            Reason::AllowPrompt,
            Reason::DenyPromptBlocked,
            Reason::DenyPromptNotListed,
        ];
        if !is_mcp_name(prompt) {
            return Decision::deny(Reason::DenyToolName, Origin::built_in(), None);
        }
        let hint = || {
            format!(
                "add to mcp: prompts: {{allowed: [{:?}]}}",
                format!("{server}:{prompt}")
            )
        };
        let layer = |layer: &Self| {
            layer.named(&layer.prompts, server, codes, &hint, |rule, _| {
                rule.matches(server, prompt)
            })
        };
        strictest(self.layers().map(layer))
    }

    /// Decides what a server asks of the agent's side. What is not known is denied; a `ping` asks for nothing.
    #[must_use]
    pub fn decide_server_request(&self, method: &str) -> Decision {
        let (pick, key): (fn(&ServerRequests) -> Verdict, &str) = match method {
            "sampling/createMessage" => (|own| own.sampling, "sampling"),
            "elicitation/create" => (|own| own.elicitation, "elicitation"),
            "roots/list" => (|own| own.roots, "roots"),
            "ping" => return Decision::allow(Reason::AllowServerRequest, Origin::built_in()),
            _ => return Decision::deny(Reason::DenyServerRequest, Origin::built_in(), None),
        };
        let hint = || Some(format!("add to mcp: server_requests: {{{key}: allow}}"));
        let verdict = self
            .layers()
            .map(|layer| pick(&layer.server_requests))
            .max();
        match verdict {
            Some(Verdict::Allow) => Decision::allow(Reason::AllowServerRequest, Origin::built_in()),
            Some(Verdict::Hold) => {
                Decision::hold(Reason::HoldServerRequest, Origin::built_in(), hint())
            }
            Some(Verdict::Deny) | None => {
                Decision::deny(Reason::DenyServerRequest, Origin::built_in(), hint())
            }
        }
    }

    /// Decides anything else that is passed on to a server: it must be one that is listed.
    #[must_use]
    pub fn decide_server(&self, server: &str) -> Decision {
        let layer = |layer: &Self| match layer.lists_server(server) {
            true => Decision::allow(Reason::AllowTool, Origin::built_in()),
            false => no_server(server),
        };
        strictest(self.layers().map(layer))
    }

    fn lists_server(&self, server: &str) -> bool {
        self.servers
            .as_ref()
            .is_none_or(|servers| servers.contains_key(server))
    }

    /// This layer's decision.
    fn tool(&self, question: &ToolQuestion<'_>) -> Decision {
        if let Some(rule) = self.blocked.iter().find(|rule| rule.value.blocks(question)) {
            let hint = format!("remove the rule at {} that blocks it", rule.origin);
            return Decision::deny(Reason::DenyToolBlocked, rule.origin.clone(), Some(hint));
        }
        let (server, tool) = (question.server, question.tool);
        let about = || {
            self.rules
                .iter()
                .filter(move |rule| rule.value.tool.matches(server, tool))
        };
        let first = |verdict| {
            about().find(|rule| rule.value.verdict == verdict && rule.value.applies(question))
        };
        if let Some(rule) = first(Verdict::Deny) {
            let hint = format!("change the rule at {} that denies it", rule.origin);
            return Decision::deny(Reason::DenyToolBlocked, rule.origin.clone(), Some(hint));
        }
        if let Some(rule) = first(Verdict::Hold) {
            let hint = "an operator answers: belljar mcp holds".to_owned();
            return Decision::hold(Reason::HoldTool, rule.origin.clone(), Some(hint));
        }
        if let Some(rule) = first(Verdict::Allow) {
            return Decision::allow(Reason::AllowTool, rule.origin.clone());
        }
        // A tool that rules allow on conditions is allowed in no other way.
        if let Some(rule) = about().find(|rule| rule.value.verdict == Verdict::Allow) {
            let failed = rule
                .value
                .conditions
                .iter()
                .find(|own| !own.surely(question.arguments, question.paths));
            let hint = failed.map(|own| format!("the rule at {} wants {own}", rule.origin));
            return Decision::deny(Reason::DenyToolArguments, rule.origin.clone(), hint);
        }
        self.unruled(server, tool)
    }

    /// What becomes of a tool that no rule is about.
    fn unruled(&self, server: &str, tool: &str) -> Decision {
        let Some(allowed) = &self.allowed else {
            return match self.lists_server(server) {
                true => Decision::allow(Reason::AllowTool, Origin::built_in()),
                false => no_server(server),
            };
        };
        match allowed.iter().find(|rule| rule.value.matches(server, tool)) {
            Some(rule) => Decision::allow(Reason::AllowTool, rule.origin.clone()),
            None => not_listed_named(server, tool),
        }
    }

    fn rates(&self, layer: usize, question: &ToolQuestion<'_>) -> Vec<RateUse> {
        let whole = self.rate_limit_per_min.map(|per_minute| RateUse {
            layer,
            rule: None,
            per_minute,
            origin: None,
        });
        let own = self.rules.iter().enumerate().filter_map(|(at, rule)| {
            let per_minute = rule.value.rate_limit_per_min?;
            let counts = rule.value.tool.matches(question.server, question.tool)
                && rule.value.meets(question);
            counts.then(|| RateUse {
                layer,
                rule: Some(at),
                per_minute,
                origin: Some(rule.origin.clone()),
            })
        });
        whole.into_iter().chain(own).collect()
    }

    fn named<T>(
        &self,
        rules: &NameRules<T>,
        server: &str,
        [allow, blocked, unlisted]: [Reason; 3],
        hint: &dyn Fn() -> String,
        matches: impl Fn(&T, Ask) -> bool,
    ) -> Decision {
        if let Some(rule) = rules
            .blocked
            .iter()
            .find(|rule| matches(&rule.value, Ask::Maybe))
        {
            let hint = format!("remove the rule at {} that blocks it", rule.origin);
            return Decision::deny(blocked, rule.origin.clone(), Some(hint));
        }
        match &rules.allowed {
            None if self.lists_server(server) => Decision::allow(allow, Origin::built_in()),
            None => no_server(server),
            Some(list) => match list.iter().find(|rule| matches(&rule.value, Ask::Surely)) {
                Some(rule) => Decision::allow(allow, rule.origin.clone()),
                None => Decision::deny(unlisted, Origin::built_in(), Some(hint())),
            },
        }
    }
}

#[derive(Clone, Copy)]
enum Ask {
    Surely,
    Maybe,
}

fn strictest(decisions: impl Iterator<Item = Decision>) -> Decision {
    let all = decisions.reduce(Decision::strictest);
    all.unwrap_or_else(|| Decision::deny(Reason::DenyToolNotListed, Origin::built_in(), None))
}

fn no_server(server: &str) -> Decision {
    let hint = format!("list it: mcp: servers: {{{server}: {{command: […]}}}}");
    Decision::deny(Reason::DenyServerNotListed, Origin::built_in(), Some(hint))
}

fn not_listed(question: &ToolQuestion<'_>) -> Decision {
    not_listed_named(question.server, question.tool)
}

fn not_listed_named(server: &str, tool: &str) -> Decision {
    let tool = format!("{server}:{tool}");
    let hint = format!(
        "add to capability.yaml: mcp: allowed_tools: [{tool:?}]; to sandbox.toml: [sandbox.mcp] allowed_tools = [{tool:?}]"
    );
    Decision::deny(Reason::DenyToolNotListed, Origin::built_in(), Some(hint))
}

impl CallRule {
    /// Whether the rule's verdict applies: sure where it allows, possible where it does not.
    fn applies(&self, question: &ToolQuestion<'_>) -> bool {
        let (arguments, paths) = (question.arguments, question.paths);
        match self.verdict {
            Verdict::Allow => self
                .conditions
                .iter()
                .all(|own| own.surely(arguments, paths)),
            Verdict::Hold | Verdict::Deny => self.meets(question),
        }
    }

    /// Whether the conditions may be met; what a rate counts.
    fn meets(&self, question: &ToolQuestion<'_>) -> bool {
        self.conditions
            .iter()
            .all(|own| own.maybe(question.arguments, question.paths))
    }
}

impl BlockedTool {
    fn blocks(&self, question: &ToolQuestion<'_>) -> bool {
        let path = |glob| {
            touches(question.arguments, None, &|key, text| {
                match (PlainPath::of(text, question.paths), is_path_key(key)) {
                    (Some(path), _) => path.maybe(glob),
                    // What can't be told counts where a path is expected, and where it looks like one.
                    (None, expected) => expected || looks_like_a_path(text),
                }
            })
        };
        self.tool.matches(question.server, question.tool) && self.path.as_ref().is_none_or(path)
    }
}

/// Whether any text in the arguments, with the key it is under, is what `is` looks for.
fn touches(value: &Value, key: Option<&str>, is: &dyn Fn(Option<&str>, &str) -> bool) -> bool {
    match value {
        Value::String(text) => is(key, text),
        Value::Array(items) => items.iter().any(|item| touches(item, key, is)),
        Value::Object(map) => map.iter().any(|(key, item)| touches(item, Some(key), is)),
        _ => false,
    }
}

/// Keys under which servers take paths.
fn is_path_key(key: Option<&str>) -> bool {
    const WORDS: [&str; 10] = [
        "path",
        "paths",
        "file",
        "files",
        "filename",
        "filepath",
        "source",
        "destination",
        "directory",
        "dir",
    ];
    key.is_some_and(|key| {
        let key = key.to_ascii_lowercase();
        let last = key.rsplit(['_', '-', '.']).next().unwrap_or(&key);
        WORDS.contains(&last) || key.ends_with("path") || key.ends_with("file")
    })
}

/// One line that starts like a path: what is long or has lines is contents.
fn looks_like_a_path(text: &str) -> bool {
    const LONGEST: usize = 4096;
    let start = ["/", "~", "..", "./", "\\", "file:"]
        .iter()
        .any(|start| text.starts_with(start));
    start && text.len() <= LONGEST && !text.contains('\n')
}

#[cfg(test)]
mod tests;
