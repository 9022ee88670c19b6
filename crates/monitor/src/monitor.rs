//! The monitor: told what happens, asked what happened.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belljar_api::{
    AgentId, AgentView, AlertView, EventKind, EventView, Live, NewEvent, OperatorCall, Response,
    ResponseTaken, Severity, Shown, StatusView,
};

use crate::alerts::{Change, Engine, froze};
use crate::clock::{Clock, FOLLOWED_BACK, Source, millis, system_clock};
use crate::events::EventLog;
use crate::history::Ring;
use crate::live::{Hub, Receiver};
use crate::respond::{self, Hands, Job, Notice};
use crate::settings::Settings;
use crate::store::{OpenError, Reading, Store, locked};
use crate::writer;

/// Things to do, people to tell and questions that wait at most.
const MOST_WAITING: usize = 256;
/// A second bundle about the same agent within this time says nothing new, in milliseconds.
const SAME_INCIDENT: u64 = 60_000;

/// History, events and alerts of one supervisor. Dropping it writes what is not written and ends its threads.
pub struct Monitor {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
}

/// What all of the monitor's threads share. No lock is taken while another is held.
pub(crate) struct Inner {
    pub(crate) directory: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    pub(crate) ring: Mutex<Ring>,
    pub(crate) log: Mutex<EventLog>,
    pub(crate) engine: Mutex<Engine>,
    /// Alerts that are to be written.
    pub(crate) changed_alerts: Mutex<HashMap<String, AlertView>>,
    pub(crate) health: Mutex<Health>,
    pub(crate) reading: Mutex<Option<(u64, Reading)>>,
    pub(crate) raised: Mutex<HashMap<belljar_api::AlertKind, u64>>,
    hub: Hub,
    hands: Mutex<Option<Arc<dyn Hands>>>,
    incidents: Mutex<HashMap<AgentId, u64>>,
    ways: Mutex<Option<Ways>>,
    bell: (Mutex<bool>, Condvar),
    stopping: AtomicBool,
    /// How often the writer has looked.
    pub(crate) rounds: (Mutex<u64>, Condvar),
}

/// How the store does.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Why nothing can be written.
    pub(crate) failing: Option<String>,
    /// How often the file was replaced: readers open it anew.
    pub(crate) generation: u64,
    /// A reader found the file damaged.
    pub(crate) is_damaged: bool,
}

/// The ways to the threads that do what takes time.
struct Ways {
    jobs: SyncSender<Job>,
    notices: SyncSender<Notice>,
    questions: SyncSender<(String, OperatorCall)>,
}

impl Monitor {
    /// Begins, or goes on where a former life left off, with what is kept in that directory.
    pub fn open(directory: &Path, settings: Settings) -> Result<Self, OpenError> {
        Self::open_by(system_clock(), directory, settings)
    }

    /// The same, by other clocks.
    pub(crate) fn open_by(
        source: Source,
        directory: &Path,
        settings: Settings,
    ) -> Result<Self, OpenError> {
        let (mut store, found) = Store::open(directory)?;
        let (wall, _) = source();
        // A former life in the far future was mistaken about the time.
        let is_mistaken = found.last_ms > wall + millis(FOLLOWED_BACK);
        let from = if is_mistaken { wall } else { found.last_ms };
        let opened = wall.max(from);
        let mut ring = Ring::since(opened);
        if is_mistaken {
            // What can't be forgotten now is in the way later, and told then.
            let _later = store.forget_after(wall / 1000);
        } else {
            for (agent, name, point) in &found.journal {
                ring.restore(agent, name, *point);
            }
            ring.stored(found.folded_until, found.folded_until);
        }
        let (jobs, to_do) = mpsc::sync_channel(MOST_WAITING);
        let (notices, to_tell) = mpsc::sync_channel(MOST_WAITING);
        let (questions, asked) = mpsc::sync_channel(MOST_WAITING);
        let inner = Arc::new(Inner {
            directory: directory.to_owned(),
            clock: Clock::new(source, from),
            ring: Mutex::new(ring),
            log: Mutex::new(EventLog::after(found.last_event)),
            engine: Mutex::new(Engine::new(
                settings.alerts.clone(),
                found.alerts,
                found.last_alert,
            )),
            settings,
            changed_alerts: Mutex::default(),
            health: Mutex::default(),
            reading: Mutex::default(),
            raised: Mutex::default(),
            hub: Hub::default(),
            hands: Mutex::default(),
            incidents: Mutex::default(),
            ways: Mutex::new(Some(Ways {
                jobs,
                notices,
                questions,
            })),
            bell: (Mutex::new(false), Condvar::new()),
            stopping: AtomicBool::new(false),
            rounds: Default::default(),
        });
        if let Some(aside) = found.set_aside {
            inner.set_aside(&aside);
        }
        let mut threads = Vec::new();
        let mut thread = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let spawned = std::thread::Builder::new()
                .name(format!("monitor-{name}"))
                .spawn(work);
            spawned
                .map(|handle| threads.push(handle))
                .map_err(|source| OpenError::Io {
                    path: directory.to_owned(),
                    source,
                })
        };
        let shared = Arc::clone(&inner);
        thread(
            "writer",
            Box::new(move || writer::run(&shared, store, opened / 1000)),
        )?;
        let shared = Arc::clone(&inner);
        thread("hands", Box::new(move || respond::work(&shared, &to_do)))?;
        let shared = Arc::clone(&inner);
        thread(
            "notices",
            Box::new(move || respond::announce(&shared, &to_tell)),
        )?;
        let shared = Arc::clone(&inner);
        thread(
            "answers",
            Box::new(move || {
                while let Ok((by, call)) = asked.recv() {
                    shared.answer_now(&by, call);
                }
            }),
        )?;
        Ok(Self { inner, threads })
    }

    /// Lends the monitor the supervisor's hands. Before, rules can only notify.
    pub fn lend_hands(&self, hands: Arc<dyn Hands>) {
        *locked(&self.inner.hands) = Some(hands);
    }

    /// An agent as it is now; told about once a second, and once more when it has ended.
    pub fn sampled(&self, agent: &AgentView) {
        let now = self.inner.clock.now();
        locked(&self.inner.ring).sampled(now, agent);
        let changes = locked(&self.inner.engine).sampled(now, agent);
        self.inner.apply(changes);
    }

    /// Something happened. It gets a number and a time, and goes to whoever listens.
    pub fn happened(&self, event: NewEvent) -> EventView {
        self.inner.happened(event)
    }

    /// The supervisor as it is now: whether its kill switch is engaged and its log can be written.
    pub fn status(&self, status: &StatusView) {
        let changes = locked(&self.inner.engine).status(self.inner.clock.now(), status);
        self.inner.apply(changes);
    }

    /// Answers what is the monitor's to answer, now or later, and gives back what is not. It never waits for a disk.
    pub fn answer(&self, by: &str, call: OperatorCall) -> Option<OperatorCall> {
        self.inner.answer(by, call)
    }

    /// Everything from now on, for one listener. One that is too slow is told that it lost something.
    #[must_use]
    pub fn subscribe(&self) -> Receiver {
        self.inner.hub.subscribe(Box::new(|| {}))
    }

    /// The same, for a listener that waits elsewhere: `wake` is called whenever there is something to take. It must not block.
    #[must_use]
    pub fn subscribe_with(&self, wake: impl Fn() + Send + Sync + 'static) -> Receiver {
        self.inner.hub.subscribe(Box::new(wake))
    }

    /// Tells every listener something that is not the monitor's own: agents that changed, how the supervisor does.
    pub fn publish(&self, message: Live) {
        self.inner.hub.publish(message);
    }

    /// Alerts about each agent that nobody has resolved.
    #[must_use]
    pub fn open_alerts(&self) -> HashMap<AgentId, u32> {
        let mut counts = HashMap::new();
        for alert in locked(&self.inner.engine).open() {
            if let Some(agent) = &alert.agent {
                *counts.entry(agent.clone()).or_insert(0) += 1;
            }
        }
        counts
    }

    /// Makes an incident bundle now and waits for it: before a person's kill, after which there is little left to see.
    /// None where one was made a moment ago, or where it failed, which is an event.
    #[must_use]
    pub fn keep_evidence(&self, agent: &AgentId, why: &str) -> Option<PathBuf> {
        respond::keep(&self.inner, agent, why)
    }

    /// The metrics page.
    #[must_use]
    pub fn prometheus(&self, agents: &[AgentView], status: &StatusView) -> String {
        crate::prometheus::page(&self.inner, agents, status)
    }

    /// Seconds of agents and events that were lost for want of a disk.
    #[must_use]
    pub fn dropped(&self) -> (u64, u64) {
        let samples = locked(&self.inner.ring).dropped();
        let events = locked(&self.inner.log).dropped();
        (samples, events)
    }

    /// Why nothing can be written at present.
    #[must_use]
    pub fn failing(&self) -> Option<String> {
        locked(&self.inner.health).failing.clone()
    }

    /// Has the writer look now and waits until it has. For whoever needs it on the disk.
    pub fn flush(&self) {
        // A round may be under way that saw less than there is: the one after it has seen all.
        for _ in 0..2 {
            let before = *locked(&self.inner.rounds.0);
            self.inner.ring_bell();
            let mut rounds = locked(&self.inner.rounds.0);
            while *rounds == before {
                rounds = self
                    .inner
                    .rounds
                    .1
                    .wait(rounds)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.inner.stopping.store(true, Ordering::Release);
        drop(locked(&self.inner.ways).take());
        self.inner.ring_bell();
        self.inner.hub.close();
        // The writer is the first: it waits for nobody. The others may wait for a webhook's or a hand's time to run out.
        for thread in self.threads.drain(..) {
            let _panicked = thread.join();
        }
    }
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Monitor")
            .field("directory", &self.inner.directory)
            .finish_non_exhaustive()
    }
}

impl Inner {
    pub(crate) fn happened(&self, event: NewEvent) -> EventView {
        let now = self.clock.now();
        let event = locked(&self.log).push(now, event);
        self.hub.publish(Live::Event(event.clone()));
        let changes = locked(&self.engine).happened(now, &event);
        self.apply(changes);
        if let (EventKind::Quarantined | EventKind::Killed, Some(agent)) =
            (event.kind, &event.agent)
        {
            self.do_later(Job::Keep(agent.clone(), event.text.to_string()));
        }
        event
    }

    /// An event of the monitor's own.
    pub(crate) fn say(
        &self,
        agent: Option<&AgentId>,
        kind: EventKind,
        severity: Severity,
        text: &str,
        code: Option<&str>,
    ) {
        self.happened(NewEvent {
            agent: agent.cloned(),
            kind,
            severity,
            text: Shown::new(text),
            code: code.map(Shown::new),
            hint: None,
        });
    }

    pub(crate) fn set_aside(&self, path: &Path) {
        let text = format!(
            "the history was damaged; it is kept as {}, and a new one begun",
            path.display()
        );
        self.say(
            None,
            EventKind::Daemon,
            Severity::Critical,
            &text,
            Some("history_damaged"),
        );
    }

    /// Tells of changes and has rules answer.
    pub(crate) fn apply(&self, changes: Vec<Change>) {
        for change in changes {
            self.apply_one(change, "");
        }
    }

    /// The same, with the reason that a person gave.
    pub(crate) fn apply_one(&self, change: Change, reason: &str) {
        let by = |alert: &AlertView, deed: &str| {
            let by = alert.by.as_ref().map_or("", Shown::as_str);
            let why = if reason.is_empty() { "" } else { ": " };
            format!(
                "{:?} ({}) {deed} by {by}{why}{reason}",
                alert.kind, alert.id
            )
        };
        match change {
            Change::Raised(alert) => {
                *locked(&self.raised).entry(alert.kind).or_insert(0) += 1;
                let text = format!("{:?} ({}): {}", alert.kind, alert.id, alert.text);
                self.tell(&alert, alert.severity, &text, "raised");
                self.respond(alert);
            }
            Change::Acknowledged(alert) => {
                let text = by(&alert, "acknowledged");
                self.tell(&alert, Severity::Info, &text, "acknowledged");
            }
            Change::Resolved(alert) => {
                let text = by(&alert, "resolved");
                self.tell(&alert, Severity::Info, &text, "resolved");
                if let (true, Some(agent)) = (froze(&alert), &alert.agent) {
                    let why = format!("alert {} is resolved", alert.id);
                    self.do_later(Job::Thaw(agent.clone(), why));
                }
                let was_told = |taken: &ResponseTaken| taken.response == Response::Notify;
                if alert.responses.iter().any(was_told) {
                    self.notify(alert, false);
                }
            }
        }
    }

    fn tell(&self, alert: &AlertView, severity: Severity, text: &str, code: &str) {
        self.changed(alert);
        self.say(
            alert.agent.as_ref(),
            EventKind::Alert,
            severity,
            text,
            Some(code),
        );
    }

    /// An alert that is to be written and shown anew.
    pub(crate) fn changed(&self, alert: &AlertView) {
        locked(&self.changed_alerts).insert(alert.id.to_string(), alert.clone());
        self.hub.publish(Live::Alert(alert.clone()));
    }

    fn respond(&self, alert: AlertView) {
        let mut responses = locked(&self.engine).rule(alert.kind).respond;
        let notifies =
            responses.contains(&Response::Notify) && !self.settings.alerts.notify.is_empty();
        responses.retain(|response| *response != Response::Notify);
        if notifies {
            self.notify(alert.clone(), true);
        }
        if !responses.is_empty() {
            self.do_later(Job::Respond(alert, responses));
        }
    }

    fn notify(&self, alert: AlertView, is_response: bool) {
        let sent = match &*locked(&self.ways) {
            Some(ways) => ways
                .notices
                .try_send(Notice { alert, is_response })
                .map_err(|error| match error {
                    TrySendError::Full(notice) | TrySendError::Disconnected(notice) => notice.alert,
                }),
            None => Ok(()),
        };
        if let Err(alert) = sent {
            self.give_up(&alert, &[Response::Notify]);
        }
    }

    fn do_later(&self, job: Job) {
        let sent = match &*locked(&self.ways) {
            Some(ways) => ways.jobs.try_send(job),
            None => Ok(()),
        };
        match sent {
            Err(
                TrySendError::Full(Job::Respond(alert, responses))
                | TrySendError::Disconnected(Job::Respond(alert, responses)),
            ) => {
                self.give_up(&alert, &responses);
            }
            Err(TrySendError::Full(Job::Thaw(agent, _) | Job::Keep(agent, _))) => {
                let text = "too much waits to be done: it was not let go on, or no bundle was made";
                self.say(
                    Some(&agent),
                    EventKind::Responded,
                    Severity::Critical,
                    text,
                    None,
                );
            }
            _ => {}
        }
    }

    /// A response that can't even wait has failed, and that is told.
    fn give_up(&self, alert: &AlertView, responses: &[Response]) {
        for response in responses {
            self.responded(
                alert,
                ResponseTaken {
                    response: *response,
                    at_ms: self.clock.now(),
                    failed: Some(Shown::new("too many responses wait already")),
                },
            );
            let text = format!(
                "{} for alert {} failed: too many wait already",
                crate::alerts::word(*response),
                alert.id
            );
            self.say(
                alert.agent.as_ref(),
                EventKind::Responded,
                Severity::Critical,
                &text,
                None,
            );
        }
    }

    pub(crate) fn responded(&self, alert: &AlertView, taken: ResponseTaken) {
        let did_freeze = taken.response == Response::Freeze && taken.failed.is_none();
        let now = locked(&self.engine).responded(&alert.id, taken);
        if let Some(alert) = now {
            self.changed(&alert);
            // Somebody resolved it while it was being answered.
            if let (true, belljar_api::AlertState::Resolved, Some(agent)) =
                (did_freeze, alert.state, &alert.agent)
            {
                self.do_later(Job::Thaw(
                    agent.clone(),
                    format!("alert {} is resolved", alert.id),
                ));
            }
        }
    }

    pub(crate) fn is_frozen_by_rule(&self, agent: &AgentId) -> bool {
        locked(&self.engine).is_frozen(agent)
    }

    pub(crate) fn hands(&self) -> Option<Arc<dyn Hands>> {
        locked(&self.hands).clone()
    }

    /// Whether a bundle about this agent is due: a rule that kills makes one, and so would the kill's own event.
    pub(crate) fn begin_incident(&self, agent: &AgentId) -> bool {
        let now = self.clock.now();
        let mut incidents = locked(&self.incidents);
        incidents.retain(|_, at| now.saturating_sub(*at) < SAME_INCIDENT);
        match incidents.contains_key(agent) {
            true => false,
            false => incidents.insert(agent.clone(), now).is_none(),
        }
    }

    /// Hands a question to the thread that reads; gives it back where too many wait.
    pub(crate) fn ask(&self, by: &str, call: OperatorCall) -> Option<OperatorCall> {
        match &*locked(&self.ways) {
            None => Some(call),
            Some(ways) => match ways.questions.try_send((by.to_owned(), call)) {
                Ok(()) => None,
                Err(TrySendError::Full((_, call)) | TrySendError::Disconnected((_, call))) => {
                    Some(call)
                }
            },
        }
    }

    pub(crate) fn ring_bell(&self) {
        *locked(&self.bell.0) = true;
        self.bell.1.notify_all();
    }

    /// Waits for the bell, at most that long.
    pub(crate) fn await_bell(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut rung = locked(&self.bell.0);
        while !*rung {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            rung = match self.bell.1.wait_timeout(rung, left) {
                Ok((rung, _)) => rung,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        *rung = false;
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits that long, or until the monitor ends. Says whether to go on.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut guard = locked(&self.bell.0);
        while !self.is_stopping() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            guard = match self.bell.1.wait_timeout(guard, left) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        false
    }
}

#[cfg(test)]
impl Monitor {
    pub(crate) fn inner_for_tests(&self) -> &Inner {
        &self.inner
    }
}
