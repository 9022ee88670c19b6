//! What happened: the newest in memory, all of it in the store.

use std::collections::VecDeque;

use belljar_api::{EventKind, EventQuery, EventView, NewEvent};

/// Events that memory holds at least.
const KEPT: usize = 2_000;
/// Events that memory holds at most, where they could not be written.
const MOST_KEPT: usize = 20_000;
/// Events of one answer.
const MOST_ASKED: u64 = 1_000;
const USUALLY_ASKED: u64 = 100;

/// The newest events.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    recent: VecDeque<EventView>,
    last: u64,
    stored: u64,
    dropped: u64,
}

impl EventLog {
    /// Goes on after the events of a former life.
    pub(crate) fn after(last: u64) -> Self {
        Self {
            last,
            stored: last,
            ..Self::default()
        }
    }

    pub(crate) fn push(&mut self, at_ms: u64, new: NewEvent) -> EventView {
        self.last += 1;
        let event = EventView {
            id: self.last,
            at_ms,
            agent: new.agent,
            kind: new.kind,
            severity: new.severity,
            text: new.text,
            code: new.code,
            hint: new.hint,
        };
        self.recent.push_back(event.clone());
        self.trim();
        event
    }

    /// What is not in the store, the oldest first.
    pub(crate) fn unstored(&self) -> Vec<EventView> {
        let first = self.recent.partition_point(|event| event.id <= self.stored);
        self.recent.range(first..).cloned().collect()
    }

    /// Events up to this number are in the store.
    pub(crate) fn stored(&mut self, last: u64) {
        self.stored = self.stored.max(last);
        self.trim();
    }

    fn trim(&mut self) {
        while self.recent.len() > MOST_KEPT
            || (self.recent.len() > KEPT && self.recent[0].id <= self.stored)
        {
            let gone = self.recent.pop_front();
            self.dropped += u64::from(gone.is_some_and(|event| event.id > self.stored));
        }
    }

    /// Events in memory that a question is about, the newest first, and the number below which the store knows more.
    pub(crate) fn find(&self, query: &EventQuery, limit: usize) -> (Vec<EventView>, u64) {
        let below = self.recent.front().map_or(self.last + 1, |first| first.id);
        let found = self
            .recent
            .iter()
            .rev()
            .filter(|event| matches(query, event));
        let most = query.before.unwrap_or(u64::MAX);
        (found.take(limit).cloned().collect(), below.min(most))
    }

    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

pub(crate) fn limit(query: &EventQuery) -> usize {
    query.limit.unwrap_or(USUALLY_ASKED).min(MOST_ASKED) as usize
}

/// As the store would decide. LIKE knows the case of ASCII letters alone.
fn matches(query: &EventQuery, event: &EventView) -> bool {
    query
        .agent
        .as_ref()
        .is_none_or(|agent| event.agent.as_ref() == Some(agent))
        && query.kind.is_none_or(|kind| event.kind == kind)
        && query
            .severity
            .is_none_or(|severity| event.severity >= severity)
        && query.before.is_none_or(|before| event.id < before)
        && query.after.is_none_or(|after| event.id > after)
        && query.search.as_ref().is_none_or(|search| {
            let text = event.text.as_str().to_ascii_lowercase();
            text.contains(&search.as_str().to_ascii_lowercase())
        })
}

/// All kinds with their words in the store, which are those of the protocol.
const KINDS: &[(EventKind, &str)] = &[
    (EventKind::Started, "started"),
    (EventKind::Ended, "ended"),
    (EventKind::Restarting, "restarting"),
    (EventKind::EgressRefused, "egress_refused"),
    (EventKind::SystemCallRefused, "system_call_refused"),
    (EventKind::LimitMet, "limit_met"),
    (EventKind::Replicated, "replicated"),
    (EventKind::ReplicationDenied, "replication_denied"),
    (EventKind::Quarantined, "quarantined"),
    (EventKind::Released, "released"),
    (EventKind::Killed, "killed"),
    (EventKind::KillSwitchEngaged, "kill_switch_engaged"),
    (EventKind::KillSwitchReset, "kill_switch_reset"),
    (EventKind::BudgetExceeded, "budget_exceeded"),
    (EventKind::ToolRefused, "tool_refused"),
    (EventKind::ToolHeld, "tool_held"),
    (EventKind::Alert, "alert"),
    (EventKind::Responded, "responded"),
    (EventKind::Ledger, "ledger"),
    (EventKind::Daemon, "daemon"),
];

pub(crate) fn kind_word(kind: EventKind) -> &'static str {
    let known = KINDS.iter().find(|(known, _)| *known == kind);
    known.map_or("daemon", |(_, word)| word)
}

pub(crate) fn kind_of(word: &str) -> Option<EventKind> {
    KINDS
        .iter()
        .find(|(_, known)| *known == word)
        .map(|(kind, _)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_the_protocols_word() {
        for (kind, word) in KINDS {
            assert_eq!(serde_json::json!(kind), serde_json::json!(word));
        }
        let schema =
            serde_json::to_value(belljar_api::openapi(belljar_api::Side::Operator)).unwrap();
        let kinds = schema["components"]["schemas"]["EventKind"]["oneOf"]
            .as_array()
            .unwrap();
        let count: usize = kinds
            .iter()
            .map(|kind| kind["enum"].as_array().map_or(1, Vec::len))
            .sum();
        assert_eq!(count, KINDS.len(), "a kind of events is not kept");
    }
}
