//! What a supervisor finds when it looks which rollouts are its own, without taking hold of any.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::driver::directory_of;
use super::machine::Event;
use crate::release::Place;

/// The most bytes of a rollout's first line: its plan, with the names of a thousand instances.
const MOST_LINE: u64 = 1 << 20;

/// A rollout over agents of a supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// The proposal.
    pub proposal: String,
    /// How often its instances are looked at.
    pub every: Duration,
    /// How much has happened, in bytes of its journal.
    pub length: u64,
}

/// The newest rollout of each project whose instances a supervisor keeps. What can't be read is left to whoever opens it.
#[must_use]
pub fn watched(state: &Path) -> Vec<Watched> {
    let projects = std::fs::read_dir(state.join("evolve/releases"));
    let found = projects.into_iter().flatten().flatten();
    let mut rollouts: Vec<Watched> = found
        .filter_map(|project| began(&project.path().join("rollout.jsonl")))
        .collect();
    rollouts.sort_by(|one, other| one.proposal.cmp(&other.proposal));
    rollouts
}

fn began(journal: &Path) -> Option<Watched> {
    let mut line = String::new();
    let file = File::open(journal).ok()?;
    let length = file.metadata().ok()?.len();
    BufReader::new(file.take(MOST_LINE))
        .read_line(&mut line)
        .ok()?;
    match serde_json::from_str(&line).ok()? {
        Event::Started { proposal, plan, .. } => Some(Watched {
            proposal,
            every: Duration::from_secs(plan.supervised?.every_seconds),
            length,
        }),
        _ => None,
    }
}

/// The tree that an instance of a project is to run from: what its own place shows, else what everybody uses; nothing before the
/// first release.
#[must_use]
pub fn place_of(state: &Path, project: &str, instance: &str) -> Option<PathBuf> {
    let directory = directory_of(state, project);
    let own = Place::instance(instance).ok();
    let places = own.into_iter().chain([Place::current()]);
    // A link is read once, so that a move at the same moment gives the one or the other.
    let mut shown = places.filter_map(|place| {
        let link = directory.join(place.as_str());
        let target = std::fs::read_link(&link).ok()?;
        link.parent()?.join(target).canonicalize().ok()
    });
    shown.next()
}
