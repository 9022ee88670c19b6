//! A run on its own: what `belljar run` is. It passes the gate like everything else.

use std::cell::{Cell, RefCell};

use belljar_gate::keyring::KeySource;
use belljar_gate::record::{NetworkUsed, ProgramRecord, RunEvent, sha256_hex};
use belljar_gate::{Durability, Ending, Launch, LogError, Permit, RunGate, in_full};
use belljar_policy::Capability;
use belljar_sandbox::Host;

use crate::attend::{Asking, Assignment, Attendant, Facts, Leave, Output, Refusal, attend_on};
use crate::command::Command;
use crate::error::RunError;
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
    run_attended(id, capability, command, output, state, recording, &mut ())
}

/// The same, and says when the program starts, and when it has ended and left others behind.
pub fn run_attended(
    id: &SandboxId,
    capability: &Capability,
    command: &Command,
    output: Output,
    state: &StateDir,
    recording: &Recording,
    attendant: &mut dyn Attendant,
) -> Result<RunResult, RunError> {
    let host = Host::probe();
    state.sweep(&host.cgroups);
    let assignment = Assignment::new(id, capability, command, state)
        .output(output)
        .alone();
    Recorded::new(id, capability, command, state, recording).attend(&host, assignment, attendant)
}

/// The same, and says when the program starts.
pub fn run_told(
    id: &SandboxId,
    capability: &Capability,
    command: &Command,
    output: Output,
    state: &StateDir,
    recording: &Recording,
    started: &mut dyn FnMut(&Facts<'_>),
) -> Result<RunResult, RunError> {
    run_attended(
        id,
        capability,
        command,
        output,
        state,
        recording,
        &mut Starts(started),
    )
}

/// Whoever wants to know of the start only.
struct Starts<'a>(&'a mut dyn FnMut(&Facts<'_>));

impl Attendant for Starts<'_> {
    fn started(&mut self, facts: &Facts<'_>) {
        (self.0)(facts);
    }
}

/// The same for a box that others may hold by these reins: it starts when its walls stand and nobody objects.
#[expect(clippy::too_many_arguments, reason = "a run, and who holds it")]
pub(crate) fn run_held(
    id: &SandboxId,
    capability: &Capability,
    command: &Command,
    output: Output,
    state: &StateDir,
    recording: &Recording,
    reins: Reins,
    started: &mut dyn FnMut(&Facts<'_>),
) -> Result<RunResult, RunError> {
    let assignment = Assignment::new(id, capability, command, state)
        .output(output)
        .reins(reins);
    Recorded::new(id, capability, command, state, recording).attend(
        &Host::probe(),
        assignment,
        &mut Starts(started),
    )
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
    Recorded::new(id, capability, command, state, &Recording::default()).attend(
        &Host::probe(),
        assignment,
        &mut (),
    )
}

struct Recorded<'a> {
    /// Asked while walls go up and told while the box runs; never both at once.
    gate: RefCell<RunGate>,
    id: &'a SandboxId,
    capability: &'a Capability,
    command: &'a Command,
    durability: Durability,
    /// Whether the gate has heard of the run, and not yet of its end.
    is_known: Cell<bool>,
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
            gate: RefCell::new(RunGate::of(state.path(), recording.keys.clone())),
            id,
            capability,
            command,
            durability: recording.durability,
            is_known: Cell::new(false),
        }
    }

    fn attend(
        self,
        host: &Host,
        assignment: Assignment<'_>,
        listener: &mut dyn Attendant,
    ) -> Result<RunResult, RunError> {
        let mut ask = |asking: &Asking<'_>| self.admit(asking);
        let mut scribe = Scribe {
            run: &self,
            listener,
            missed: None,
        };
        let result = attend_on(host, assignment, Leave::Asked(&mut ask), &mut scribe);
        if let Err(error) = &result {
            self.record_failure(error);
        }
        result
    }

    fn record_failure(&self, error: &RunError) {
        match error {
            _ if self.is_known.get() => {
                let ending = Ending {
                    killed_by: Some(error.code().to_owned()),
                    ..Ending::default()
                };
                let mut gate = self.gate.borrow_mut();
                let _ = gate.ended(self.id.as_str(), ending, self.durability);
            }
            // It is refused either way; that the record is missing too changes nothing about it.
            RunError::Refused { .. } => {
                let program = self.program();
                let mut gate = self.gate.borrow_mut();
                let _ = gate.refused(self.id.as_str(), &program, error.code(), &error.to_string());
            }
            _ => {}
        }
    }

    fn record_end(&self, result: &RunResult) -> Result<u64, LogError> {
        self.is_known.set(false);
        let ending = Ending {
            exit_code: result.exit_code,
            signal: result.signal,
            killed_by: result.killed_by.map(|by| by.as_str().to_owned()),
            duration_ms: result.duration_ms as u64,
            cpu_ms: (result.resource_usage.cpu_seconds * 1000.0) as u64,
            peak_memory_mb: result.resource_usage.peak_memory_mb as u64,
            network: result.network.as_ref().map(NetworkUsed::from),
        };
        let mut gate = self.gate.borrow_mut();
        gate.ended(self.id.as_str(), ending, self.durability)
    }

    fn program(&self) -> String {
        let program = self.command.argv.first();
        program
            .map(|word| word.to_string_lossy().into_owned())
            .unwrap_or_default()
    }
}

/// Puts on record what the box is refused while it runs, and its end as soon as that is known.
struct Scribe<'a> {
    run: &'a Recorded<'a>,
    listener: &'a mut dyn Attendant,
    /// That something could not be.
    missed: Option<String>,
}

impl Attendant for Scribe<'_> {
    fn started(&mut self, facts: &Facts<'_>) {
        self.listener.started(facts);
    }

    fn lingers(&mut self, names: &[String]) {
        self.listener.lingers(names);
    }

    fn ended(&mut self, result: &mut RunResult) {
        result.notes.extend(self.missed.take());
        // The agent's exit code counts for more than our trouble; but nobody shall think that all is on record.
        if let Err(error) = self.run.record_end(result) {
            let note = format!("the end of the run is not on record: {}", in_full(&error));
            result.notes.push(note);
        }
    }

    fn refused(&mut self, refusal: &belljar_egress::Refusal) {
        let event = RunEvent::EgressRefused {
            run: self.run.id.to_string(),
            way: refusal.way.as_str().to_owned(),
            host: refusal.host.clone(),
            port: refusal.port,
            code: refusal.code.code().to_owned(),
            rule: refusal.rule.as_ref().map(ToString::to_string),
            detail: refusal.detail.clone(),
        };
        let mut gate = self.run.gate.borrow_mut();
        if let Err(error) = gate.note(event, Durability::Crash) {
            // What was refused stays refused; only nobody shall think that all is on record.
            self.missed = Some(format!(
                "not every refusal is on record: {}",
                in_full(&error)
            ));
        }
    }
}

impl Recorded<'_> {
    fn admit(&self, asking: &Asking<'_>) -> Result<Permit<Launch>, Refusal> {
        let ProgramRecord {
            program,
            command_sha256,
            image,
        } = asking.program();
        self.is_known.set(true);
        let capability = serde_json::to_vec(self.capability).unwrap_or_default();
        let launch = Launch {
            run: self.id.to_string(),
            program,
            command_sha256,
            capability: self.capability.name.to_string(),
            capability_sha256: sha256_hex(&capability),
            tier: self.capability.tier.as_str().to_owned(),
            image,
        };
        let admitted = self.gate.borrow_mut().admit(launch, self.durability);
        admitted.map_err(|refusal| {
            self.is_known.set(false);
            Refusal {
                code: refusal.code(),
                what: in_full(&refusal),
                hint: refusal.hint(),
            }
        })
    }
}
