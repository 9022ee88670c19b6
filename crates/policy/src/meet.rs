//! The greatest capability within two others.

use std::collections::BTreeMap;

use crate::attenuate::{Exposure, breakpoints, of_effect};
use crate::egress::ports;
use crate::env::decide_name;
use crate::{
    Capability, EgressEffect, EgressRule, EnvAllow, EnvPolicy, Filesystem, Ground, ImageName,
    Limits, LlmTerms, Origin, PathRule, PathTable, Places, ProxyTerms, Rule, Source, Tier,
};

impl Capability {
    /// The greatest capability that is within both: what a child gets that asks for `other` of a
    /// parent that has `self`. Its filesystem rules are absolute, for these places.
    #[must_use]
    pub fn meet(&self, other: &Self, places: &Places) -> Self {
        let same_workdir = self.workdir.as_ref().map(|rule| &rule.value)
            == other.workdir.as_ref().map(|rule| &rule.value);
        Self {
            name: format!("{} within {}", other.name, self.name).into(),
            tier: meet_tier(self, other),
            degraded: self.degraded.min(other.degraded),
            emulation: self.emulation.min(other.emulation),
            image: meet_image(self, other),
            workdir: self.workdir.clone().filter(|_| same_workdir),
            filesystem: meet_filesystem(self, other, places),
            egress: meet_egress(self, other),
            secrets: meet_pairs(&self.secrets, &other.secrets, |own, other| own.meet(other)),
            ports: meet_pairs(&self.ports, &other.ports, |own, other| own.meet(other)),
            llm: meet_llm(&self.llm, &other.llm),
            upstream_proxy: meet_proxy(&self.upstream_proxy, &other.upstream_proxy),
            limits: meet_limits(&self.limits, &other.limits),
            permissions: self
                .permissions
                .intersection(&other.permissions)
                .copied()
                .collect(),
            env: meet_env(&self.env, &other.env),
            tools: self.tools.meet(&other.tools),
        }
    }
}

/// What both take their files from. Two that differ have none in common, see [`meet_filesystem`].
fn meet_image(a: &Capability, b: &Capability) -> Option<Rule<ImageName>> {
    let other = b.image.as_ref();
    let is_same = |own: &&Rule<ImageName>| other.is_some_and(|other| other.value == own.value);
    a.image.as_ref().filter(is_same).cloned()
}

/// The stronger. Without an image there is no container, only what is as strong.
fn meet_tier(a: &Capability, b: &Capability) -> Tier {
    let tier = match b.tier.strength() > a.tier.strength() {
        true => b.tier,
        false => a.tier,
    };
    match (tier, meet_image(a, b)) {
        (Tier::Container, None) => Tier::Native,
        _ => tier,
    }
}

/// Starts from the lesser mode with no rules but hidden names, and adds a rule at each path where
/// the outcome is not yet the lesser of the two. A rule added may change what an unnamed path below
/// it comes to, so this repeats; each round names more paths of a finite set, and a named path stays
/// as it is, so it ends.
fn meet_filesystem(a: &Capability, b: &Capability, places: &Places) -> Filesystem {
    let tables = [a.path_table(places), b.path_table(places)];
    let ground = match meet_image(a, b) {
        Some(_) => Ground::Image,
        None => Ground::Host,
    };
    let named = |rule: &&Rule<PathRule>| matches!(rule.value, PathRule::AnyNamed(_));
    let (own, others) = (&a.filesystem, &b.filesystem);
    let mut meet = Filesystem {
        mode: own.mode.min(others.mode),
        workspace: own.workspace.min(others.workspace),
        home: own.home.min(others.home),
        writable: Vec::new(),
        readable: Vec::new(),
        hidden: own
            .hidden
            .iter()
            .chain(&others.hidden)
            .filter(named)
            .cloned()
            .collect(),
        protected: Vec::new(),
    };
    loop {
        let reached = PathTable::resolve_on(ground, &meet, places);
        let [first, second] = &tables;
        let mut settled = true;
        for path in breakpoints([first, second, &reached]) {
            let entries = tables.each_ref().map(|table| table.lookup(&path));
            let [own, other] = entries.each_ref().map(|entry| Exposure::of(entry.access));
            let has = Exposure::of(reached.lookup(&path).access);
            let want = match own.meet(other) {
                // An image's files are there by themselves or not at all: no rule shows them.
                Exposure::Image if has != Exposure::Image => Exposure::Nothing,
                both => both,
            };
            let lesser = match own == want {
                true => &entries[0],
                false => &entries[1],
            };
            if has != want {
                settled = false;
                // An exception must outrank what is shipped, whoever's rule it goes back to.
                let origin = Origin {
                    source: Source::Document,
                    ..lesser.origin.clone()
                };
                let list = match want {
                    Exposure::Nothing | Exposure::Image => &mut meet.hidden,
                    Exposure::Reading => &mut meet.readable,
                    Exposure::Writing => &mut meet.writable,
                };
                list.push(Rule::new(PathRule::Root(path), origin));
            }
        }
        if settled {
            return meet;
        }
    }
}

/// What both have of two lists of powers.
fn meet_pairs<T>(a: &[Rule<T>], b: &[Rule<T>], meet: impl Fn(&T, &T) -> Option<T>) -> Vec<Rule<T>> {
    let pairs = a
        .iter()
        .flat_map(|own| b.iter().map(move |other| (own, other)));
    let both = pairs.filter_map(|(own, other)| {
        let value = meet(&own.value, &other.value)?;
        Some(Rule::new(value, other.origin.clone()))
    });
    both.collect()
}

/// Two that do not charge alike have no calls in common that both would charge: see `meet_egress`.
fn meet_llm(a: &LlmTerms, b: &LlmTerms) -> LlmTerms {
    let on_budget = a.on_budget.min(b.on_budget);
    if a.meters_like(b) {
        LlmTerms {
            on_budget,
            ..b.clone()
        }
    } else {
        LlmTerms {
            on_budget,
            ..LlmTerms::default()
        }
    }
}

fn meet_proxy(
    a: &Option<Rule<ProxyTerms>>,
    b: &Option<Rule<ProxyTerms>>,
) -> Option<Rule<ProxyTerms>> {
    match (a, b) {
        (Some(own), Some(other)) if own.value == other.value => Some(other.clone()),
        _ => None,
    }
}

/// Where calls to models are not charged alike nothing is let through, for any of it might be such a call.
fn meet_egress(one: &Capability, two: &Capability) -> Vec<Rule<EgressRule>> {
    let (a, b) = (&one.egress, &two.egress);
    let mut rules = Vec::new();
    let alike = one.llm.meters_like(&two.llm);
    for own in of_effect(a, EgressEffect::Allow).filter(|_| alike) {
        for other in of_effect(b, EgressEffect::Allow) {
            let Some(domain) = own.value.domain.intersect(&other.value.domain) else {
                continue;
            };
            let Some(ports) = ports::meet(&own.value.ports, &other.value.ports) else {
                continue;
            };
            let Some(terms) = own.value.terms.meet(&other.value.terms) else {
                continue;
            };
            let rate_limit_per_min = own
                .value
                .rate_limit_per_min
                .min(other.value.rate_limit_per_min);
            let value = EgressRule {
                domain,
                ports,
                rate_limit_per_min,
                effect: EgressEffect::Allow,
                terms,
            };
            rules.push(Rule::new(value, other.origin.clone()));
        }
    }
    rules.extend(of_effect(a, EgressEffect::Deny).cloned());
    rules.extend(of_effect(b, EgressEffect::Deny).cloned());
    rules
}

fn meet_limits(a: &Limits, b: &Limits) -> Limits {
    Limits {
        memory_bytes: least(a.memory_bytes, b.memory_bytes),
        cpu_time: least(a.cpu_time, b.cpu_time),
        cpu_percent: least(a.cpu_percent, b.cpu_percent),
        wall_time: least(a.wall_time, b.wall_time),
        processes: least(a.processes, b.processes),
        open_files: least(a.open_files, b.open_files),
        file_size_bytes: least(a.file_size_bytes, b.file_size_bytes),
        disk_bytes: least(a.disk_bytes, b.disk_bytes),
        connections: least(a.connections, b.connections),
        cost_usd: least(a.cost_usd, b.cost_usd),
        tokens: least(a.tokens, b.tokens),
    }
}

fn least<T: PartialOrd>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b < a { b } else { a }),
        (a, b) => a.or(b),
    }
}

fn meet_env(a: &EnvPolicy, b: &EnvPolicy) -> EnvPolicy {
    let names = |listed: &BTreeMap<String, Origin>, other: &EnvPolicy| {
        let passes = |name: &String| decide_name(other, name).is_allow();
        let kept = listed.iter().filter(|(name, _)| passes(name));
        EnvAllow::Listed(
            kept.map(|(name, origin)| (name.clone(), origin.clone()))
                .collect(),
        )
    };
    let allow = match (&a.allow, &b.allow) {
        (EnvAllow::All, EnvAllow::All) => EnvAllow::All,
        (EnvAllow::Base, _) | (_, EnvAllow::Base) => EnvAllow::Base,
        (EnvAllow::Listed(listed), _) => names(listed, b),
        (_, EnvAllow::Listed(listed)) => names(listed, a),
    };
    let withheld = a.withheld.iter().chain(&b.withheld);
    EnvPolicy {
        allow,
        withheld: withheld
            .map(|(name, origin)| (name.clone(), origin.clone()))
            .collect(),
    }
}
