//! MCP servers that are programs: each start is a box of its own, kept by a thread of this process.

use belljar_mcp::http::{Start, Started};
use belljar_policy::Capability;
use belljar_supervisor::{
    Command, Facts, KillCode, Output, Recording, Reins, RunError, SandboxId, Signals, StateDir,
};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

/// A server's program, and what it may do.
pub(super) struct Boxed {
    pub(super) capability: Capability,
    pub(super) command: Vec<OsString>,
    /// Variables it is given.
    pub(super) env: Vec<(String, String)>,
    pub(super) state: StateDir,
    /// Those who keep its boxes.
    keepers: Mutex<Vec<JoinHandle<()>>>,
}

impl Boxed {
    pub(super) fn new(capability: Capability, command: Vec<OsString>, state: StateDir) -> Self {
        Self {
            capability,
            command,
            env: Vec::new(),
            state,
            keepers: Mutex::default(),
        }
    }

    fn keep(&self, output: Output, told: Sender<Result<Reins, String>>) -> io::Result<()> {
        let capability = self.capability.clone();
        let mut command = Command::new(self.command.clone());
        for (name, value) in &self.env {
            command = command.env(name, value);
        }
        let state = self.state.clone();
        let keeper = std::thread::Builder::new().name("keeper".into());
        let keeper = keeper.spawn(move || {
            let mut started = |facts: &Facts<'_>| {
                let _ = told.send(Ok(facts.reins.clone()));
            };
            if let Err(error) = run(&capability, &command, output, &state, &mut started) {
                let _ = told.send(Err(error.to_string()));
            }
        })?;
        let mut keepers = self.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        keepers.retain(|keeper| !keeper.is_finished());
        keepers.push(keeper);
        Ok(())
    }
}

fn run(
    capability: &Capability,
    command: &Command,
    output: Output,
    state: &StateDir,
    started: &mut dyn FnMut(&Facts<'_>),
) -> Result<(), RunError> {
    let id = SandboxId::random()?;
    let recording = Recording {
        keys: belljar_supervisor::key_source(),
        ..Recording::default()
    };
    belljar_supervisor::run_told(&id, capability, command, output, state, &recording, started)
        .map(|_| ())
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
        self.keep(piped, told).map_err(trouble)?;
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
