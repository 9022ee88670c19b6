//! Instances that a supervisor keeps: what it knows of each of them, and how they take another release up.
//!
//! Which tree an instance runs, whether it lives, crashed, was refused something and what it spent is the supervisor's word. The
//! agents have no part in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use belljar_api::{
    AgentDetail, AgentId, AgentPhase, AgentView, CallError, EndCause, FleetQuery, ListAgents,
    ReadAgent, Reason, RestartAgent, RestartRequest,
};
use belljar_supervisor::StateDir;
use belljar_supervisor::fleet::Operator;
use serde::{Deserialize, Serialize};

use super::hook::{HookError, Report};
use crate::compare::canary::Sample;
use crate::disk;

/// Below a project's releases: what was known of each agent when it was last looked at.
const READINGS: &str = "readings.json";
const MOST_READINGS: u64 = 16 << 20;

/// `[supervised]` of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Supervised {
    /// Which agents of the supervisor are the instances: a name, with `*` for any part of it.
    pub agents: String,
    /// How often the supervisor looks at them.
    #[serde(default = "ten")]
    pub every_seconds: u64,
    /// An instance that crashes more often than this while it runs the candidate takes it back, whatever else is reported.
    #[serde(default = "two")]
    pub most_crashes: u32,
}

fn ten() -> u64 {
    10
}

fn two() -> u32 {
    2
}

impl Supervised {
    /// Whether an agent of this name is meant.
    #[must_use]
    pub fn means(&self, name: &str) -> bool {
        let mut parts = self.agents.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else {
            return false;
        };
        let parts: Vec<&str> = parts.collect();
        let Some((last, middle)) = parts.split_last() else {
            return rest.is_empty();
        };
        for part in middle {
            let Some(at) = rest.find(part) else {
                return false;
            };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }
}

/// What was known of one life of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Reading {
    violations: u64,
    micro_usd: u64,
    tokens: u64,
    cpu_ms: u64,
    is_over: bool,
}

/// What was known of everybody.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Readings {
    lives: BTreeMap<AgentId, Reading>,
    /// By name, while it ran the candidate.
    crashes: BTreeMap<String, u32>,
    /// Violations that had no request to stand with yet, by name and tree. Counts come in bursts: a box tells of the first, the
    /// second, the fourth.
    #[serde(default)]
    owed: BTreeMap<String, u64>,
}

/// The supervisor of a state directory, and the releases of a project.
pub(super) struct Keeper<'a> {
    operator: Operator,
    releases: &'a Path,
}

impl<'a> Keeper<'a> {
    /// Reaches the supervisor, which must be there.
    pub(super) fn reach(state: &Path, releases: &'a Path) -> Result<Self, HookError> {
        let state = StateDir::at(state.to_owned())
            .map_err(|error| HookError::Supervisor(error.to_string()))?;
        Ok(Self {
            operator: Operator::reach(&state).map_err(unreached)?,
            releases,
        })
    }

    fn agents(&mut self) -> Result<Vec<AgentView>, HookError> {
        let query = FleetQuery { ended: Some(true) };
        let list = self.operator.client.call::<ListAgents>(&query);
        let mut agents = list.map_err(unreached)?.agents;
        // Replicas are their parents' affair.
        agents.retain(|agent| agent.parent.is_none());
        Ok(agents)
    }

    fn detail(&mut self, id: &AgentId) -> Result<AgentDetail, HookError> {
        let empty = belljar_api::Empty {};
        let detail = self.operator.client.call_on::<ReadAgent>(id, &empty);
        detail.map_err(unreached)
    }

    /// Agents that live, by name.
    pub(super) fn living(&mut self) -> Result<BTreeSet<String>, HookError> {
        let agents = self.agents()?;
        let living = agents.iter().filter(|agent| is_at_work(agent.phase));
        Ok(living.map(|agent| agent.name.to_string()).collect())
    }

    fn place(&self, tree: &str) -> PathBuf {
        let place = self.releases.join("objects").join(tree);
        place.canonicalize().unwrap_or(place)
    }

    /// Has every agent run the tree that is said, which for those that do already is nothing. One that can't be brought to
    /// it keeps nobody else from it.
    pub(super) fn settle(
        &mut self,
        shown: &BTreeMap<String, String>,
        why: &str,
    ) -> Result<(), HookError> {
        let agents = self.agents()?;
        let mut failed = None;
        for (name, tree) in shown {
            if let Err(error) = self.settle_one(&agents, name, tree, why) {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn settle_one(
        &mut self,
        agents: &[AgentView],
        name: &str,
        tree: &str,
        why: &str,
    ) -> Result<(), HookError> {
        let agent = newest(agents, name).ok_or_else(|| HookError::Missing(name.to_owned()))?;
        let place = self.place(tree);
        if Path::new(&self.detail(&agent.id)?.workdir) == place {
            return Ok(());
        }
        let request = RestartRequest {
            reason: Reason::new(why.chars().take(200).collect::<String>())
                .map_err(|error| HookError::Supervisor(error.to_string()))?,
            workdir: Some(place.to_string_lossy().into_owned()),
            grace_ms: None,
        };
        let started = self
            .operator
            .client
            .call_on::<RestartAgent>(&agent.id, &request);
        started.map(drop).map_err(|error| HookError::NotTakenUp {
            instance: name.to_owned(),
            why: belljar_gate::in_full(&error),
        })
    }

    /// Notes how everybody is now: what came before is nobody's in the comparison.
    pub(super) fn begin(&mut self) -> Result<(), HookError> {
        let mut readings = Readings::default();
        for agent in self.agents()? {
            let detail = self.detail(&agent.id)?;
            readings.lives.insert(agent.id.clone(), reading(&detail));
        }
        self.keep(&readings)
    }

    fn keep(&self, readings: &Readings) -> Result<(), HookError> {
        let failed = |error: std::io::Error| HookError::Supervisor(error.to_string());
        let bytes = serde_json::to_vec(readings).map_err(|error| failed(error.into()))?;
        disk::replace(&self.releases.join(READINGS), &bytes).map_err(failed)
    }

    fn last(&self) -> Result<Readings, HookError> {
        let read = disk::read_bounded(&self.releases.join(READINGS), MOST_READINGS);
        let bytes = read.ok().flatten();
        let known = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        known.ok_or_else(|| HookError::Supervisor("what was known last is gone".to_owned()))
    }

    /// Looks at every instance that is expected, each with the tree that it is to run. `reports` are what the operator's
    /// command said, where there is one.
    pub(super) fn look(
        &mut self,
        expected: &BTreeMap<&str, &str>,
        candidate: &str,
        most_crashes: u32,
        reports: Option<&BTreeMap<String, Report>>,
    ) -> Result<BTreeMap<String, Sample>, HookError> {
        let agents = self.agents()?;
        let mut readings = self.last()?;
        let mut samples = BTreeMap::new();
        for (name, tree) in expected {
            let mut used = self.used(&agents, name, tree, &mut readings)?;
            let standing = format!("{name} {tree}");
            let owed = readings.owed.get(&standing).copied().unwrap_or(0);
            used.violations = used.violations.saturating_add(owed);
            if *tree == candidate {
                let crashes = readings.crashes.entry((*name).to_owned()).or_default();
                *crashes = crashes.saturating_add(used.crashes);
                if *crashes > most_crashes {
                    return Err(HookError::Crashes((*name).to_owned(), *crashes));
                }
            }
            let report = reports.and_then(|all| all.get(*name));
            let seen = sample(&used, report);
            let left = used.violations.saturating_sub(seen.violations);
            readings.owed.insert(standing, left);
            samples.insert((*name).to_owned(), seen);
        }
        readings
            .lives
            .retain(|id, _| agents.iter().any(|agent| agent.id == *id));
        self.keep(&readings)?;
        Ok(samples)
    }

    /// What an instance did since it was last looked at, while it ran this tree. It must live, and run it.
    fn used(
        &mut self,
        agents: &[AgentView],
        name: &str,
        tree: &str,
        readings: &mut Readings,
    ) -> Result<Used, HookError> {
        let place = self.place(tree);
        let now = newest(agents, name).ok_or_else(|| HookError::Missing(name.to_owned()))?;
        if !is_at_work(now.phase) {
            return Err(HookError::Dead {
                instance: name.to_owned(),
                how: how(now),
            });
        }
        let mut used = Used::default();
        for life in agents.iter().filter(|agent| agent.name.as_str() == name) {
            let before = readings.lives.get(&life.id).copied();
            if before.is_some_and(|before| before.is_over) {
                continue;
            }
            let detail = self.detail(&life.id)?;
            let after = reading(&detail);
            readings.lives.insert(life.id.clone(), after);
            let runs = Path::new(&detail.workdir);
            if runs == place {
                let crashed = detail.agent.end.as_ref().is_some_and(|end| {
                    !matches!(end.cause, EndCause::Finished | EndCause::Stopped)
                });
                used.add(&before.unwrap_or_default(), &after, crashed);
            } else if life.id == now.id {
                let runs = runs.file_name().unwrap_or_default().to_string_lossy();
                return Err(HookError::OtherVersion {
                    instance: name.to_owned(),
                    runs: runs.into_owned(),
                    should: tree.to_owned(),
                });
            }
        }
        Ok(used)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Used {
    violations: u64,
    micro_usd: u64,
    tokens: u64,
    cpu_ms: u64,
    crashes: u32,
}

impl Used {
    /// Counters may have begun anew with the supervisor: then what they show is not told twice.
    fn add(&mut self, before: &Reading, after: &Reading, crashed: bool) {
        self.violations += after.violations.saturating_sub(before.violations);
        self.micro_usd += after.micro_usd.saturating_sub(before.micro_usd);
        self.tokens += after.tokens.saturating_sub(before.tokens);
        self.cpu_ms += after.cpu_ms.saturating_sub(before.cpu_ms);
        self.crashes += u32::from(crashed);
    }
}

/// One figure for each thing that is compared. A crash is a request that failed. Where nobody counts requests, being looked at is
/// one, and what it took is CPU time.
fn sample(used: &Used, report: Option<&Report>) -> Sample {
    let crashes = u64::from(used.crashes);
    let requests = report
        .map_or(1, |report| report.requests)
        .saturating_add(crashes);
    let violations = used.violations + report.and_then(|report| report.violations).unwrap_or(0);
    let spent = if used.micro_usd > 0 {
        used.micro_usd
    } else {
        used.tokens
    };
    let own_cost = spent as f64 / requests.max(1) as f64;
    // Whoever was refused something while nobody asked for anything did it unasked: one request, one violation.
    let requests = requests.max(u64::from(violations > 0));
    Sample {
        requests,
        errors: report
            .map_or(0, |report| report.errors)
            .saturating_add(crashes),
        violations: violations.min(requests),
        latency_ms: report.map_or(used.cpu_ms as f64, |report| report.latency_ms),
        cost: report.and_then(|report| report.cost).unwrap_or(own_cost),
    }
}

fn reading(detail: &AgentDetail) -> Reading {
    let usage = &detail.agent.usage;
    Reading {
        violations: detail.denials.iter().map(|denial| denial.count).sum(),
        micro_usd: usage.micro_usd,
        tokens: usage.tokens,
        cpu_ms: usage.cpu_ms,
        is_over: detail.agent.end.is_some(),
    }
}

/// Whether it works, or will in a moment.
fn is_at_work(phase: AgentPhase) -> bool {
    matches!(
        phase,
        AgentPhase::Starting | AgentPhase::Running | AgentPhase::Waiting
    )
}

/// The one that lives, or the last that did.
fn newest<'v>(agents: &'v [AgentView], name: &str) -> Option<&'v AgentView> {
    let named = || agents.iter().filter(|agent| agent.name.as_str() == name);
    let living = named().rfind(|agent| agent.end.is_none());
    living
        .or_else(|| named().rfind(|agent| is_at_work(agent.phase)))
        .or_else(|| named().next_back())
}

fn how(agent: &AgentView) -> String {
    match (agent.phase, &agent.end) {
        (AgentPhase::CrashLoop, _) => "it crashes again and again".to_owned(),
        (_, Some(end)) => format!("it has ended ({})", end.cause.as_str()),
        (AgentPhase::Freezing | AgentPhase::Quarantined, None) => "it is in quarantine".to_owned(),
        (_, None) => "it is asked to end".to_owned(),
    }
}

fn unreached(error: CallError) -> HookError {
    HookError::Supervisor(belljar_gate::in_full(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_means_what_it_says() {
        let means = |pattern: &str, name: &str| {
            let agents = pattern.to_owned();
            let supervised = Supervised {
                agents,
                every_seconds: 1,
                most_crashes: 0,
            };
            supervised.means(name)
        };
        for (pattern, name) in [
            ("worker-*", "worker-1"),
            ("worker-*", "worker-"),
            ("*", "x"),
            ("a*c*e", "abcde"),
            ("one", "one"),
        ] {
            assert!(means(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("worker-*", "worker"),
            ("one", "one-2"),
            ("a*c*e", "abde"),
            ("*-x", "x"),
        ] {
            assert!(!means(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn a_crash_is_an_error_and_a_violation_counts_though_nobody_asked() {
        let used = Used {
            crashes: 1,
            violations: 9,
            micro_usd: 30,
            ..Used::default()
        };
        let quiet = Report {
            instance: "a".to_owned(),
            version: None,
            requests: 2,
            errors: 0,
            latency_ms: 4.0,
            cost: None,
            violations: None,
        };
        let seen = sample(&used, Some(&quiet));
        assert_eq!((seen.requests, seen.errors, seen.violations), (3, 1, 3));
        assert_eq!((seen.latency_ms, seen.cost), (4.0, 10.0));
        assert!(seen.is_sound());
        let idle = Report {
            requests: 0,
            ..quiet
        };
        let broke = Used {
            violations: 1,
            ..Used::default()
        };
        let seen = sample(&broke, Some(&idle));
        assert_eq!((seen.requests, seen.violations), (1, 1));
        let alone = sample(&Used::default(), None);
        assert_eq!((alone.requests, alone.errors), (1, 0));
    }
}
