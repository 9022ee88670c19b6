//! Rollouts of evolved code over the supervisor's own agents: looked at as often as their plans say, by one thread.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belljar_api::{EventKind, NewEvent, Severity, Shown};
use belljar_evolve::rollout::watched;
use belljar_monitor::Monitor;

use crate::commands::evolve_review::{Looked, supervise};

/// How often it is looked for rollouts whose time has come.
const LOOK: Duration = Duration::from_millis(500);

/// The thread. It ends when this is dropped, after the turn it is at: agents that are ended with the supervisor are no crash of
/// anybody's.
pub(super) struct Rollouts {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Rollouts {
    pub(super) fn start(state: PathBuf, monitor: Arc<Monitor>) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("belljar-rollouts".to_owned());
        let thread = thread.spawn(move || {
            let mut watch = Watch {
                state,
                monitor,
                known: HashMap::new(),
            };
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                watch.turn();
            }
        })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Rollouts {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Watch {
    state: PathBuf,
    monitor: Arc<Monitor>,
    /// Each that was looked at.
    known: HashMap<String, Known>,
}

/// What came of the last look.
#[derive(Default)]
struct Known {
    /// When it is looked at next; where nothing is left to do, not before something happens to it.
    next: Option<Instant>,
    /// What was told of it last.
    told: String,
    /// How long its journal was.
    length: u64,
}

impl Watch {
    fn turn(&mut self) {
        let now = Instant::now();
        for one in watched(&self.state) {
            let last = self.known.get(&one.proposal);
            if last.is_some_and(|last| match last.next {
                Some(at) => now < at,
                None => last.length == one.length,
            }) {
                continue;
            }
            let mut told = last.map(|last| last.told.clone()).unwrap_or_default();
            let looked = supervise(&self.state, &one.proposal);
            let next = Some(Instant::now() + one.every);
            let (next, news) = match looked {
                Ok(Looked::UnderWay) => (next, None),
                Ok(Looked::Moved(what)) => (next, Some((Severity::Info, what))),
                Ok(Looked::WentBack(what)) => (next, Some((Severity::Warning, what))),
                Ok(Looked::Over) => (None, None),
                Err(failure) => (next, Some((Severity::Warning, failure.message()))),
            };
            // What stays as it is, is told once.
            if let Some((severity, what)) = news.filter(|(_, what)| *what != told) {
                self.tell(severity, &what);
                told = what;
            }
            let known = Known {
                next,
                told,
                length: one.length,
            };
            self.known.insert(one.proposal, known);
        }
    }

    fn tell(&self, severity: Severity, what: &str) {
        self.monitor.happened(NewEvent {
            agent: None,
            kind: EventKind::Daemon,
            severity,
            text: Shown::new(what),
            code: Some(Shown::new("rollout")),
            hint: None,
        });
    }
}
