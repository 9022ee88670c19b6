//! A world for tests of the library: a jail, a state directory, and boxes attended in threads.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use belljar_gate::keyring::KeySource;
use belljar_gate::{Durability, Launch, RunGate};
use belljar_policy::{Capability, ImageName, Origin, Rule, Tier};
use belljar_supervisor::{
    Asking, Assignment, Attendant, BoxState, Command, KillCode, Leave, Reins, RunError, RunResult,
    SandboxId, StateDir, attend,
};

use super::leftovers::assert_nothing_left;
use super::watch::eventually;
use super::{Attempt, Jail, Who};

pub(crate) struct Yard {
    pub(crate) jail: Jail,
    pub(crate) state: StateDir,
}

/// Attends a box with the gate's leave.
pub(crate) fn attend_admitted(
    state: &StateDir,
    assignment: Assignment<'_>,
    attendant: &mut dyn Attendant,
) -> Result<RunResult, RunError> {
    let mut gate = RunGate::of(state.path(), KeySource::Directory);
    let mut ask = |asking: &Asking<'_>| {
        let plan = asking.plan;
        let launch = Launch {
            run: plan.id.clone(),
            program: plan.program.display().to_string(),
            command_sha256: String::new(),
            capability: String::new(),
            capability_sha256: String::new(),
            tier: String::new(),
            image: asking.image.cloned(),
        };
        Ok(gate.admit(launch, Durability::Crash).expect("leave"))
    };
    attend(assignment, Leave::Asked(&mut ask), attendant)
}

impl Yard {
    pub(crate) fn new(who: Who) -> Yard {
        let jail = Jail::new(who);
        let state = StateDir::at(jail.state.clone()).expect("a state directory");
        Yard { jail, state }
    }

    pub(crate) fn capability(&self) -> Capability {
        let mut capability = belljar_manifest::profile("moderate").expect("a shipped profile");
        match super::tier() {
            Some(super::GVISOR) => capability.tier = Tier::Gvisor,
            Some(super::CONTAINER) => {
                capability.tier = Tier::Container;
                let name = ImageName::parse(super::IMAGE).expect("a name");
                capability.image = Some(Rule::new(name, Origin::built_in()));
            }
            _ => {}
        }
        capability
    }

    /// A command in the workspace.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        Command::new(words.iter().copied()).workdir(&self.jail.work)
    }

    /// The probe with these words.
    pub(crate) fn probe(&self, words: &[&str]) -> Command {
        let program = self.jail.probe_path();
        let mut all = vec![program.to_str().expect("a path in UTF-8")];
        all.extend(words);
        self.command(&all)
    }

    pub(crate) fn attend(
        &self,
        command: &Command,
        reins: &Reins,
        attendant: &mut dyn Attendant,
    ) -> Result<RunResult, RunError> {
        let id = SandboxId::random().expect("an id");
        let capability = self.capability();
        let assignment = Assignment::new(&id, &capability, command, &self.state);
        let result = attend_admitted(&self.state, assignment.reins(reins.clone()), attendant);
        assert_eq!(reins.state(), BoxState::Ended);
        assert!(
            super::cgroups_of(id.as_str()).is_empty(),
            "a control group is left of {id}"
        );
        result
    }

    /// Runs a command to its end; nobody interferes.
    #[track_caller]
    pub(crate) fn run(&self, command: &Command) -> RunResult {
        let reins = Reins::new().expect("reins");
        let result = self.attend(command, &reins, &mut ());
        result.unwrap_or_else(|error| panic!("{error}: {:?}", error.hint()))
    }

    /// Runs the probe to its end; what it tried.
    #[track_caller]
    pub(crate) fn attempts(&self, command: &Command) -> Vec<Attempt> {
        let result = self.run(command);
        Attempt::parse(result.stdout.as_deref().unwrap_or_default())
    }

    /// Runs a command while `meddle` does something with it from another thread. A result that never comes fails the
    /// test by name.
    #[track_caller]
    pub(crate) fn run_while(
        &self,
        command: &Command,
        meddle: impl FnOnce(&Reins),
    ) -> Result<RunResult, RunError> {
        let reins = Reins::new().expect("reins");
        thread::scope(|scope| {
            let attending = scope.spawn(|| self.attend(command, &reins, &mut ()));
            let guard = KillOnPanic(&reins);
            meddle(&reins);
            drop(guard);
            eventually("the box ends", || attending.is_finished().then_some(()));
            attending.join().expect("no panic")
        })
    }

    /// Waits until the program made this file in the workspace.
    pub(crate) fn await_file(&self, name: &str) {
        let path = self.jail.work.join(name);
        eventually("the program makes its file", || path.exists().then_some(()));
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.jail.work.join(name).exists()
    }

    #[track_caller]
    pub(crate) fn assert_nothing_left(&self) {
        assert_nothing_left(&self.jail.base, &self.jail.state, None);
    }
}

/// A test that fails while its box runs ends the box, instead of waiting for it.
struct KillOnPanic<'a>(&'a Reins);

impl Drop for KillOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.kill(KillCode::OPERATOR);
        }
    }
}
