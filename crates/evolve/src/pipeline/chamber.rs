//! Boxes for stages: each command gets a fresh one. It sees one exported tree, for reading, and no network.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use belljar_policy::{Capability, Origin, PathRule, Permission, Rule};
use belljar_supervisor::{Command, RunError, RunResult, SandboxManager, Show, ShowName, StateDir};

use crate::config::Config;
use crate::tree::{Tree, TreeError};

/// Makes boxes, and the directories they look at.
#[derive(Debug)]
pub(super) struct Chambers {
    manager: SandboxManager,
    capability: Capability,
    /// Where trees are put, the fastest first, and how many bytes there are for them.
    scratch: Vec<(u64, Scratch)>,
    /// Trees that are exported, by their digest. No box can write to one, so all may look at the same.
    exported: Mutex<BTreeMap<String, PathBuf>>,
    time: Duration,
    /// How long the trees took to write, in milliseconds, each.
    written: Mutex<Vec<f64>>,
}

/// A box did not tell what it should have.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChamberError {
    #[error("the box could not run: {0}")]
    Run(#[from] RunError),
    #[error("the tree could not be written: {0}")]
    Tree(#[from] TreeError),
    #[error("a scratch directory could not be made: {0}")]
    Scratch(std::io::Error),
    #[error("{0}")]
    Ended(String),
}

/// What is run.
#[derive(Clone, Debug, Default)]
pub(super) struct Job<'a> {
    pub(super) words: &'a [String],
    /// Files below /belljar.
    pub(super) shows: Vec<(&'static str, Vec<u8>)>,
    pub(super) watched: Watched,
    /// What it reads. Once it has, nothing else in the box can.
    pub(super) input: Vec<u8>,
    pub(super) env: Vec<(&'static str, String)>,
}

/// Whether what it does is noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Watched {
    #[default]
    No,
    Yes,
}

impl Chambers {
    pub(super) fn new(state: &StateDir, config: &Config) -> Result<Self, ChamberError> {
        let mut capability = belljar_manifest::profile("strict")
            .ok_or_else(|| ChamberError::Ended("no strict profile".into()))?;
        // Walls are as in `strict`. Test runners start processes, and take longer than a minute.
        capability.permissions.insert(Permission::SpawnSubprocess);
        capability.limits.memory_bytes = Some(config.memory_mb << 20);
        capability.limits.wall_time = Some(config.stage_time);
        capability.limits.cpu_time = Some(config.stage_time * 2);
        for path in &config.readable {
            capability
                .filesystem
                .readable
                .push(Rule::new(PathRule::Root(path.clone()), Origin::built_in()));
        }
        Ok(Self {
            manager: SandboxManager::with_state(StateDir::at(state.path().to_owned())?),
            capability,
            scratch: scratches().map_err(ChamberError::Scratch)?,
            exported: Mutex::default(),
            time: config.stage_time,
            written: Mutex::default(),
        })
    }

    /// Where a tree is, for boxes to look at.
    pub(super) fn place(&self, tree: &Tree) -> Result<PathBuf, ChamberError> {
        let digest = tree.digest();
        let mut exported = self.exported.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = exported.get(&digest) {
            return Ok(place.clone());
        }
        let (_, base) = self
            .scratch
            .iter()
            .find(|(room, _)| tree.bytes().saturating_mul(SPARE) <= *room)
            .or(self.scratch.last())
            .ok_or_else(|| ChamberError::Scratch(std::io::ErrorKind::NotFound.into()))?;
        let place = base.0.join(&digest[..16]);
        let began = Instant::now();
        tree.export(&place)?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.push(took);
        exported.insert(digest, place.clone());
        Ok(place)
    }

    /// How long the slowest tree took to write, in milliseconds.
    pub(super) fn slowest_ms(&self) -> Option<f64> {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.iter().copied().max_by(f64::total_cmp)
    }

    /// Runs a command in a box of its own.
    pub(super) fn run(&self, place: &Path, job: &Job<'_>) -> Result<RunResult, ChamberError> {
        let mut command = Command::new(job.words.iter())
            .workdir(place)
            .timeout(self.time)
            // A wrong guess at a cache, a colour or a locale is no reason for another result.
            .env("PYTHONHASHSEED", "0")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("LC_ALL", "C.UTF-8");
        for (name, bytes) in &job.shows {
            let name =
                ShowName::new(*name).map_err(|error| ChamberError::Ended(error.to_string()))?;
            command = command.show(Show::Text {
                name,
                bytes: Arc::from(bytes.as_slice()),
            });
        }
        for (name, value) in &job.env {
            command = command.env(*name, value);
        }
        if !job.input.is_empty() {
            command = command.input(job.input.as_slice());
        }
        if job.watched == Watched::Yes {
            command = command.watched();
        }
        let id = self.manager.create(self.capability.clone())?;
        let result = self.manager.execute(&id, &command);
        self.manager.destroy(&id)?;
        let result = result?;
        if let Some(by) = result.killed_by {
            return Err(ChamberError::Ended(format!(
                "the box was ended ({}) after {:.0} ms",
                by.as_str(),
                result.duration_ms
            )));
        }
        Ok(result)
    }
}

/// Memory that programs share. Thousands of files are made there in a fifth of the time that a disk takes.
const MEMORY: &str = "/dev/shm";
/// How many times a tree's size has to be free, as others use it too.
const SPARE: u64 = 8;

/// A directory in memory, where there is one, and one among temporary files.
fn scratches() -> std::io::Result<Vec<(u64, Scratch)>> {
    let memory = rustix::fs::statfs(MEMORY).ok().filter(|facts| {
        const TMPFS: u64 = 0x0102_1994;
        facts.f_type as u64 == TMPFS
    });
    let mut all = Vec::new();
    if let Some(facts) = memory
        && let Ok(scratch) = Scratch::new(Path::new(MEMORY))
    {
        let room = facts.f_bavail.saturating_mul(facts.f_bsize as u64);
        all.push((room, scratch));
    }
    all.push((u64::MAX, Scratch::new(&std::env::temp_dir())?));
    Ok(all)
}

/// A directory that goes when this does.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Scratch {
    fn new(base: &Path) -> std::io::Result<Self> {
        let mut bytes = [0u8; 12];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        let place = base.join(format!(
            "belljar-evolve-{}",
            belljar_gate::record::hex(&bytes)
        ));
        std::fs::create_dir(&place)?;
        Ok(Self(place.canonicalize()?))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What can't be removed holds a copy of a project, nothing else.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
