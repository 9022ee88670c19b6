//! Whose a change is: the project's, an agent's own, or neither.

use super::{Change, Overlay};
use belljar_policy::agent_directory;
use std::path::Path;

/// Whose a change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeGroup {
    /// In the directory where the program worked.
    Project,
    /// Elsewhere on the host.
    Elsewhere,
    /// What an agent or a tool keeps for itself, in this directory of the home.
    AgentState(&'static str),
}

/// Below the home: what tools fill again by themselves. Nothing in them is run by name but by the tool that put it there.
const CACHES: &[&str] = &[
    ".cache",
    ".cargo/registry",
    ".gradle/caches",
    ".local/state",
    ".m2/repository",
    ".npm/_cacache",
    ".npm/_logs",
    ".npm/_npx",
    ".nuget/packages",
    ".pnpm-store",
    "go/pkg/mod",
];

impl Overlay {
    /// Whose a change is. Settings of agents, which others of them obey, are no state.
    pub fn group(&self, change: &Change) -> ChangeGroup {
        let Some(origin) = &self.origin else {
            return ChangeGroup::Project;
        };
        let is_projects = change.path.starts_with(&origin.work);
        let state = change.path.strip_prefix(&origin.home).ok();
        if let Some(state) = state.and_then(state_directory)
            && !origin.work.starts_with(origin.home.join(state))
        {
            return ChangeGroup::AgentState(state);
        }
        match is_projects {
            true => ChangeGroup::Project,
            false => ChangeGroup::Elsewhere,
        }
    }
}

fn state_directory(below_home: &Path) -> Option<&'static str> {
    let cache = CACHES.iter().find(|cache| below_home.starts_with(cache));
    cache.copied().or_else(|| agent_directory(below_home))
}
