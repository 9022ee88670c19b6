//! Questions of the client's that wait for the server's answer.

use crate::judge::Listed;
use crate::message::Id;
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// What was asked, as far as the answer needs looking at.
#[derive(Debug)]
pub(super) enum What {
    /// `tools/call`
    Call {
        tool: String,
        arguments: Value,
        verdict: &'static str,
    },
    /// `tasks/*`
    Task {
        method: String,
        /// Which, and the tool it is of.
        arguments: Value,
    },
    /// `tools/list`
    ListTools,
    /// `resources/list`, `resources/templates/list`, `prompts/list`
    List(Listed),
    /// Anything else.
    Other,
}

/// A question that went on.
#[derive(Debug)]
pub(super) struct Asked {
    /// The client's id.
    pub(super) id: Id,
    pub(super) what: What,
    pub(super) since: Instant,
    deadline: Instant,
    /// The token by which the server tells of progress.
    token: Option<Value>,
}

impl Asked {
    /// A question whose answer was held back.
    pub(super) fn again(id: Id, what: What, since: Instant, deadline: Instant) -> Self {
        Self {
            id,
            what,
            since,
            deadline,
            token: None,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    by_ours: HashMap<i64, Asked>,
    by_theirs: HashMap<Id, i64>,
    /// In the order of deadlines, with some that are answered or were given more time.
    queue: VecDeque<(Instant, i64)>,
    last: i64,
}

impl Pending {
    pub(super) fn len(&self) -> usize {
        self.by_ours.len()
    }

    pub(super) fn has(&self, id: &Id) -> bool {
        self.by_theirs.contains_key(id)
    }

    /// Keeps a question in mind; the id it goes on with.
    pub(super) fn put(
        &mut self,
        id: Id,
        what: What,
        token: Option<Value>,
        since: Instant,
        deadline: Instant,
    ) -> Id {
        self.last += 1;
        let ours = self.last;
        self.by_theirs.insert(id.clone(), ours);
        let asked = Asked {
            id,
            what,
            since,
            deadline,
            token,
        };
        self.by_ours.insert(ours, asked);
        self.queue.push_back((deadline, ours));
        Id::Number(ours)
    }

    pub(super) fn asker(&self, ours: &Id) -> Option<&Id> {
        match ours {
            Id::Number(ours) => self.by_ours.get(ours).map(|asked| &asked.id),
            Id::Text(_) => None,
        }
    }

    /// The question that the server answers.
    pub(super) fn take(&mut self, ours: &Id) -> Option<Asked> {
        let Id::Number(ours) = ours else { return None };
        let asked = self.by_ours.remove(ours)?;
        self.by_theirs.remove(&asked.id);
        Some(asked)
    }

    /// The question that the client gives up, and its id at the server.
    pub(super) fn take_theirs(&mut self, id: &Id) -> Option<(Id, Asked)> {
        let ours = self.by_theirs.remove(id)?;
        let asked = self.by_ours.remove(&ours)?;
        Some((Id::Number(ours), asked))
    }

    /// The only question there is.
    pub(super) fn take_only(&mut self) -> Option<Asked> {
        match self.by_ours.len() {
            1 => self.take_all().pop(),
            _ => None,
        }
    }

    pub(super) fn take_all(&mut self) -> Vec<Asked> {
        self.queue.clear();
        self.by_theirs.clear();
        let mut all: Vec<_> = std::mem::take(&mut self.by_ours).into_iter().collect();
        all.sort_unstable_by_key(|(ours, _)| *ours);
        all.into_iter().map(|(_, asked)| asked).collect()
    }

    /// More time for the question that this token is of.
    pub(super) fn progressed(&mut self, token: &Value, now: Instant, patience: Duration) {
        let found = self
            .by_ours
            .iter_mut()
            .find(|(_, asked)| asked.token.as_ref() == Some(token));
        if let (Some((_, asked)), Some(deadline)) = (found, now.checked_add(patience)) {
            asked.deadline = deadline;
        }
    }

    /// The soonest that a question is late.
    pub(super) fn next_deadline(&mut self) -> Option<Instant> {
        while let Some((deadline, ours)) = self.queue.front().copied() {
            match self.by_ours.get(&ours) {
                Some(asked) if asked.deadline <= deadline => return Some(deadline),
                Some(asked) => {
                    // It was given more time than any before it in the queue.
                    let later = asked.deadline;
                    self.queue.pop_front();
                    let place = self.queue.partition_point(|(other, _)| *other <= later);
                    self.queue.insert(place, (later, ours));
                }
                None => {
                    self.queue.pop_front();
                }
            }
        }
        None
    }

    pub(super) fn take_late(&mut self, now: Instant) -> Option<(Id, Asked)> {
        self.next_deadline().filter(|deadline| *deadline <= now)?;
        let (_, ours) = self.queue.pop_front()?;
        let ours = Id::Number(ours);
        let asked = self.take(&ours)?;
        Some((ours, asked))
    }
}
