//! What is kept of all that the gateway reports: an agent can cause refusals as fast as it can connect, so like ones are
//! counted together, and there are only so many kinds.

use crate::reins::Reins;
use crate::result::KilledBy;
use belljar_egress::{Event, LlmUsage, Recorder, Refusal, RefusalCode, Usage, Way};
use belljar_gate::record::{ModelUsed, NetworkUsed};
use belljar_policy::OnBudget;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a box has used of the network, and what it was refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NetworkUsage {
    /// Connections let through.
    pub connections: u64,
    /// Requests looked at.
    pub requests: u64,
    /// Bytes from the agent.
    pub sent_bytes: u64,
    /// Bytes to the agent.
    pub received_bytes: u64,
    /// The hosts of those connections, in order; beyond a number of them they are not told apart.
    pub hosts: Vec<HostUse>,
    /// Things refused, in all.
    pub refused: u64,
    /// The same by kind, the most frequent first.
    pub refusals: Vec<RefusalGroup>,
    /// Calls to models.
    pub llm: LlmUsage,
}

/// As the log has it.
impl From<&NetworkUsage> for NetworkUsed {
    fn from(usage: &NetworkUsage) -> Self {
        let models = usage.llm.models.iter().map(|(model, used)| {
            let used = ModelUsed {
                calls: used.calls,
                tokens_in: used.tokens.input,
                tokens_cached: used
                    .tokens
                    .cache_read
                    .saturating_add(used.tokens.cache_write),
                tokens_out: used.tokens.output,
                micro_usd: used.cost.as_micro_usd(),
                estimated: used.estimated,
            };
            (model.clone(), used)
        });
        Self {
            connections: usage.connections,
            refused: usage.refused,
            sent_bytes: usage.sent_bytes,
            received_bytes: usage.received_bytes,
            models: models.collect(),
        }
    }
}

/// Refusals that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusalGroup {
    /// How often.
    pub count: u64,
    /// The first of them.
    #[serde(flatten)]
    pub refusal: Refusal,
}

/// A host that connections were let through to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostUse {
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How many; those among them that did not come about are refusals as well.
    pub connections: u64,
    /// How many of them carried anything.
    pub spoken: u64,
}

/// Kinds of refusals that are told apart; of the others only the code is.
const MOST_GROUPS: usize = 256;
/// What stands for places that are not told apart.
const OTHER_HOSTS: &str = "other hosts";
/// Hosts and ports that are told apart.
const MOST_HOSTS: usize = 1024;

/// Takes the gateway's reports.
pub(super) struct Book {
    pages: Mutex<Pages>,
    /// Wakes the keeper, and ends the box where a used-up budget is its end.
    reins: Reins,
    on_budget: OnBudget,
}

#[derive(Default)]
struct Pages {
    groups: BTreeMap<(Way, String, Option<u16>, RefusalCode), Tally>,
    /// Refusals beyond the groups, by code: places are not told apart any more, and yet each is counted.
    others: BTreeMap<RefusalCode, Tally>,
    /// The first of each kind, until somebody takes note.
    news: Vec<Refusal>,
    hosts: BTreeMap<(String, u16), HostCounts>,
    /// How many of all this the engine knows nothing of.
    own: u64,
}

/// A group, and how many of it somebody was told of.
struct Tally {
    group: RefusalGroup,
    told: u64,
}

impl Tally {
    fn first(refusal: Refusal) -> Self {
        let group = RefusalGroup { count: 1, refusal };
        Self { group, told: 1 }
    }

    /// What came since the last time, if anything did.
    fn repeats(&mut self) -> Option<(Refusal, u64)> {
        let more = self.group.count.saturating_sub(self.told);
        self.told = self.group.count;
        (more > 0).then(|| (self.group.refusal.clone(), more))
    }
}

#[derive(Default)]
struct HostCounts {
    connections: u64,
    spoken: u64,
}

impl Book {
    pub(super) fn new(reins: Reins, on_budget: OnBudget) -> Self {
        Self {
            pages: Mutex::default(),
            reins,
            on_budget,
        }
    }

    /// Refusals of a kind that was not seen before.
    pub(super) fn take_news(&self) -> Vec<Refusal> {
        std::mem::take(&mut self.pages().news)
    }

    /// Refusals that were told before and came again, with how often since the last time.
    pub(super) fn take_repeats(&self) -> Vec<(Refusal, u64)> {
        let mut pages = self.pages();
        let Pages { groups, others, .. } = &mut *pages;
        let all = groups.values_mut().chain(others.values_mut());
        all.filter_map(Tally::repeats).collect()
    }

    /// What all came to.
    pub(super) fn close(&self, usage: Usage) -> NetworkUsage {
        let own = self.pages().own;
        let groups = std::mem::take(&mut self.pages().groups);
        let groups = groups.into_values().map(|tally| tally.group);
        let mut refusals: Vec<RefusalGroup> = groups.collect();
        refusals.sort_by_key(|group| std::cmp::Reverse(group.count));
        let hosts = std::mem::take(&mut self.pages().hosts).into_iter();
        let hosts = hosts.map(|((host, port), counts)| HostUse {
            host,
            port,
            connections: counts.connections,
            spoken: counts.spoken,
        });
        NetworkUsage {
            connections: usage.connections,
            requests: usage.requests,
            sent_bytes: usage.sent,
            received_bytes: usage.received,
            hosts: hosts.collect(),
            refused: usage.refusals.saturating_add(own),
            refusals,
            llm: usage.llm,
        }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        // A page is whole at every moment.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, refusal: Refusal) {
        let key = (
            refusal.way,
            refusal.host.clone(),
            refusal.port,
            refusal.code,
        );
        let mut pages = self.pages();
        if let Some(known) = pages.groups.get_mut(&key) {
            known.group.count += 1;
        } else if pages.groups.len() < MOST_GROUPS {
            pages.news.push(refusal.clone());
            pages.groups.insert(key, Tally::first(refusal));
            drop(pages);
            self.reins.ring();
        } else if let Some(known) = pages.others.get_mut(&refusal.code) {
            known.group.count += 1;
        } else {
            let refusal = Refusal {
                host: OTHER_HOSTS.to_owned(),
                port: None,
                hint: String::new(),
                ..refusal
            };
            pages.news.push(refusal.clone());
            pages.others.insert(refusal.code, Tally::first(refusal));
            drop(pages);
            self.reins.ring();
        }
    }
}

impl Recorder for Book {
    fn record(&self, event: Event) {
        match event {
            Event::Refused(refusal) => {
                let spent = match refusal.code {
                    RefusalCode::Tokens => Some(KilledBy::Tokens),
                    RefusalCode::Cost => Some(KilledBy::Cost),
                    _ => None,
                };
                // All others the engine counts itself.
                if refusal.code == RefusalCode::SecretRefresh {
                    let mut pages = self.pages();
                    pages.own = pages.own.saturating_add(1);
                }
                self.note(refusal);
                match (spent, self.on_budget) {
                    (Some(by), OnBudget::Kill) => self.reins.end(by),
                    (Some(_), OnBudget::Refuse) | (None, _) => {}
                }
            }
            Event::Closed(connection) => {
                let hosts = &mut self.pages().hosts;
                let place = (connection.host, connection.port);
                if hosts.len() < MOST_HOSTS || hosts.contains_key(&place) {
                    let counts = hosts.entry(place).or_default();
                    counts.connections += 1;
                    counts.spoken += u64::from(connection.sent > 0 || connection.received > 0);
                }
            }
            // Counted by the engine itself.
            Event::Charged(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(host: &str) -> Event {
        Event::Refused(Refusal {
            way: Way::Dns,
            host: host.to_owned(),
            port: None,
            rule: None,
            code: RefusalCode::NoRule,
            detail: None,
            hint: "a hint".to_owned(),
        })
    }

    fn told(book: &Book) -> u64 {
        let news = book.take_news().len() as u64;
        news + book
            .take_repeats()
            .iter()
            .map(|(_, more)| more)
            .sum::<u64>()
    }

    #[test]
    fn every_refusal_is_told_once_however_many_hosts_there_are() {
        let book = Book::new(Reins::new().unwrap(), OnBudget::Refuse);
        for _ in 0..549 {
            for host in ["a.example", "b.example", "c.example"] {
                book.record(refused(host));
            }
        }
        assert_eq!(told(&book), 3 * 549);
        assert_eq!(told(&book), 0, "nothing is told twice");
        for number in 0..10_000 {
            book.record(refused(&format!("h{number}.example")));
        }
        assert_eq!(told(&book), 10_000);
        let pages = book.pages();
        assert_eq!((pages.groups.len(), pages.others.len()), (MOST_GROUPS, 1));
    }
}
