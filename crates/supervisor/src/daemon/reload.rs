//! The supervisor's file, read again: what it says now of agents takes effect, or nothing does.

use std::collections::BTreeMap;
use std::fmt::Debug;

use belljar_api::{
    AgentChange, ChangeOfAgent, Problem, Reason, ReloadReply, ReloadRequest, RestartRequest, Shown,
    Status, StopRequest,
};

use super::shares::shares;
use super::starting::settle;
use super::{AgentSpec, Inner, OperatorIdentity, views};
use crate::fleet::{Refused, act_by};
use crate::places::find_places;

/// What a file says.
#[derive(Debug)]
pub struct Declarations {
    /// The agents, those that are switched off left out.
    pub agents: Vec<AgentSpec>,
    /// Settings that are not what the daemon was started with, and take effect with its next start.
    pub needs_restart: Vec<String>,
}

/// The file that agents are declared in.
pub trait DeclarationSource: Debug + Send + Sync {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with it, and where. Nothing of it is used then.
    fn read(&self) -> Result<Declarations, Problem>;
}

impl Inner {
    pub(super) fn reload(
        &self,
        by: &OperatorIdentity,
        request: &ReloadRequest,
    ) -> Result<ReloadReply, Refused> {
        let invalid = |problem: Problem| Refused(Status::BAD_REQUEST, problem);
        let Some(source) = &self.settings.source else {
            let problem = Problem::new("no_file", "this supervisor was started without a file");
            let hint = "start it with --config supervisor.toml";
            return Err(Refused(Status::CONFLICT, problem.hint(hint)));
        };
        let mut read = source.read().map_err(invalid)?;
        read.agents.iter_mut().for_each(settle);
        let budget = &self.post().contract.budget;
        shares(budget, &read.agents).map_err(|error| {
            let problem = Problem::new("overcommitted", error.to_string());
            invalid(
                problem.hint("lower a share or a budget of [[agents]], or raise the contract's"),
            )
        })?;
        // What can't be started is refused while nothing has changed.
        for spec in &read.agents {
            self.candidate(spec.clone())
                .map_err(|Refused(status, mut problem)| {
                    problem.message = format!("agent {}: {}", spec.name, problem.message);
                    Refused(status, problem)
                })?;
        }
        let agents = self.differences(&read.agents);
        let needs_restart = read.needs_restart.iter();
        let needs_restart = needs_restart.map(|key| Shown::new(key)).collect();
        if !request.dry_run {
            let act = act_by(by.name(), request.reason.as_str());
            self.post().gate.note_act("reload", None, act)?;
            self.roster.declared.replace(read.agents, budget);
            self.apply(by, &agents, request);
        }
        Ok(ReloadReply {
            agents,
            needs_restart,
            not_running: self.not_running(),
        })
    }

    fn apply(&self, by: &OperatorIdentity, changes: &[AgentChange], request: &ReloadRequest) {
        for change in changes {
            let name = change.name.as_str();
            let live = self.roster.find_live_root(name);
            match (change.change, live) {
                (ChangeOfAgent::Removed, live) => {
                    if let Some(worker) = live {
                        let stop = StopRequest {
                            reason: request.reason.clone(),
                            grace_ms: None,
                        };
                        // It ended by itself meanwhile.
                        let _ = self.stop_unmarked(by, worker, &stop);
                    }
                    // Declared again, it is another.
                    let _ = self.roster.declared.desired.clear(name);
                }
                (ChangeOfAgent::Changed, Some(worker)) if !request.no_restart => {
                    let restart = RestartRequest {
                        reason: request.reason.clone(),
                        workdir: None,
                        grace_ms: None,
                    };
                    if let Err(Refused(_, problem)) = self.restart(by, worker, &restart) {
                        self.declared_refused(name, &problem);
                    }
                }
                _ => {}
            }
        }
        self.roster.declared.hurry();
        for spec in self.roster.declared.specs() {
            // Told where it is refused.
            let _ = self.try_declared(self.in_its_place(spec));
        }
        self.roster.daemon_event(&format!(
            "the supervisor's file was read again: {} agents changed",
            changes.len()
        ));
    }

    /// What is declared against what was, and against what runs.
    fn differences(&self, now: &[AgentSpec]) -> Vec<AgentChange> {
        let before = self.roster.declared.specs();
        let before: BTreeMap<&str, &AgentSpec> = before
            .iter()
            .map(|spec| (spec.name.as_str(), spec))
            .collect();
        let mut changes = Vec::new();
        for spec in now {
            let change = match before.get(spec.name.as_str()) {
                None => Some((ChangeOfAgent::Added, Vec::new())),
                Some(old) => {
                    let mut keys = keys(old, spec);
                    let running = self.roster.find_live_root(&spec.name);
                    let running = running.and_then(|worker| {
                        self.roster
                            .with(worker, |agent| views::spec(&agent.origin, &agent.card))
                    });
                    if let Some(running) = running {
                        let others = keys_of_running(&running, spec);
                        keys.extend(others);
                    }
                    keys.sort_unstable();
                    keys.dedup();
                    (!keys.is_empty()).then_some((ChangeOfAgent::Changed, keys))
                }
            };
            if let Some((change, keys)) = change {
                changes.push(told(&spec.name, change, &keys));
            }
        }
        let is_gone = |name: &&&str| !now.iter().any(|spec| spec.name == ***name);
        let gone = before.keys().filter(is_gone);
        changes.extend(gone.map(|name| told(name, ChangeOfAgent::Removed, &[])));
        changes
    }
}

fn told(name: &str, change: ChangeOfAgent, keys: &[&str]) -> AgentChange {
    AgentChange {
        name: Shown::new(name),
        change,
        keys: keys.iter().map(|key| Shown::new(key)).collect(),
    }
}

/// The keys of the file that say something else.
fn keys(old: &AgentSpec, new: &AgentSpec) -> Vec<&'static str> {
    let mut keys = keys_of_running(old, new);
    let shares = |spec: &AgentSpec| (spec.share, spec.budget);
    if shares(old) != shares(new) {
        keys.push("share");
    }
    if old.follows_releases != new.follows_releases {
        keys.push("project");
    }
    keys
}

/// The same against an agent that runs, which is not known to have had a share.
fn keys_of_running(old: &AgentSpec, new: &AgentSpec) -> Vec<&'static str> {
    let place = |spec: &AgentSpec| {
        let work = spec.workdir.as_ref()?;
        find_places(work).ok().map(|(_, places)| places.work)
    };
    let policy = |spec: &AgentSpec| (spec.capability.clone(), spec.servers.texts.clone());
    let profile = |spec: &AgentSpec| match spec.capability {
        Some(_) => None,
        None => Some(spec.profile.clone().unwrap_or_else(|| "moderate".into())),
    };
    let differs = [
        ("command", old.command != new.command),
        ("workdir", !new.follows_releases && place(old) != place(new)),
        ("capability", policy(old) != policy(new)),
        ("profile", profile(old) != profile(new)),
        ("restart", old.restart != new.restart),
        ("restart_on_oom", old.restart_on_oom != new.restart_on_oom),
    ];
    let differs = differs.into_iter().filter(|(_, differs)| *differs);
    differs.map(|(key, _)| key).collect()
}

/// Why a signal has the file read.
pub(super) fn by_signal() -> Option<Reason> {
    Reason::new("SIGHUP").ok()
}
