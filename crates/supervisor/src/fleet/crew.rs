//! Everybody who has a box, or is about to.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_api::Tag;
use belljar_egress::LlmBudget;
use belljar_gate::{Hands, Papers};
use belljar_policy::Capability;
use belljar_replication::{Code, WorkerId};

use crate::lower::Command;
use crate::reins::Reins;
use crate::result::KillCode;

/// Who has a box. A worker is enlisted before anybody decides about it, so that an order to kill always finds it.
#[derive(Debug, Default)]
pub(crate) struct Crew {
    members: Mutex<Members>,
    /// Rings when somebody leaves.
    left: Condvar,
}

#[derive(Debug, Default)]
struct Members {
    by_worker: HashMap<WorkerId, Member>,
    by_tag: HashMap<Tag, WorkerId>,
    next_tag: u64,
}

#[derive(Debug)]
struct Member {
    reins: Reins,
    /// Why it was killed, if it was: what it holds next dies too.
    killed: Option<KillCode>,
    tag: Tag,
    post: Option<Arc<Employed>>,
    keeping: Keeping,
}

/// Whether there is a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeping {
    /// A keeper has one, or is about to.
    Kept,
    /// The worker is between two tasks: nothing of it runs.
    Idle,
}

/// A worker runs one task at a time: whoever holds the reins of one box must not lose those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtWork;

/// A worker at work, as its replicas will inherit it.
#[derive(Debug)]
pub(crate) struct Employed {
    pub(crate) worker: WorkerId,
    pub(crate) papers: Papers,
    /// The manifests from the root's to this one's, one a line.
    pub(crate) chain: Arc<[u8]>,
    pub(crate) capability: Capability,
    pub(crate) command: Command,
    pub(crate) started_at_ms: u64,
    /// What it may spend on models: carved from its parent's, and given back at its end.
    pub(crate) models: Arc<LlmBudget>,
}

impl Crew {
    /// Makes a place for a worker that is about to ask for leave to start.
    pub(crate) fn enlist(&self, worker: WorkerId, reins: Reins) -> Tag {
        let mut members = self.members();
        members.next_tag += 1;
        let tag = Tag(members.next_tag);
        members.by_tag.insert(tag, worker);
        let member = Member {
            reins,
            killed: None,
            tag,
            post: None,
            keeping: Keeping::Kept,
        };
        members.by_worker.insert(worker, member);
        tag
    }

    /// The worker was let in.
    pub(crate) fn employ(&self, post: Arc<Employed>) {
        if let Some(member) = self.members().by_worker.get_mut(&post.worker) {
            member.post = Some(post);
        }
    }

    /// Nothing is left of the worker's box, or there never was one.
    pub(crate) fn dismiss(&self, worker: WorkerId) {
        let mut members = self.members();
        if let Some(member) = members.by_worker.remove(&worker) {
            members.by_tag.remove(&member.tag);
            if let Some(post) = member.post {
                post.models.close();
            }
        }
        drop(members);
        self.left.notify_all();
    }

    /// A worker has no box for now, and is about to have none: it waits for its next task.
    pub(crate) fn stand_by(&self, worker: WorkerId) {
        if let Some(member) = self.members().by_worker.get_mut(&worker) {
            member.keeping = Keeping::Idle;
        }
        self.left.notify_all();
    }

    /// A worker's next box. Whoever was killed has no next one: its reins are pulled before it starts.
    pub(crate) fn rearm(&self, worker: WorkerId, reins: Reins) -> Result<(), AtWork> {
        let mut members = self.members();
        let Some(member) = members.by_worker.get_mut(&worker) else {
            reins.kill(KillCode::new(Code::Exited.code()));
            return Ok(());
        };
        if member.keeping == Keeping::Kept {
            return Err(AtWork);
        }
        if let Some(code) = member.killed {
            reins.kill(code);
        }
        member.reins = reins;
        member.keeping = Keeping::Kept;
        Ok(())
    }

    /// Whose door this is.
    pub(crate) fn at_door(&self, tag: Tag) -> Option<Arc<Employed>> {
        let members = self.members();
        let worker = members.by_tag.get(&tag)?;
        members.by_worker.get(worker)?.post.clone()
    }

    /// A worker at work.
    pub(crate) fn employed(&self, worker: WorkerId) -> Option<Arc<Employed>> {
        self.members().by_worker.get(&worker)?.post.clone()
    }

    /// Boxes there are, or are about to be.
    pub(crate) fn len(&self) -> usize {
        let members = self.members();
        members.by_worker.values().filter(|m| is_kept(m)).count()
    }

    /// Workers that have a box.
    pub(crate) fn kept(&self) -> Vec<WorkerId> {
        let members = self.members();
        let kept = members
            .by_worker
            .iter()
            .filter(|(_, member)| is_kept(member));
        kept.map(|(worker, _)| *worker).collect()
    }

    /// Waits until nothing is left of these workers' boxes; says how many are left at the deadline.
    pub(crate) fn await_end_of(&self, doomed: &[WorkerId], patience: Duration) -> u64 {
        self.await_none(patience, |worker, member| {
            is_kept(member) && doomed.contains(worker)
        })
    }

    /// Waits until nobody is left; says how many are at the deadline.
    pub(crate) fn await_everybody(&self, patience: Duration) -> u64 {
        self.await_none(patience, |_, member| is_kept(member))
    }

    fn await_none(&self, patience: Duration, counts: impl Fn(&WorkerId, &Member) -> bool) -> u64 {
        // More than a century is for ever.
        let until = Instant::now() + patience.min(Duration::from_secs(100 * 365 * 86_400));
        let mut members = self.members();
        loop {
            let left = members
                .by_worker
                .iter()
                .filter(|(worker, member)| counts(worker, member))
                .count();
            let wait = until.saturating_duration_since(Instant::now());
            if left == 0 || wait.is_zero() {
                return left as u64;
            }
            members = match self.left.wait_timeout(members, wait) {
                Ok((members, _)) => members,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    fn kill(&self, worker: WorkerId, code: KillCode) {
        if let Some(member) = self.members().by_worker.get_mut(&worker) {
            member.killed.get_or_insert(code);
            member.reins.kill(code);
        }
    }

    fn reins(&self, worker: WorkerId) -> Option<Reins> {
        self.members()
            .by_worker
            .get(&worker)
            .map(|member| member.reins.clone())
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        // Every change is complete before anything can panic.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_kept(member: &Member) -> bool {
    member.keeping == Keeping::Kept
}

/// The gate's hands: they hold every box's reins.
pub(crate) struct Grasp(pub(crate) Arc<Crew>);

impl Hands for Grasp {
    fn kill(&self, worker: WorkerId, code: Code) {
        self.0.kill(worker, KillCode::new(code.code()));
    }

    fn freeze(&self, worker: WorkerId) {
        let Some(reins) = self.0.reins(worker) else {
            return;
        };
        // Whoever can't be made to hold still may not go on either.
        if reins.freeze().is_err() {
            self.0
                .kill(worker, KillCode::new(Code::QuarantinedOperator.code()));
        }
    }

    fn thaw(&self, worker: WorkerId) {
        if let Some(reins) = self.0.reins(worker) {
            let _ = reins.thaw();
        }
    }
}
