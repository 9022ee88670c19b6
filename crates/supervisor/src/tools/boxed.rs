//! MCP servers that are programs: each start is a box of its own, kept by a thread of this process.

use crate::attend::{Facts, Output, Signals};
use crate::command::Command;
use crate::error::RunError;
use crate::lone::{Recording, run_held, run_told};
use crate::manager::SandboxId;
use crate::reins::Reins;
use crate::result::KillCode;
use crate::state::StateDir;
use belljar_mcp::http::{Start, Started};
use belljar_policy::Capability;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

/// The most boxes of one server that one agent has at once, one for each of its sessions: what its capability may use
/// is not for the agent to multiply.
const MOST_OF_AGENT: usize = 8;

/// A server's program, and what it may do.
#[derive(Debug)]
pub struct Boxed {
    capability: Capability,
    command: Command,
    state: StateDir,
    /// Whose server it is.
    agent: Option<(String, Reins)>,
    /// Those who keep its boxes.
    keepers: Mutex<Vec<JoinHandle<()>>>,
}

impl Boxed {
    /// A server that is nobody's in particular.
    #[must_use]
    pub fn new(capability: Capability, command: Command, state: StateDir) -> Self {
        Self {
            capability,
            command,
            state,
            agent: None,
            keepers: Mutex::default(),
        }
    }

    /// Makes it the server of an agent: its boxes hold still and end with the one that these reins hold.
    #[must_use]
    pub fn of(mut self, agent: &str, reins: Reins) -> Self {
        self.agent = Some((agent.to_owned(), reins));
        self
    }

    fn keep(&self, output: Output, told: Sender<Result<Reins, String>>) -> Result<(), String> {
        let mut keepers = self.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        keepers.retain(|keeper| !keeper.is_finished());
        if self.agent.is_some() && keepers.len() >= MOST_OF_AGENT {
            return Err(format!(
                "{MOST_OF_AGENT} boxes of it run already, one for each session: end one"
            ));
        }
        let one = OneBox {
            capability: self.capability.clone(),
            command: self.command.clone(),
            state: self.state.clone(),
            agent: self.agent.clone(),
        };
        let keeper = std::thread::Builder::new().name("keeper".into());
        let keeper = keeper.spawn(move || {
            let mut started = |facts: &Facts<'_>| {
                let _ = told.send(Ok(facts.reins.clone()));
            };
            if let Err(error) = one.run(output, &mut started) {
                let _ = told.send(Err(error.to_string()));
            }
        });
        keepers.push(keeper.map_err(|error| error.to_string())?);
        Ok(())
    }
}

/// One of its boxes.
struct OneBox {
    capability: Capability,
    command: Command,
    state: StateDir,
    agent: Option<(String, Reins)>,
}

impl OneBox {
    fn run(&self, output: Output, started: &mut dyn FnMut(&Facts<'_>)) -> Result<(), RunError> {
        let recording = Recording {
            keys: crate::environment::key_source(),
            ..Recording::default()
        };
        let (capability, command, state) = (&self.capability, &self.command, &self.state);
        let own = SandboxId::random()?;
        let ran = match &self.agent {
            None => run_told(
                &own, capability, command, output, state, &recording, started,
            ),
            Some((agent, leader)) => {
                let id = SandboxId::new(format!("{agent}-mcp-{own}"))?;
                let reins = Reins::new()?;
                leader.tow(&reins);
                run_held(
                    &id, capability, command, output, state, &recording, reins, started,
                )
            }
        };
        ran.map(|_| ())
    }
}

impl Start for Boxed {
    fn start(&self) -> Result<Started, String> {
        let trouble = |error: io::Error| error.to_string();
        let (stdin, input) = io::pipe().map_err(trouble)?;
        let (output, stdout) = io::pipe().map_err(trouble)?;
        let piped = Output::Piped {
            stdin: stdin.into(),
            stdout: stdout.into(),
            signals: Signals::NotTaken,
        };
        let (told, hear) = channel();
        self.keep(piped, told)?;
        let reins = hear.recv().map_err(|_| "its keeper ended".to_owned())??;
        Ok(Started {
            input: OwnedFd::from(input),
            output: OwnedFd::from(output),
            hold: Box::new(Hold(reins)),
        })
    }
}

impl Drop for Boxed {
    fn drop(&mut self) {
        let keepers = self
            .keepers
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        // Their boxes are ended, and what they used is put on record.
        for keeper in keepers.drain(..) {
            let _ = keeper.join();
        }
    }
}

/// Ends a box when dropped.
struct Hold(Reins);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.kill(KillCode::OPERATOR);
    }
}
