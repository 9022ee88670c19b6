//! Everybody who has a box, or is about to.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_api::Tag;
use belljar_egress::LlmBudget;
use belljar_gate::{Hands, Papers};
use belljar_policy::Capability;
use belljar_replication::{Code, WorkerId};

use super::watch::Watch;
use crate::apart::Line;
use crate::apart::words::Order;
use crate::command::Command;
use crate::reins::Reins;
use crate::result::KillCode;
use crate::tools::Backstage;

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

/// A hold on a box, wherever it is kept.
#[derive(Clone, Debug)]
pub(crate) enum Hold {
    /// By a thread of this process.
    Here(Reins),
    /// By a process of its own.
    Apart(Line),
}

impl Hold {
    fn kill(&self, code: KillCode) {
        match self {
            Self::Here(reins) => reins.kill(code),
            Self::Apart(line) => line.kill(code),
        }
    }

    /// Whether the order was heard.
    fn freeze(&self) -> bool {
        match self {
            Self::Here(reins) => reins.freeze().is_ok(),
            Self::Apart(line) => line.freeze().is_ok(),
        }
    }

    /// Whether it was told to hold still and some of it may still run.
    fn is_freezing(&self) -> bool {
        match self {
            Self::Here(reins) => reins.is_freezing(),
            Self::Apart(line) => line.is_freezing(),
        }
    }

    fn thaw(&self) {
        match self {
            Self::Here(reins) => drop(reins.thaw()),
            Self::Apart(line) => drop(line.thaw()),
        }
    }
}

/// There are as many as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full(pub(crate) usize);

#[derive(Debug)]
struct Member {
    hold: Hold,
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
    /// What its MCP servers are given and it is not shown: its first ancestor's.
    pub(crate) backstage: Arc<Backstage>,
}

impl Crew {
    /// Makes a place for a worker that is about to ask for leave to start.
    pub(crate) fn enlist(&self, worker: WorkerId, hold: Hold, most: usize) -> Result<Tag, Full> {
        let mut members = self.members();
        if members.by_worker.values().filter(|m| is_kept(m)).count() >= most {
            return Err(Full(most));
        }
        members.next_tag += 1;
        let tag = Tag(members.next_tag);
        members.by_tag.insert(tag, worker);
        let member = Member {
            hold,
            killed: None,
            tag,
            post: None,
            keeping: Keeping::Kept,
        };
        members.by_worker.insert(worker, member);
        Ok(tag)
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
        member.hold = Hold::Here(reins);
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

    /// Kills a worker's box; whether it has one.
    fn kill(&self, worker: WorkerId, code: KillCode) -> bool {
        let mut members = self.members();
        let Some(member) = members.by_worker.get_mut(&worker) else {
            return false;
        };
        member.killed.get_or_insert(code);
        member.hold.kill(code);
        true
    }

    fn hold(&self, worker: WorkerId) -> Option<Hold> {
        self.members()
            .by_worker
            .get(&worker)
            .map(|member| member.hold.clone())
    }

    /// Whether a worker's box was told to hold still and some of it may still run.
    pub(crate) fn is_freezing(&self, worker: WorkerId) -> bool {
        let members = self.members();
        let member = members.by_worker.get(&worker);
        let hold = member
            .filter(|member| is_kept(member))
            .map(|member| member.hold.clone());
        drop(members);
        hold.is_some_and(|hold| hold.is_freezing())
    }

    /// Waits until a worker's box holds still, or patience ends.
    pub(crate) fn await_still(&self, worker: WorkerId, patience: Duration) {
        const LOOK: Duration = Duration::from_millis(5);
        let until = Instant::now() + patience;
        while self.is_freezing(worker) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }

    /// The line to a worker's keeper, where that is a process.
    pub(crate) fn line(&self, worker: WorkerId) -> Option<Line> {
        match self.hold(worker)? {
            Hold::Apart(line) => Some(line),
            Hold::Here(_) => None,
        }
    }

    /// What a worker reported as spent on models comes out of the purse that its gateway pays from.
    pub(crate) fn charge_models(&self, worker: WorkerId, tokens: u64, micro_usd: u64) {
        if let Some(line) = self.line(worker) {
            let _ = line.order(&Order::Charge { tokens, micro_usd });
        }
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        // Every change is complete before anything can panic.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_kept(member: &Member) -> bool {
    member.keeping == Keeping::Kept
}

/// The gate's hands: they hold every box, and tell whoever watches what they were ordered.
pub(crate) struct Grasp {
    pub(crate) crew: Arc<Crew>,
    pub(crate) watch: Option<Arc<dyn Watch>>,
}

impl Hands for Grasp {
    fn kill(&self, worker: WorkerId, code: Code) {
        let had_a_box = self.crew.kill(worker, KillCode::new(code.code()));
        if had_a_box && let Some(watch) = &self.watch {
            watch.doomed(worker, code.code());
        }
    }

    fn freeze(&self, worker: WorkerId) {
        let Some(hold) = self.crew.hold(worker) else {
            return;
        };
        if let Some(watch) = &self.watch {
            watch.freezing(worker);
        }
        // Whoever can't be made to hold still may not go on either.
        if !hold.freeze() {
            self.crew
                .kill(worker, KillCode::new(Code::QuarantinedOperator.code()));
        }
        // Otherwise its keeper says when it does.
        if let Some(watch) = &self.watch
            && !hold.is_freezing()
        {
            watch.frozen(worker);
        }
    }

    fn thaw(&self, worker: WorkerId) {
        if let Some(hold) = self.crew.hold(worker) {
            hold.thaw();
        }
        if let Some(watch) = &self.watch {
            watch.thawed(worker);
        }
    }
}
