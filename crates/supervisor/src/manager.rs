//! Boxes as a Rust program uses them: create, execute, destroy.

use crate::error::RunError;
use crate::keeper::{Output, StopHandle, run};
use crate::lower::Command;
use crate::result::RunResult;
use crate::state::StateDir;
use belljar_policy::Capability;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Names a box. Random, so that nobody can guess another's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxId(String);

impl SandboxId {
    /// A new one.
    pub fn random() -> Result<Self, RunError> {
        let mut bytes = [0u8; 6];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(RunError::system("drawing a random id"))?;
        Ok(Self(
            bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        ))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Makes boxes and runs commands in them, from any number of threads. Each command gets a box of its own, made for
/// the run and gone after it; what stays between two commands of one sandbox is its capability.
#[derive(Debug)]
pub struct SandboxManager {
    state: StateDir,
    sandboxes: Mutex<HashMap<SandboxId, Arc<Sandbox>>>,
}

#[derive(Debug)]
struct Sandbox {
    capability: Capability,
    stop: StopHandle,
}

impl SandboxManager {
    /// With the usual state directory.
    pub fn new() -> Result<Self, RunError> {
        Ok(Self::with_state(StateDir::find()?))
    }

    /// With this state directory.
    pub fn with_state(state: StateDir) -> Self {
        Self {
            state,
            sandboxes: Mutex::default(),
        }
    }

    /// Registers a capability to run commands under.
    pub fn create(&self, capability: Capability) -> Result<SandboxId, RunError> {
        let id = SandboxId::random()?;
        let sandbox = Sandbox {
            capability,
            stop: StopHandle::new()?,
        };
        self.sandboxes().insert(id.clone(), Arc::new(sandbox));
        Ok(id)
    }

    /// Runs a command to its end and returns what it printed (the first MiB of each stream) and used.
    pub fn execute(&self, id: &SandboxId, command: &Command) -> Result<RunResult, RunError> {
        let sandbox = self.sandboxes().get(id).cloned();
        let sandbox = sandbox.ok_or_else(|| RunError::UnknownId { id: id.to_string() })?;
        let run_id = SandboxId::random()?;
        run(
            run_id.as_str(),
            &sandbox.capability,
            command,
            Output::Capture,
            &self.state,
            Some(&sandbox.stop),
        )
    }

    /// Ends a sandbox. Commands that still run in it are killed; their callers get a result that says so.
    pub fn destroy(&self, id: &SandboxId) -> Result<(), RunError> {
        let known = self.sandboxes().remove(id);
        let sandbox = known.ok_or_else(|| RunError::UnknownId { id: id.to_string() })?;
        sandbox.stop.stop();
        Ok(())
    }

    fn sandboxes(&self) -> std::sync::MutexGuard<'_, HashMap<SandboxId, Arc<Sandbox>>> {
        // A panic elsewhere can't leave the map half changed.
        self.sandboxes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
