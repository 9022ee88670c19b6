//! The alerts there are, and how they change.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use belljar_api::{
    AgentId, AgentPhase, AgentView, AlertId, AlertKind, AlertState, AlertView, EventKind,
    EventView, Response, ResponseTaken, Shown, StatusView,
};

use super::cause::{self, Bearing};
use super::watch::Watch;
use super::{Over, is_about_an_agent, over};
use crate::clock::millis;
use crate::settings::{AlertSettings, Rule};

/// Alerts that are open at most; the oldest give way.
const MOST_OPEN: usize = 10_000;
/// Resolved alerts that memory holds.
const MOST_RECENT: usize = 500;
/// A view of the whole may be older than an event by this much, in milliseconds: it does not take back what the event said.
const STALE: u64 = 5_000;
/// An agent of which nothing is heard for this long, in milliseconds, is gone.
const SILENCE: u64 = 120_000;
/// Names that are remembered at most.
const MOST_NAMES: usize = 20_000;
/// Who resolves an alert whose cause is gone.
const OURSELVES: &str = "belljar";

/// What became of an alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was raised: its rule answers.
    Raised(AlertView),
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

type Key = (AlertKind, Option<AgentId>);

/// The state machine: told what happens and when, it says what changes.
#[derive(Debug)]
pub struct Engine {
    settings: AlertSettings,
    watches: HashMap<Key, Watch>,
    /// Open and acknowledged alerts, by number.
    open: BTreeMap<u64, AlertView>,
    numbers: HashMap<Key, u64>,
    recent: VecDeque<AlertView>,
    names: HashMap<AgentId, Shown>,
    /// Alerts that changed in a way nobody was told of.
    touched: BTreeSet<u64>,
    last: u64,
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
            names: HashMap::new(),
            touched: BTreeSet::new(),
            last,
        };
        for alert in left {
            let Ok(number) = alert.id.as_str().parse::<u64>() else {
                continue;
            };
            engine.last = engine.last.max(number);
            engine
                .numbers
                .insert((alert.kind, alert.agent.clone()), number);
            // What was so is taken to be so until somebody says otherwise, or until it would have been told by now.
            let watch = engine
                .watches
                .entry((alert.kind, alert.agent.clone()))
                .or_default();
            watch.is_so = super::nature(alert.kind) == super::Nature::Level;
            watch.is_left_over = true;
            engine.open.insert(number, alert);
        }
        engine
    }

    /// An agent as it is now.
    pub fn sampled(&mut self, now: u64, agent: &AgentView) -> Vec<Change> {
        let mut changes = Vec::new();
        if agent.phase == AgentPhase::Ended {
            self.gone(now, &agent.id, &mut changes);
            return changes;
        }
        if self.names.get(&agent.id) != Some(&agent.name) {
            if self.names.len() >= MOST_NAMES {
                self.names.clear();
            }
            self.names.insert(agent.id.clone(), agent.name.clone());
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
                (true, Some(agent)) => Some(agent.clone()),
                (false, _) => None,
            };
            let key = (kind, agent);
            let rule = self.rule(kind);
            let watch = self.watches.entry(key.clone()).or_default();
            let was_so = watch.is_so;
            watch.is_left_over = false;
            watch.is_by_event = bearing == Bearing::Begins && kind == AlertKind::BudgetExceeded;
            match bearing {
                Bearing::Counts | Bearing::Suffices => watch.hit(&rule, now),
                Bearing::Begins => (watch.is_so, watch.last_cause) = (true, now),
                Bearing::Ends => (watch.is_so, watch.last_cause) = (false, 0),
            }
            if bearing != Bearing::Ends {
                watch.text = Some(event.text.clone());
                watch.hint = event.hint.clone();
                if !(bearing == Bearing::Begins && was_so) {
                    self.count(&key, now);
                }
            }
            self.settle(now, &key, bearing == Bearing::Suffices, &mut changes);
        }
        if matches!(event.kind, EventKind::Ended | EventKind::Killed)
            && let Some(agent) = &event.agent
        {
            self.gone(now, agent, &mut changes);
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
        let mut changes = Vec::new();
        for (key, watch) in &mut self.watches {
            // Nobody speaks of it any more: the agent went without a word, or with a former life.
            let is_measured = key.0 == AlertKind::HighResourceUsage;
            if watch.is_left_over && watch.last_cause == 0 {
                watch.last_cause = now;
            }
            let is_silent = now.saturating_sub(watch.last_cause) > SILENCE;
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
            changes.extend(oldest.and_then(|number| self.close(number, OURSELVES)));
        }
        changes
    }

    /// Somebody has seen it.
    pub fn acknowledge(&mut self, id: &AlertId, by: &str) -> Result<Change, NoSuchAlert> {
        let number = self.number(id)?;
        let alert = self.open.get_mut(&number).ok_or(NoSuchAlert::Unknown)?;
        alert.state = AlertState::Acknowledged;
        alert.by = Some(Shown::new(by));
        Ok(Change::Acknowledged(alert.clone()))
    }

    /// Somebody has dealt with it.
    pub fn resolve(&mut self, id: &AlertId, by: &str) -> Result<Change, NoSuchAlert> {
        let number = self.number(id)?;
        self.close(number, by).ok_or(NoSuchAlert::Unknown)
    }

    /// A rule did something about it.
    pub fn responded(&mut self, id: &AlertId, taken: ResponseTaken) -> Option<AlertView> {
        let number: u64 = id.as_str().parse().ok()?;
        let recent = self.recent.iter_mut().find(|alert| alert.id == *id);
        let alert = self.open.get_mut(&number).or(recent)?;
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

    fn number(&self, id: &AlertId) -> Result<u64, NoSuchAlert> {
        let number: u64 = id.as_str().parse().map_err(|_| NoSuchAlert::Unknown)?;
        match self.open.contains_key(&number) {
            true => Ok(number),
            false if number <= self.last && number > 0 => Err(NoSuchAlert::Resolved),
            false => Err(NoSuchAlert::Unknown),
        }
    }

    fn level(
        &mut self,
        now: u64,
        kind: AlertKind,
        agent: &AgentId,
        so: Option<String>,
        changes: &mut Vec<Change>,
    ) {
        let key = (kind, Some(agent.clone()));
        // By far the most samples are of agents about which there is nothing to say.
        if so.is_some() || self.watches.contains_key(&key) {
            self.fact(now, key, so, changes);
        }
    }

    fn fact(&mut self, now: u64, key: Key, so: Option<String>, changes: &mut Vec<Change>) {
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
                    self.count(&key, now);
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
        for kind in [
            AlertKind::HighResourceUsage,
            AlertKind::BudgetExceeded,
            AlertKind::AgentQuarantined,
        ] {
            let key = (kind, Some(agent.clone()));
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
                changes.extend(self.close(number, OURSELVES));
            }
        }
        self.names.remove(agent);
    }

    /// One more cause of an alert that is open.
    fn count(&mut self, key: &Key, now: u64) {
        if let Some(number) = self.seen(key, now)
            && let Some(alert) = self.open.get_mut(&number)
        {
            alert.count += 1;
        }
    }

    fn seen(&mut self, key: &Key, now: u64) -> Option<u64> {
        let number = *self.numbers.get(key)?;
        self.open.get_mut(&number)?.last_at_ms = now;
        self.touched.insert(number);
        Some(number)
    }

    /// Raises or resolves, as the condition and the time say.
    fn settle(&mut self, now: u64, key: &Key, suffices: bool, changes: &mut Vec<Change>) {
        let rule = self.rule(key.0);
        let Some(watch) = self.watches.get_mut(key) else {
            return;
        };
        let holds = watch.look(&rule, now);
        if let Some(number) = self.numbers.get(key).copied() {
            let stays = match over(&rule) {
                Over::ByAPerson => true,
                Over::AtOnce => holds,
                Over::After(quiet) => {
                    let is_frozen = self.open.get(&number).is_some_and(froze);
                    holds || suffices || is_frozen || watch.gone_for(now) < millis(quiet).max(1)
                }
            };
            if !stays {
                changes.extend(self.close(number, OURSELVES));
            }
        } else if rule.enabled && (suffices || (holds && watch.has_lasted(&rule, now))) {
            changes.push(self.raise(now, key, &rule));
        }
    }

    fn raise(&mut self, now: u64, key: &Key, rule: &Rule) -> Change {
        self.last += 1;
        let watch = self.watches.get(key);
        let (kind, agent) = key.clone();
        let alert = AlertView {
            // A number is letters enough for an id.
            id: AlertId::new(self.last.to_string())
                .unwrap_or_else(|_| unreachable!("a number is an id")),
            kind,
            severity: rule.severity,
            agent_name: agent
                .as_ref()
                .and_then(|agent| self.names.get(agent).cloned()),
            agent,
            text: watch
                .and_then(|watch| watch.text.clone())
                .unwrap_or_else(|| Shown::new("")),
            hint: watch
                .and_then(|watch| watch.hint.clone())
                .or_else(|| Some(Shown::new(super::reference::advice(kind)))),
            state: AlertState::Open,
            opened_at_ms: now,
            last_at_ms: now,
            count: watch.map_or(1, Watch::hits),
            by: None,
            responses: Vec::new(),
        };
        self.numbers.insert(key.clone(), self.last);
        self.open.insert(self.last, alert.clone());
        Change::Raised(alert)
    }

    fn close(&mut self, number: u64, by: &str) -> Option<Change> {
        let mut alert = self.open.remove(&number)?;
        self.touched.remove(&number);
        let key = (alert.kind, alert.agent.clone());
        self.numbers.remove(&key);
        let rule = self.rule(alert.kind);
        if let Some(watch) = self.watches.get_mut(&key) {
            watch.settled(&rule);
        }
        alert.state = AlertState::Resolved;
        alert.by = Some(Shown::new(by));
        self.recent.push_back(alert.clone());
        if self.recent.len() > MOST_RECENT {
            self.recent.pop_front();
        }
        Some(Change::Resolved(alert))
    }
}

/// Whether its rule froze the agent.
pub(crate) fn froze(alert: &AlertView) -> bool {
    let freezes =
        |taken: &ResponseTaken| taken.response == Response::Freeze && taken.failed.is_none();
    alert.responses.iter().any(freezes)
}
