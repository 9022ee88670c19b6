//! What operators ask, answered from memory and the store.

use belljar_api::{
    AlertList, AlertQuery, AlertState, AlertView, AlertsResolved, EventKind, EventList, EventQuery,
    MetricsQuery, MetricsReply, Name, OperatorCall, Problem, ResolveAlertsRequest, Severity,
    SilenceList, SilenceRequest, SilenceView, Status,
};

use crate::alerts::{Change, NoSuchAlert};
use crate::events;
use crate::history::{Plan, Tier, by_minute, thin};
use crate::inner::Inner;
use crate::store::{Reading, is_damage, locked};

const MOST_ALERTS: u64 = 1_000;
const USUAL_ALERTS: u64 = 200;
/// How long a silence may last, in milliseconds.
const SILENCES: std::ops::RangeInclusive<u64> = 1_000..=2_592_000_000;

impl Inner {
    /// Answers what changes memory alone at once, hands on what reads a file, gives back what is not ours.
    pub(crate) fn answer(&self, by: &str, call: OperatorCall) -> Option<OperatorCall> {
        match call {
            OperatorCall::ReadMetrics(_)
            | OperatorCall::ListEvents(_)
            | OperatorCall::ListAlerts(_) => {
                if let Some(call) = self.ask(by, call) {
                    let problem = Problem::new("busy", "too many questions wait already")
                        .retry_after_ms(1_000);
                    call.refuse(Status::UNAVAILABLE, &problem);
                }
                None
            }
            OperatorCall::AcknowledgeAlert(asked) => {
                let reason = asked.request.reason.as_str();
                let change = locked(&self.engine).acknowledge(&asked.target, by, reason);
                match self.change(change) {
                    Ok(alert) => asked.responder.reply(&alert),
                    Err((status, problem)) => asked.responder.refuse(status, &problem),
                }
                None
            }
            OperatorCall::ResolveAlert(asked) => {
                let reason = asked.request.reason.as_str();
                let change = locked(&self.engine).resolve(&asked.target, by, reason);
                match self.change(change) {
                    Ok(alert) => asked.responder.reply(&alert),
                    Err((status, problem)) => asked.responder.refuse(status, &problem),
                }
                None
            }
            OperatorCall::ResolveAlerts(asked) => {
                match self.resolve_all(by, &asked.request) {
                    Ok(resolved) => asked.responder.reply(&resolved),
                    Err(problem) => asked.responder.refuse(Status::BAD_REQUEST, &problem),
                }
                None
            }
            OperatorCall::ListSilences(asked) => {
                let now = self.clock.now();
                let silences = locked(&self.engine).silences(now).cloned().collect();
                asked.responder.reply(&SilenceList { silences });
                None
            }
            OperatorCall::CreateSilence(asked) => {
                match self.silence(by, &asked.request) {
                    Ok(silence) => asked.responder.reply(&silence),
                    Err((status, problem)) => asked.responder.refuse(status, &problem),
                }
                None
            }
            OperatorCall::EndSilence(asked) => {
                let ended = locked(&self.engine).end_silence(self.clock.now(), &asked.target);
                match ended {
                    Some((silence, changes)) => {
                        self.silence_changed(&silence, &format!("ended by {by}"));
                        self.apply(changes);
                        asked.responder.reply(&silence);
                    }
                    None => {
                        let problem =
                            Problem::new("not_found", "no silence with that number holds")
                                .hint("`belljar monitor silences` lists them");
                        asked.responder.refuse(Status::NOT_FOUND, &problem);
                    }
                }
                None
            }
            other => Some(other),
        }
    }

    /// Answers, however long it takes.
    pub(crate) fn answer_now(&self, by: &str, call: OperatorCall) {
        match call {
            OperatorCall::ReadMetrics(asked) => {
                asked.responder.reply(&self.metrics(&asked.request))
            }
            OperatorCall::ListEvents(asked) => asked.responder.reply(&self.events(&asked.request)),
            OperatorCall::ListAlerts(asked) => asked.responder.reply(&self.alerts(&asked.request)),
            other => drop(self.answer(by, other)),
        }
    }

    fn resolve_all(
        &self,
        by: &str,
        asked: &ResolveAlertsRequest,
    ) -> Result<AlertsResolved, Problem> {
        let agent = asked.agent.as_ref().map(Name::as_str);
        if agent.is_none() && asked.kind.is_none() && !asked.all {
            return Err(
                Problem::new("bad_request", "nothing says which alerts are meant")
                    .hint("say `agent`, `kind` or both, or `\"all\": true`"),
            );
        }
        let reason = asked.reason.as_str();
        let changes = locked(&self.engine).resolve_all(agent, asked.kind, by, reason);
        let id = |change: &Change| match change {
            Change::Resolved(alert) => Some(alert.id.clone()),
            _ => None,
        };
        let resolved = changes.iter().filter_map(id).collect();
        self.apply(changes);
        Ok(AlertsResolved { resolved })
    }

    fn silence(&self, by: &str, asked: &SilenceRequest) -> Result<SilenceView, (Status, Problem)> {
        if !SILENCES.contains(&asked.for_ms) {
            let problem = Problem::new("bad_request", "a silence lasts from a second to 30 days");
            return Err((
                Status::BAD_REQUEST,
                problem.hint("`for_ms` is in milliseconds"),
            ));
        }
        let made = locked(&self.engine).silence(self.clock.now(), by, asked);
        let silence = made.ok_or_else(|| {
            let problem = Problem::new("too_many", "too many silences hold already");
            (
                Status::CONFLICT,
                problem.hint("end some: `belljar monitor silences` lists them"),
            )
        })?;
        self.silence_changed(&silence, &format!("set by {by}"));
        Ok(silence)
    }

    fn silence_changed(&self, silence: &SilenceView, how: &str) {
        locked(&self.changed_silences).push(silence.clone());
        let who = silence.agent.as_ref().map_or("everybody", Name::as_str);
        let what = silence
            .kind
            .map_or("any alert".to_owned(), |kind| format!("{kind:?}"));
        let text = format!(
            "silence {} ({what} about {who}) {how}: {}",
            silence.id, silence.reason
        );
        self.say(
            None,
            EventKind::Alert,
            Severity::Info,
            &text,
            Some("silence"),
        );
    }

    /// A person's change, with the reason in its event.
    fn change(&self, change: Result<Change, NoSuchAlert>) -> Result<AlertView, (Status, Problem)> {
        match change {
            Ok(change) => {
                let (Change::Raised(alert)
                | Change::Again(alert)
                | Change::Unsilenced(alert)
                | Change::Acknowledged(alert)
                | Change::Resolved(alert)) = &change;
                let alert = alert.clone();
                self.apply_one(change);
                Ok(alert)
            }
            Err(error @ NoSuchAlert::Unknown) => {
                let problem = Problem::new("not_found", error.to_string())
                    .hint("`belljar monitor alerts --all` lists them");
                Err((Status::NOT_FOUND, problem))
            }
            Err(error @ NoSuchAlert::Resolved) => Err((
                Status::CONFLICT,
                Problem::new("resolved", error.to_string()),
            )),
        }
    }

    pub(crate) fn metrics(&self, query: &MetricsQuery) -> MetricsReply {
        let kept = self.settings.monitor.seconds_kept.as_secs();
        let plan = Plan::of(query, self.clock.now(), kept);
        let agent = query.agent.as_ref();
        let ring = locked(&self.ring);
        let before = ring.stored_until();
        let recent = ring.points(agent, plan.from, plan.until);
        drop(ring);
        let mut points = self
            .read(|reading| reading.points(&plan, agent, before))
            .unwrap_or_default();
        match plan.tier {
            Tier::Seconds => points.extend(recent),
            Tier::Minutes => points.extend(by_minute(&recent)),
        }
        thin(&plan, &points)
    }

    pub(crate) fn events(&self, query: &EventQuery) -> EventList {
        let limit = events::limit(query);
        let (mut events, below) = locked(&self.log).find(query, limit);
        if events.len() < limit {
            let older = self.read(|reading| reading.events(query, below, limit - events.len()));
            events.extend(older.unwrap_or_default());
        }
        EventList { events }
    }

    pub(crate) fn alerts(&self, query: &AlertQuery) -> AlertList {
        let limit = query.limit.unwrap_or(USUAL_ALERTS).min(MOST_ALERTS) as usize;
        let mut alerts: Vec<AlertView> = {
            let engine = locked(&self.engine);
            let is_about = |alert: &AlertView| {
                let agent = query.agent.as_ref();
                agent.is_none_or(|agent| engine.is_about(alert, agent))
            };
            let is_wanted = |alert: &&AlertView| {
                is_about(alert) && query.state.is_none_or(|state| alert.state == state)
            };
            match query.state {
                Some(AlertState::Resolved) => {
                    engine.resolved().filter(is_wanted).cloned().collect()
                }
                _ => engine.open().filter(is_wanted).cloned().collect(),
            }
        };
        if query.state == Some(AlertState::Resolved) {
            let stored = self
                .read(|reading| reading.resolved(query, limit))
                .unwrap_or_default();
            let known: std::collections::HashSet<_> =
                alerts.iter().map(|alert| alert.id.clone()).collect();
            alerts.extend(
                stored
                    .into_iter()
                    .filter(|alert| !known.contains(&alert.id)),
            );
        }
        let number = |alert: &AlertView| alert.id.as_str().parse::<u64>().unwrap_or(0);
        alerts.sort_by_key(|alert| std::cmp::Reverse(number(alert)));
        alerts.truncate(limit);
        AlertList { alerts }
    }

    /// Asks the store, if it answers. Damage is the writer's to deal with.
    fn read<T>(&self, ask: impl FnOnce(&Reading) -> Result<T, rusqlite::Error>) -> Option<T> {
        let generation = locked(&self.health).generation;
        let mut reading = locked(&self.reading);
        if reading
            .as_ref()
            .is_none_or(|(known, _)| *known != generation)
        {
            *reading = Reading::open(&self.directory)
                .ok()
                .map(|opened| (generation, opened));
        }
        let answer = ask(&reading.as_ref()?.1);
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                // It is opened anew next time, whatever it was.
                *reading = None;
                drop(reading);
                if is_damage(&error) {
                    locked(&self.health).is_damaged = true;
                    self.ring_bell();
                }
                None
            }
        }
    }
}
