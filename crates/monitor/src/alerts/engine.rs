//! The alerts there are, and how they change.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use belljar_api::{
    AgentId, AgentPhase, AgentView, AlertId, AlertKind, AlertState, AlertView, EventKind,
    EventView, Response, ResponseTaken, Shown, SilenceView, StatusView,
};

use super::beacon::Beacons;
use super::cause;
use super::causes::Told;
use super::lives::AgentRuns;
use super::watch::{Armed, Watch};
use super::{Over, is_about_an_agent, over, silence};
use crate::clock::millis;
use crate::settings::{AlertSettings, Rule};

/// Alerts that are open at most; the oldest give way.
const MOST_OPEN: usize = 10_000;
/// Resolved alerts that memory holds.
const MOST_RECENT: usize = 500;
/// Responses that an alert lists.
const MOST_RESPONSES: usize = 50;
/// A view of the whole may be older than an event by this much, in milliseconds: it does not take back what the event said.
const STALE: u64 = 5_000;
/// An agent of which nothing is heard for this long, in milliseconds, is gone.
const SILENCE: u64 = 120_000;
/// What failed is tried again after this long at the soonest, in milliseconds.
const TRY_AGAIN: u64 = 30_000;
/// Who resolves an alert whose cause is gone.
pub(super) const OURSELVES: &str = "belljar";

/// What became of an alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was raised: its rule answers.
    Raised(AlertView),
    /// It is open, what its rule did is undone or was about another run of the agent, and there is a cause again: its rule
    /// answers again.
    Again(AlertView),
    /// The silence over it has ended and it is still open: now people are told.
    Unsilenced(AlertView),
    /// Somebody acknowledged it.
    Acknowledged(AlertView),
    /// It is over.
    Resolved(AlertView),
}

/// An alert that can't be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSuchAlert {
    /// There is none with that number.
    #[error("there is no alert with that number")]
    Unknown,
    /// It is over.
    #[error("the alert is resolved already")]
    Resolved,
}

/// What an alert is about: an agent by its name, which all its runs share.
pub(super) type Key = (AlertKind, Option<String>);

/// The state machine: told what happens and when, it says what changes.
#[derive(Debug)]
pub struct Engine {
    settings: AlertSettings,
    pub(super) watches: HashMap<Key, Watch>,
    /// Open and acknowledged alerts, by number.
    pub(super) open: BTreeMap<u64, AlertView>,
    pub(super) numbers: HashMap<Key, u64>,
    recent: VecDeque<AlertView>,
    pub(super) runs: AgentRuns,
    pub(super) beacons: Beacons,
    pub(super) silences: Vec<SilenceView>,
    pub(super) last_silence: u64,
    /// Alerts that changed in a way nobody was told of.
    pub(super) touched: BTreeSet<u64>,
    pub(super) last: u64,
    /// What changed before anybody could be told.
    early: Vec<Change>,
}

impl Engine {
    /// Begins with the alerts a former life left open, after the last number it gave.
    #[must_use]
    pub fn new(settings: AlertSettings, left: Vec<AlertView>, last: u64) -> Self {
        let mut engine = Self {
            settings,
            watches: HashMap::new(),
            open: BTreeMap::new(),
            numbers: HashMap::new(),
            recent: VecDeque::new(),
            runs: AgentRuns::default(),
            beacons: Beacons::default(),
            silences: Vec::new(),
            last_silence: 0,
            touched: BTreeSet::new(),
            last,
            early: Vec::new(),
        };
        for alert in left {
            let Ok(number) = alert.id.as_str().parse::<u64>() else {
                continue;
            };
            engine.last = engine.last.max(number);
            let key = key_of(&alert);
            // What was so is taken to be so until somebody says otherwise, or until it would have been told by now.
            let watch = engine.watches.entry(key.clone()).or_default();
            watch.is_so = super::nature(alert.kind) == super::Nature::Level;
            watch.is_left_over = true;
            watch.agent.clone_from(&alert.agent);
            // No look at an agent tells that its calls to models are refused.
            watch.is_by_event = alert.kind == AlertKind::BudgetExceeded;
            engine.open.insert(number, alert);
            // Earlier versions had an alert for each run of an agent.
            if let Some(older) = engine.numbers.insert(key, number) {
                let reason = format!("alert {number} is about the same agent and kind");
                let closed = engine.close(older, OURSELVES, &reason);
                engine.early.extend(closed);
            }
        }
        engine
    }

    /// What people call an agent: alerts are about that, whatever its id.
    pub fn named(&mut self, now: u64, agent: &AgentId, name: &Shown) {
        self.runs.named(now, agent, name);
    }

    /// What one is called that is no run: it has ended, or never started.
    pub fn called(&mut self, agent: &AgentId, name: &Shown) {
        self.runs.called(agent, name);
    }

    /// An agent as it is now.
    pub fn sampled(&mut self, now: u64, agent: &AgentView) -> Vec<Change> {
        let mut changes = Vec::new();
        if agent.phase == AgentPhase::Ended {
            self.gone(now, &agent.id, &mut changes);
            return changes;
        }
        self.runs.sampled(now, agent);
        if self.runs.is_past(&agent.id) {
            return changes;
        }
        let used = cause::of_usage(&self.settings, agent);
        self.level(
            now,
            AlertKind::HighResourceUsage,
            &agent.id,
            used,
            &mut changes,
        );
        let spent = cause::of_budget(agent);
        self.level(
            now,
            AlertKind::BudgetExceeded,
            &agent.id,
            spent,
            &mut changes,
        );
        let frozen = (agent.phase == AgentPhase::Quarantined).then(|| "it is frozen".to_owned());
        self.level(
            now,
            AlertKind::AgentQuarantined,
            &agent.id,
            frozen,
            &mut changes,
        );
        changes
    }

    /// Something happened.
    pub fn happened(&mut self, now: u64, event: &EventView) -> Vec<Change> {
        let mut changes = Vec::new();
        for (kind, bearing) in cause::of_event(event) {
            let agent = match (is_about_an_agent(kind), &event.agent) {
                (true, None) => continue,
                (true, Some(agent)) => Some(agent),
                (false, _) => None,
            };
            let (text, hint) = (event.text.clone(), event.hint.clone());
            let mut told = Told {
                bearing,
                count: 1,
                text,
                hint,
            };
            if let (AlertKind::NetworkAnomaly, Some(agent)) = (kind, agent) {
                let place = cause::place_of(event.text.as_str());
                let code = event.code.as_ref().map_or("", Shown::as_str);
                self.look_for_beacon(now, agent, place, code, &mut told);
            }
            self.cause(now, kind, agent, told, &mut changes);
        }
        match (event.kind, &event.agent) {
            (EventKind::Ended | EventKind::Killed, Some(agent)) => {
                self.gone(now, agent, &mut changes);
            }
            (EventKind::Released, Some(agent)) => self.released(now, agent, event, &mut changes),
            _ => {}
        }
        changes
    }

    /// The supervisor as it is now.
    pub fn status(&mut self, now: u64, status: &StatusView) -> Vec<Change> {
        let mut changes = Vec::new();
        let engaged = status
            .kill_switch
            .engaged
            .as_ref()
            .map(|engaged| format!("engaged: {}", engaged.reason));
        self.fact(
            now,
            (AlertKind::KillSwitchEngaged, None),
            engaged,
            &mut changes,
        );
        let failed = status
            .ledger
            .failed
            .as_ref()
            .map(|why| format!("the log can't be written: {why}"));
        self.fact(now, (AlertKind::LedgerFailure, None), failed, &mut changes);
        changes
    }

    /// Time has passed.
    pub fn tick(&mut self, now: u64) -> Vec<Change> {
        let mut changes = std::mem::take(&mut self.early);
        for (key, watch) in &mut self.watches {
            // Nobody speaks of it any more: the agent went without a word, or with a former life.
            let is_measured = key.0 == AlertKind::HighResourceUsage;
            if watch.is_left_over && watch.last_cause == 0 {
                watch.last_cause = now;
            }
            let run = key.1.as_ref().and_then(|subject| self.runs.run(subject));
            let heard = match is_measured {
                true => 0,
                false => run.map_or(0, |run| run.seen),
            };
            let is_silent = now.saturating_sub(watch.last_cause.max(heard)) > SILENCE;
            if is_silent && key.1.is_some() && (is_measured || watch.is_left_over) {
                watch.is_so = false;
            }
        }
        let keys: Vec<Key> = self.watches.keys().cloned().collect();
        for key in keys {
            self.settle(now, &key, false, &mut changes);
        }
        let numbers = &self.numbers;
        self.watches
            .retain(|key, watch| numbers.contains_key(key) || !watch.is_idle());
        while self.open.len() > MOST_OPEN {
            let oldest = self
                .open
                .iter()
                .min_by_key(|(_, alert)| alert.last_at_ms)
                .map(|(number, _)| *number);
            let closed =
                oldest.and_then(|number| self.close(number, OURSELVES, "there are too many"));
            changes.extend(closed);
        }
        self.look_at_silences(now, &mut changes);
        changes
    }

    /// A rule did something about it, or could not.
    pub fn responded(&mut self, now: u64, id: &AlertId, taken: ResponseTaken) -> Option<AlertView> {
        let number: u64 = id.as_str().parse().ok()?;
        let recent = self.recent.iter_mut().find(|alert| alert.id == *id);
        let alert = self.open.get_mut(&number).or(recent)?;
        if taken.failed.is_some() && taken.response != Response::Notify {
            let watch = self.watches.get_mut(&key_of(alert));
            let from = now.saturating_add(TRY_AGAIN);
            if let Some(watch) = watch {
                watch.armed = Some(Armed { from, tells: false });
            }
        }
        // An agent that is answered again and again has the latest answers in its alert.
        if alert.responses.len() >= MOST_RESPONSES {
            alert.responses.remove(0);
        }
        alert.responses.push(taken);
        Some(alert.clone())
    }

    /// Alerts that changed since the last time somebody asked, without a change that was told.
    pub fn touched(&mut self) -> Vec<AlertView> {
        let numbers = std::mem::take(&mut self.touched);
        numbers
            .iter()
            .filter_map(|number| self.open.get(number).cloned())
            .collect()
    }

    /// Open and acknowledged alerts, the newest first.
    pub fn open(&self) -> impl Iterator<Item = &AlertView> {
        self.open.values().rev()
    }

    /// Alerts that were resolved lately, the newest last.
    pub fn resolved(&self) -> impl Iterator<Item = &AlertView> {
        self.recent.iter()
    }

    /// The rule for a kind.
    #[must_use]
    pub fn rule(&self, kind: AlertKind) -> Rule {
        let rule = self.settings.rules.iter().find(|rule| rule.kind == kind);
        rule.cloned().unwrap_or_else(|| super::rule_of(kind))
    }

    /// Whether some open alert's rule keeps this agent frozen.
    #[must_use]
    pub fn is_frozen(&self, agent: &AgentId) -> bool {
        self.open
            .values()
            .any(|alert| alert.agent.as_ref() == Some(agent) && froze(alert))
    }

    fn level(
        &mut self,
        now: u64,
        kind: AlertKind,
        agent: &AgentId,
        so: Option<String>,
        changes: &mut Vec<Change>,
    ) {
        let key = (kind, Some(self.runs.subject(agent)));
        // By far the most samples are of agents about which there is nothing to say.
        if so.is_some() || self.watches.contains_key(&key) {
            self.moved(now, &key, Some(agent));
            self.fact(now, key, so, changes);
        }
    }

    pub(super) fn fact(
        &mut self,
        now: u64,
        key: Key,
        so: Option<String>,
        changes: &mut Vec<Change>,
    ) {
        let is_measured = key.0 == AlertKind::HighResourceUsage;
        let watch = self.watches.entry(key.clone()).or_default();
        match so {
            Some(text) => {
                let begins = !watch.is_so;
                watch.is_left_over = false;
                (watch.is_so, watch.last_cause) = (true, now);
                if begins || is_measured {
                    watch.text = Some(Shown::new(&text));
                }
                if begins {
                    self.count(&key, now, 1);
                } else if is_measured {
                    self.seen(&key, now);
                }
            }
            None if is_measured => watch.is_so = false,
            None if watch.is_by_event => {}
            None if now.saturating_sub(watch.last_cause) > STALE => watch.is_so = false,
            None => {}
        }
        self.settle(now, &key, false, changes);
    }

    /// An agent that is gone uses nothing and is not frozen.
    fn gone(&mut self, now: u64, agent: &AgentId, changes: &mut Vec<Change>) {
        let subject = self.runs.subject(agent);
        if self.runs.is_past(agent) {
            return;
        }
        self.runs.ended(agent);
        for kind in [
            AlertKind::HighResourceUsage,
            AlertKind::BudgetExceeded,
            AlertKind::AgentQuarantined,
        ] {
            let key = (kind, Some(subject.clone()));
            let rule = self.rule(kind);
            // Whoever was ended for it has spent its budget all the same: that is for a person to see.
            if self
                .watches
                .get(&key)
                .is_some_and(|watch| watch.is_by_event)
            {
                continue;
            }
            if let Some(watch) = self.watches.get_mut(&key) {
                watch.is_so = false;
                watch.look(&rule, now);
            }
            // One that was raised by the end itself stays for a person to see.
            if let Some(number) = self.numbers.get(&key).copied()
                && self
                    .open
                    .get(&number)
                    .is_some_and(|alert| alert.opened_at_ms < now)
            {
                changes.extend(self.close(number, OURSELVES, "the agent has ended"));
            }
        }
    }

    /// More causes of an alert that is open.
    pub(super) fn count(&mut self, key: &Key, now: u64, count: u64) {
        if let Some(number) = self.seen(key, now)
            && let Some(alert) = self.open.get_mut(&number)
        {
            alert.count = alert.count.saturating_add(count);
        }
    }

    fn seen(&mut self, key: &Key, now: u64) -> Option<u64> {
        let number = *self.numbers.get(key)?;
        self.open.get_mut(&number)?.last_at_ms = now;
        self.touched.insert(number);
        Some(number)
    }

    /// Raises or resolves, as the condition and the time say.
    pub(super) fn settle(
        &mut self,
        now: u64,
        key: &Key,
        suffices: bool,
        changes: &mut Vec<Change>,
    ) {
        let rule = self.rule(key.0);
        let Some(watch) = self.watches.get_mut(key) else {
            return;
        };
        let holds = watch.look(&rule, now);
        let (gone_for, more_quiet) = (watch.gone_for(now), watch.quiet);
        let has_cause = suffices || (holds && watch.has_lasted(&rule, now));
        let Some(number) = self.numbers.get(key).copied() else {
            if rule.enabled && has_cause {
                changes.push(self.raise(now, key, &rule));
            }
            return;
        };
        if has_cause
            && rule.enabled
            && let Some(armed) = watch.take_armed(now)
        {
            // A further run that only crashes as the one before is no news; one that has to be stopped is.
            let acts = rule
                .respond
                .iter()
                .any(|response| *response != Response::Notify);
            let again = self.open.get(&number).filter(|_| acts || armed.tells);
            changes.extend(again.cloned().map(Change::Again));
        }
        let over = match over(&rule) {
            Over::ByAPerson => None,
            Over::AtOnce => (!holds).then(|| super::over_text(key.0).to_owned()),
            Over::After(quiet) => {
                let quiet = millis(quiet).max(1).max(more_quiet);
                let is_frozen = self.open.get(&number).is_some_and(froze);
                let stays = holds || suffices || is_frozen || gone_for < quiet;
                (!stays).then(|| format!("no cause for {} s", quiet / 1000))
            }
            Over::Recovered(quiet) => self.recovered(now, key, millis(quiet)),
        };
        if let Some(reason) = over {
            changes.extend(self.close(number, OURSELVES, &reason));
        }
    }

    /// Whether the agent runs again and has not crashed since, for so long.
    fn recovered(&self, now: u64, key: &Key, quiet: u64) -> Option<String> {
        let since = self.runs.run(key.1.as_deref()?)?.running_since?;
        let last = self.watches.get(key).map_or(0, |watch| watch.last_cause);
        let is_well = since >= last && now.saturating_sub(since) >= quiet;
        is_well.then(|| format!("it has run again for {} s without a crash", quiet / 1000))
    }

    fn raise(&mut self, now: u64, key: &Key, rule: &Rule) -> Change {
        self.last += 1;
        let watch = self.watches.get(key);
        let agent = watch.and_then(|watch| watch.agent.clone());
        let mut alert = AlertView {
            id: silence::id(self.last),
            kind: key.0,
            severity: rule.severity,
            agent_name: agent
                .as_ref()
                .and_then(|agent| self.runs.name(agent).cloned()),
            agent,
            text: watch
                .and_then(|watch| watch.text.clone())
                .unwrap_or_else(|| Shown::new("")),
            hint: watch
                .and_then(|watch| watch.hint.clone())
                .or_else(|| Some(Shown::new(super::reference::advice(key.0)))),
            state: AlertState::Open,
            opened_at_ms: now,
            last_at_ms: now,
            count: watch.map_or(1, Watch::hits),
            by: None,
            reason: None,
            silenced: false,
            responses: Vec::new(),
        };
        alert.silenced = self.is_silenced(now, &alert);
        if let Some(watch) = self.watches.get_mut(key) {
            watch.armed = None;
        }
        self.numbers.insert(key.clone(), self.last);
        self.open.insert(self.last, alert.clone());
        Change::Raised(alert)
    }

    pub(super) fn close(&mut self, number: u64, by: &str, reason: &str) -> Option<Change> {
        let mut alert = self.open.remove(&number)?;
        self.touched.remove(&number);
        let key = key_of(&alert);
        if self.numbers.get(&key) == Some(&number) {
            self.numbers.remove(&key);
            let rule = self.rule(alert.kind);
            if let Some(watch) = self.watches.get_mut(&key) {
                watch.settled(&rule);
            }
            if let (AlertKind::NetworkAnomaly, Some(subject)) = &key {
                self.beacons.forget(subject);
            }
        }
        alert.state = AlertState::Resolved;
        alert.by = Some(Shown::new(by));
        alert.reason = (!reason.is_empty()).then(|| Shown::new(reason));
        self.recent.push_back(alert.clone());
        if self.recent.len() > MOST_RECENT {
            self.recent.pop_front();
        }
        Some(Change::Resolved(alert))
    }
}

fn key_of(alert: &AlertView) -> Key {
    let name = alert.agent_name.as_ref().map(Shown::as_str);
    let subject = name.or(alert.agent.as_ref().map(AgentId::as_str));
    (alert.kind, subject.map(str::to_owned))
}

/// Whether its rule froze the agent.
pub(crate) fn froze(alert: &AlertView) -> bool {
    has_done(alert, &[Response::Freeze])
}

/// Whether its rule holds the agent still.
pub(super) fn is_contained(alert: &AlertView) -> bool {
    has_done(alert, &[Response::Freeze, Response::Quarantine])
}

fn has_done(alert: &AlertView, responses: &[Response]) -> bool {
    let done =
        |taken: &ResponseTaken| responses.contains(&taken.response) && taken.failed.is_none();
    alert.responses.iter().any(done)
}
