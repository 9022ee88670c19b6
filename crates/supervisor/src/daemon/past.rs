//! What is kept on disk of every agent, so that the next daemon tells of those that ended before it, and how.
//!
//! One file for each, written when the agent is let in and again when it is over; it goes when the roster forgets the agent. So
//! there are never more than the roster holds, and what a start reads does not grow with the history.

use std::fs;
use std::io::{self, Read as _};
use std::path::PathBuf;

use belljar_api::{AgentView, Denial, End, EndCause, Shown};
use belljar_replication::WorkerId;
use serde::{Deserialize, Serialize};

use super::roster::{Agent, is_over};
use crate::apart::words::Card;
use crate::apart::{make_private, write_whole};
use crate::error::RunError;
use crate::fleet::Employed;
use crate::state::StateDir;
use crate::tools::Backstage;

/// No such file is longer.
const LONGEST: u64 = 8 << 20;
/// Why an agent ended that the kill switch killed.
pub(super) const BY_KILL_SWITCH: &str = "the kill switch was engaged";
/// Below the state directory.
const DIRECTORY: &str = "fleet/agents";

/// What an agent was started as: all that is told of it besides its view, and what it takes to start it anew.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub(super) argv: Vec<String>,
    pub(super) workdir: Option<PathBuf>,
    pub(super) tier: String,
    /// The manifests from the root's to its own, one a line.
    pub(super) chain: String,
    pub(super) backstage: Backstage,
}

impl Origin {
    pub(super) fn of(employed: &Employed) -> Self {
        let argv = employed.command.argv.iter();
        Self {
            argv: argv
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            workdir: employed.command.workdir.clone(),
            tier: employed.capability.tier.as_str().to_owned(),
            chain: String::from_utf8_lossy(&employed.chain).into_owned(),
            backstage: Backstage::clone(&employed.backstage),
        }
    }
}

/// An agent as it is kept.
#[derive(Debug, Deserialize)]
pub(super) struct Kept {
    pub(super) view: AgentView,
    pub(super) card: Card,
    pub(super) origin: Origin,
    pub(super) denials: Vec<Denial>,
}

/// Notes on file that agents were killed while no daemon was there to see it, so that the next one does not take them for lost, whatever
/// became of the kill switch until then. On a disk that takes nothing it is not noted.
pub(crate) fn note_killed(state: &StateDir, workers: &[String]) {
    let at_ms = belljar_gate::clock::now().wall_ms;
    let past = Past(state.path().join(DIRECTORY));
    for worker in workers {
        let Ok(worker) = worker.parse::<WorkerId>() else {
            continue;
        };
        let Some(mut kept) = past.read(worker).filter(|kept| !is_over(kept.view.phase)) else {
            continue;
        };
        kept.view.end = Some(End {
            cause: EndCause::Killed,
            at_ms,
            exit_code: None,
            signal: None,
            detail: Some(Shown::new(BY_KILL_SWITCH)),
        });
        let bytes = serde_json::to_vec(&ToKeep {
            view: &kept.view,
            card: &kept.card,
            origin: &kept.origin,
            denials: &kept.denials,
        });
        past.keep(worker, Page(bytes));
    }
}

/// The same, to be written.
#[derive(Serialize)]
struct ToKeep<'a> {
    view: &'a AgentView,
    card: &'a Card,
    origin: &'a Origin,
    denials: &'a [Denial],
}

/// An agent's file in the making: made under the roster's lock, written without it.
pub(super) struct Page(serde_json::Result<Vec<u8>>);

impl Page {
    pub(super) fn of(agent: &Agent) -> Self {
        Self(serde_json::to_vec(&ToKeep {
            view: &agent.view,
            card: &agent.card,
            origin: &agent.origin,
            denials: &agent.denials,
        }))
    }
}

/// The directory of such files: its owner's alone, since policies may hold values of servers' variables.
#[derive(Clone, Debug)]
pub(crate) struct Past(PathBuf);

impl Past {
    /// Of a state directory; made if it is not there.
    pub(super) fn of(state: &StateDir) -> Result<Self, RunError> {
        let directory = state.path().join(DIRECTORY);
        make_private(&directory).map_err(|source| RunError::State {
            path: directory.clone(),
            source,
        })?;
        Ok(Self(directory))
    }

    fn path(&self, worker: WorkerId) -> PathBuf {
        self.0.join(format!("{worker}.json"))
    }

    /// Keeps a page: whole, or the one before it. On a disk that is full the agent is just not remembered.
    pub(super) fn keep(&self, worker: WorkerId, page: Page) {
        if let Page(Ok(bytes)) = page {
            let _ = write_whole(&self.path(worker), |file| {
                io::Write::write_all(file, &bytes)
            });
        }
    }

    pub(super) fn forget(&self, worker: WorkerId) {
        let _ = fs::remove_file(self.path(worker));
    }

    /// Reads one.
    pub(super) fn read(&self, worker: WorkerId) -> Option<Kept> {
        let file = fs::File::open(self.path(worker)).ok()?;
        let mut bytes = Vec::new();
        file.take(LONGEST).read_to_end(&mut bytes).ok()?;
        let kept: Kept = serde_json::from_slice(&bytes).ok()?;
        (kept.view.id.as_str() == worker.to_string()).then_some(kept)
    }

    /// How somebody was killed whom no daemon saw die.
    pub(super) fn killed_unseen(&self, worker: WorkerId) -> Option<End> {
        let end = self.read(worker)?.view.end;
        end.filter(|end| end.cause == EndCause::Killed)
    }

    /// Everybody there is a file of. What nobody can make anything of is removed, such as a draft of a daemon that was killed.
    pub(super) fn workers(&self) -> Vec<WorkerId> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let workers = entries.filter_map(|entry| {
            let name = entry.file_name();
            let worker = name.to_str().and_then(|name| name.strip_suffix(".json"));
            let worker = worker.and_then(|worker| worker.parse::<WorkerId>().ok());
            if worker.is_none() {
                let _ = fs::remove_file(entry.path());
            }
            worker
        });
        workers.collect()
    }
}
