//! What rules do to agents, they do as any operator does: by the daemon's routes, decided and recorded there.

use std::collections::HashSet;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use belljar_api::{AgentId, OperatorCall, Problem, Status};
use belljar_monitor::{CouldNot, Hands};
use belljar_supervisor::daemon::{Daemon, OperatorIdentity};
use serde_json::{Value, json};

/// Who acts, as the record names it.
const RULE: &str = "a rule";
/// A kill waits for the last process, and that is the longest.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most of an answer.
const MOST_BYTES: usize = 4 << 20;
/// The end of an agent's output that is kept as evidence.
const MOST_OUTPUT: u64 = 256 << 10;

/// Agents that a rule froze, and nobody else.
#[derive(Debug, Default)]
pub(super) struct ByRule {
    frozen: Mutex<HashSet<AgentId>>,
    /// Being frozen this moment.
    at_work: Mutex<HashSet<AgentId>>,
}

impl ByRule {
    pub(super) fn is_at_work_on(&self, agent: &AgentId) -> bool {
        locked(&self.at_work).contains(agent)
    }

    pub(super) fn forget(&self, agent: &AgentId) {
        locked(&self.frozen).remove(agent);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The monitor's hands on a daemon, for as long as that lives.
pub(super) struct RuleHands {
    pub(super) daemon: Weak<Daemon>,
    pub(super) by_rule: Arc<ByRule>,
}

impl RuleHands {
    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, CouldNot> {
        let gone = || CouldNot("the daemon is shutting down".to_owned());
        let daemon = self.daemon.upgrade().ok_or_else(gone)?;
        let (sender, answer) = sync_channel(1);
        let carry = move |status: Status, body: Vec<u8>| _ = sender.send((status, body));
        let body = match method {
            "GET" => Vec::new(),
            _ => body.to_string().into_bytes(),
        };
        let carried = OperatorCall::carried(method, path, &body, MOST_BYTES, carry);
        let (_, call) = carried.map_err(|(_, problem)| CouldNot(problem.message))?;
        if let Some(call) = daemon.answer(&OperatorIdentity::Rule(RULE.to_owned()), call) {
            let problem = Problem::new("not_found", "not the daemon's");
            call.refuse(Status::NOT_FOUND, &problem);
        }
        let (status, body) = answer.recv_timeout(PATIENCE).map_err(|_| gone())?;
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        match status.is_success() {
            true => Ok(value),
            false => {
                let why = value["message"].as_str().unwrap_or("it was refused");
                Err(CouldNot(why.to_owned()))
            }
        }
    }

    fn act(&self, agent: &AgentId, verb: &str, body: Value) -> Result<(), CouldNot> {
        let path = format!("/v1/workers/{agent}/{verb}");
        self.ask("POST", &path, &body).map(drop)
    }

    fn read(&self, agent: &AgentId, what: &str) -> Option<Value> {
        let path = format!("/v1/agents/{agent}{what}");
        self.ask("GET", &path, &Value::Null).ok()
    }
}

impl Hands for RuleHands {
    fn freeze(&self, agent: &AgentId, why: &str) -> Result<(), CouldNot> {
        locked(&self.by_rule.at_work).insert(agent.clone());
        let frozen = self.act(agent, "quarantine", json!({"reason": why}));
        if frozen.is_ok() {
            locked(&self.by_rule.frozen).insert(agent.clone());
        }
        locked(&self.by_rule.at_work).remove(agent);
        frozen
    }

    fn thaw(&self, agent: &AgentId, why: &str) -> Result<(), CouldNot> {
        match locked(&self.by_rule.frozen).remove(agent) {
            true => self.act(agent, "release", json!({"reason": why})),
            // A person quarantined it since: it is theirs to release.
            false => Ok(()),
        }
    }

    fn quarantine(&self, agent: &AgentId, why: &str) -> Result<(), CouldNot> {
        self.by_rule.forget(agent);
        self.act(agent, "quarantine", json!({"reason": why}))
    }

    fn kill(&self, agent: &AgentId, why: &str) -> Result<(), CouldNot> {
        self.act(agent, "kill", json!({"reason": why, "subtree": false}))
    }

    fn kill_subtree(&self, agent: &AgentId, why: &str) -> Result<(), CouldNot> {
        self.act(agent, "kill", json!({"reason": why, "subtree": true}))
    }

    fn evidence(&self, agent: &AgentId) -> Vec<(String, Vec<u8>)> {
        let mut files = Vec::new();
        let pretty = |value: &Value| serde_json::to_vec_pretty(value).unwrap_or_default();
        if let Some(processes) = self.read(agent, "/processes") {
            files.push(("processes.json".to_owned(), pretty(&processes)));
        }
        if let Some(detail) = self.read(agent, "") {
            if let Some(policy) = detail["policy"].as_str() {
                files.push(("policy.yaml".to_owned(), policy.as_bytes().to_vec()));
            }
            files.push(("agent.json".to_owned(), pretty(&detail)));
        }
        for stream in ["stdout", "stderr"] {
            let part = format!("/output?stream={stream}&most={MOST_OUTPUT}");
            if let Some(output) = self.read(agent, &part)
                && let Some(text) = output["text"].as_str()
            {
                files.push((format!("{stream}.txt"), text.as_bytes().to_vec()));
            }
        }
        if let Some(daemon) = self.daemon.upgrade() {
            files.extend(daemon.evidence(agent));
        }
        files
    }
}
