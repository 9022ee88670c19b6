//! What an operator's command does from outside the controller: reach it, or act where there is none.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use belljar_api::{CallError, Client};
use belljar_gate::keyring::KeySource;
use belljar_gate::latch::{Engaged, Latch, LatchError, LatchHolder};
use belljar_gate::record::RunEvent;
use belljar_gate::{Durability, LogError, RunGate};
use rustix::fd::AsRawFd as _;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::RunError;
use crate::state::StateDir;

/// How long killed keepers are waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection to the controller of a state directory.
#[derive(Debug)]
pub struct Operator {
    /// Speaks to it.
    pub client: Client,
    /// The path leads through it: the whole one may be longer than a socket's address.
    _directory: OwnedFd,
}

impl Operator {
    /// Reaches the controller, if one runs.
    pub fn reach(state: &StateDir) -> Result<Self, CallError> {
        let control = super::control_socket(state);
        let not_there = |source| CallError::NotThere {
            path: control.clone(),
            source,
        };
        let directory = control.parent().unwrap_or(Path::new("/"));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, flags, Mode::empty())
            .map_err(|errno| not_there(errno.into()))?;
        let path = format!("/proc/self/fd/{}/control.sock", directory.as_raw_fd());
        let client = Client::connect(path).map_err(|error| match error {
            CallError::NotThere { source, .. } => not_there(source),
            other => other,
        })?;
        Ok(Self {
            client,
            _directory: directory,
        })
    }

    /// The client, and what must stay open as long as it connects.
    #[must_use]
    pub fn into_parts(self) -> (Client, OwnedFd) {
        (self.client, self._directory)
    }
}

/// What the kill switch did to runs that no controller keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoneKills {
    /// Keepers that were killed, and their boxes with them.
    pub killed: u32,
    /// Those that were still there when patience ended.
    pub survivors: u32,
}

/// Kills every run of the state directory that `spare` does not keep, for the kill switch. A box dies with its keeper.
pub fn kill_lone_runs(state: &StateDir, spare: Option<u32>) -> LoneKills {
    let mut running = state.running();
    running.retain(|record| Some(record.keeper_pid) != spare);
    let doomed: Vec<u32> = running.iter().map(|record| record.keeper_pid).collect();
    let mut killed = 0;
    for pid in &doomed {
        let handle = i32::try_from(*pid)
            .ok()
            .and_then(Pid::from_raw)
            .map(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let Some(Ok(handle)) = handle else {
            continue;
        };
        // Still its record's holder, now that the handle is: so it is no other process of the same number.
        let is_keeper = state
            .running()
            .iter()
            .any(|record| record.keeper_pid == *pid);
        if is_keeper && pidfd_send_signal(&handle, Signal::KILL).is_ok() {
            killed += 1;
        }
    }
    // A supervisor that comes back, or the next one, would take them for lost, and start them again once the switch is reset.
    let workers: Vec<String> = running.into_iter().map(|it| it.sandbox_id).collect();
    crate::daemon::note_killed(state, &workers);
    let until = Instant::now() + PATIENCE;
    loop {
        let left = state
            .running()
            .iter()
            .filter(|record| doomed.contains(&record.keeper_pid))
            .count();
        if left == 0 || Instant::now() >= until {
            if killed > 0 {
                // Who was killed cleared nothing away; after a kill switch there may be no next run to do it.
                state.sweep(&belljar_sandbox::Host::probe().cgroups);
            }
            return LoneKills {
                killed,
                survivors: u32::try_from(left).unwrap_or(u32::MAX),
            };
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What engaging the kill switch came to with no controller to do it.
#[derive(Debug)]
pub struct LoneEngagement {
    /// Who was killed.
    pub kills: LoneKills,
    /// What holds the switch, or why nothing does.
    pub held_by: Result<LatchHolder, LatchError>,
    /// Why it is not on record, if so.
    pub unrecorded: Option<LogError>,
}

/// Engages the kill switch with no controller running. Killing comes first and fails for no disk; then whatever can hold the latch does,
/// and whoever was started meanwhile is killed too.
pub fn engage_alone(state: &StateDir, reason: &str, keys: KeySource) -> LoneEngagement {
    let mut kills = kill_lone_runs(state, None);
    let at = belljar_gate::clock::now();
    let held_by = Latch::of(state.path()).engage(at.wall_ms, reason);
    let late = kill_lone_runs(state, None);
    kills.killed += late.killed;
    kills.survivors = late.survivors;
    let event = RunEvent::KillSwitchEngaged {
        reason: reason.to_owned(),
        killed: kills.killed,
        survivors: kills.survivors,
        by: Some(belljar_gate::Actor::this_user()),
    };
    let recorded = RunGate::of(state.path(), keys).note(event, Durability::Power);
    LoneEngagement {
        kills,
        held_by,
        unrecorded: recorded.err(),
    }
}

/// Takes the kill switch off with no controller running. It is on record before it takes effect.
pub fn reset_alone(state: &StateDir, reason: &str, keys: KeySource) -> Result<bool, RunError> {
    let latch = Latch::of(state.path());
    let was_engaged = latch.engaged().is_some();
    let reset = RunEvent::KillSwitchReset {
        reason: reason.to_owned(),
        by: Some(belljar_gate::Actor::this_user()),
    };
    let recorded = RunGate::of(state.path(), keys.clone()).note(reset, Durability::Power);
    recorded.map_err(|error| RunError::Refused {
        hint: error.hint(),
        what: format!(
            "the reset can't be put on record: {}",
            belljar_gate::in_full(&error)
        ),
    })?;
    belljar_gate::reset_fleet(state.path(), keys).map_err(|error| RunError::Refused {
        hint: error.hint(),
        what: format!(
            "the fleet's log can't record the reset: {}",
            belljar_gate::in_full(&error)
        ),
    })?;
    latch.reset().map_err(latch_error)?;
    Ok(was_engaged)
}

/// Since when and why the kill switch is engaged, if it is, and what holds it.
#[must_use]
pub fn kill_switch(state: &StateDir) -> Option<(Engaged, LatchHolder)> {
    let latch = Latch::of(state.path());
    latch.engaged().zip(latch.holder())
}

fn latch_error(error: belljar_gate::latch::LatchError) -> RunError {
    RunError::Refused {
        what: belljar_gate::in_full(&error),
        hint: "see that BELLJAR_STATE_DIR can be written to".into(),
    }
}
