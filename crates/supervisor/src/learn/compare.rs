//! A run held against a file that is there already.

use super::Needs;
use super::gather::gather;
use crate::observation::path_text;
use belljar_policy::{
    Capability, EgressEffect, FileOp, Host, PathRule, Permission, Places, Reason, Rule, decide_host,
};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The most paths that are named one by one.
const MOST_APART: usize = 8;

/// What a file lacks for a run, and what it has that the run did not use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// What the run did and the file refuses.
    pub missing: Vec<String>,
    /// What the file allows and the run did not do.
    pub unused: Vec<String>,
}

/// How a file differs from what was learned, line by line.
#[must_use]
pub fn unified_diff(name: &str, before: &str, learned: &str) -> String {
    similar::TextDiff::from_lines(before, learned)
        .unified_diff()
        .header(name, "learned")
        .to_string()
}

/// Holds a run against a file.
#[must_use]
pub fn compare(needs: &Needs, file: &Capability, places: &Places) -> Comparison {
    let mut found = Comparison::default();
    let table = file.path_table(places);
    let refuses = |path: &Path, op: FileOp| {
        let decision = table.decide(path, op);
        !decision.is_allow() || decision.reason() == Reason::AllowPrivate
    };
    for (paths, op, word) in [
        (&needs.writes, FileOp::Write, "write"),
        (&needs.reads, FileOp::Read, "read"),
    ] {
        let refused = paths.iter().filter(|path| refuses(path, op)).cloned();
        let refused: Vec<PathBuf> = refused.collect();
        for path in gather(&refused, MOST_APART, &|path| refuses(path, op)) {
            let reason = table.decide(&path, op).reason().code();
            found
                .missing
                .push(format!("{word} {} ({reason})", path_text(&path)));
        }
    }
    for (host, port) in &needs.hosts {
        let decision = decide_host(&file.egress, host, *port);
        if !decision.is_allow() {
            let reason = decision.reason().code();
            found
                .missing
                .push(format!("connect {host}:{port} ({reason})"));
        }
    }
    let may_spawn = file.permissions.contains(&Permission::SpawnSubprocess);
    match (needs.spawns, may_spawn) {
        (true, false) => found.missing.push("spawn_subprocess".to_owned()),
        (false, true) => found.unused.push("permission spawn_subprocess".to_owned()),
        _ => {}
    }
    let unused = |rules: &[Rule<PathRule>], used: &[&[PathBuf]], word: &str| -> Vec<String> {
        let is_used = |rule: &Rule<PathRule>| {
            let path = rule.value.resolve(places);
            path.is_some_and(|path| used.iter().copied().flatten().any(|u| u.starts_with(&path)))
        };
        let idle = rules.iter().filter(|rule| !is_used(rule));
        idle.map(|rule| format!("{word} {} ({})", rule.value, rule.origin))
            .collect()
    };
    let filesystem = &file.filesystem;
    found
        .unused
        .extend(unused(&filesystem.writable, &[&needs.writes], "write"));
    let reads: [&[PathBuf]; 2] = [&needs.reads, &needs.writes];
    found
        .unused
        .extend(unused(&filesystem.readable, &reads, "read"));
    for rule in &file.egress {
        let covers = |(host, port): &(String, u16)| {
            let ports = &rule.value.ports;
            let host = Host::parse(host);
            host.is_ok_and(|host| rule.value.domain.matches(&host))
                && (ports.is_empty() || ports.contains(port))
        };
        if rule.value.effect == EgressEffect::Allow && !needs.hosts.iter().any(covers) {
            let domain = &rule.value.domain;
            found
                .unused
                .push(format!("connect {domain} ({})", rule.origin));
        }
    }
    found
}
