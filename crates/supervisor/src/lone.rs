//! A run on its own: what `belljar run` is. It passes the gate like everything else.

use std::cell::RefCell;
use std::os::unix::ffi::OsStrExt as _;

use belljar_gate::keyring::KeySource;
use belljar_gate::record::{sha256_hex, words_sha256};
use belljar_gate::{Durability, Ending, Launch, LogError, Permit, RunGate, in_full};
use belljar_policy::Capability;
use belljar_sandbox::Host;
use belljar_sandbox::plan::Plan;

use crate::attend::{Assignment, Attendant, Leave, Output, Refusal, attend_on};
use crate::error::RunError;
use crate::lower::Command;
use crate::manager::SandboxId;
use crate::reins::Reins;
use crate::result::RunResult;
use crate::state::StateDir;

/// How a run is put on record.
#[derive(Clone, Debug)]
pub struct Recording {
    /// What the record of the launch must survive before the agent's first instruction.
    pub durability: Durability,
    /// Where the key is that signs it.
    pub keys: KeySource,
}

impl Default for Recording {
    fn default() -> Self {
        Self {
            durability: Durability::Crash,
            keys: KeySource::default(),
        }
    }
}

/// Runs a command under a capability in the foreground, from start to end: this process is its keeper.
pub fn run(
    id: &SandboxId,
    capability: &Capability,
    command: &Command,
    output: Output,
    state: &StateDir,
    recording: &Recording,
) -> Result<RunResult, RunError> {
    let host = Host::probe();
    state.sweep(&host.cgroups);
    let assignment = Assignment::new(id, capability, command, state)
        .output(output)
        .alone();
    Recorded::new(id, capability, command, state, recording).attend(&host, assignment)
}

/// Attends one box and records its launch and its end.
pub(crate) fn attend_recorded(
    id: &SandboxId,
    capability: &Capability,
    command: &Command,
    state: &StateDir,
    reins: Reins,
) -> Result<RunResult, RunError> {
    let assignment = Assignment::new(id, capability, command, state)
        .reins(reins)
        .alone();
    Recorded::new(id, capability, command, state, &Recording::default())
        .attend(&Host::probe(), assignment)
}

struct Recorded<'a> {
    gate: RunGate,
    id: &'a SandboxId,
    capability: &'a Capability,
    command: &'a Command,
    durability: Durability,
    /// Whether the gate has heard of the run, and not yet of its end.
    is_known: bool,
}

impl<'a> Recorded<'a> {
    fn new(
        id: &'a SandboxId,
        capability: &'a Capability,
        command: &'a Command,
        state: &StateDir,
        recording: &Recording,
    ) -> Self {
        Self {
            gate: RunGate::of(state.path(), recording.keys.clone()),
            id,
            capability,
            command,
            durability: recording.durability,
            is_known: false,
        }
    }

    fn attend(self, host: &Host, assignment: Assignment<'_>) -> Result<RunResult, RunError> {
        // Asked for leave and told of the end, never both at once.
        let recorded = RefCell::new(self);
        let mut ask = |plan: &Plan| recorded.borrow_mut().admit(plan);
        let result = attend_on(
            host,
            assignment,
            Leave::Asked(&mut ask),
            &mut EndOnRecord(&recorded),
        );
        if let Err(error) = &result {
            recorded.into_inner().record_failure(error);
        }
        result
    }

    fn record_failure(mut self, error: &RunError) {
        match error {
            _ if self.is_known => {
                let ending = Ending {
                    killed_by: Some(error.code().to_owned()),
                    ..Ending::default()
                };
                let _ = self.gate.ended(self.id.as_str(), ending, self.durability);
            }
            // It is refused either way; that the record is missing too changes nothing about it.
            RunError::Refused { .. } => {
                let program = self.program();
                let _ =
                    self.gate
                        .refused(self.id.as_str(), &program, error.code(), &error.to_string());
            }
            _ => {}
        }
    }

    fn record_end(&mut self, result: &RunResult) -> Result<u64, LogError> {
        self.is_known = false;
        let ending = Ending {
            exit_code: result.exit_code,
            signal: result.signal,
            killed_by: result.killed_by.map(|by| by.as_str().to_owned()),
            duration_ms: result.duration_ms as u64,
            cpu_ms: (result.resource_usage.cpu_seconds * 1000.0) as u64,
            peak_memory_mb: result.resource_usage.peak_memory_mb as u64,
        };
        self.gate.ended(self.id.as_str(), ending, self.durability)
    }

    fn program(&self) -> String {
        let program = self.command.argv.first();
        program
            .map(|word| word.to_string_lossy().into_owned())
            .unwrap_or_default()
    }
}

/// Puts the end of a run on record as soon as it is known.
struct EndOnRecord<'a, 'r>(&'r RefCell<Recorded<'a>>);

impl Attendant for EndOnRecord<'_, '_> {
    fn ended(&mut self, result: &mut RunResult) {
        // The agent's exit code counts for more than our trouble; but nobody shall think that all is on record.
        if let Err(error) = self.0.borrow_mut().record_end(result) {
            let note = format!("the end of the run is not on record: {}", in_full(&error));
            result.notes.push(note);
        }
    }
}

impl Recorded<'_> {
    fn admit(&mut self, plan: &Plan) -> Result<Permit<Launch>, Refusal> {
        self.is_known = true;
        let capability = serde_json::to_vec(self.capability).unwrap_or_default();
        let launch = Launch {
            run: self.id.to_string(),
            program: plan.program.display().to_string(),
            command_sha256: words_sha256(self.command.argv.iter().map(|word| word.as_bytes())),
            capability: self.capability.name.to_string(),
            capability_sha256: sha256_hex(&capability),
            tier: self.capability.tier.as_str().to_owned(),
        };
        self.gate.admit(launch, self.durability).map_err(|refusal| {
            self.is_known = false;
            Refusal {
                code: refusal.code(),
                what: in_full(&refusal),
                hint: refusal.hint(),
            }
        })
    }
}
