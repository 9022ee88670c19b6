//! Boxes as a Rust program uses them: create, execute, destroy.

use crate::command::Command;
use crate::error::RunError;
use crate::lone::attend_recorded;
use crate::reins::{BoxState, Reins};
use crate::result::{KillCode, RunResult};
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

    /// One that was given elsewhere: up to 64 lower-case letters, digits and dashes.
    pub fn new(id: impl Into<String>) -> Result<Self, RunError> {
        let id = id.into();
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if (1..=64).contains(&id.len()) && id.bytes().all(is_plain) {
            return Ok(Self(id));
        }
        Err(RunError::Invalid {
            what: format!("{id:?} can't name a box"),
            hint: "use up to 64 lower-case letters, digits and dashes".into(),
        })
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
    commands: Mutex<Commands>,
}

/// What runs in a sandbox.
#[derive(Debug)]
enum Commands {
    Running(Vec<Reins>),
    Destroyed,
}

impl Sandbox {
    /// Reins for one more command, unless the sandbox is gone.
    fn add(&self, id: &SandboxId) -> Result<Reins, RunError> {
        let reins = Reins::new()?;
        match &mut *self.commands() {
            Commands::Running(running) => {
                running.retain(|known| known.state() != BoxState::Ended);
                running.push(reins.clone());
                Ok(reins)
            }
            Commands::Destroyed => Err(RunError::UnknownId { id: id.to_string() }),
        }
    }

    fn destroy(&self) {
        if let Commands::Running(running) =
            std::mem::replace(&mut *self.commands(), Commands::Destroyed)
        {
            running
                .iter()
                .for_each(|reins| reins.kill(KillCode::OPERATOR));
        }
    }

    fn commands(&self) -> std::sync::MutexGuard<'_, Commands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            commands: Mutex::new(Commands::Running(Vec::new())),
        };
        self.sandboxes().insert(id.clone(), Arc::new(sandbox));
        Ok(id)
    }

    /// Runs a command to its end and returns what it printed (the first MiB of each stream) and used.
    pub fn execute(&self, id: &SandboxId, command: &Command) -> Result<RunResult, RunError> {
        let sandbox = self.sandboxes().get(id).cloned();
        let sandbox = sandbox.ok_or_else(|| RunError::UnknownId { id: id.to_string() })?;
        let run_id = SandboxId::random()?;
        let reins = sandbox.add(id)?;
        attend_recorded(&run_id, &sandbox.capability, command, &self.state, reins)
    }

    /// Ends a sandbox. Commands that still run in it are killed; their callers get a result that says so, or an error
    /// if the command had not started yet.
    pub fn destroy(&self, id: &SandboxId) -> Result<(), RunError> {
        let known = self.sandboxes().remove(id);
        let sandbox = known.ok_or_else(|| RunError::UnknownId { id: id.to_string() })?;
        sandbox.destroy();
        Ok(())
    }

    fn sandboxes(&self) -> std::sync::MutexGuard<'_, HashMap<SandboxId, Arc<Sandbox>>> {
        // A panic elsewhere can't leave the map half changed.
        self.sandboxes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
