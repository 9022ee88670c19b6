//! Who is who: an agent that is restarted keeps its name and gets a new id, and alerts are about the name.

use std::collections::{HashMap, VecDeque};

use belljar_api::{AgentId, AgentPhase, AgentView, Shown};

/// Ids whose names are remembered at most.
const MOST_NAMES: usize = 20_000;

/// The run that a name stands for now.
#[derive(Clone, Debug)]
pub(super) struct AgentRun {
    pub(super) id: AgentId,
    /// When it was last heard of.
    pub(super) seen: u64,
    /// Since when it runs without a break.
    pub(super) running_since: Option<u64>,
}

/// Names of agents, and their latest runs.
#[derive(Debug, Default)]
pub(super) struct AgentRuns {
    names: HashMap<AgentId, Shown>,
    /// In the order in which they were learned.
    order: VecDeque<AgentId>,
    runs: HashMap<String, AgentRun>,
}

impl AgentRuns {
    /// What an agent is called. The latest run of a name is the one that was named last.
    pub(super) fn named(&mut self, now: u64, id: &AgentId, name: &Shown) {
        if !self.called(id, name) {
            return;
        }
        let run = AgentRun {
            id: id.clone(),
            seen: now,
            running_since: None,
        };
        self.runs.insert(name.as_str().to_owned(), run);
    }

    /// What one is called, whatever run its name stands for. `false` when that is known.
    pub(super) fn called(&mut self, id: &AgentId, name: &Shown) -> bool {
        if self.names.contains_key(id) {
            return false;
        }
        self.names.insert(id.clone(), name.clone());
        self.order.push_back(id.clone());
        while self.order.len() > MOST_NAMES {
            let Some(oldest) = self.order.pop_front() else {
                break;
            };
            if let Some(name) = self.names.remove(&oldest)
                && self
                    .runs
                    .get(name.as_str())
                    .is_some_and(|run| run.id == oldest)
            {
                self.runs.remove(name.as_str());
            }
        }
        true
    }

    pub(super) fn sampled(&mut self, now: u64, agent: &AgentView) {
        self.named(now, &agent.id, &agent.name);
        let Some(run) = self.runs.get_mut(agent.name.as_str()) else {
            return;
        };
        if run.id == agent.id {
            run.seen = now;
            run.running_since = match agent.phase {
                AgentPhase::Running => run.running_since.or(Some(now)),
                _ => None,
            };
        }
    }

    pub(super) fn ended(&mut self, id: &AgentId) {
        let subject = self.subject(id);
        if let Some(run) = self.runs.get_mut(&subject)
            && run.id == *id
        {
            run.running_since = None;
        }
    }

    pub(super) fn name(&self, id: &AgentId) -> Option<&Shown> {
        self.names.get(id)
    }

    /// What alerts about an agent go by: its name, or its id where it never had one.
    pub(super) fn subject(&self, id: &AgentId) -> String {
        let name = self.names.get(id).map(Shown::as_str);
        name.unwrap_or(id.as_str()).to_owned()
    }

    pub(super) fn run(&self, subject: &str) -> Option<&AgentRun> {
        self.runs.get(subject)
    }

    /// Whether its name goes by a later run.
    pub(super) fn is_past(&self, id: &AgentId) -> bool {
        let run = self.runs.get(&self.subject(id));
        run.is_some_and(|run| run.id != *id)
    }
}
