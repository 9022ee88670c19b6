//! The gate of lone runs: a launch is on record before the agent's first instruction, its end after its last.

use std::path::{Path, PathBuf};

use belljar_ledger::{Durability, Ledger, Reader, Recovery, Released, Wait};

use crate::clock::now;
use crate::keyring::{Edition, KeyDir, KeyError, KeySource, Keyring};
use crate::latch::Latch;
use crate::log::{LogError, LogKind, open};
use crate::permit::Permit;
use crate::record::{Entry, NetworkUsed, RunEvent, UsedImage};

/// Starting a box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The run.
    pub run: String,
    /// The program.
    pub program: String,
    /// SHA-256 of the command: see [`crate::record::words_sha256`].
    pub command_sha256: String,
    /// The capability's name.
    pub capability: String,
    /// SHA-256 of the capability.
    pub capability_sha256: String,
    /// The wall.
    pub tier: String,
    /// The image whose files it has, if not the host's.
    pub image: Option<UsedImage>,
}

impl Launch {
    /// One task of a worker, whose manifest says the rest.
    pub(crate) fn of_task(worker: belljar_replication::WorkerId) -> Self {
        Self {
            run: worker.to_string(),
            program: String::new(),
            command_sha256: String::new(),
            capability: String::new(),
            capability_sha256: String::new(),
            tier: String::new(),
            image: None,
        }
    }
}

/// How a run went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// The program's exit code, unless a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// What ended it, if not itself.
    pub killed_by: Option<String>,
    /// How long it ran.
    pub duration_ms: u64,
    /// The CPU time it used.
    pub cpu_ms: u64,
    /// The most memory it held.
    pub peak_memory_mb: u64,
    /// What it used of the network; nothing when it had none.
    pub network: Option<NetworkUsed>,
}

/// The gate said no.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The kill switch is engaged.
    #[error("deny_kill_switch: the kill switch is engaged: {reason}")]
    KillSwitch {
        /// Why it was engaged.
        reason: String,
    },
    /// What can't be recorded is not granted.
    #[error("deny_unrecorded: the launch can't be put on record")]
    Unrecorded(#[from] LogError),
}

impl Refusal {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::KillSwitch { .. } => "deny_kill_switch",
            Self::Unrecorded(_) => "deny_unrecorded",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::KillSwitch { .. } => {
                "an operator resets it with `belljar replication kill-switch reset --reason …`"
                    .to_owned()
            }
            Self::Unrecorded(error) => error.hint(),
        }
    }
}

/// How often the keys may change while the log is opened, before that is somebody's mischief.
const MOST_CHANGES: u32 = 16;

/// The gate of one lone run.
pub struct RunGate {
    state: PathBuf,
    keys: Keys,
    latch: Latch,
    /// The log as the launch left it: most often nobody wrote to it until the end.
    warm: Option<Released>,
}

/// The keys of a gate.
enum Keys {
    /// Read when needed, and again when they changed.
    Own {
        directory: KeyDir,
        loaded: Option<(Keyring, Option<Edition>)>,
    },
    /// Seen to by the caller.
    Lent(Keyring),
}

impl RunGate {
    /// The gate to this state directory's boxes. Nothing is read before it is needed.
    #[must_use]
    pub fn of(state: &Path, source: KeySource) -> Self {
        Self {
            state: state.to_owned(),
            keys: Keys::Own {
                directory: KeyDir::of(state, source),
                loaded: None,
            },
            latch: Latch::of(state),
            warm: None,
        }
    }

    /// The same, for a caller that has the keys at hand.
    pub(crate) fn with_keyring(state: &Path, keyring: Keyring) -> Self {
        Self {
            keys: Keys::Lent(keyring),
            ..Self::of(state, KeySource::Directory)
        }
    }

    /// Lets a box start, or says why not. Either is on record before this returns; where the
    /// record can't be written, the answer is no.
    pub fn admit(
        &mut self,
        launch: Launch,
        durability: Durability,
    ) -> Result<Permit<Launch>, Refusal> {
        if let Some(engaged) = self.latch.engaged() {
            let refusal = Refusal::KillSwitch {
                reason: engaged.reason,
            };
            self.refused(
                &launch.run,
                &launch.program,
                refusal.code(),
                &refusal.to_string(),
            )?;
            return Err(refusal);
        }
        let entry = self.write(
            RunEvent::RunLaunched {
                run: launch.run.clone(),
                program: launch.program.clone(),
                command_sha256: launch.command_sha256.clone(),
                capability: launch.capability.clone(),
                capability_sha256: launch.capability_sha256.clone(),
                tier: launch.tier.clone(),
                image: launch.image.clone(),
                user: rustix::process::getuid().as_raw(),
            },
            durability,
        )?;
        Ok(Permit::new(launch, entry))
    }

    /// Records a launch that was refused before it came to the gate.
    pub fn refused(
        &mut self,
        run: &str,
        program: &str,
        code: &str,
        why: &str,
    ) -> Result<u64, LogError> {
        self.write(
            RunEvent::RunRefused {
                run: run.to_owned(),
                program: program.to_owned(),
                code: code.to_owned(),
                why: why.to_owned(),
            },
            Durability::Crash,
        )
    }

    /// Records how an admitted run went.
    pub fn ended(
        &mut self,
        run: &str,
        ending: Ending,
        durability: Durability,
    ) -> Result<u64, LogError> {
        self.write(
            RunEvent::RunEnded {
                run: run.to_owned(),
                exit_code: ending.exit_code,
                signal: ending.signal,
                killed_by: ending.killed_by,
                duration_ms: ending.duration_ms,
                cpu_ms: ending.cpu_ms,
                peak_memory_mb: ending.peak_memory_mb,
                network: ending.network,
            },
            durability,
        )
    }

    /// Records the ends of runs whose keepers are gone and had not done it. Of the others of these nothing is: the log is looked
    /// through and written under one lock, so each end is there once. Gives how many were recorded.
    pub fn lost(&mut self, runs: &[String], durability: Durability) -> Result<usize, LogError> {
        let directory = LogKind::Runs.directory(&self.state);
        // Whoever never came to the gate has no log.
        if runs.is_empty() || !directory.exists() {
            return Ok(0);
        }
        let (mut ledger, recovery) = self.open()?;
        let open = open_runs(&directory, runs)?;
        let events: Vec<RunEvent> = open.into_iter().map(keeper_lost).collect();
        let count = events.len();
        if count > 0 {
            append(&mut ledger, recovery, events, durability)?;
        }
        Ok(count)
    }

    /// Records anything else that belongs with the runs.
    pub fn note(&mut self, event: RunEvent, durability: Durability) -> Result<u64, LogError> {
        self.write(event, durability)
    }

    /// Records several at once: they share one sync.
    pub fn note_all(
        &mut self,
        events: Vec<RunEvent>,
        durability: Durability,
    ) -> Result<u64, LogError> {
        self.write_all(events, durability)
    }

    fn write(&mut self, event: RunEvent, durability: Durability) -> Result<u64, LogError> {
        self.write_all(vec![event], durability)
    }

    /// Gives the number of the last.
    fn write_all(
        &mut self,
        events: Vec<RunEvent>,
        durability: Durability,
    ) -> Result<u64, LogError> {
        let (mut ledger, recovery) = self.open()?;
        let written = append(&mut ledger, recovery, events, durability);
        if written.is_ok() {
            self.warm = Some(ledger.release());
        }
        written
    }

    /// Opens the log with the keys that hold while it is locked. Whoever changes keys does so first and signs the log
    /// after, under the same lock: so no key signs here that was given up before.
    fn open(&mut self) -> Result<(Ledger, Recovery), LogError> {
        for _ in 0..MOST_CHANGES {
            let opened = match self.warm.take() {
                Some(warm) => warm
                    .lock_and_resume(Wait::Block)
                    .map_err(|source| LogError::Open {
                        kind: LogKind::Runs,
                        source,
                    }),
                None => open(LogKind::Runs, &self.state, self.keys.ring()?, Wait::Block),
            };
            if !self.keys.forget_if_changed() {
                return opened;
            }
        }
        Err(KeyError::Restless.into())
    }
}

impl Keys {
    fn ring(&mut self) -> Result<&Keyring, KeyError> {
        match self {
            Self::Lent(ring) => Ok(ring),
            Self::Own { directory, loaded } => {
                if loaded.is_none() {
                    directory.init_if_empty(now().wall_ms / 1000)?;
                    // Noted before it is read: a change in between is taken for one after.
                    let edition = directory.edition();
                    *loaded = Some((directory.load()?, edition));
                }
                let ring = loaded.as_ref().map(|(ring, _)| ring);
                ring.ok_or(KeyError::NoKey)
            }
        }
    }

    fn forget_if_changed(&mut self) -> bool {
        let Self::Own { directory, loaded } = self else {
            return false;
        };
        let current = directory.edition();
        let is_changed = loaded.as_ref().is_some_and(|(_, seen)| *seen != current);
        if is_changed {
            *loaded = None;
        }
        is_changed
    }
}

impl std::fmt::Debug for RunGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunGate")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// Those of these runs that the log lets start and does not end.
fn open_runs(directory: &Path, runs: &[String]) -> Result<Vec<String>, LogError> {
    let fault = |entry| {
        move |source: belljar_ledger::Fault| LogError::Content {
            kind: LogKind::Runs,
            entry,
            source: Box::new(source),
        }
    };
    let reader = Reader::open(directory).map_err(fault(0))?;
    let mut entries = reader.entries(0);
    let mut open: Vec<String> = Vec::new();
    while let Some(next) = entries.next_borrowed() {
        let (_, bytes) = next.map_err(fault(0))?;
        // Most are about others; and what another version wrote is none of ours.
        let is_about = |run: &&String| {
            let run = run.as_bytes();
            bytes.windows(run.len()).any(|window| window == run)
        };
        if runs.iter().find(is_about).is_none() {
            continue;
        }
        match serde_json::from_slice::<Entry<RunEvent>>(bytes).map(|entry| entry.what) {
            Ok(RunEvent::RunLaunched { run, .. }) if runs.contains(&run) => open.push(run),
            Ok(RunEvent::RunEnded { run, .. }) => open.retain(|known| *known != run),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(open)
}

fn keeper_lost(run: String) -> RunEvent {
    RunEvent::RunEnded {
        run,
        exit_code: None,
        signal: None,
        killed_by: Some(KEEPER_LOST.to_owned()),
        duration_ms: 0,
        cpu_ms: 0,
        peak_memory_mb: 0,
        network: None,
    }
}

/// What is on record of a run whose keeper was killed. Nobody knows what it used.
const KEEPER_LOST: &str = "keeper_lost";

fn append(
    ledger: &mut Ledger,
    recovery: Recovery,
    events: Vec<RunEvent>,
    durability: Durability,
) -> Result<u64, LogError> {
    let at = now();
    if !recovery.is_clean() {
        let recovered = RunEvent::LogRecovered {
            dropped_entries: recovery.dropped_entries,
            dropped_bytes: recovery.dropped_bytes,
        };
        ledger.append(&Entry::encode(at, recovered)?)?;
    }
    let mut index = 0;
    for event in events {
        index = ledger.append(&Entry::encode(at, event)?)?;
    }
    ledger.commit(durability)?;
    Ok(index)
}
