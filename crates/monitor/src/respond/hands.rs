//! What the supervisor does for the monitor.

use belljar_api::AgentId;

/// Why the supervisor could not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CouldNot(pub String);

/// The supervisor's hands. Each call is recorded by whoever owns them like any other decision; the reason names the alert.
pub trait Hands: Send + Sync {
    /// No process of the agent runs until it is thawed.
    fn freeze(&self, agent: &AgentId, why: &str) -> Result<(), CouldNot>;
    /// The agent goes on, unless a person has quarantined it.
    fn thaw(&self, agent: &AgentId, why: &str) -> Result<(), CouldNot>;
    /// No process of the agent runs until a person releases it.
    fn quarantine(&self, agent: &AgentId, why: &str) -> Result<(), CouldNot>;
    /// Ends the agent.
    fn kill(&self, agent: &AgentId, why: &str) -> Result<(), CouldNot>;
    /// Ends the agent and everything below it.
    fn kill_subtree(&self, agent: &AgentId, why: &str) -> Result<(), CouldNot>;
    /// What can be found out about the agent now, as files: its policy, manifest chain, processes, open files, the end of its
    /// output, its changes to the workspace. What can't be had is left out.
    fn evidence(&self, agent: &AgentId) -> Vec<(String, Vec<u8>)>;
}
