//! The monitor: told what happens, asked what happened.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use belljar_api::{
    AgentId, AgentView, EventView, HoldView, Live, NewEvent, OperatorCall, Shown, StatusView,
};

use crate::alerts::Engine;
use crate::clock::{Clock, FOLLOWED_BACK, Source, millis, system_clock};
use crate::events::EventLog;
use crate::history::Ring;
use crate::inner::{Inner, Ways};
use crate::live::{Hub, Receiver};
use crate::prometheus::ToolSeries;
use crate::respond::{self, Hands};
use crate::settings::Settings;
use crate::store::{OpenError, Store, locked};
use crate::writer;

/// Things to do, people to tell and questions that wait at most.
const MOST_WAITING: usize = 256;
/// History, events and alerts of one supervisor. Dropping it writes what is not written and ends its threads.
pub struct Monitor {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
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
            cadence: Mutex::default(),
            log: Mutex::new(EventLog::after(found.last_event)),
            engine: Mutex::new(
                Engine::new(settings.alerts.clone(), found.alerts, found.last_alert)
                    .with_silences(found.silences),
            ),
            settings,
            changed_alerts: Mutex::default(),
            changed_silences: Mutex::default(),
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
        locked(&self.inner.cadence).sampled(now, agent);
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

    /// What people call an agent that was let in: told before anything else about it.
    pub fn named(&self, agent: &AgentId, name: &Shown) {
        let now = self.inner.clock.now();
        locked(&self.inner.engine).named(now, agent, name);
    }

    /// What one is called that was not let in: it has ended, or never started. Alerts about it are about that name.
    pub fn called(&self, agent: &AgentId, name: &Shown) {
        locked(&self.inner.engine).called(agent, name);
    }

    /// An agent was refused on the network what it was refused before, so often since that was told.
    pub fn refused_again(&self, agent: &AgentId, what: &Shown, code: &Shown, count: u64) {
        let now = self.inner.clock.now();
        let changes = locked(&self.inner.engine).refused_again(now, agent, (what, code), count);
        self.inner.apply(changes);
    }

    /// The calls of tools that wait for an operator's answer, all there are.
    pub fn holds(&self, holds: &[HoldView]) {
        let changes = locked(&self.inner.engine).holds(self.inner.clock.now(), holds);
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
        let engine = locked(&self.inner.engine);
        for alert in engine.open() {
            if let Some(agent) = engine.latest_run(alert) {
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
    pub fn prometheus(
        &self,
        agents: &[AgentView],
        status: &StatusView,
        tools: &[ToolSeries],
    ) -> String {
        crate::prometheus::page(&self.inner, agents, status, tools)
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

#[cfg(test)]
impl Monitor {
    pub(crate) fn inner_for_tests(&self) -> &Inner {
        &self.inner
    }
}
