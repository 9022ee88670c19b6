//! How regularly agents are sampled: the time between two samples of one agent, counted in classes.

use std::collections::HashMap;

use belljar_api::{AgentId, AgentPhase, AgentView};

/// The upper ends of the classes, in milliseconds. One second is what is wanted.
pub(crate) const CLASSES: [u64; 10] =
    [500, 800, 900, 950, 1_000, 1_050, 1_100, 1_200, 1_500, 5_000];

/// Counts of times between samples.
#[derive(Debug, Default)]
pub(crate) struct Cadence {
    last: HashMap<AgentId, u64>,
    counts: [u64; CLASSES.len()],
    total: u64,
    sum_ms: u64,
}

impl Cadence {
    /// An agent was looked at.
    pub(crate) fn sampled(&mut self, now: u64, agent: &AgentView) {
        // The word of an end comes when it comes.
        if agent.phase == AgentPhase::Ended {
            self.last.remove(&agent.id);
            return;
        }
        let Some(before) = self.last.insert(agent.id.clone(), now) else {
            return;
        };
        let between = now.saturating_sub(before);
        self.total += 1;
        self.sum_ms += between;
        if let Some(class) = CLASSES.iter().position(|most| between <= *most) {
            self.counts[class] += 1;
        }
    }

    /// The classes by their upper ends, each with what is in it or in one before it.
    pub(crate) fn classes(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut so_far = 0;
        CLASSES
            .into_iter()
            .zip(self.counts)
            .map(move |(most, count)| {
                so_far += count;
                (most, so_far)
            })
    }

    /// How many there were, and how many milliseconds together.
    pub(crate) fn total(&self) -> (u64, u64) {
        (self.total, self.sum_ms)
    }
}
