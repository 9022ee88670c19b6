//! What operators ask, answered from memory and the store.

use belljar_api::{
    AlertList, AlertQuery, AlertState, AlertView, EventList, EventQuery, MetricsQuery,
    MetricsReply, OperatorCall, Problem, Status,
};

use crate::alerts::{Change, NoSuchAlert};
use crate::events;
use crate::history::{Plan, Tier, by_minute, thin};
use crate::inner::Inner;
use crate::store::{Reading, is_damage, locked};

const MOST_ALERTS: u64 = 1_000;
const USUAL_ALERTS: u64 = 200;

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
                let change = locked(&self.engine).acknowledge(&asked.target, by);
                match self.change(change, asked.request.reason.as_str()) {
                    Ok(alert) => asked.responder.reply(&alert),
                    Err((status, problem)) => asked.responder.refuse(status, &problem),
                }
                None
            }
            OperatorCall::ResolveAlert(asked) => {
                let change = locked(&self.engine).resolve(&asked.target, by);
                match self.change(change, asked.request.reason.as_str()) {
                    Ok(alert) => asked.responder.reply(&alert),
                    Err((status, problem)) => asked.responder.refuse(status, &problem),
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

    /// A person's change, with the reason in its event.
    fn change(
        &self,
        change: Result<Change, NoSuchAlert>,
        reason: &str,
    ) -> Result<AlertView, (Status, Problem)> {
        match change {
            Ok(change) => {
                let (Change::Raised(alert) | Change::Acknowledged(alert) | Change::Resolved(alert)) =
                    &change;
                let alert = alert.clone();
                self.apply_one(change, reason);
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
        let is_wanted = |alert: &&AlertView| {
            query
                .agent
                .as_ref()
                .is_none_or(|agent| alert.agent.as_ref() == Some(agent))
                && query.state.is_none_or(|state| alert.state == state)
        };
        let mut alerts: Vec<AlertView> = {
            let engine = locked(&self.engine);
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
