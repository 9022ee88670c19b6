//! What rules do about alerts, in threads of their own: nobody who tells us something waits for it.

mod hands;

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use belljar_api::{AgentId, AlertView, EventKind, Response, ResponseTaken, Severity, Shown};

pub use hands::{CouldNot, Hands};

use crate::alerts::word;
use crate::inner::Inner;

/// How long evidence is waited for.
const EVIDENCE: Duration = Duration::from_secs(15);

/// Something to do with the supervisor's hands.
#[derive(Debug)]
pub(crate) enum Job {
    /// An alert's rule answers.
    Respond(AlertView, Vec<Response>),
    /// An agent goes on, if no other alert keeps it frozen.
    Thaw(AgentId, String),
    /// A person did something to an agent: keep what there is to know about it.
    Keep(AgentId, String),
}

/// Somebody to tell.
#[derive(Debug)]
pub(crate) struct Notice {
    pub(crate) alert: AlertView,
    /// Whether it is a response by rule, and so recorded.
    pub(crate) is_response: bool,
}

/// Does what is to be done, until nobody asks any more.
pub(crate) fn work(inner: &Arc<Inner>, jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Respond(alert, responses) => {
                for response in responses {
                    respond(inner, &alert, response);
                }
            }
            Job::Thaw(agent, why) => thaw(inner, &agent, &why),
            Job::Keep(agent, why) => {
                keep(inner, &agent, &why);
            }
        }
    }
}

/// Tells whom it has to, until nobody asks any more.
pub(crate) fn announce(inner: &Arc<Inner>, notices: &Receiver<Notice>) {
    while let Ok(notice) = notices.recv() {
        let settings = &inner.settings.alerts.notify;
        let untold = crate::tell::tell(settings, &notice.alert, |time| inner.pause(time));
        let failed = (!untold.is_empty()).then(|| {
            let all: Vec<String> = untold.iter().map(ToString::to_string).collect();
            all.join("; ")
        });
        if notice.is_response || failed.is_some() {
            record(inner, &notice.alert, Response::Notify, failed);
        }
    }
}

fn respond(inner: &Arc<Inner>, alert: &AlertView, response: Response) {
    let Some(agent) = &alert.agent else { return };
    let why = format!("alert {}: {:?}: {}", alert.id, alert.kind, alert.text);
    let done = match inner.hands() {
        None => Err(CouldNot("nobody lends a hand".to_owned())),
        Some(hands) => match response {
            Response::Notify => return,
            Response::Freeze => hands.freeze(agent, &why),
            Response::Quarantine => {
                let done = hands.quarantine(agent, &why);
                keep(inner, agent, &why);
                done
            }
            Response::Kill | Response::KillSubtree => {
                // It does no more harm while evidence is gathered. One that can't be frozen is killed all the same.
                let _frozen = hands.freeze(agent, &why);
                keep(inner, agent, &why);
                match response {
                    Response::Kill => hands.kill(agent, &why),
                    _ => hands.kill_subtree(agent, &why),
                }
            }
        },
    };
    record(inner, alert, response, done.err().map(|error| error.0));
}

/// A response is an event, and stands in its alert.
pub(crate) fn record(
    inner: &Arc<Inner>,
    alert: &AlertView,
    response: Response,
    failed: Option<String>,
) {
    let text = match &failed {
        None => format!(
            "{} for alert {} ({:?})",
            word(response),
            alert.id,
            alert.kind
        ),
        Some(why) => format!(
            "{} for alert {} ({:?}) failed: {why}",
            word(response),
            alert.id,
            alert.kind
        ),
    };
    let severity = if failed.is_some() {
        Severity::Critical
    } else {
        Severity::Info
    };
    let taken = ResponseTaken {
        response,
        at_ms: inner.clock.now(),
        failed: failed.as_deref().map(Shown::new),
    };
    inner.responded(alert, taken);
    inner.say(
        alert.agent.as_ref(),
        EventKind::Responded,
        severity,
        &text,
        Some(word(response)),
    );
}

fn thaw(inner: &Arc<Inner>, agent: &AgentId, why: &str) {
    if inner.is_frozen_by_rule(agent) {
        return;
    }
    let Some(hands) = inner.hands() else { return };
    let (severity, text) = match hands.thaw(agent, why) {
        Ok(()) => (Severity::Info, format!("it goes on: {why}")),
        Err(error) => (
            Severity::Critical,
            format!("it could not be let go on: {error}"),
        ),
    };
    inner.say(
        Some(agent),
        EventKind::Responded,
        severity,
        &text,
        Some("thaw"),
    );
}

/// Keeps what there is to know about an agent in one file, and says where.
pub(crate) fn keep(inner: &Arc<Inner>, agent: &AgentId, why: &str) -> Option<std::path::PathBuf> {
    if !inner.begin_incident(agent) {
        return None;
    }
    let (severity, text, path) =
        match crate::incident::keep(inner, agent, why, gather(inner, agent)) {
            Ok(path) => (
                Severity::Info,
                format!("incident bundle: {}", path.display()),
                Some(path),
            ),
            Err(error) => (
                Severity::Critical,
                format!("no incident bundle could be made: {error}"),
                None,
            ),
        };
    inner.say(
        Some(agent),
        EventKind::Responded,
        severity,
        &text,
        Some("incident_bundle"),
    );
    path
}

/// What the supervisor can find out about an agent, within a time: a response does not wait for ever.
fn gather(inner: &Arc<Inner>, agent: &AgentId) -> Vec<(String, Vec<u8>)> {
    let Some(hands) = inner.hands() else {
        return vec![(
            "NOTE.txt".into(),
            b"no evidence: nobody lends a hand\n".to_vec(),
        )];
    };
    let (sender, receiver) = mpsc::channel();
    let id = agent.clone();
    std::thread::spawn(move || {
        // Whoever asked may have given up.
        let _late = sender.send(hands.evidence(&id));
    });
    receiver.recv_timeout(EVIDENCE).unwrap_or_else(|_| {
        let note = format!("no evidence: it took longer than {EVIDENCE:?}\n");
        vec![("NOTE.txt".into(), note.into_bytes())]
    })
}
