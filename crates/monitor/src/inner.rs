//! What the monitor's threads share, and how they reach each other.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use belljar_api::{
    AgentId, AlertKind, AlertState, AlertView, EventKind, EventView, Live, NewEvent, OperatorCall,
    Response, ResponseTaken, Severity, Shown, SilenceView,
};

use crate::alerts::{Change, Engine, froze};
use crate::cadence::Cadence;
use crate::clock::Clock;
use crate::events::EventLog;
use crate::history::Ring;
use crate::live::Hub;
use crate::respond::{Hands, Job, Notice};
use crate::settings::Settings;
use crate::store::{Reading, locked};

/// A second bundle about the same agent within this time says nothing new, in milliseconds.
const SAME_INCIDENT: u64 = 60_000;

/// What all of the monitor's threads share. No lock is taken while another is held.
pub(crate) struct Inner {
    pub(crate) directory: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    pub(crate) ring: Mutex<Ring>,
    pub(crate) cadence: Mutex<Cadence>,
    pub(crate) log: Mutex<EventLog>,
    pub(crate) engine: Mutex<Engine>,
    /// Alerts that are to be written.
    pub(crate) changed_alerts: Mutex<HashMap<String, AlertView>>,
    /// Silences that are to be written.
    pub(crate) changed_silences: Mutex<Vec<SilenceView>>,
    pub(crate) health: Mutex<Health>,
    pub(crate) reading: Mutex<Option<(u64, Reading)>>,
    pub(crate) raised: Mutex<HashMap<AlertKind, u64>>,
    pub(crate) hub: Hub,
    pub(crate) hands: Mutex<Option<Arc<dyn Hands>>>,
    pub(crate) incidents: Mutex<HashMap<AgentId, u64>>,
    pub(crate) ways: Mutex<Option<Ways>>,
    pub(crate) bell: (Mutex<bool>, Condvar),
    pub(crate) stopping: AtomicBool,
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
pub(crate) struct Ways {
    pub(crate) jobs: SyncSender<Job>,
    pub(crate) notices: SyncSender<Notice>,
    pub(crate) questions: SyncSender<(String, OperatorCall)>,
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
            self.apply_one(change);
        }
    }

    pub(crate) fn apply_one(&self, change: Change) {
        let by = |alert: &AlertView, deed: &str| {
            let by = alert.by.as_ref().map_or("", Shown::as_str);
            let reason = alert.reason.as_ref().map_or("", Shown::as_str);
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
            Change::Again(alert) => {
                let text = format!("{:?} ({}) again: {}", alert.kind, alert.id, alert.text);
                self.tell(&alert, alert.severity, &text, "again");
                self.respond(alert);
            }
            Change::Unsilenced(alert) => {
                let text = format!("{:?} ({}) is not silenced any more", alert.kind, alert.id);
                self.tell(&alert, alert.severity, &text, "unsilenced");
                if locked(&self.engine)
                    .rule(alert.kind)
                    .respond
                    .contains(&Response::Notify)
                {
                    self.notify(alert, true);
                }
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
                if alert.responses.iter().any(was_told) && !alert.silenced {
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
        let notifies = responses.contains(&Response::Notify) && !alert.silenced;
        responses.retain(|response| *response != Response::Notify);
        if notifies {
            self.notify(alert.clone(), true);
        }
        if !responses.is_empty() {
            self.do_later(Job::Respond(alert, responses));
        }
    }

    fn notify(&self, alert: AlertView, is_response: bool) {
        if self.settings.alerts.notify.is_empty() {
            return;
        }
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
        let now = locked(&self.engine).responded(self.clock.now(), &alert.id, taken);
        if let Some(alert) = now {
            self.changed(&alert);
            // Somebody resolved it while it was being answered.
            if let (true, AlertState::Resolved, Some(agent)) =
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
