//! What people say about alerts: seen, dealt with, not now.

use belljar_api::{
    AgentId, AlertId, AlertKind, AlertState, AlertView, Shown, SilenceId, SilenceRequest,
    SilenceView,
};

use super::engine::{Change, Engine, NoSuchAlert};
use super::silence::{self, MOST_SILENCES, concerns, holds_for};

impl Engine {
    /// Somebody has seen it.
    pub fn acknowledge(
        &mut self,
        id: &AlertId,
        by: &str,
        reason: &str,
    ) -> Result<Change, NoSuchAlert> {
        let number = self.number(id)?;
        let alert = self.open.get_mut(&number).ok_or(NoSuchAlert::Unknown)?;
        alert.state = AlertState::Acknowledged;
        alert.by = Some(Shown::new(by));
        alert.reason = (!reason.is_empty()).then(|| Shown::new(reason));
        Ok(Change::Acknowledged(alert.clone()))
    }

    /// Somebody has dealt with it.
    pub fn resolve(&mut self, id: &AlertId, by: &str, reason: &str) -> Result<Change, NoSuchAlert> {
        let number = self.number(id)?;
        self.close(number, by, reason).ok_or(NoSuchAlert::Unknown)
    }

    /// Somebody has dealt with all of that kind and about such agents.
    pub fn resolve_all(
        &mut self,
        agent: Option<&str>,
        kind: Option<AlertKind>,
        by: &str,
        reason: &str,
    ) -> Vec<Change> {
        let fitting = self
            .open
            .iter()
            .filter(|(_, alert)| concerns(agent, kind, alert));
        let numbers: Vec<u64> = fitting.map(|(number, _)| *number).collect();
        numbers
            .into_iter()
            .filter_map(|number| self.close(number, by, reason))
            .collect()
    }

    /// Nobody is to be told of such alerts for a while.
    pub fn silence(&mut self, now: u64, by: &str, asked: &SilenceRequest) -> Option<SilenceView> {
        self.silences.retain(|silence| silence.until_ms > now);
        if self.silences.len() >= MOST_SILENCES {
            return None;
        }
        self.last_silence += 1;
        let silence = SilenceView {
            id: silence::id(self.last_silence),
            agent: asked.agent.clone(),
            kind: asked.kind,
            reason: Shown::new(asked.reason.as_str()),
            by: Shown::new(by),
            since_ms: now,
            until_ms: now.saturating_add(asked.for_ms),
        };
        self.silences.push(silence.clone());
        self.look_at_silences(now, &mut Vec::new());
        Some(silence)
    }

    /// They are to be told again.
    pub fn end_silence(&mut self, now: u64, id: &SilenceId) -> Option<(SilenceView, Vec<Change>)> {
        let holds = |silence: &&mut SilenceView| silence.id == *id && silence.until_ms > now;
        let silence = self.silences.iter_mut().find(holds)?;
        silence.until_ms = now;
        let ended = silence.clone();
        let mut changes = Vec::new();
        self.look_at_silences(now, &mut changes);
        Some((ended, changes))
    }

    /// Goes on with the silences of a former life.
    pub fn with_silences(mut self, silences: Vec<SilenceView>) -> Self {
        let number = |silence: &SilenceView| silence.id.as_str().parse::<u64>().unwrap_or(0);
        self.last_silence = silences.iter().map(number).max().unwrap_or(0);
        self.silences = silences;
        self
    }

    /// Silences that hold, the newest first.
    pub fn silences(&self, now: u64) -> impl Iterator<Item = &SilenceView> {
        self.silences
            .iter()
            .rev()
            .filter(move |silence| silence.until_ms > now)
    }

    /// Whether an alert is about the agent with this id, or an earlier run of it.
    pub fn is_about(&self, alert: &AlertView, agent: &AgentId) -> bool {
        alert.agent.as_ref() == Some(agent)
            || (alert.agent_name.is_some() && alert.agent_name.as_ref() == self.runs.name(agent))
    }

    /// The run of an alert's agent that lives, or lived last.
    pub fn latest_run<'a>(&'a self, alert: &'a AlertView) -> Option<&'a AgentId> {
        let name = alert.agent_name.as_ref().map(Shown::as_str);
        let run = name.and_then(|name| self.runs.run(name));
        run.map(|run| &run.id).or(alert.agent.as_ref())
    }

    pub(super) fn is_silenced(&self, now: u64, alert: &AlertView) -> bool {
        self.silences
            .iter()
            .any(|silence| holds_for(silence, alert, now))
    }

    pub(super) fn look_at_silences(&mut self, now: u64, changes: &mut Vec<Change>) {
        let silences = std::mem::take(&mut self.silences);
        for (number, alert) in &mut self.open {
            let is_silenced = silences
                .iter()
                .any(|silence| holds_for(silence, alert, now));
            if alert.silenced == is_silenced {
                continue;
            }
            alert.silenced = is_silenced;
            self.touched.insert(*number);
            if !is_silenced && alert.state == AlertState::Open {
                changes.push(Change::Unsilenced(alert.clone()));
            }
        }
        self.silences = silences;
    }

    fn number(&self, id: &AlertId) -> Result<u64, NoSuchAlert> {
        let number: u64 = id.as_str().parse().map_err(|_| NoSuchAlert::Unknown)?;
        match self.open.contains_key(&number) {
            true => Ok(number),
            false if number <= self.last && number > 0 => Err(NoSuchAlert::Resolved),
            false => Err(NoSuchAlert::Unknown),
        }
    }
}
