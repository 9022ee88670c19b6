//! What all agents together called of MCP servers, since the daemon started.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use belljar_replication::WorkerId;

use crate::tools::{ByTool, OTHER, ToolCalls, rows};

/// The most tools that are counted by name: operators name servers, and servers name tools.
const MOST_NAMED: usize = 500;

#[derive(Debug, Default)]
pub(super) struct ToolTotals(Mutex<Totals>);

#[derive(Debug, Default)]
struct Totals {
    by_tool: ByTool,
    /// What each agent's keeper told last, which is what it called since its start.
    told: HashMap<WorkerId, Vec<ToolCalls>>,
}

impl ToolTotals {
    /// Adds what is new in what a keeper tells.
    pub(super) fn add(&self, worker: WorkerId, counts: Vec<ToolCalls>) {
        let mut totals = self.totals();
        let before = totals.told.remove(&worker).unwrap_or_default();
        for now in &counts {
            let is_same = |old: &&ToolCalls| {
                old.server == now.server && old.tool == now.tool && old.verdict == now.verdict
            };
            let old = before.iter().find(is_same);
            let (calls, micros) = old.map_or((0, 0), |old| (old.calls, old.micros));
            let news = (
                now.calls.saturating_sub(calls),
                now.micros.saturating_sub(micros),
            );
            let total = totals.of(now);
            total.0 = total.0.saturating_add(news.0);
            total.1 = total.1.saturating_add(news.1);
        }
        totals.told.insert(worker, counts);
    }

    /// An agent has ended: what it called stays counted.
    pub(super) fn forget(&self, worker: WorkerId) {
        self.totals().told.remove(&worker);
    }

    pub(super) fn all(&self) -> Vec<ToolCalls> {
        rows(&self.totals().by_tool)
    }

    fn totals(&self) -> MutexGuard<'_, Totals> {
        // Every change is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Totals {
    fn of(&mut self, count: &ToolCalls) -> &mut (u64, u64) {
        let mut key = (
            count.server.clone(),
            count.tool.clone(),
            count.verdict.clone(),
        );
        if self.by_tool.len() >= MOST_NAMED && !self.by_tool.contains_key(&key) {
            key = (OTHER.to_owned(), OTHER.to_owned(), key.2);
        }
        self.by_tool.entry(key).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(tool: &str, calls: u64) -> ToolCalls {
        ToolCalls {
            server: "s".to_owned(),
            tool: tool.to_owned(),
            verdict: "allow".to_owned(),
            calls,
            micros: calls * 10,
        }
    }

    #[test]
    fn what_keepers_tell_again_is_counted_once_and_names_are_bounded() {
        let totals = ToolTotals::default();
        let (one, two) = (WorkerId(1), WorkerId(2));
        totals.add(one, vec![count("echo", 3)]);
        totals.add(one, vec![count("echo", 5)]);
        totals.add(two, vec![count("echo", 2)]);
        totals.forget(one);
        totals.add(two, vec![count("echo", 2), count("add", 1)]);
        let all = totals.all();
        let of = |tool: &str| all.iter().find(|calls| calls.tool == tool).unwrap();
        assert_eq!((of("echo").calls, of("echo").micros), (7, 70));
        assert_eq!(of("add").calls, 1);
        let many = (0..2 * MOST_NAMED).map(|n| count(&format!("t{n}"), 1));
        totals.add(two, many.collect());
        assert_eq!(totals.all().len(), MOST_NAMED + 1);
    }
}
