//! Who there is: every agent that lives, waits or has ended lately, as people see it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_api::{
    AgentPhase, AgentView, BudgetView, Denial, DenialKind, EndCause, EventKind, NewEvent, Severity,
};
use belljar_replication::WorkerId;

use super::clock::Clock;
use super::declared::Declared;
use super::past::{Origin, Page, Past};
use super::restart::{Next, RestartRules};
use super::tool_totals::ToolTotals;
use super::views::{self, Text, id};
use super::{AgentSpec, Observer};
use crate::apart::Keepers;
use crate::apart::words::{Card, Sample, Standing, Started};
use crate::fleet::{Employed, Over, Watch as _, random};

/// Agents that ended and are remembered.
const MOST_ENDED: usize = 1000;
/// Kinds of denials that are told apart for one agent.
const MOST_DENIALS: usize = 256;

/// Everybody, and whoever wants to know.
pub(crate) struct Roster {
    book: Mutex<Book>,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) clock: Arc<Clock>,
    pub(super) keepers: Keepers,
    pub(super) past: Past,
    pub(super) declared: Declared,
    rules: RestartRules,
    outputs: PathBuf,
    pub(super) tools: ToolTotals,
}

impl std::fmt::Debug for Roster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Roster(…)")
    }
}

#[derive(Default)]
pub(super) struct Book {
    pub(super) agents: HashMap<WorkerId, Agent>,
    /// By when they were started, and then by when they came.
    pub(super) order: BTreeMap<(u64, u64), WorkerId>,
    next: u64,
    /// Nobody is started again any more.
    pub(super) is_closing: bool,
    /// The log can't be written.
    is_unrecorded: bool,
}

/// One agent.
pub(crate) struct Agent {
    pub(crate) view: AgentView,
    pub(crate) card: Card,
    pub(crate) worker: WorkerId,
    pub(crate) origin: Origin,
    pub(crate) keeper_pid: Option<u32>,
    pub(crate) started: Option<Started>,
    pub(crate) denials: Vec<Denial>,
    pub(super) sampled: Option<(Sample, Instant)>,
    /// Why it was asked to end.
    pub(super) stopping: Option<String>,
    /// Why it was ordered to be killed.
    pub(super) doomed: Option<String>,
    /// What somebody said about what is being done to it.
    pub(super) because: Option<String>,
    pub(super) again_at: Option<Instant>,
    /// Whether its next start counts towards a crash loop.
    again_counts: bool,
    /// It ends so that it can be started anew: that is no reason for it not to run.
    pub(super) returns: bool,
}

/// An agent whose time to be started again has come.
pub(crate) struct Again {
    pub(crate) worker: WorkerId,
    pub(crate) spec: AgentSpec,
    pub(crate) card: Card,
}

impl Agent {
    pub(super) fn new(worker: WorkerId, view: AgentView, card: Card, origin: Origin) -> Self {
        Self {
            view,
            card,
            worker,
            origin,
            keeper_pid: None,
            started: None,
            denials: Vec::new(),
            sampled: None,
            stopping: None,
            doomed: None,
            because: None,
            again_at: None,
            again_counts: true,
            returns: false,
        }
    }
}

impl Book {
    pub(super) fn insert(&mut self, agent: Agent) {
        let number = self.next;
        self.next += 1;
        let start = agent.view.started_at_ms;
        self.order.insert((start, number), agent.worker);
        self.agents.insert(agent.worker, agent);
    }

    /// Somebody of this name is started after all: a crash loop before it is nothing to look into any more.
    fn supersede(&mut self, name: &str) -> Vec<WorkerId> {
        let looping = self
            .agents
            .values_mut()
            .filter(|agent| agent.view.phase == AgentPhase::CrashLoop && agent.card.name == name);
        looping
            .map(|agent| {
                turn(&mut agent.view, AgentPhase::Ended);
                agent.worker
            })
            .collect()
    }
}

impl Roster {
    /// How long the longest wait for a box's first instruction is.
    pub(super) const FIRST: Duration = Duration::from_secs(60);

    pub(super) fn new(
        observer: Arc<dyn Observer>,
        clock: Arc<Clock>,
        keepers: Keepers,
        past: Past,
        declared: Declared,
        rules: RestartRules,
        outputs: PathBuf,
    ) -> Self {
        Self {
            book: Mutex::default(),
            observer,
            clock,
            keepers,
            past,
            declared,
            rules,
            outputs,
            tools: ToolTotals::default(),
        }
    }

    /// Everybody, by start.
    pub(super) fn views(&self) -> Vec<AgentView> {
        let book = self.book();
        let ordered = book.order.values();
        ordered
            .filter_map(|worker| book.agents.get(worker))
            .map(|agent| agent.view.clone())
            .collect()
    }

    /// Looks at one agent.
    pub(super) fn with<T>(&self, worker: WorkerId, look: impl FnOnce(&Agent) -> T) -> Option<T> {
        self.book().agents.get(&worker).map(look)
    }

    /// Whether somebody of this name lives, or will again.
    pub(super) fn is_live(&self, name: &str) -> bool {
        let book = self.book();
        let mut agents = book.agents.values();
        agents.any(|agent| agent.card.name == name && !is_over(agent.view.phase))
    }

    /// The root of this name that lives or waits.
    pub(super) fn find_live_root(&self, name: &str) -> Option<WorkerId> {
        let book = self.book();
        let mut agents = book.agents.values();
        let is_it = |agent: &&Agent| agent.card.name == name && !is_over(agent.view.phase);
        let found = agents.find(|agent| is_it(agent) && agent.view.parent.is_none())?;
        Some(found.worker)
    }

    /// The children of an agent that are known.
    pub(super) fn children(&self, worker: WorkerId) -> Vec<belljar_api::AgentId> {
        let parent = id(worker);
        let book = self.book();
        let children = book
            .order
            .values()
            .filter_map(|child| book.agents.get(child));
        children
            .filter(|agent| agent.view.parent.as_ref() == Some(&parent))
            .map(|agent| agent.view.id.clone())
            .collect()
    }

    /// Budgets as the controller has them.
    pub(super) fn put_budgets(&self, budgets: HashMap<WorkerId, BudgetView>) {
        let mut book = self.book();
        for (worker, budget) in budgets {
            if let Some(agent) = book.agents.get_mut(&worker) {
                agent.view.budget = budget;
            }
        }
    }

    /// An agent was asked to end. Says whether it lives; one that waits to be started again is at its end with this.
    pub(super) fn stopping(&self, worker: WorkerId, reason: &str) -> Option<Stopping> {
        let mut book = self.book();
        let agent = book.agents.get_mut(&worker)?;
        match agent.view.phase {
            AgentPhase::Ended | AgentPhase::CrashLoop => None,
            AgentPhase::Waiting => {
                agent.again_at = None;
                agent.view.restart_at_ms = None;
                turn(&mut agent.view, AgentPhase::Ended);
                drop(book);
                self.lay_to_rest(worker);
                Some(Stopping::WasWaiting)
            }
            _ => {
                agent.stopping = Some(reason.to_owned());
                turn(&mut agent.view, AgentPhase::Stopping);
                Some(Stopping::Lives)
            }
        }
    }

    /// Whoever waits to be started again is not.
    pub(super) fn end_waiting(&self, reason: &str) {
        let waiting: Vec<WorkerId> = {
            let book = self.book();
            let agents = book.agents.values();
            let waiting = agents.filter(|agent| agent.view.phase == AgentPhase::Waiting);
            waiting.map(|agent| agent.worker).collect()
        };
        for worker in waiting {
            self.stopping(worker, reason);
        }
    }

    /// Nobody is started again any more.
    pub(super) fn close(&self) {
        self.book().is_closing = true;
    }

    pub(super) fn is_closing(&self) -> bool {
        self.book().is_closing
    }

    /// Whose time has come.
    pub(super) fn due(&self) -> Vec<Again> {
        let now = Instant::now();
        let now_ms = boot_ms();
        let mut book = self.book();
        if book.is_closing {
            return Vec::new();
        }
        let mut due = Vec::new();
        for (worker, agent) in &mut book.agents {
            if agent.again_at.is_none_or(|at| now < at) {
                continue;
            }
            agent.again_at = None;
            let mut card = agent.card.clone();
            card.restarts = card.restarts.saturating_add(1);
            card.recent_ms = self.rules.within(&card.recent_ms, now_ms).collect();
            if agent.again_counts {
                card.recent_ms.push(now_ms);
            }
            due.push(Again {
                worker: *worker,
                spec: views::spec(&agent.origin, &card),
                card,
            });
        }
        due
    }

    /// When somebody's time comes next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let book = self.book();
        book.agents
            .values()
            .filter_map(|agent| agent.again_at)
            .min()
    }

    /// An agent was started again under another id, or it could not be and will be tried once more.
    pub(super) fn replaced(&self, worker: WorkerId, failed: Option<(Card, &str)>) {
        let mut book = self.book();
        let Some(agent) = book.agents.get_mut(&worker) else {
            return;
        };
        agent.view.restart_at_ms = None;
        match failed {
            None => turn(&mut agent.view, AgentPhase::Ended),
            Some((card, why)) => {
                agent.card = card;
                let event = self.plan_restart(agent, EndCause::Crashed, why);
                drop(book);
                self.tell(event);
                self.clock.ring();
                return;
            }
        }
        drop(book);
        self.lay_to_rest(worker);
    }

    /// An agent that outlived the last daemon.
    pub(super) fn adopted(&self, employed: &Arc<Employed>, card: &Card, standing: &Standing) {
        let card = &self.called(employed.worker, card);
        self.add(employed, card);
        self.change(employed.worker, |agent| {
            agent.keeper_pid = Some(standing.pid);
            agent.started = standing.started.clone();
            if agent.started.is_some() {
                turn(&mut agent.view, AgentPhase::Running);
            }
            if let Some(sample) = &standing.sample {
                views::put_sample(&mut agent.view.usage, sample, None);
                agent.sampled = Some((*sample, Instant::now()));
            }
        });
        let text = Text::new(&format!("{} was adopted", card.name));
        self.tell(text.event(Some(employed.worker), EventKind::Daemon, Severity::Info));
    }

    /// A keeper knows its replica by less than people do: by what the last daemon had on file, it keeps its name.
    fn called(&self, worker: WorkerId, card: &Card) -> Card {
        let mut card = card.clone();
        if let Some(kept) = self.past.read(worker) {
            card.name = kept.card.name;
        }
        card
    }

    /// An agent that ended while there was no daemon.
    pub(super) fn buried(&self, employed: &Arc<Employed>, card: &Card, over: &Over) {
        let worker = employed.worker;
        if self.is_at_rest(worker) {
            // The last daemon had told of its end, and whether it was to be started again.
            return self.keepers.forget_legacy(&worker.to_string());
        }
        let card = &self.called(worker, card);
        self.add(employed, card);
        self.ended(employed.worker, over);
    }

    /// How the log does: told when that changes.
    pub(super) fn ledger(&self, failure: Option<&str>) {
        let was = std::mem::replace(&mut self.book().is_unrecorded, failure.is_some());
        let event = match (was, failure) {
            (false, Some(why)) => {
                let text = format!("the log can't be written, and nothing is granted: {why}");
                let text = Text::new(&text).code("deny_unrecorded");
                text.event(None, EventKind::Ledger, Severity::Critical)
            }
            (true, None) => {
                let text = Text::new("the log can be written again");
                text.event(None, EventKind::Ledger, Severity::Info)
            }
            _ => return,
        };
        self.tell(event);
    }

    /// An agent that waits to be started again will not be. Says whether it was waiting.
    pub(super) fn give_up(&self, worker: WorkerId) -> bool {
        let is_waiting = self.with(worker, |agent| agent.view.phase == AgentPhase::Waiting);
        is_waiting == Some(true) && self.stopping(worker, "killed") == Some(Stopping::WasWaiting)
    }

    /// Output of agents that nobody remembers is kept like the agents themselves: the last thousand.
    pub(super) fn prune_outputs(&self) {
        let known: HashSet<String> = {
            let book = self.book();
            book.agents.keys().map(ToString::to_string).collect()
        };
        let entries = std::fs::read_dir(&self.outputs);
        let mut unknown: Vec<_> = entries
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| !known.contains(&*entry.file_name().to_string_lossy()))
            .filter_map(|entry| {
                let changed = entry.metadata().and_then(|found| found.modified()).ok()?;
                Some((changed, entry.path()))
            })
            .collect();
        unknown.sort();
        let too_many = unknown.len().saturating_sub(MOST_ENDED);
        for (_, directory) in unknown.into_iter().take(too_many) {
            let _ = std::fs::remove_dir_all(directory);
        }
    }

    /// Something about the daemon itself.
    pub(super) fn daemon_event(&self, text: &str) {
        self.tell(Text::new(text).event(None, EventKind::Daemon, Severity::Info));
    }

    pub(super) fn add(&self, employed: &Arc<Employed>, card: &Card) {
        let worker = employed.worker;
        let mut book = self.book();
        let mut card = card.clone();
        let parent = employed.papers.payload().parent.as_ref();
        let parent = parent.map(|link| WorkerId(link.worker.as_u128()));
        // A replica is told of by its parent's file.
        if let Some(parent) = parent.and_then(|parent| book.agents.get(&parent)) {
            card.capability = card.capability.or(parent.card.capability.clone());
            card.profile = card.profile.or(parent.card.profile.clone());
            if card.name.len() == 8 && !card.name.contains('/') {
                card.name = format!("{}/{}", parent.card.name, card.name);
            }
        }
        let origin = Origin::of(employed);
        let view = views::new_view(employed, &origin.argv, &card, parent);
        let agent = Agent::new(worker, view, card, origin);
        let page = Page::of(&agent);
        let name = agent.view.name.clone();
        let superseded = book.supersede(&agent.card.name);
        book.insert(agent);
        let forgotten = forget_oldest(&mut book);
        drop(book);
        self.past.keep(worker, page);
        self.observer.named(&views::id(worker), &name);
        for worker in superseded {
            self.lay_to_rest(worker);
        }
        self.forget(forgotten);
    }

    /// What is kept of agents that nobody remembers goes with them.
    pub(super) fn forget(&self, forgotten: Vec<WorkerId>) {
        for worker in forgotten {
            self.past.forget(worker);
            let _ = std::fs::remove_dir_all(self.outputs.join(worker.to_string()));
        }
    }

    pub(super) fn change(&self, worker: WorkerId, change: impl FnOnce(&mut Agent)) {
        if let Some(agent) = self.book().agents.get_mut(&worker) {
            change(agent);
        }
    }

    /// Somebody is about to do something to an agent, and says why.
    pub(super) fn because(&self, worker: WorkerId, reason: &str) {
        self.change(worker, |agent| agent.because = Some(reason.to_owned()));
    }

    /// What was said about it, to be added to what is told of it.
    pub(super) fn said_of(&self, worker: WorkerId) -> String {
        let mut said = None;
        self.change(worker, |agent| said = agent.because.clone());
        said.map_or_else(String::new, |said| format!(": {said}"))
    }

    /// Plans when an agent is started again, if it is; says so.
    pub(super) fn plan_restart(&self, agent: &mut Agent, cause: EndCause, why: &str) -> NewEvent {
        let jitter = random().map_or(0, |bytes| bytes.to_ne_bytes()[0]);
        let card = &agent.card;
        let policy = (card.restart, card.restart_on_oom);
        let next = self
            .rules
            .next(policy, cause, &card.recent_ms, boot_ms(), jitter);
        let ended_ms = agent.view.end.as_ref().map_or(0, |end| end.at_ms);
        let lived = Duration::from_millis(ended_ms.saturating_sub(agent.view.started_at_ms));
        agent.again_counts = RestartRules::counts(cause, lived);
        let name = card.name.clone();
        let worker = Some(agent.worker);
        match next {
            Next::Stay => {
                turn(&mut agent.view, AgentPhase::Ended);
                let severity = views::severity_of(cause);
                let text = Text::new(&format!("{name} ended: {why}")).code(cause.as_str());
                text.event(worker, EventKind::Ended, severity)
            }
            Next::After(wait) => {
                agent.again_at = Some(Instant::now() + wait);
                turn(&mut agent.view, AgentPhase::Waiting);
                let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                agent.view.restart_at_ms = Some(agent.view.since_ms.saturating_add(wait_ms));
                let text = format!("{name} ended: {why}; it is started again in {wait_ms} ms");
                let text = Text::new(&text).code(cause.as_str());
                text.event(worker, EventKind::Restarting, Severity::Warning)
            }
            Next::CrashLoop => {
                turn(&mut agent.view, AgentPhase::CrashLoop);
                let text = format!("{name} ended: {why}; too often, so it is not started again");
                Text::new(&text).code("crash_loop").event(
                    worker,
                    EventKind::Ended,
                    Severity::Critical,
                )
            }
        }
    }

    pub(super) fn deny(&self, worker: WorkerId, denial: Denial) {
        self.change(worker, |agent| {
            let known = agent.denials.iter().position(|known| {
                known.kind == denial.kind && known.code == denial.code && known.what == denial.what
            });
            let mut denial = denial;
            if let Some(at) = known {
                let old = agent.denials.remove(at);
                // Counts of system calls are sums already.
                denial.count = match denial.kind {
                    DenialKind::SystemCall | DenialKind::Limit => denial.count.max(old.count),
                    _ => old.count.saturating_add(denial.count),
                };
            }
            agent.denials.insert(0, denial);
            agent.denials.truncate(MOST_DENIALS);
        });
    }

    pub(super) fn tell(&self, event: NewEvent) {
        self.observer.happened(event);
    }

    pub(super) fn name_of(&self, worker: WorkerId) -> String {
        let name = self.with(worker, |agent| agent.card.name.clone());
        name.unwrap_or_else(|| worker.to_string())
    }

    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        // Every change is complete before anything can panic.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopping {
    Lives,
    WasWaiting,
}

pub(super) fn is_over(phase: AgentPhase) -> bool {
    matches!(phase, AgentPhase::Ended | AgentPhase::CrashLoop)
}

pub(super) fn turn(view: &mut AgentView, phase: AgentPhase) {
    if view.phase != phase {
        view.phase = phase;
        view.since_ms = belljar_gate::clock::now().wall_ms;
    }
}

fn boot_ms() -> u64 {
    belljar_gate::clock::now().boot_ns / 1_000_000
}

/// Forgets the oldest of those that ended, where there are too many.
pub(super) fn forget_oldest(book: &mut Book) -> Vec<WorkerId> {
    let ended: Vec<_> = book
        .order
        .iter()
        .filter(|(_, worker)| {
            let agent = book.agents.get(worker);
            agent.is_some_and(|agent| is_over(agent.view.phase))
        })
        .map(|(number, worker)| (*number, *worker))
        .collect();
    let too_many = ended.len().saturating_sub(MOST_ENDED);
    let oldest: Vec<_> = ended.into_iter().take(too_many).collect();
    for (number, worker) in &oldest {
        book.order.remove(number);
        book.agents.remove(worker);
    }
    oldest.into_iter().map(|(_, worker)| worker).collect()
}
