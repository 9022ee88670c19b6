//! What is known about one kind of alert and one agent.

use std::collections::VecDeque;

use belljar_api::{AgentId, Shown};

use super::{Nature, nature};
use crate::clock::millis;
use crate::settings::Rule;

/// A rule that answers although its alert is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Armed {
    /// From when on.
    pub(super) from: u64,
    /// Whether people are told even where that is all the rule does.
    pub(super) tells: bool,
}

/// The state from which an alert is raised and resolved.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// When causes came, within the window; no more than the threshold asks for.
    hits: VecDeque<u64>,
    /// Whether it is so.
    pub(super) is_so: bool,
    /// Since when the condition holds without a break.
    since: Option<u64>,
    /// Since when it does not.
    gone_since: Option<u64>,
    /// When a cause was last told.
    pub(super) last_cause: u64,
    /// A person said that it is dealt with though it still is so: it must end before it counts again.
    waits_for_its_end: bool,
    /// An event said that it is so, and no look at the agent can tell otherwise.
    pub(super) is_by_event: bool,
    /// Only a former life knows of it: nobody has told us of it yet.
    pub(super) is_left_over: bool,
    /// The run of the agent that the last cause was about.
    pub(super) agent: Option<AgentId>,
    /// How long it may be quiet and yet not be over, beyond what the rule says, in milliseconds.
    pub(super) quiet: u64,
    /// From when on the rule answers a cause although the alert is open already.
    pub(super) armed: Option<Armed>,
    pub(super) text: Option<Shown>,
    pub(super) hint: Option<Shown>,
}

impl Watch {
    pub(super) fn hit(&mut self, rule: &Rule, now: u64) {
        self.hits.push_back(now);
        while self.hits.len() as u64 > rule.threshold {
            self.hits.pop_front();
        }
        self.last_cause = now;
    }

    /// Whether the condition holds now. Keeps count of since when.
    pub(super) fn look(&mut self, rule: &Rule, now: u64) -> bool {
        let window = millis(rule.window);
        while self
            .hits
            .front()
            .is_some_and(|hit| hit.saturating_add(window) <= now)
        {
            self.hits.pop_front();
        }
        let holds = match nature(rule.kind) {
            Nature::Level => self.is_so,
            Nature::Counted => self.hits.len() as u64 >= rule.threshold,
        };
        if holds {
            self.since.get_or_insert(now);
            self.gone_since = None;
        } else {
            self.since = None;
            self.gone_since.get_or_insert(now);
            self.waits_for_its_end = false;
        }
        holds
    }

    /// Whether it has held for as long as the rule asks.
    pub(super) fn has_lasted(&self, rule: &Rule, now: u64) -> bool {
        !self.waits_for_its_end
            && self
                .since
                .is_some_and(|since| now.saturating_sub(since) >= millis(rule.lasting))
    }

    /// What the rule did is undone, or was about another run: it answers the next causes as if they were the first.
    pub(super) fn rearm(&mut self, armed: Armed) {
        self.hits.clear();
        self.since = None;
        self.armed = Some(armed);
    }

    /// Whether the rule answers once more. Asked once: it has answered then.
    pub(super) fn take_armed(&mut self, now: u64) -> Option<Armed> {
        let is_armed = self.armed.is_some_and(|armed| now >= armed.from);
        is_armed.then(|| self.armed.take()).flatten()
    }

    /// How long it has not held, and there was no cause either.
    pub(super) fn gone_for(&self, now: u64) -> u64 {
        let gone = |since: u64| now.saturating_sub(since.max(self.last_cause));
        self.gone_since.map_or(0, gone)
    }

    /// The alert is over. The next one needs causes of its own.
    pub(super) fn settled(&mut self, rule: &Rule) {
        self.hits.clear();
        self.since = None;
        self.is_by_event = false;
        (self.armed, self.quiet) = (None, 0);
        // Too much is too much again after as long; a state that nobody changed is the one that was dealt with.
        self.waits_for_its_end =
            self.is_so && rule.kind != belljar_api::AlertKind::HighResourceUsage;
    }

    pub(super) fn hits(&self) -> u64 {
        (self.hits.len() as u64).max(1)
    }

    /// Whether there is nothing to remember.
    pub(super) fn is_idle(&self) -> bool {
        self.hits.is_empty() && !self.is_so && self.since.is_none()
    }
}
