//! The state directory: a record of each running box, and changes that wait for a decision.
//!
//! A record is locked by its keeper for as long as that lives, so "is it running?" is a question to the kernel and
//! not a guess from a process number.

use crate::environment;
use crate::error::RunError;
use crate::home::HomeStore;
use crate::manager::SandboxId;
use crate::stand_in::{self, PutStandIn};
use belljar_gate::record::UsedImage;
use belljar_gate::{Durability, LogError, RunGate};
use belljar_sandbox::cgroup::Cgroups;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where state lives.
#[derive(Debug, Clone)]
pub struct StateDir {
    root: PathBuf,
}

/// What is known of a box while it runs. Read, its policy is JSON; written, it is whatever gives that JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunRecord<P = serde_json::Value> {
    /// Its id.
    pub sandbox_id: String,
    /// The keeper's process.
    pub keeper_pid: u32,
    /// When it was started, in seconds since 1970.
    pub started_at: u64,
    /// What runs in it.
    pub command: Vec<String>,
    /// Where.
    pub workdir: PathBuf,
    /// The capability it runs under: a profile's name or a file's.
    pub capability: String,
    /// The wall.
    pub tier: String,
    /// The image whose files it has, if not the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<UsedImage>,
    /// What holds its limits.
    pub limits_by: String,
    /// The capability in full.
    pub policy: P,
    /// Directories made on the host so that protected paths can't be created; removed at the end.
    pub stand_ins: Vec<PathBuf>,
    /// Those that this run made, and what they are: nothing else is removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub put_stand_ins: Vec<PutStandIn>,
}

/// A record held by the keeper that wrote it.
#[derive(Debug)]
pub(crate) struct HeldRecord {
    file: PathBuf,
    // The lock ends with the descriptor.
    lock: OwnedFd,
}

impl HeldRecord {
    /// Writes what is known now over what was known before, which must not have been more: a record is whole or not
    /// there, whenever its keeper is killed.
    pub(crate) fn write<P: Serialize>(&self, record: &RunRecord<P>) -> Result<(), RunError> {
        let write = || -> std::io::Result<()> {
            let bytes = serde_json::to_vec(record)?;
            let written = rustix::io::pwrite(&self.lock, &bytes, 0)?;
            if written == bytes.len() {
                Ok(())
            } else {
                Err(std::io::ErrorKind::StorageFull.into())
            }
        };
        write().map_err(|source| self.fail(source))
    }

    fn fail(&self, source: std::io::Error) -> RunError {
        RunError::State {
            path: self.file.clone(),
            source,
        }
    }
}

/// Whoever owns the directory can move away what is in it, whosever that is.
pub(crate) fn demand_ours(place: &Path, stat: &rustix::fs::Stat) -> Result<(), RunError> {
    const OTHERS_WRITE: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    let shown = place.display();
    let us = rustix::process::geteuid().as_raw();
    if ![0, us].contains(&stat.st_uid) {
        return Err(RunError::Invalid {
            what: format!(
                "the state directory {shown} belongs to user {}, who could replace the keys and logs of user {us}",
                stat.st_uid
            ),
            hint: "run as that user, or name a directory of your own in BELLJAR_STATE_DIR".into(),
        });
    }
    if stat.st_mode & (OTHERS_WRITE | STICKY) == OTHERS_WRITE {
        return Err(RunError::Invalid {
            what: format!("everybody may write to the state directory {shown}"),
            hint: format!("take that right away: chmod o-w '{shown}'"),
        });
    }
    Ok(())
}

impl StateDir {
    /// `$BELLJAR_STATE_DIR`, else the user's XDG state directory, else `/var/lib/belljar` for root.
    ///
    /// # Errors
    /// When the variable holds a relative path: it would be another directory wherever somebody looks; or when what is
    /// there could be replaced by somebody else, with all keys and logs in it.
    pub fn find() -> Result<Self, RunError> {
        let place = Self::place()?;
        if let Ok(stat) = rustix::fs::stat(&place) {
            demand_ours(&place, &stat)?;
        }
        Self::at(place)
    }

    /// The same for those who only look or change what is there: a directory that is named must exist, or a slip of
    /// the pen would look like a log in which nothing was ever recorded.
    ///
    /// # Errors
    /// When it is named and not there, and as [`StateDir::find`].
    pub fn existing() -> Result<Self, RunError> {
        let place = Self::place()?;
        if Self::is_named() && !place.is_dir() {
            return Err(RunError::Invalid {
                what: format!(
                    "{} is {}, and there is no such directory",
                    environment::STATE_DIR,
                    place.display()
                ),
                hint: "name the directory that `belljar run` or a supervisor made, or leave the variable out"
                    .into(),
            });
        }
        Self::at(place)
    }

    /// Whether the environment names one.
    #[must_use]
    pub fn is_named() -> bool {
        environment::state_dir().is_some()
    }

    /// Where it is or would be; nothing is made.
    pub(crate) fn place() -> Result<PathBuf, RunError> {
        let variable = |name| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let named = environment::state_dir();
        if named
            .as_ref()
            .is_some_and(|path| path.as_os_str().is_empty())
        {
            return Err(RunError::Invalid {
                what: format!("{} is empty", environment::STATE_DIR),
                hint: "name a directory by its absolute path, or leave the variable out".into(),
            });
        }
        if let Some(relative) = named.as_ref().filter(|path| path.is_relative()) {
            let shown = relative.display();
            return Err(RunError::Invalid {
                what: format!("{} is a relative path: {shown}", environment::STATE_DIR),
                hint: format!(
                    "write the absolute path: {}=\"$PWD/{shown}\"",
                    environment::STATE_DIR
                ),
            });
        }
        let is_root = rustix::process::geteuid().is_root();
        named
            .or_else(|| is_root.then(|| PathBuf::from("/var/lib/belljar")))
            .or_else(|| variable(environment::XDG_STATE_HOME).map(|path| path.join("belljar")))
            .or_else(|| variable(environment::HOME).map(|path| path.join(".local/state/belljar")))
            .ok_or_else(|| RunError::Invalid {
                what: "no place for state: neither HOME nor XDG_STATE_HOME is set".into(),
                hint: "set BELLJAR_STATE_DIR to a directory you can write to".into(),
            })
    }

    /// This directory; made if it is not there.
    pub fn at(root: PathBuf) -> Result<Self, RunError> {
        let state = Self { root };
        state.make(&state.runs())?;
        Ok(state)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.root
    }

    fn runs(&self) -> PathBuf {
        self.root.join("runs")
    }

    /// Where it is noted which stand-ins are left to other boxes to take away (see [`crate::stand_in`]).
    pub(crate) fn stand_in_notes(&self) -> PathBuf {
        self.root.join("left")
    }

    /// Where guests that have started are kept, for boxes of the microvm tier to resume.
    pub fn guests(&self) -> PathBuf {
        environment::guest_store().unwrap_or_else(|| self.root.join("guests"))
    }

    pub(crate) fn doors(&self) -> PathBuf {
        self.root.join("doors")
    }

    /// Clears away the doors of a box whose keeper was killed: its own, and the one to its MCP servers.
    pub(crate) fn forget_doors(&self, id: &str) {
        let own = SandboxId::new(id).into_iter();
        let servers = crate::tools::socket_name(id).into_iter();
        for name in own.chain(servers) {
            let _ = std::fs::remove_file(self.doors().join(format!("{name}.sock")));
        }
    }

    /// Where private homes are.
    pub(crate) fn homes(&self) -> PathBuf {
        self.root.join("homes")
    }

    pub(crate) fn overlays(&self) -> PathBuf {
        self.root.join("overlays")
    }

    /// Makes a directory that others can pass through (a box of root's runs as somebody else) but not read.
    fn make(&self, path: &Path) -> Result<(), RunError> {
        let fail = |source| RunError::State {
            path: path.to_owned(),
            source,
        };
        if path.is_dir() {
            return Ok(());
        }
        fs::create_dir_all(path).map_err(fail)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o711)).map_err(fail)
    }

    /// What was learnt of the tiers of this host.
    pub fn tiers(&self) -> Result<PathBuf, RunError> {
        let path = self.root.join("tiers");
        self.make(&path)?;
        Ok(path)
    }

    pub(crate) fn make_overlay(&self, id: &str) -> Result<PathBuf, RunError> {
        self.make(&self.overlays())?;
        let path = self.overlays().join(id);
        let fail = |source| RunError::State {
            path: path.clone(),
            source,
        };
        fs::create_dir(&path).map_err(fail)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o711)).map_err(fail)?;
        Ok(path)
    }

    /// Writes the record of a new run and locks it.
    pub(crate) fn hold<P: Serialize>(&self, record: &RunRecord<P>) -> Result<HeldRecord, RunError> {
        let path = self.runs().join(format!("{}.json", record.sandbox_id));
        let fail = |source| RunError::State {
            path: path.clone(),
            source,
        };
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let lock = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| fail(errno.into()))?;
        let held = HeldRecord { file: path, lock };
        // Whoever sweeps may be looking at the new file this moment, but holds it no longer than that.
        flock(&held.lock, FlockOperation::LockExclusive)
            .map_err(|errno| held.fail(errno.into()))?;
        held.write(record)?;
        Ok(held)
    }

    /// Boxes that run now, oldest first.
    pub fn running(&self) -> Vec<RunRecord> {
        let mut records: Vec<RunRecord> = self
            .records()
            .into_iter()
            .filter(|(_, alive, _)| *alive)
            .filter_map(|(_, _, record)| record)
            .collect();
        records.sort_by(|a, b| (a.started_at, &a.sandbox_id).cmp(&(b.started_at, &b.sandbox_id)));
        records
    }

    /// Every record: where, whether its keeper lives, and what it says (unless it was cut off while being written).
    fn records(&self) -> Vec<(PathBuf, bool, Option<RunRecord>)> {
        let Ok(entries) = fs::read_dir(self.runs()) else {
            return Vec::new();
        };
        entries
            .flatten()
            .map(|entry| {
                let path = entry.path();
                let record = fs::read(&path)
                    .ok()
                    .and_then(|bytes| serde_json::from_slice(&bytes).ok());
                (path.clone(), is_locked(&path), record)
            })
            .collect()
    }

    /// Puts on record the ends of runs whose keepers were killed, each once, whoever looks first.
    pub fn record_lost(&self) -> Result<(), LogError> {
        self.record(&self.lost())
    }

    fn record(&self, lost: &[(PathBuf, Option<RunRecord>)]) -> Result<(), LogError> {
        let runs = lost.iter().filter_map(|(_, record)| record.as_ref());
        let runs: Vec<String> = runs.map(|record| record.sandbox_id.clone()).collect();
        let mut gate = RunGate::of(self.path(), environment::key_source());
        gate.lost(&runs, Durability::Crash).map(drop)
    }

    /// What was written by keepers that are gone.
    fn lost(&self) -> Vec<(PathBuf, Option<RunRecord>)> {
        // Without content it may be one that is being written this moment.
        let is_lost = |path: &Path, alive: bool, record: &Option<RunRecord>| {
            !alive && (record.is_some() || !is_young(path))
        };
        let records = self.records().into_iter();
        records
            .filter(|(path, alive, record)| is_lost(path, *alive, record))
            .map(|(path, _, record)| (path, record))
            .collect()
    }

    /// Clears away what keepers that were killed could not, and puts on record that they were.
    pub fn sweep(&self, cgroups: &Cgroups) {
        let lost = self.lost();
        let is_recorded = self.record(&lost).is_ok();
        for (path, record) in lost {
            if let Some(record) = record {
                cgroups.remove_leftover(&record.sandbox_id);
                let notes = self.stand_in_notes();
                stand_in::sweep(&record.put_stand_ins, &notes);
                if record.put_stand_ins.is_empty() {
                    let places = record.stand_ins.iter();
                    places.for_each(|path| stand_in::sweep_unnoted(path, &notes));
                }
            }
            // What could not be put on record is there for whoever looks next.
            if is_recorded {
                let _ = fs::remove_file(&path);
            }
        }
        stand_in::sweep(&[], &self.stand_in_notes());
        self.drop_old_pool();
        crate::door::sweep(&self.doors());
        HomeStore::of(self).sweep();
    }

    /// Version 0.1.0 kept used stand-ins here, to use them again. Nobody does any more: others may have them open.
    fn drop_old_pool(&self) {
        let pool = self.root.join("stand-ins");
        for entry in fs::read_dir(&pool).into_iter().flatten().flatten() {
            let _ = fs::remove_dir(entry.path());
        }
        let _ = fs::remove_dir(pool);
    }
}

fn is_young(file: &Path) -> bool {
    let age = fs::metadata(file)
        .and_then(|metadata| metadata.modified())
        .ok()
        .and_then(|time| time.elapsed().ok());
    age.is_some_and(|age| age < std::time::Duration::from_secs(60))
}

fn is_locked(file: &Path) -> bool {
    let Ok(fd) = rustix::fs::open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return false;
    };
    flock(&fd, FlockOperation::NonBlockingLockShared).is_err()
}

impl Drop for HeldRecord {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}
