//! From one watched run to the smallest capability file that lets it run again.
//!
//! What the box did and was let do becomes a line of the file. What it wanted and was refused becomes a comment: a run can
//! show what a program asks for, not what it should have. Hosts alone are otherwise, where the user says so (see [`Hosts`]).

mod compare;
mod gather;
mod hosts;
mod kept_parts;
mod names;
mod paths;

pub use compare::{Comparison, compare, unified_diff};

use crate::observation::Observation;
use crate::result::RunResult;
use belljar_manifest::draft::{Draft, LimitLine};
use belljar_policy::{
    Capability, DomainPattern, EgressEffect, EgressRule, EgressTerms, EnvAllow, Limits, Origin,
    Permission, Places, Rule, Workspace,
};
use std::path::PathBuf;

/// What a run has at least beyond what another used: where memory is looked at from time to time, its peak is not seen, and what
/// a program uses is a matter of when it cleans up.
const SPARE_MB: f64 = 384.0;

/// What becomes of connections while a box is learned from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hosts {
    /// They are refused, but for those that the box's policy allows. What was refused becomes a rule.
    Refuse,
    /// Every host on the open network may be reached. What was reached becomes a rule.
    Record,
}

/// What there is to learn from.
#[derive(Debug)]
pub struct Lesson<'a> {
    /// How the run went; it was watched.
    pub result: &'a RunResult,
    /// What it ran under, before [`in_learning`].
    pub within: &'a Capability,
    /// What became of connections.
    pub hosts: Hosts,
    /// Where it ran.
    pub places: &'a Places,
    /// What was run, for whoever reads the file.
    pub command: &'a str,
    /// The text of the file that it ran under, if that is YAML: what can't be learned is taken from there.
    pub document: Option<&'a str>,
}

/// What was learned.
#[derive(Debug)]
pub struct Learned {
    /// The file's text. It has been read back: it is valid.
    pub yaml: String,
    /// What the run needs.
    pub needs: Needs,
    /// What the file can't give, or does not know.
    pub remarks: Vec<String>,
}

/// What a run did with leave, so that another like it needs the same.
#[derive(Debug, Default)]
pub struct Needs {
    /// Directories of the host's that it wrote to.
    pub writes: Vec<PathBuf>,
    /// Files of the host's that it read, ran or looked at.
    pub reads: Vec<PathBuf>,
    /// Hosts and ports.
    pub hosts: Vec<(String, u16)>,
    /// Whether it made processes.
    pub spawns: bool,
}

/// The capability of a box that is learned from: what it has, and the hosts as chosen. Files, limits and walls are as ever.
#[must_use]
pub fn in_learning(mut capability: Capability, hosts: Hosts) -> Capability {
    let any = |ports: &[u16], effect| {
        let rule = EgressRule {
            domain: DomainPattern::Any,
            ports: ports.to_vec(),
            rate_limit_per_min: u32::MAX,
            effect,
            terms: EgressTerms::default(),
        };
        Rule::new(rule, Origin::built_in())
    };
    match hosts {
        Hosts::Record => capability.egress.push(any(&[], EgressEffect::Allow)),
        // Every name has an address inside, so that a program gets as far as to say which port it wants. That port is
        // never one that is let through: the only one is blocked.
        Hosts::Refuse => capability.egress.extend([
            any(&[0], EgressEffect::Allow),
            any(&[0], EgressEffect::Deny),
        ]),
    }
    capability
}

/// Works out the smallest file.
#[must_use]
pub fn learn(lesson: &Lesson<'_>) -> Learned {
    let nothing = Observation::default();
    let observed = lesson.result.observed.as_ref().unwrap_or(&nothing);
    let files = paths::learn(observed, lesson.within, lesson.places);
    let network = hosts::learn(lesson, observed);
    let mut remarks = files.remarks;
    if !observed.is_whole() {
        remarks.push(format!(
            "more files were named than are kept one by one: of {} directories only the directory is known, of {} names nothing",
            observed.directories.len(),
            observed.not_kept
        ));
    }
    if lesson.result.exit_code != Some(0) {
        remarks.push(
            "the program did not end well (see its exit code): what it would have done next is not known"
                .to_owned(),
        );
    }
    let spawns = observed.spawned > 0;
    let heading = vec![
        format!("Learned from one run of: {}", lesson.command),
        "What another run needs, this one could not show. Read every line before you use it."
            .to_owned(),
        "A line behind `#` was wanted and refused, or is hidden: it is yours to decide.".to_owned(),
    ];
    let (variables, variables_remark) = variables(&lesson.within.env.allow);
    let mut draft = Draft {
        heading,
        extends: None,
        on_budget: None,
        mode: files.mode,
        writable: files.writable,
        readable: files.readable,
        hidden: kept_parts::own_rules(lesson, &lesson.within.filesystem.hidden),
        protected: kept_parts::own_rules(lesson, &lesson.within.filesystem.protected),
        home: lesson.within.filesystem.home,
        keeps_aside: lesson.within.filesystem.workspace == Workspace::Overlay,
        carried_rules: network.carried,
        hosts: network.lines,
        host_remarks: network.remarks,
        limits: limits(lesson.result, &lesson.within.limits),
        permissions: permissions(observed, &lesson.within.env.allow),
        variables,
        variables_remark,
        sections: Vec::new(),
        programs: files.programs,
    };
    kept_parts::keep(lesson, &mut draft, &mut remarks);
    let notes = remarks.iter().map(|remark| format!("Note: {remark}"));
    draft.heading.extend(notes);
    Learned {
        yaml: draft.to_yaml(),
        needs: Needs {
            writes: files.writes,
            reads: files.reads,
            hosts: network.used,
            spawns,
        },
        remarks,
    }
}

fn permissions(observed: &Observation, env: &EnvAllow) -> Vec<(Permission, String)> {
    let mut permissions = Vec::new();
    if *env == EnvAllow::All {
        let why = "as in the learning run; which variables it read can't be seen";
        permissions.push((Permission::ReadEnv, why.to_owned()));
    }
    if observed.spawned > 0 {
        let why = format!("it made {} processes", observed.spawned);
        permissions.push((Permission::SpawnSubprocess, why));
    }
    permissions
}

fn variables(allow: &EnvAllow) -> (Option<Vec<String>>, String) {
    match allow {
        EnvAllow::Listed(names) => (
            Some(names.keys().cloned().collect()),
            "As in the learning run. Which variables a program reads can't be seen: drop what it does not need."
                .to_owned(),
        ),
        EnvAllow::Base | EnvAllow::All => (
            None,
            "Which variables a program reads can't be seen. It ran with PATH, HOME, LANG and their like.".to_owned(),
        ),
    }
}

/// What it used, with room to spare: the next run is not the same run.
fn limits(result: &RunResult, within: &Limits) -> Vec<LimitLine> {
    let usage = &result.resource_usage;
    let up = |value: f64, step: f64, least: f64| ((value / step).ceil() * step).max(least);
    let seconds = result.duration_ms / 1000.0;
    let mut lines = vec![
        LimitLine {
            key: "max_memory_mb",
            value: Some(up(
                (usage.peak_memory_mb * 3.0).max(usage.peak_memory_mb + SPARE_MB),
                64.0,
                128.0,
            )),
            why: format!("used {:.0}", usage.peak_memory_mb.ceil()),
        },
        LimitLine {
            key: "max_cpu_seconds",
            value: Some(up(usage.cpu_seconds * 3.0, 10.0, 10.0)),
            why: format!("used {:.2}", usage.cpu_seconds),
        },
        LimitLine {
            key: "max_wall_seconds",
            value: Some(up(seconds * 5.0, 60.0, 60.0)),
            why: format!("took {seconds:.1}, watched; a slower network takes longer"),
        },
        match usage.peak_processes {
            Some(most) => LimitLine {
                key: "max_processes",
                value: Some(up(most as f64 * 2.0, 16.0, 16.0)),
                why: format!("had {most}, threads included"),
            },
            None => LimitLine {
                key: "max_processes",
                value: within.processes.map(f64::from),
                why: "not counted on this host: as in the learning run".to_owned(),
            },
        },
        LimitLine {
            key: "max_open_files",
            value: within.open_files.map(f64::from),
            why: "not counted: as in the learning run".to_owned(),
        },
    ];
    let used = result.network.as_ref().map(|network| &network.llm.total);
    let (tokens, micro_usd) = used.map_or((0, 0), |used| {
        (used.tokens.total(), used.cost.as_micro_usd())
    });
    // A ceiling of the user's is never raised.
    let below = |value: Option<f64>, ceiling: Option<f64>| match (value, ceiling) {
        (Some(value), Some(ceiling)) => Some(value.min(ceiling)),
        (value, ceiling) => value.or(ceiling),
    };
    let as_before = || "as in the learning run".to_owned();
    let (most_tokens, most_usd) = (within.tokens.map(|most| most as f64), within.cost_usd);
    if tokens > 0 || most_tokens.is_some() {
        let wanted = (tokens > 0).then(|| up(tokens as f64 * 2.0, 10_000.0, 10_000.0));
        lines.push(LimitLine {
            key: "max_tokens",
            value: below(wanted, most_tokens),
            why: match tokens {
                0 => as_before(),
                _ => format!("used {tokens}"),
            },
        });
    }
    if tokens > 0 || most_usd.is_some() {
        let wanted = (micro_usd > 0).then(|| up(micro_usd as f64 * 2.0 / 1e6, 1.0, 1.0));
        lines.push(LimitLine {
            key: "max_cost_usd",
            value: below(wanted, most_usd),
            why: match (tokens, micro_usd) {
                (0, _) => as_before(),
                (_, 0) => "its models have no known price".to_owned(),
                _ => format!("spent {:.4}", micro_usd as f64 / 1e6),
            },
        });
    }
    lines
}
