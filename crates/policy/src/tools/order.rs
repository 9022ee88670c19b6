//! Whether one layer is within another, and what two sets of layers have in common.
//!
//! A set is within another when each of the other's layers has a layer of ours within it. So the meet of two sets is
//! their union: it is within both, and whatever is within both is within it.

use super::condition::{Condition, Sure};
use super::{BlockedTool, CallRule, NameRules, ServerRequests, ToolPattern, ToolRules};
use crate::{Origin, Rule, Verdict};

/// Something of a child's that its parent does not have.
#[derive(Clone, Debug)]
pub(crate) struct ToolExcess {
    pub(crate) field: &'static str,
    pub(crate) parent: String,
    pub(crate) child: String,
    pub(crate) origin: Option<Origin>,
}

impl ToolRules {
    /// What this has beyond `parent`; of several ways to be within it, the nearest counts.
    pub(crate) fn beyond(&self, parent: &Self) -> Vec<ToolExcess> {
        let nearest = |outer: &Self| {
            let each = self.layers().map(|own| own.layer_beyond(outer));
            each.min_by_key(Vec::len).unwrap_or_default()
        };
        parent.layers().flat_map(nearest).collect()
    }

    /// The layers of both, less those that others are within anyway.
    pub(crate) fn meet(&self, other: &Self) -> Self {
        let mut kept: Vec<Self> = Vec::new();
        for layer in other.layers().chain(self.layers()) {
            let layer = Self {
                within: Vec::new(),
                ..layer.clone()
            };
            if kept.iter().any(|own| own.layer_beyond(&layer).is_empty()) {
                continue;
            }
            kept.retain(|own| !layer.layer_beyond(own).is_empty());
            kept.push(layer);
        }
        let mut layers = kept.into_iter();
        let first = layers.next().unwrap_or_else(Self::closed);
        Self {
            within: layers.collect(),
            ..first
        }
    }

    fn layer_beyond(&self, parent: &Self) -> Vec<ToolExcess> {
        // Taken apart whole: a field that nobody compares must not compile.
        let Self {
            servers: _,
            allowed: _,
            blocked: _,
            rules: _,
            // Layers are compared one by one.
            within: _,
            // A held call that waits longer is no more than one that waits.
            hold_seconds: _,
            resources,
            prompts,
            server_requests,
            on_new_tool,
            rate_limit_per_min,
        } = self;
        let ServerRequests {
            sampling,
            elicitation,
            roots,
        } = server_requests;
        let mut report = Report(Vec::new());
        report.servers(parent, self);
        report.granted(parent, self);
        report.refused(parent, self);
        report.names(
            "mcp.resources",
            &parent.resources,
            resources,
            parent,
            |a, b| a.covers(b),
            |own| own.server(),
        );
        report.names(
            "mcp.prompts",
            &parent.prompts,
            prompts,
            parent,
            ToolPattern::covers,
            |own| own.server(),
        );
        let asks = [
            (
                "mcp.server_requests.sampling",
                parent.server_requests.sampling,
                *sampling,
            ),
            (
                "mcp.server_requests.elicitation",
                parent.server_requests.elicitation,
                *elicitation,
            ),
            (
                "mcp.server_requests.roots",
                parent.server_requests.roots,
                *roots,
            ),
            ("mcp.on_new_tool", parent.on_new_tool, *on_new_tool),
        ];
        for (field, has, wants) in asks {
            if wants < has {
                report.add(field, has.as_str(), wants.as_str(), None);
            }
        }
        match (parent.rate_limit_per_min, *rate_limit_per_min) {
            (Some(most), Some(wanted)) if wanted > most => {
                report.add("mcp.rate_limit_per_minute", most, wanted, None);
            }
            (Some(most), None) => report.add("mcp.rate_limit_per_minute", most, "no limit", None),
            _ => {}
        }
        report.0
    }

    /// Whether the parent lets through every tool of the pattern, none of which its rules are about.
    fn opens(&self, pattern: &ToolPattern) -> bool {
        match &self.allowed {
            None => self.opens_server(pattern.server()),
            Some(list) => list.iter().any(|own| own.value.covers(pattern)),
        }
    }

    fn opens_server(&self, server: &str) -> bool {
        let listed = |servers: &std::collections::BTreeMap<String, _>| {
            !server.contains('*') && servers.contains_key(server)
        };
        self.servers.as_ref().is_none_or(listed)
    }

    fn of(&self, verdict: Verdict) -> impl Iterator<Item = &Rule<CallRule>> {
        self.rules
            .iter()
            .filter(move |rule| rule.value.verdict == verdict)
    }

    /// Whether every call that meets `rule` is refused here, or stopped in another way that `enough` accepts.
    fn stops(&self, rule: &CallRule, enough: impl Fn(&CallRule) -> bool) -> bool {
        let blocked =
            |own: &Rule<BlockedTool>| own.value.path.is_none() && own.value.tool.covers(&rule.tool);
        let ruled = |own: &Rule<CallRule>| {
            (own.value.verdict == Verdict::Deny || enough(&own.value))
                && own.value.covers(rule, Sure::No)
        };
        self.blocked.iter().any(blocked) || self.rules.iter().any(ruled)
    }
}

impl CallRule {
    /// Whether whatever meets `other` meets this rule.
    fn covers(&self, other: &Self, sure: Sure) -> bool {
        let Self {
            tool,
            conditions,
            // What happens to such calls, and how they are put on record, is not what they are.
            verdict: _,
            rate_limit_per_min: _,
            redact: _,
        } = other;
        let implied = |own: &Condition| conditions.iter().any(|theirs| theirs.implies(own, sure));
        self.tool.covers(tool) && self.conditions.iter().all(implied)
    }
}

struct Report(Vec<ToolExcess>);

impl Report {
    fn add(
        &mut self,
        field: &'static str,
        parent: impl ToString,
        child: impl ToString,
        origin: Option<&Origin>,
    ) {
        self.0.push(ToolExcess {
            field,
            parent: parent.to_string(),
            child: child.to_string(),
            origin: origin.cloned(),
        });
    }

    /// Starting or reaching a server is a power, and a list of servers is a restriction.
    fn servers(&mut self, parent: &ToolRules, child: &ToolRules) {
        const FIELD: &str = "mcp.servers";
        if parent.servers.is_some() && child.servers.is_none() {
            return self.add(FIELD, "a list", "any server", None);
        }
        for (name, wanted) in child.servers.iter().flatten() {
            let own = parent
                .servers
                .as_ref()
                .and_then(|servers| servers.get(name));
            if own.is_none_or(|own| own.value != wanted.value) {
                let has = own.map_or("no such server".to_owned(), |own| own.value.to_string());
                self.add(
                    FIELD,
                    has,
                    format!("{name}: {}", wanted.value),
                    Some(&wanted.origin),
                );
            }
        }
    }

    fn granted(&mut self, parent: &ToolRules, child: &ToolRules) {
        match (&parent.allowed, &child.allowed) {
            (Some(_), None) => self.add("allowed_tools", "a list", "every tool", None),
            (_, Some(wanted)) => {
                for rule in wanted.iter().filter(|rule| !parent.opens(&rule.value)) {
                    self.add(
                        "allowed_tools",
                        "no such tool",
                        &rule.value,
                        Some(&rule.origin),
                    );
                }
            }
            (None, None) => {}
        }
        // Tools that the parent's rules allow on conditions must not be open without.
        for rule in parent.of(Verdict::Allow) {
            let ruled = |own: &Rule<CallRule>| own.value.tool.covers(&rule.value.tool);
            if !child.of(Verdict::Allow).any(ruled) {
                self.add("mcp.rules", &rule.value, "no such rule", None);
            }
        }
        let unruled = |tool: &ToolPattern| {
            let about = |own: &Rule<CallRule>| own.value.tool.overlaps(tool);
            !parent.of(Verdict::Allow).any(about) && parent.opens(tool)
        };
        for rule in child.of(Verdict::Allow) {
            let covers = |own: &Rule<CallRule>| own.value.covers(&rule.value, Sure::Yes);
            if !parent.of(Verdict::Allow).any(covers) && !unruled(&rule.value.tool) {
                self.add(
                    "mcp.rules",
                    "no rule that covers it",
                    &rule.value,
                    Some(&rule.origin),
                );
            }
        }
        for rule in child.of(Verdict::Hold) {
            // What may meet conditions is held, and only what surely does is allowed: conditions can't be compared.
            let open = |own: &Rule<CallRule>| {
                own.value.conditions.is_empty() && own.value.covers(&rule.value, Sure::No)
            };
            let holds = |own: &Rule<CallRule>| own.value.covers(&rule.value, Sure::No);
            let covered =
                parent.of(Verdict::Allow).any(open) || parent.of(Verdict::Hold).any(holds);
            if !covered && !unruled(&rule.value.tool) {
                self.add(
                    "mcp.rules",
                    "no rule that covers it",
                    &rule.value,
                    Some(&rule.origin),
                );
            }
        }
    }

    fn refused(&mut self, parent: &ToolRules, child: &ToolRules) {
        for rule in &parent.blocked {
            let whole = CallRule {
                tool: rule.value.tool.clone(),
                verdict: Verdict::Deny,
                conditions: Vec::new(),
                rate_limit_per_min: None,
                redact: Vec::new(),
            };
            let blocked = child
                .blocked
                .iter()
                .any(|own| own.value.covers(&rule.value));
            if !blocked && !child.stops(&whole, |_| false) {
                self.add("blocked_tools", &rule.value, "not blocked", None);
            }
        }
        for rule in parent.of(Verdict::Deny) {
            if !child.stops(&rule.value, |_| false) {
                self.add("mcp.rules", &rule.value, "not denied", None);
            }
        }
        for rule in parent.of(Verdict::Hold) {
            if !child.stops(&rule.value, |own| own.verdict == Verdict::Hold) {
                self.add("mcp.rules", &rule.value, "not held", None);
            }
        }
        for rule in &parent.rules {
            let Some(most) = rule.value.rate_limit_per_min else {
                continue;
            };
            if !child.stops(&rule.value, |own| {
                own.rate_limit_per_min.is_some_and(|rate| rate <= most)
            }) {
                self.add("mcp.rules", &rule.value, "no such rate", None);
            }
        }
    }

    fn names<T: std::fmt::Display>(
        &mut self,
        field: &'static str,
        parent: &NameRules<T>,
        child: &NameRules<T>,
        rules: &ToolRules,
        covers: impl Fn(&T, &T) -> bool,
        server: impl Fn(&T) -> &str,
    ) {
        match (&parent.allowed, &child.allowed) {
            (Some(_), None) => self.add(field, "a list", "all", None),
            (None, None) => {}
            (None, Some(wanted)) => {
                // Without a list the parent opens its listed servers.
                for rule in wanted {
                    if !rules.opens_server(server(&rule.value)) {
                        self.add(field, "no such server", &rule.value, Some(&rule.origin));
                    }
                }
            }
            (Some(own), Some(wanted)) => {
                for rule in wanted {
                    if !own.iter().any(|own| covers(&own.value, &rule.value)) {
                        self.add(
                            field,
                            "none that covers it",
                            &rule.value,
                            Some(&rule.origin),
                        );
                    }
                }
            }
        }
        for rule in &parent.blocked {
            if !child
                .blocked
                .iter()
                .any(|own| covers(&own.value, &rule.value))
            {
                self.add(
                    field,
                    format!("{} blocked", rule.value),
                    "not blocked",
                    None,
                );
            }
        }
    }
}
