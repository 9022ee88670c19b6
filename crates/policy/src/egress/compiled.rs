//! Egress rules made ready for many questions.
//!
//! Rules are found by hash: names whole, suffixes label by label, address blocks prefix length by prefix
//! length. So a decision costs a few lookups, however many rules there are. It is the same decision that
//! [`decide_host`](super::decide_host) makes by reading every rule, and a property test holds the two together.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::pattern::mask;
use super::{
    DomainPattern, EgressEffect, EgressRule, Host, Reach, explain_allowed, explain_blocked,
    explain_no_rule,
};
use crate::{Decision, Rule};

/// Which rule decided: its place in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(u32);

impl RuleId {
    /// The place in the list the rules were compiled from.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What the rules say about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The first allow rule that matches; its limits count.
    Allow(RuleId),
    /// The first deny rule that matches.
    Blocked(RuleId),
    /// No rule is about it.
    NoRule,
}

/// A list of egress rules, compiled.
#[derive(Clone, Debug, Default)]
pub struct CompiledRules {
    rules: Arc<[Rule<EgressRule>]>,
    names: HashMap<Box<str>, Slots>,
    suffixes: HashMap<Box<str>, Slots>,
    /// By prefix length; only lengths that occur.
    v4: Vec<(u8, HashMap<u32, Slots>)>,
    v6: Vec<(u8, HashMap<u128, Slots>)>,
    any: Slots,
}

/// The rules of one pattern, in order.
#[derive(Clone, Debug, Default)]
struct Slots {
    allow: Vec<u32>,
    deny: Vec<u32>,
}

impl CompiledRules {
    /// Compiles a list. Rules beyond the four billionth would not be kept; no file is that long.
    #[must_use]
    pub fn new(rules: impl Into<Arc<[Rule<EgressRule>]>>) -> Self {
        let rules = rules.into();
        let mut compiled = Self {
            rules: Arc::clone(&rules),
            ..Self::default()
        };
        for (id, rule) in (0_u32..).zip(rules.iter()) {
            let slots = compiled.slots(&rule.value.domain);
            match rule.value.effect {
                EgressEffect::Allow => slots.allow.push(id),
                EgressEffect::Deny => slots.deny.push(id),
            }
        }
        compiled
    }

    fn slots(&mut self, pattern: &DomainPattern) -> &mut Slots {
        match pattern {
            DomainPattern::Exact(name) => self.names.entry(name.as_str().into()).or_default(),
            DomainPattern::Below(suffix) => {
                self.suffixes.entry(suffix.as_str().into()).or_default()
            }
            DomainPattern::Ip(address) => {
                let width = if address.is_ipv4() { 32 } else { 128 };
                self.block(*address, width)
            }
            DomainPattern::Block(block) => self.block(block.network(), block.prefix()),
            DomainPattern::Any => &mut self.any,
        }
    }

    fn block(&mut self, network: IpAddr, prefix: u8) -> &mut Slots {
        match network {
            IpAddr::V4(v4) => of_length(&mut self.v4, prefix)
                .entry(v4.to_bits())
                .or_default(),
            IpAddr::V6(v6) => of_length(&mut self.v6, prefix)
                .entry(v6.to_bits())
                .or_default(),
        }
    }

    /// What the rules say about a connection to `host` at `port`.
    #[must_use]
    pub fn decide(&self, host: &Host, port: u16) -> Outcome {
        let covers = |id: &&u32| self.at(**id).covers_port(port);
        self.first(host, covers, covers)
    }

    /// Whether the host may be reached on any port at all: what a name server asks.
    #[must_use]
    pub fn decide_any_port(&self, host: &Host) -> Outcome {
        self.first(host, |id| self.at(**id).ports.is_empty(), |_| true)
    }

    /// What the rules say about one HTTP request on a connection they allow. `path` is without its query. The
    /// first allow rule counts whose terms permit it; `None` when there is none.
    #[must_use]
    pub fn decide_request(
        &self,
        host: &Host,
        port: u16,
        method: &str,
        path: &str,
    ) -> Option<RuleId> {
        let rules = self.allowing(host, port);
        let permits = |rule: &EgressRule| match &rule.terms.http {
            None => true,
            Some(http) => http.permits(method, path),
        };
        rules.into_iter().find(|id| permits(&self.rule(*id).value))
    }

    /// Whether requests to `host` at `port` must be looked at: every rule that allows the connection has
    /// terms about requests.
    #[must_use]
    pub fn looks_at_requests(&self, host: &Host, port: u16) -> bool {
        let rules = self.allowing(host, port);
        !rules.is_empty()
            && rules
                .iter()
                .all(|id| self.rule(*id).value.terms.http.is_some())
    }

    /// Every allow rule that matches, in order; none when a deny rule does.
    #[must_use]
    pub fn allowing(&self, host: &Host, port: u16) -> Vec<RuleId> {
        let mut found = Vec::new();
        let mut blocked = false;
        let covers = |id: &&u32| self.at(**id).covers_port(port);
        self.each(host, |slots| {
            blocked |= slots.deny.iter().any(|id| covers(&id));
            found.extend(slots.allow.iter().filter(covers).map(|id| RuleId(*id)));
        });
        if blocked {
            return Vec::new();
        }
        found.sort_unstable();
        found
    }

    /// The rule behind an outcome. Only this list's own ids are meant; others panic or mislead.
    #[must_use]
    pub fn rule(&self, id: RuleId) -> &Rule<EgressRule> {
        &self.rules[id.index()]
    }

    /// All rules, in order.
    #[must_use]
    pub fn rules(&self) -> &[Rule<EgressRule>] {
        &self.rules
    }

    /// The outcome as a decision, with its origin and a hint.
    #[must_use]
    pub fn explain(&self, outcome: Outcome, host: &Host, port: u16) -> Decision {
        match outcome {
            Outcome::Allow(id) => explain_allowed(self.rule(id)),
            Outcome::Blocked(id) => explain_blocked(self.rule(id)),
            Outcome::NoRule => explain_no_rule(&host.to_string(), port),
        }
    }

    fn at(&self, id: u32) -> &EgressRule {
        &self.rules[id as usize].value
    }

    fn first(
        &self,
        host: &Host,
        denies: impl Fn(&&u32) -> bool,
        allows: impl Fn(&&u32) -> bool,
    ) -> Outcome {
        let (mut deny, mut allow) = (None, None);
        self.each(host, |slots| {
            keep_least(&mut deny, slots.deny.iter().find(&denies));
            keep_least(&mut allow, slots.allow.iter().find(&allows));
        });
        match (deny, allow) {
            (Some(id), _) => Outcome::Blocked(RuleId(id)),
            (None, Some(id)) => Outcome::Allow(RuleId(id)),
            (None, None) => Outcome::NoRule,
        }
    }

    /// Calls `see` with the rules of every pattern that matches the host.
    fn each(&self, host: &Host, mut see: impl FnMut(&Slots)) {
        see(&self.any);
        if let Some(name) = host.name() {
            if let Some(slots) = self.names.get(name) {
                see(slots);
            }
            if self.suffixes.is_empty() {
                return;
            }
            for (dot, _) in name.match_indices('.') {
                if let Some(slots) = self.suffixes.get(&name[dot + 1..]) {
                    see(slots);
                }
            }
        }
        match host.address() {
            Some(IpAddr::V4(v4)) => {
                for (prefix, networks) in &self.v4 {
                    if let IpAddr::V4(key) = mask(v4.into(), *prefix)
                        && let Some(slots) = networks.get(&key.to_bits())
                    {
                        see(slots);
                    }
                }
            }
            Some(IpAddr::V6(v6)) => {
                for (prefix, networks) in &self.v6 {
                    if let IpAddr::V6(key) = mask(v6.into(), *prefix)
                        && let Some(slots) = networks.get(&key.to_bits())
                    {
                        see(slots);
                    }
                }
            }
            None => {}
        }
    }
}

fn keep_least(least: &mut Option<u32>, found: Option<&u32>) {
    if let Some(found) = found {
        *least = Some(least.map_or(*found, |own| own.min(*found)));
    }
}

fn of_length<K>(lengths: &mut Vec<(u8, HashMap<K, Slots>)>, prefix: u8) -> &mut HashMap<K, Slots> {
    let at = lengths
        .iter()
        .position(|(own, _)| *own == prefix)
        .unwrap_or_else(|| {
            lengths.push((prefix, HashMap::new()));
            lengths.len() - 1
        });
    &mut lengths[at].1
}

/// The ports of the host itself that some rule opens: what must be led out of the box although it goes to 127.0.0.1.
#[must_use]
pub fn host_ports(rules: &[Rule<EgressRule>]) -> Vec<u16> {
    let own = |rule: &&Rule<EgressRule>| {
        rule.value.effect == EgressEffect::Allow && rule.value.terms.reach == Reach::Host
    };
    let own = rules.iter().filter(own);
    let mut ports: Vec<u16> = own
        .flat_map(|rule| rule.value.ports.iter().copied())
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}
