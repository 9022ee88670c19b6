//! The web server's view of a daemon: answers, the live stream, numbers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belljar_api::{AgentId, AgentView, EventKind, Live, OperatorCall, Problem, Status, StatusView};
use belljar_monitor::{Monitor, Receiver, RecvError};
use belljar_supervisor::daemon::Daemon;
use belljar_web::{Backend, Caller, Feed};

/// How often agents are compared with what was told of them last.
const LOOK: Duration = Duration::from_millis(500);
/// How often whoever watches hears how the supervisor does although nothing changed.
const STATUS_EVERY: Duration = Duration::from_secs(5);

/// A daemon and its monitor, for the web. It holds neither: they end when the daemon's command says so.
pub(super) struct Board {
    daemon: Weak<Daemon>,
    monitor: Arc<Monitor>,
    readers: Arc<Readers>,
}

/// Whoever watches, and what they were told of each agent.
#[derive(Default)]
struct Readers {
    inner: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    feeds: Vec<Feed>,
    agents: HashMap<AgentId, AgentView>,
}

/// The thread that tells. Dropped, it is waited for.
pub(super) struct Teller {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Board {
    /// A board, and the thread that keeps its readers told.
    pub(super) fn set_up(
        daemon: &Arc<Daemon>,
        monitor: &Arc<Monitor>,
    ) -> std::io::Result<(Self, Teller)> {
        let board = Self {
            daemon: Arc::downgrade(daemon),
            monitor: Arc::clone(monitor),
            readers: Arc::default(),
        };
        let ends = Arc::new(AtomicBool::new(false));
        let telling = Telling {
            daemon: Arc::downgrade(daemon),
            readers: Arc::clone(&board.readers),
            news: monitor.subscribe(),
            ends: Arc::clone(&ends),
            status: None,
            status_told: Instant::now(),
        };
        let thread = std::thread::Builder::new()
            .name("belljar-live".to_owned())
            .spawn(move || telling.work())?;
        let thread = Some(thread);
        Ok((board, Teller { ends, thread }))
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Backend for Board {
    fn answer(&self, by: &Caller, call: OperatorCall) {
        let Some(daemon) = self.daemon.upgrade() else {
            let problem = Problem::new("shutting_down", "the daemon is shutting down");
            return call.refuse(Status::UNAVAILABLE, &problem);
        };
        daemon.answer_or_refuse(&by.to_string(), call);
    }

    fn subscribe(&self, feed: Feed) {
        let Some(daemon) = self.daemon.upgrade() else {
            return;
        };
        let agents = daemon.agents();
        let mut told = self.readers.lock();
        // Under the lock: what changes from here on is told after this.
        let _ = feed.send(Arc::new(Live::Agents(agents)));
        if let Some(status) = daemon.status() {
            let _ = feed.send(Arc::new(Live::Status(status)));
        }
        told.feeds.push(feed);
    }

    fn prometheus(&self) -> String {
        let daemon = self.daemon.upgrade();
        let status = daemon.as_ref().and_then(|daemon| daemon.status());
        match (daemon, status) {
            (Some(daemon), Some(status)) => self.monitor.prometheus(&daemon.agents(), &status),
            _ => String::new(),
        }
    }

    fn ready(&self) -> Result<(), String> {
        let daemon = self.daemon.upgrade().ok_or("the daemon is shutting down")?;
        let status = daemon.status().ok_or("the controller does not answer")?;
        match status.ledger.failed {
            Some(why) => Err(format!("the log can't be written: {why}")),
            None => Ok(()),
        }
    }
}

impl Readers {
    fn lock(&self) -> std::sync::MutexGuard<'_, Told> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    fn tell(&mut self, message: Arc<Live>) {
        self.feeds
            .retain(|feed| feed.send(Arc::clone(&message)).is_ok());
    }
}

struct Telling {
    daemon: Weak<Daemon>,
    readers: Arc<Readers>,
    news: Receiver,
    ends: Arc<AtomicBool>,
    status: Option<StatusView>,
    status_told: Instant,
}

impl Telling {
    fn work(mut self) {
        let mut next_look = Instant::now() + LOOK;
        while !self.ends.load(Ordering::Relaxed) {
            let left = next_look.saturating_duration_since(Instant::now());
            match self.news.recv_timeout(left) {
                Ok(message) => {
                    let is_about_phase = changes_a_phase(&message);
                    self.readers.lock().tell(message);
                    if !is_about_phase {
                        continue;
                    }
                }
                Err(RecvError::Nothing) => {}
                Err(RecvError::Closed) => return,
            }
            next_look = Instant::now() + LOOK;
            self.look();
        }
    }

    /// Tells what changed. When nobody watches, nobody looks.
    fn look(&mut self) {
        if self.readers.lock().feeds.is_empty() {
            return;
        }
        let Some(daemon) = self.daemon.upgrade() else {
            return;
        };
        let agents = daemon.agents();
        let status = daemon.status();
        let readers = Arc::clone(&self.readers);
        let mut told = readers.lock();
        let mut changed = Vec::new();
        let mut known = HashMap::with_capacity(agents.len());
        for agent in agents {
            if told.agents.get(&agent.id) != Some(&agent) {
                changed.push(agent.clone());
            }
            known.insert(agent.id.clone(), agent);
        }
        let forgotten: Vec<AgentId> = told
            .agents
            .keys()
            .filter(|id| !known.contains_key(*id))
            .cloned()
            .collect();
        told.agents = known;
        if !changed.is_empty() {
            told.tell(Arc::new(Live::Agents(changed)));
        }
        if !forgotten.is_empty() {
            told.tell(Arc::new(Live::Forgotten(forgotten)));
        }
        if let Some(status) = status {
            self.tell_status(&mut told, status);
        }
    }

    /// Its clock moves all the time; that alone is no news.
    fn tell_status(&mut self, told: &mut Told, status: StatusView) {
        let is_same = self.status.as_ref().is_some_and(|last| {
            last.workers == status.workers
                && last.kill_switch == status.kill_switch
                && last.ledger.failed == status.ledger.failed
                && last.clock.state == status.clock.state
        });
        if is_same && self.status_told.elapsed() < STATUS_EVERY {
            return;
        }
        self.status_told = Instant::now();
        self.status = Some(status.clone());
        told.tell(Arc::new(Live::Status(status)));
    }
}

/// Whether a message says that some agent is not what it was: then nobody should have to wait for the next look.
fn changes_a_phase(message: &Live) -> bool {
    matches!(message, Live::Event(event) if matches!(
        event.kind,
        EventKind::Started | EventKind::Ended | EventKind::Quarantined | EventKind::Released
            | EventKind::Killed | EventKind::KillSwitchEngaged | EventKind::KillSwitchReset | EventKind::Restarting
    ))
}
