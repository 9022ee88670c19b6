//! Keepers that outlived the last daemon, and word of those that did not.

use std::collections::HashMap;
use std::sync::Arc;

use belljar_api::Tag;
use belljar_gate::{Adopted, Living, Papers};
use belljar_manifest::lineage::CapabilityDocument;
use belljar_replication::{Status, WorkerId};

use super::Inner;
use crate::apart::words::{Card, Legacy, Task};
use crate::apart::{Adoptee, Keepers, Line, Session, Trace};
use crate::command::Command;
use crate::fleet::{Crew, Employed, Following, Hold, Over, Watch as _, keeper_thread, tell_legacy};
use crate::result::KillCode;
use crate::state::StateDir;

/// Everybody there is a trace of.
pub(super) struct Found {
    live: HashMap<WorkerId, (Adoptee, Tag)>,
    dead: HashMap<WorkerId, Legacy>,
}

/// Looks for them, and takes hold of those that live, so that an order to kill finds them from now on.
pub(super) fn find(keepers: &Keepers, crew: &Crew, state: &StateDir) -> Found {
    let mut found = Found {
        live: HashMap::new(),
        dead: HashMap::new(),
    };
    for trace in keepers.traces() {
        match trace {
            Trace::Socket(name) => {
                let Ok(worker) = name.parse::<WorkerId>() else {
                    continue;
                };
                let line = Line::default();
                match Session::adopt(keepers, &name, &line) {
                    Ok(adoptee) => {
                        // As many as there are: whoever lives is counted, not refused.
                        if let Ok(tag) = crew.enlist(worker, Hold::Apart(line), usize::MAX) {
                            found.live.insert(worker, (adoptee, tag));
                        }
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                        keepers.clear(&name);
                        state.forget_doors(&name);
                    }
                    // One of another version, say. It is alone, and ends when it has been so for long enough.
                    Err(_) => {}
                }
            }
            Trace::Legacy(name) => {
                let legacy = keepers.legacy(&name);
                let worker = name.parse::<WorkerId>().ok();
                match (legacy, worker) {
                    (Some(legacy), Some(worker)) if legacy.task.worker == name => {
                        found.dead.insert(worker, legacy);
                    }
                    // Nobody can make anything of it.
                    _ => keepers.forget_legacy(&name),
                }
            }
        }
    }
    // Whoever lives has not ended yet, and will say so itself.
    found
        .dead
        .retain(|worker, _| !found.live.contains_key(worker));
    found
}

impl Found {
    /// For the controller: those that are to be accounted for as alive, if only to be ended with what they used.
    pub(super) fn living(&self) -> Vec<Living> {
        let live = self.live.iter().map(|(worker, (adoptee, _))| Living {
            worker: *worker,
            envelope: adoptee.standing.task.envelope.as_bytes().to_vec(),
        });
        let dead = self.dead.iter().map(|(worker, legacy)| Living {
            worker: *worker,
            envelope: legacy.task.envelope.as_bytes().to_vec(),
        });
        live.chain(dead).collect()
    }
}

impl Inner {
    /// Goes on with those that the controller knows; the others have no business to live.
    pub(super) fn adopt(self: &Arc<Self>, mut found: Found, adopted: Vec<Adopted>) {
        let statuses = self.post().gate.look(|state, _| {
            let all = state.workers().map(|view| (view.id, view.status));
            all.collect::<HashMap<_, _>>()
        });
        let statuses = statuses.unwrap_or_default();
        for known in adopted {
            let worker = known.worker();
            if let Some((adoptee, tag)) = found.live.remove(&worker) {
                self.adopt_live(&known, adoptee, tag, statuses.get(&worker).copied());
            } else if let Some(legacy) = found.dead.remove(&worker) {
                self.adopt_dead(&known, &legacy);
            }
        }
        for (worker, (adoptee, _)) in found.live {
            adoptee
                .session
                .line()
                .kill(KillCode::new(belljar_replication::Code::Lost.code()));
            adoptee.session.finish();
            self.post().crew.dismiss(worker);
            self.keepers.clear(&worker.to_string());
        }
        // Their ends are on record; what is left to say is whether they were to be started again.
        for (worker, legacy) in found.dead {
            let papers = self
                .post()
                .gate
                .papers(legacy.task.envelope.as_bytes())
                .filter(|papers| papers.worker() == worker);
            match papers.and_then(|papers| employed(&papers, &legacy.task)) {
                Some(employed) => {
                    self.roster
                        .buried(&employed, &legacy.task.card, &over(&legacy));
                }
                None => self.keepers.forget_legacy(&worker.to_string()),
            }
        }
    }

    fn adopt_live(
        self: &Arc<Self>,
        known: &Adopted,
        adoptee: Adoptee,
        tag: Tag,
        status: Option<Status>,
    ) {
        let worker = known.worker();
        let task = &adoptee.standing.task;
        let Some(employed) = employed(&known.papers, task) else {
            return;
        };
        let post = self.post();
        post.crew.employ(Arc::clone(&employed));
        self.roster
            .adopted(&employed, &task.card, &adoptee.standing);
        if adoptee.standing.started.is_some() {
            post.gate.started(worker);
        }
        if status == Some(Status::Quarantined) {
            let line = adoptee.session.line();
            self.roster.freezing(worker);
            let _ = line.freeze();
            if !line.is_freezing() {
                self.roster.frozen(worker);
            }
        }
        let following = Following::adopted(post, employed, tag, adoptee, known.told);
        // Without a thread it is dropped, and its keeper alone again.
        let _ = keeper_thread(worker).spawn(move || following.follow());
    }

    /// It ended while nobody was there: what it used and how it ended are on record now.
    fn adopt_dead(self: &Arc<Self>, known: &Adopted, legacy: &Legacy) {
        let worker = known.worker();
        let over = over(legacy);
        tell_legacy(&self.post().gate, worker, &over, known.told);
        let Some(employed) = employed(&known.papers, &legacy.task) else {
            return;
        };
        let card: &Card = &legacy.task.card;
        self.roster.buried(&employed, card, &over);
    }
}

fn over(legacy: &Legacy) -> Over {
    match &legacy.end {
        Ok(ending) => Over::Ended(ending.clone()),
        Err(failed) => Over::Failed(failed.clone()),
    }
}

/// A worker as its task tells of it.
fn employed(papers: &Papers, task: &Task) -> Option<Arc<Employed>> {
    let document = CapabilityDocument::parse(&task.capability).ok()?;
    let models = task.purse.open(&document.capability().limits);
    Some(Arc::new(Employed {
        worker: papers.worker(),
        papers: papers.clone(),
        chain: Arc::from(task.chain.as_bytes()),
        capability: document.capability().clone(),
        command: Command::new(task.argv.clone()).settled_in(task.workdir.clone()),
        started_at_ms: task.started_at_ms,
        models,
        backstage: Arc::new(task.backstage.clone()),
    }))
}
