//! Who there is: every agent that lives, waits or has ended lately, as people see it.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_api::{
    AgentPhase, AgentView, BudgetView, Denial, DenialKind, End, EndCause, EventKind, NewEvent,
    Severity, Shown,
};
use belljar_replication::WorkerId;

use super::clock::Clock;
use super::restart::{Next, RestartRules};
use super::views::{self, Text, cause_of, id};
use super::{AgentSpec, Observer};
use crate::apart::Keepers;
use crate::apart::words::{Breach, Card, RefusedHost, Sample, Standing, Started};
use crate::fleet::{Employed, Over, Watch, random};

/// Agents that ended and are remembered.
const MOST_ENDED: usize = 1000;
/// Kinds of denials that are told apart for one agent.
const MOST_DENIALS: usize = 256;

/// Everybody, and whoever wants to know.
pub(crate) struct Roster {
    book: Mutex<Book>,
    observer: Arc<dyn Observer>,
    clock: Arc<Clock>,
    keepers: Keepers,
    rules: RestartRules,
    outputs: PathBuf,
}

impl std::fmt::Debug for Roster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Roster(…)")
    }
}

#[derive(Default)]
struct Book {
    agents: HashMap<WorkerId, Agent>,
    /// By when they came.
    order: BTreeMap<u64, WorkerId>,
    next: u64,
    /// Nobody is started again any more.
    is_closing: bool,
}

/// One agent.
pub(crate) struct Agent {
    pub(crate) view: AgentView,
    pub(crate) card: Card,
    pub(crate) employed: Arc<Employed>,
    pub(crate) keeper_pid: Option<u32>,
    pub(crate) started: Option<Started>,
    pub(crate) denials: Vec<Denial>,
    sampled: Option<(Sample, Instant)>,
    /// Why it was asked to end.
    stopping: Option<String>,
    /// Why it was ordered to be killed.
    doomed: Option<String>,
    again_at: Option<Instant>,
}

/// An agent whose time to be started again has come.
pub(crate) struct Again {
    pub(crate) worker: WorkerId,
    pub(crate) spec: AgentSpec,
    pub(crate) card: Card,
}

impl Roster {
    pub(super) fn new(
        observer: Arc<dyn Observer>,
        clock: Arc<Clock>,
        keepers: Keepers,
        rules: RestartRules,
        outputs: PathBuf,
    ) -> Self {
        Self {
            book: Mutex::default(),
            observer,
            clock,
            keepers,
            rules,
            outputs,
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
                self.keepers.forget_legacy(&worker.to_string());
                Some(Stopping::WasWaiting)
            }
            _ => {
                agent.stopping = Some(reason.to_owned());
                turn(&mut agent.view, AgentPhase::Stopping);
                Some(Stopping::Lives)
            }
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
            card.recent_ms.push(now_ms);
            due.push(Again {
                worker: *worker,
                spec: views::spec(&agent.employed, &card),
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
        self.keepers.forget_legacy(&worker.to_string());
    }

    /// An agent that outlived the last daemon.
    pub(super) fn adopted(&self, employed: &Arc<Employed>, card: &Card, standing: &Standing) {
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

    pub(super) fn adopted_frozen(&self, worker: WorkerId) {
        self.change(worker, |agent| {
            turn(&mut agent.view, AgentPhase::Quarantined);
        });
    }

    /// An agent that ended while there was no daemon.
    pub(super) fn buried(&self, employed: &Arc<Employed>, card: &Card, over: &Over) {
        self.add(employed, card);
        self.ended(employed.worker, over);
    }

    /// Something about the daemon itself.
    pub(super) fn daemon_event(&self, text: &str) {
        self.tell(Text::new(text).event(None, EventKind::Daemon, Severity::Info));
    }

    fn add(&self, employed: &Arc<Employed>, card: &Card) {
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
        let number = book.next;
        book.next += 1;
        book.order.insert(number, worker);
        let agent = Agent {
            view: views::new_view(employed, &card, parent),
            card,
            employed: Arc::clone(employed),
            keeper_pid: None,
            started: None,
            denials: Vec::new(),
            sampled: None,
            stopping: None,
            doomed: None,
            again_at: None,
        };
        book.agents.insert(worker, agent);
        let forgotten = forget_oldest(&mut book);
        drop(book);
        for worker in forgotten {
            let _ = std::fs::remove_dir_all(self.outputs.join(worker.to_string()));
        }
    }

    fn change(&self, worker: WorkerId, change: impl FnOnce(&mut Agent)) {
        if let Some(agent) = self.book().agents.get_mut(&worker) {
            change(agent);
        }
    }

    /// Plans when an agent is started again, if it is; says so.
    fn plan_restart(&self, agent: &mut Agent, cause: EndCause, why: &str) -> NewEvent {
        let jitter = random().map_or(0, |bytes| bytes.to_ne_bytes()[0]);
        let card = &agent.card;
        let next = self
            .rules
            .next(card.restart, cause, &card.recent_ms, boot_ms(), jitter);
        let name = card.name.clone();
        let worker = Some(agent.employed.worker);
        match next {
            Next::Stay => {
                turn(&mut agent.view, AgentPhase::Ended);
                let severity = views::severity_of(cause);
                Text::new(&format!("{name} ended: {why}")).event(worker, EventKind::Ended, severity)
            }
            Next::After(wait) => {
                agent.again_at = Some(Instant::now() + wait);
                turn(&mut agent.view, AgentPhase::Waiting);
                let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                agent.view.restart_at_ms = Some(agent.view.since_ms.saturating_add(wait_ms));
                let text = format!("{name} ended: {why}; it is started again in {wait_ms} ms");
                Text::new(&text).event(worker, EventKind::Restarting, Severity::Warning)
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

    fn deny(&self, worker: WorkerId, denial: Denial) {
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

    fn tell(&self, event: NewEvent) {
        self.observer.happened(event);
    }

    fn name_of(&self, worker: WorkerId) -> String {
        let name = self.with(worker, |agent| agent.card.name.clone());
        name.unwrap_or_else(|| worker.to_string())
    }

    fn book(&self) -> MutexGuard<'_, Book> {
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

fn is_over(phase: AgentPhase) -> bool {
    matches!(phase, AgentPhase::Ended | AgentPhase::CrashLoop)
}

fn turn(view: &mut AgentView, phase: AgentPhase) {
    if view.phase != phase {
        view.phase = phase;
        view.since_ms = belljar_gate::clock::now().wall_ms;
    }
}

fn boot_ms() -> u64 {
    belljar_gate::clock::now().boot_ns / 1_000_000
}

/// Forgets the oldest of those that ended, where there are too many.
fn forget_oldest(book: &mut Book) -> Vec<WorkerId> {
    let ended: Vec<(u64, WorkerId)> = book
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

impl Watch for Roster {
    fn hired(&self, employed: &Arc<Employed>, card: &Card) {
        self.add(employed, card);
        let worker = employed.worker;
        if let Some(parent) = employed.papers.payload().parent.as_ref() {
            let parent = self.name_of(WorkerId(parent.worker.as_u128()));
            let text = Text::new(&format!("{parent} was granted a replica"));
            self.tell(text.event(Some(worker), EventKind::Replicated, Severity::Info));
        }
    }

    fn kept(&self, worker: WorkerId, pid: u32) {
        self.change(worker, |agent| agent.keeper_pid = Some(pid));
    }

    fn started(&self, worker: WorkerId, started: &Started) {
        let mut view = None;
        self.change(worker, |agent| {
            agent.started = Some(started.clone());
            if agent.view.phase == AgentPhase::Starting {
                turn(&mut agent.view, AgentPhase::Running);
            }
            view = Some(agent.view.clone());
        });
        // So that whoever watches knows its name before it does anything.
        if let Some(view) = view {
            self.observer.sampled(&view);
        }
        let text = Text::new(&format!("{} started", self.name_of(worker)));
        self.tell(text.event(Some(worker), EventKind::Started, Severity::Info));
    }

    fn sampled(&self, worker: WorkerId, sample: &Sample) {
        let mut view = None;
        self.change(worker, |agent| {
            let now = Instant::now();
            let before = agent.sampled.replace((*sample, now));
            let before = before.map(|(old, at)| (old, now.saturating_duration_since(at)));
            views::put_sample(&mut agent.view.usage, sample, before);
            view = Some(agent.view.clone());
        });
        if let Some(view) = view {
            self.observer.sampled(&view);
        }
    }

    fn refused(&self, worker: WorkerId, refusal: &RefusedHost) {
        let place = match refusal.port {
            Some(port) => format!("{}:{port}", refusal.host),
            None => refusal.host.clone(),
        };
        let why = refusal.detail.as_deref().unwrap_or("no rule allows it");
        self.deny(
            worker,
            views::denial(
                DenialKind::Network,
                &refusal.code,
                &place,
                1,
                why,
                Some(&refusal.hint),
            ),
        );
        let is_budget = matches!(refusal.code.as_str(), "deny_tokens" | "deny_cost");
        let (kind, severity) = match is_budget {
            true => (EventKind::BudgetExceeded, Severity::Critical),
            false => (EventKind::EgressRefused, Severity::Warning),
        };
        let text = format!("{} was refused {place}", self.name_of(worker));
        let text = Text::new(&text).code(&refusal.code).hint(&refusal.hint);
        self.tell(text.event(Some(worker), kind, severity));
    }

    fn violated(&self, worker: WorkerId, breach: &Breach) {
        let kind = views::kind_of(&breach.kind);
        let hint = breach.hint.as_deref();
        self.deny(
            worker,
            views::denial(
                kind,
                &breach.kind,
                &breach.name,
                breach.count,
                &breach.why,
                hint,
            ),
        );
        let text = format!(
            "{} tried {}: {}",
            self.name_of(worker),
            breach.name,
            breach.why
        );
        let event = match kind {
            DenialKind::Limit => EventKind::LimitMet,
            _ => EventKind::SystemCallRefused,
        };
        let text = Text::new(&text).code(&breach.name);
        self.tell(text.event(Some(worker), event, Severity::Warning));
    }

    fn ended(&self, worker: WorkerId, over: &Over) {
        let mut book = self.book();
        let is_closing = book.is_closing;
        let Some(agent) = book.agents.get_mut(&worker) else {
            return;
        };
        let (cause, detail) = cause_of(over, agent.stopping.as_deref(), agent.doomed.as_deref());
        let (exit_code, signal) = match over {
            Over::Ended(ending) => (ending.exit_code, ending.signal),
            Over::Failed(_) | Over::Lost => (None, None),
        };
        agent.view.end = Some(End {
            cause,
            at_ms: belljar_gate::clock::now().wall_ms,
            exit_code,
            signal,
            detail: detail.as_deref().map(Shown::new),
        });
        agent.view.usage.memory_bytes = 0;
        agent.view.usage.processes = 0;
        agent.view.usage.cpu_percent = 0.0;
        if let Over::Ended(ending) = over {
            views::put_end(&mut agent.view.usage, ending);
        }
        agent.keeper_pid = None;
        let why = views::words_of(cause, exit_code, signal, detail.as_deref());
        let cause_to_plan = if is_closing { EndCause::Stopped } else { cause };
        let event = self.plan_restart(agent, cause_to_plan, &why);
        let is_waiting = agent.again_at.is_some();
        drop(book);
        if let Over::Ended(ending) = over {
            for breach in ending
                .breaches
                .iter()
                .filter(|breach| breach.kind == "limit")
            {
                self.violated(worker, breach);
            }
        }
        self.tell(event);
        // Kept while it waits: a daemon that dies meanwhile has a successor that starts it again.
        match is_waiting {
            true => self.clock.ring(),
            false => self.keepers.forget_legacy(&worker.to_string()),
        }
    }

    fn denied(&self, worker: WorkerId, code: &str, why: &str, hint: &str) {
        self.deny(
            worker,
            views::denial(
                DenialKind::Replication,
                code,
                "replicate",
                1,
                why,
                Some(hint),
            ),
        );
        let text = format!("{} was refused a replica: {why}", self.name_of(worker));
        let text = Text::new(&text).code(code).hint(hint);
        self.tell(text.event(
            Some(worker),
            EventKind::ReplicationDenied,
            Severity::Warning,
        ));
    }

    fn doomed(&self, worker: WorkerId, code: &str) {
        let mut is_news = false;
        self.change(worker, |agent| {
            is_news = agent.doomed.is_none() && !is_over(agent.view.phase);
            agent.doomed.get_or_insert_with(|| code.to_owned());
        });
        if is_news {
            let text = format!("{} is killed: {code}", self.name_of(worker));
            let kind = match code {
                "killed_budget" => EventKind::BudgetExceeded,
                _ => EventKind::Killed,
            };
            let event = Text::new(&text).code(code);
            self.tell(event.event(Some(worker), kind, Severity::Critical));
        }
    }

    fn frozen(&self, worker: WorkerId) {
        self.change(worker, |agent| {
            turn(&mut agent.view, AgentPhase::Quarantined)
        });
        let text = Text::new(&format!("{} is in quarantine", self.name_of(worker)));
        self.tell(text.event(Some(worker), EventKind::Quarantined, Severity::Critical));
    }

    fn thawed(&self, worker: WorkerId) {
        self.change(worker, |agent| {
            let phase = match agent.started {
                Some(_) => AgentPhase::Running,
                None => AgentPhase::Starting,
            };
            turn(&mut agent.view, phase);
        });
        let text = Text::new(&format!("{} was released", self.name_of(worker)));
        self.tell(text.event(Some(worker), EventKind::Released, Severity::Info));
    }

    fn switched(&self, is_engaged: bool, reason: &str) {
        let event = match is_engaged {
            true => Text::new(&format!("the kill switch was engaged: {reason}")).event(
                None,
                EventKind::KillSwitchEngaged,
                Severity::Critical,
            ),
            false => Text::new(&format!("the kill switch was reset: {reason}")).event(
                None,
                EventKind::KillSwitchReset,
                Severity::Info,
            ),
        };
        if is_engaged {
            self.cancel_restarts();
        }
        self.tell(event);
    }
}

impl Roster {
    /// After the kill switch nobody comes back.
    fn cancel_restarts(&self) {
        let mut book = self.book();
        let mut cancelled = Vec::new();
        for (worker, agent) in &mut book.agents {
            if agent.again_at.take().is_some() {
                agent.view.restart_at_ms = None;
                turn(&mut agent.view, AgentPhase::Ended);
                cancelled.push(*worker);
            }
        }
        drop(book);
        for worker in cancelled {
            self.keepers.forget_legacy(&worker.to_string());
        }
    }

    /// How long the longest wait for a box's first instruction is.
    pub(super) const FIRST: Duration = Duration::from_secs(60);
}
