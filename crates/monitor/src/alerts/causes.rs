//! Causes as they come: from events, from refusals that are told again, from calls that wait.

use std::collections::BTreeMap;

use belljar_api::{AgentId, AlertId, AlertKind, AlertView, EventView, HoldView, Shown};

use super::cause::{self, Bearing};
use super::engine::{Change, Engine, Key, OURSELVES, is_contained};
use super::watch::Armed;

/// A cause in the making.
pub(super) struct Told {
    pub(super) bearing: Bearing,
    pub(super) count: u64,
    pub(super) text: Shown,
    pub(super) hint: Option<Shown>,
}

impl Engine {
    /// An agent was refused again what it was refused before.
    pub fn refused_again(
        &mut self,
        now: u64,
        agent: &AgentId,
        (what, code): (&Shown, &Shown),
        count: u64,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        let (kind, bearing) = cause::of_refusal(what.as_str(), code.as_str());
        let name = self.runs.subject(agent);
        let text = Shown::new(&format!("{name} was refused {what}, and again"));
        let mut told = Told {
            bearing,
            count,
            text,
            hint: None,
        };
        if kind == AlertKind::NetworkAnomaly {
            self.look_for_beacon(now, agent, what.as_str(), code.as_str(), &mut told);
        }
        self.cause(now, kind, Some(agent), told, &mut changes);
        changes
    }

    pub(super) fn look_for_beacon(
        &mut self,
        now: u64,
        agent: &AgentId,
        place: &str,
        code: &str,
        told: &mut Told,
    ) {
        // A host that may be reached and can't be is no beacon.
        if !cause::is_of_policy(code) {
            return;
        }
        let subject = self.runs.subject(agent);
        if let Some(beacon) = self.beacons.refused(now, &subject, place, told.count) {
            told.bearing = Bearing::Suffices;
            told.text = Shown::new(&format!("{subject} {}", beacon.text));
            let key = (AlertKind::NetworkAnomaly, Some(subject));
            self.watches.entry(key).or_default().quiet = beacon.quiet;
        }
    }

    pub(super) fn cause(
        &mut self,
        now: u64,
        kind: AlertKind,
        agent: Option<&AgentId>,
        told: Told,
        changes: &mut Vec<Change>,
    ) {
        let key = (kind, agent.map(|agent| self.runs.subject(agent)));
        let rule = self.rule(kind);
        self.moved(now, &key, agent);
        let watch = self.watches.entry(key.clone()).or_default();
        let was_so = watch.is_so;
        let bearing = told.bearing;
        watch.is_left_over = false;
        watch.is_by_event = bearing == Bearing::Begins && kind == AlertKind::BudgetExceeded;
        match bearing {
            Bearing::Counts | Bearing::Suffices => watch.hit(&rule, now),
            Bearing::Begins => (watch.is_so, watch.last_cause) = (true, now),
            Bearing::Ends => (watch.is_so, watch.last_cause) = (false, 0),
        }
        if bearing != Bearing::Ends {
            watch.text = Some(told.text);
            watch.hint = told.hint;
            if !(bearing == Bearing::Begins && was_so) {
                self.count(&key, now, told.count);
            }
        }
        self.settle(now, &key, bearing == Bearing::Suffices, changes);
    }

    /// A cause that is about another run than the one before: what the rule did to that one did nothing to this.
    pub(super) fn moved(&mut self, now: u64, key: &Key, agent: Option<&AgentId>) {
        let watch = self.watches.entry(key.clone()).or_default();
        if agent.is_none() || watch.agent.as_ref() == agent {
            return;
        }
        let is_other = watch.agent.is_some();
        watch.agent = agent.cloned();
        let Some(number) = self.numbers.get(key).filter(|_| is_other) else {
            return;
        };
        watch.rearm(Armed {
            from: now,
            tells: false,
        });
        if let Some(alert) = self.open.get_mut(number) {
            alert.agent = agent.cloned();
            self.touched.insert(*number);
        }
    }

    /// Somebody let an agent go on: what its rule did is over, and the next cause is one to answer.
    pub(super) fn released(
        &mut self,
        now: u64,
        agent: &AgentId,
        event: &EventView,
        changes: &mut Vec<Change>,
    ) {
        let subject = Some(self.runs.subject(agent));
        let about = |alert: &&AlertView| alert.agent.as_ref() == Some(agent) && is_contained(alert);
        let over: Vec<AlertId> = self
            .open
            .values()
            .filter(about)
            .map(|alert| alert.id.clone())
            .collect();
        for id in over {
            let Ok(number) = id.as_str().parse() else {
                continue;
            };
            let reason = format!("the agent was released: {}", event.text);
            changes.extend(self.close(number, OURSELVES, &reason));
        }
        for (key, watch) in &mut self.watches {
            if key.1 == subject && super::nature(key.0) == super::Nature::Counted {
                watch.rearm(Armed {
                    from: now,
                    tells: true,
                });
            }
        }
    }

    /// Calls of tools that wait for an answer, all there are.
    pub fn holds(&mut self, now: u64, holds: &[HoldView]) -> Vec<Change> {
        let mut waiting: BTreeMap<Option<String>, String> = BTreeMap::new();
        for hold in holds {
            let agent = AgentId::new(hold.run.as_str()).ok();
            let agent = agent.filter(|agent| self.runs.name(agent).is_some());
            let subject = agent.as_ref().map(|agent| self.runs.subject(agent));
            let key = (AlertKind::ApprovalWaiting, subject.clone());
            self.watches.entry(key).or_default().agent = agent;
            waiting.entry(subject).or_insert_with(|| {
                format!(
                    "a call of {}:{} waits for an answer (hold {})",
                    hold.server, hold.tool, hold.id
                )
            });
        }
        let known = self
            .watches
            .keys()
            .filter(|key| key.0 == AlertKind::ApprovalWaiting);
        let known: Vec<Key> = known.cloned().collect();
        let mut changes = Vec::new();
        for key in known {
            let so = waiting.remove(&key.1);
            self.fact(now, key, so, &mut changes);
        }
        changes
    }

    /// Whether there is room for what is kept, and it can be written; why not, where not.
    pub fn storage(&mut self, now: u64, failing: Option<String>) -> Vec<Change> {
        let mut changes = Vec::new();
        let key = (AlertKind::StorageFailure, None);
        if failing.is_some() || self.watches.contains_key(&key) {
            self.fact(now, key, failing, &mut changes);
        }
        changes
    }
}
