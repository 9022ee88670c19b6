//! The web server's view of a daemon: answers, the live stream, numbers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belljar_api::{
    AgentId, AgentView, DeclaredState, EventKind, HoldView, Live, OperatorCall, Problem, Status,
    StatusView,
};
use belljar_monitor::{Monitor, Receiver, RecvError, ToolSeries};
use belljar_supervisor::daemon::{Daemon, OperatorIdentity};
use belljar_web::{Backend, Caller, Fan, Feed, Role, TokenFile};

/// Ends for good that nobody wished.
const FAILED: &[&str] = &[
    "crash_loop",
    "crashed",
    "out_of_memory",
    "limit",
    "keeper_lost",
    "unreadable",
];
/// How often agents are compared with what was told of them last: what a page shows is so much older than the sample at most.
const LOOK: Duration = Duration::from_millis(150);
/// How often whoever watches hears how the supervisor does although nothing changed.
const STATUS_EVERY: Duration = Duration::from_secs(5);

/// A daemon and its monitor, for the web. It holds neither: they end when the daemon's command says so.
pub(super) struct Board {
    daemon: Weak<Daemon>,
    monitor: Arc<Monitor>,
    fan: Arc<Fan>,
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
            fan: Arc::default(),
        };
        let ends = Arc::new(AtomicBool::new(false));
        let telling = Telling {
            daemon: Arc::downgrade(daemon),
            fan: Arc::clone(&board.fan),
            known: HashMap::new(),
            news: monitor.subscribe(),
            ends: Arc::clone(&ends),
            holds: Vec::new(),
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
        let actor = OperatorIdentity::Token {
            name: by.to_string(),
            is_admin: by.role() == Role::Admin,
        };
        daemon.answer_or_refuse(&actor, call);
    }

    fn subscribe(&self, feed: Feed) {
        let Some(daemon) = self.daemon.upgrade() else {
            return;
        };
        self.fan.add(feed.clone(), || Live::Agents(daemon.agents()));
        // Whoever is gone already is noticed with the next message.
        let _ = feed.send(Arc::new(Live::Holds(daemon.holds())));
        if let Some(status) = daemon.status() {
            let _ = feed.send(Arc::new(Live::Status(status)));
        }
    }

    fn prometheus(&self) -> String {
        let daemon = self.daemon.upgrade();
        let status = daemon.as_ref().and_then(|daemon| daemon.status());
        match (daemon, status) {
            (Some(daemon), Some(status)) => {
                let tools = daemon.tool_calls().into_iter().map(|called| ToolSeries {
                    server: called.server,
                    tool: called.tool,
                    verdict: called.verdict,
                    calls: called.calls,
                    seconds: called.micros as f64 / 1e6,
                });
                let tools: Vec<ToolSeries> = tools.collect();
                self.monitor.prometheus(&daemon.agents(), &status, &tools)
            }
            _ => String::new(),
        }
    }

    fn ready(&self) -> Result<(), String> {
        let daemon = self.daemon.upgrade().ok_or("the daemon is shutting down")?;
        let status = daemon.status().ok_or("the controller does not answer")?;
        if let Some(why) = status.ledger.failed {
            return Err(format!("the log can't be written: {why}"));
        }
        if let Err(error) = TokenFile::of(daemon.state().path()).list() {
            return Err(format!("the tokens can't be read: {error}"));
        }
        match self.not_running().as_slice() {
            [] => Ok(()),
            names => Err(format!("not running: {}", names.join(", "))),
        }
    }

    fn not_running(&self) -> Vec<String> {
        let daemon = self.daemon.upgrade();
        let all = daemon.map(|daemon| daemon.not_running());
        let all = all.unwrap_or_default().into_iter();
        // What a person stopped is as they wanted it.
        let wanted = all
            .filter(|it| it.state != DeclaredState::Stopped || FAILED.contains(&it.code.as_str()));
        wanted.map(|it| it.name.as_str().to_owned()).collect()
    }
}

struct Telling {
    daemon: Weak<Daemon>,
    fan: Arc<Fan>,
    /// What was told of each agent.
    known: HashMap<AgentId, AgentView>,
    news: Receiver,
    ends: Arc<AtomicBool>,
    /// What was told of waiting calls.
    holds: Vec<HoldView>,
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
                    self.fan.tell(&message);
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
        if self.fan.is_empty() {
            return;
        }
        let Some(daemon) = self.daemon.upgrade() else {
            return;
        };
        let agents = daemon.agents();
        let status = daemon.status();
        let mut changed = Vec::new();
        let mut known = HashMap::with_capacity(agents.len());
        for agent in agents {
            if self.known.get(&agent.id) != Some(&agent) {
                changed.push(agent.clone());
            }
            known.insert(agent.id.clone(), agent);
        }
        let gone = self.known.keys().filter(|id| !known.contains_key(*id));
        let forgotten: Vec<AgentId> = gone.cloned().collect();
        self.known = known;
        if !changed.is_empty() {
            self.fan.tell(&Arc::new(Live::Agents(changed)));
        }
        if !forgotten.is_empty() {
            self.fan.tell(&Arc::new(Live::Forgotten(forgotten)));
        }
        let holds = daemon.holds();
        if holds != self.holds {
            self.holds.clone_from(&holds);
            self.fan.tell(&Arc::new(Live::Holds(holds)));
        }
        if let Some(status) = status {
            self.tell_status(status);
        }
    }

    /// Its clock moves all the time; that alone is no news.
    fn tell_status(&mut self, status: StatusView) {
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
        self.fan.tell(&Arc::new(Live::Status(status)));
    }
}

/// Whether a message says that some agent is not what it was: then nobody should have to wait for the next look.
fn changes_a_phase(message: &Live) -> bool {
    matches!(message, Live::Event(event) if matches!(
        event.kind,
        EventKind::Started | EventKind::Ended | EventKind::Quarantined | EventKind::Released
            | EventKind::Killed | EventKind::KillSwitchEngaged | EventKind::KillSwitchReset | EventKind::Restarting
            | EventKind::ToolHeld
    ))
}
