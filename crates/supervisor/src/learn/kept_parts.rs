//! What a run can't show, and the file it ran under says: taken over as it is written, if the whole means the same then.

use super::Lesson;
use belljar_manifest::carry::{CarriedText, DocumentText};
use belljar_manifest::draft::Draft;
use belljar_policy::{Capability, EgressRule, LlmTerms, PathRule, Rule, Source};
use std::collections::BTreeSet;

/// The keys of sections that no run shows.
const SECTIONS: [&str; 7] = [
    "degraded",
    "allow_emulation",
    "secrets",
    "llm",
    "ports",
    "upstream_proxy",
    "mcp",
];

/// The rules that the user wrote; those of a profile hold anyway, or by `extends`.
pub(super) fn own_rules(lesson: &Lesson<'_>, rules: &[Rule<PathRule>]) -> Vec<String> {
    let is_own = |rule: &&Rule<PathRule>| {
        // A file that holds a secret is hidden by what says so of the secret.
        let is_of_secret = lesson
            .within
            .secrets
            .iter()
            .any(|secret| secret.origin == rule.origin);
        rule.origin.source == Source::Document
            && rule.origin.file == lesson.within.name
            && !is_of_secret
    };
    let text = |rule: &Rule<PathRule>| rule.value.to_string();
    rules.iter().filter(is_own).map(text).collect()
}

/// Adds what can't be learned; says what must be copied by hand.
pub(super) fn keep(lesson: &Lesson<'_>, draft: &mut Draft, remarks: &mut Vec<String>) {
    let file = &lesson.within.name;
    if let Some(document) = lesson.document {
        let document = DocumentText::new(document);
        let carried = |key: &str, why: String| {
            let lines = document.section(key)?;
            Some(CarriedText { lines, why })
        };
        let mut full = draft.clone();
        full.extends = carried("extends", String::new());
        keep_reach(lesson, &document, &mut full);
        let sections = SECTIONS
            .iter()
            .filter_map(|key| carried(key, format!("As in {file}.")));
        full.sections = sections.collect();
        let parse =
            |draft: &Draft| belljar_manifest::parse_capability(file, draft.to_yaml().as_bytes());
        let mut read = parse(&full);
        let on_budget = lesson.within.llm.on_budget;
        // It may stand among the limits, too.
        if read
            .as_ref()
            .is_ok_and(|read| read.llm.on_budget != on_budget)
        {
            full.on_budget = Some(on_budget.as_str());
            read = parse(&full);
        }
        if read.is_ok_and(|read| says_the_same(&read, lesson.within)) {
            *draft = full;
            return;
        }
    }
    // A file in another form, or one that is spelled so that its parts can't be told apart.
    draft.carried_rules.clear();
    let within = lesson.within;
    for (set, what) in [
        (!within.secrets.is_empty(), "secrets"),
        (!within.ports.is_empty(), "ports"),
        (within.upstream_proxy.is_some(), "upstream_proxy"),
        (within.llm != LlmTerms::default(), "llm"),
        (within.tools.servers.is_some(), "mcp"),
    ] {
        if set {
            remarks.push(format!(
                "the policy it ran under has {what}, which can't be learned: copy them"
            ));
        }
    }
}

/// A secret, or a host of models, that this run did not need keeps its rule: without one it could not be reached, and the file would
/// be refused.
fn keep_reach(lesson: &Lesson<'_>, document: &DocumentText<'_>, draft: &mut Draft) {
    let file = &lesson.within.name;
    let Ok(learned) = belljar_manifest::parse_capability(file, draft.to_yaml().as_bytes()) else {
        return;
    };
    let mut lines = BTreeSet::new();
    let mut reach = |what: &str, is_reachable: &dyn Fn(&[Rule<EgressRule>]) -> bool| {
        if is_reachable(&learned.egress) {
            return;
        }
        let rules = lesson.within.egress.iter();
        let rules = rules.filter(|rule| is_reachable(std::slice::from_ref(rule)));
        for rule in rules.filter(|rule| lines.insert(rule.origin.line)) {
            let why = format!("For {what}, not used; as in {}.", rule.origin);
            if let Some(lines) = document.item(rule.origin.line) {
                draft.carried_rules.push(CarriedText { lines, why });
            }
        }
    };
    for secret in &lesson.within.secrets {
        let what = format!("the secret {}", secret.value.name);
        reach(&what, &|rules| secret.value.is_reachable(rules));
    }
    for endpoint in &lesson.within.llm.endpoints {
        let what = format!("the models at {}", endpoint.value.domain);
        reach(&what, &|rules| endpoint.value.is_reachable(rules));
    }
}

fn says_the_same(read: &Capability, within: &Capability) -> bool {
    fn values<T>(rules: &[Rule<T>]) -> Vec<&T> {
        rules.iter().map(|rule| &rule.value).collect()
    }
    fn servers(capability: &Capability) -> Option<Vec<&String>> {
        let servers = capability.tools.servers.as_ref();
        servers.map(|servers| servers.keys().collect())
    }
    values(&read.secrets) == values(&within.secrets)
        && values(&read.ports) == values(&within.ports)
        && read.upstream_proxy.as_ref().map(|rule| &rule.value)
            == within.upstream_proxy.as_ref().map(|rule| &rule.value)
        && read.llm.on_budget == within.llm.on_budget
        && read.llm.endpoints.len() == within.llm.endpoints.len()
        && read.degraded == within.degraded
        && servers(read) == servers(within)
}
