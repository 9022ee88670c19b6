//! The last minutes in memory, by second and agent. They are served from here even when no disk can be written.

use std::collections::{HashMap, VecDeque};

use belljar_api::{AgentId, AgentView, Shown};

use super::{Meter, Point};

/// Seconds that are kept at least.
const KEPT: u64 = 300;
/// Seconds that are kept at most, where they could not be written.
const MOST_KEPT: usize = 600;
/// Agents that are kept at most.
const MOST_AGENTS: usize = 10_000;

/// The last minutes of all agents.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    agents: HashMap<AgentId, Recent>,
    /// Everything before this second is in the store.
    stored_until: u64,
    dropped: u64,
    /// Agents that began before this were there before us.
    watched_since_ms: u64,
}

#[derive(Debug)]
struct Recent {
    meter: Option<Meter>,
    name: Shown,
    points: VecDeque<Point>,
}

impl Ring {
    /// Empty, by a monitor that began then.
    pub(crate) fn since(watched_since_ms: u64) -> Self {
        Self {
            watched_since_ms,
            ..Self::default()
        }
    }

    /// Takes a sample in. It can't be told of seconds that are in the store: they are closed.
    pub(crate) fn sampled(&mut self, now_ms: u64, agent: &AgentView) {
        if !self.agents.contains_key(&agent.id) && self.agents.len() >= MOST_AGENTS {
            self.dropped += 1;
            return;
        }
        let recent = self
            .agents
            .entry(agent.id.clone())
            .or_insert_with(|| Recent::new(agent.name.clone()));
        let points = match &mut recent.meter {
            Some(meter) => meter.read(now_ms, agent),
            None => {
                let (meter, points) = Meter::begin(now_ms, agent, self.watched_since_ms);
                recent.meter = Some(meter);
                points
            }
        };
        for mut point in points {
            point.at = point.at.max(self.stored_until);
            recent.take(point);
        }
        while recent.points.len() > MOST_KEPT {
            let gone = recent.points.pop_front();
            self.dropped += u64::from(gone.is_some_and(|point| point.at >= self.stored_until));
        }
    }

    /// Puts back what a former life wrote down and did not finish. A second that was written twice was more complete later.
    pub(crate) fn restore(&mut self, agent: &AgentId, name: &Shown, point: Point) {
        let recent = self
            .agents
            .entry(agent.clone())
            .or_insert_with(|| Recent::new(name.clone()));
        recent.points.retain(|known| known.at != point.at);
        recent.take(point);
    }

    /// What is in memory from that second on, and before the other; of one agent, or of all together.
    pub(crate) fn points(&self, agent: Option<&AgentId>, from: u64, until: u64) -> Vec<Point> {
        let from = from.max(self.stored_until);
        let wanted = |point: &&Point| (from..until).contains(&point.at);
        match agent {
            Some(id) => self
                .agents
                .get(id)
                .map(|recent| recent.points.iter().filter(wanted).copied().collect())
                .unwrap_or_default(),
            None => {
                let mut sum = std::collections::BTreeMap::new();
                for point in self.agents.values().flat_map(|recent| &recent.points) {
                    if wanted(&point) {
                        sum.entry(point.at)
                            .or_insert_with(|| Point::at(point.at))
                            .add(point);
                    }
                }
                sum.into_values().collect()
            }
        }
    }

    /// Each agent with its name and its points of those seconds, whether they are stored or not.
    pub(crate) fn all(&self, from: u64, until: u64) -> Vec<(AgentId, Shown, Vec<Point>)> {
        let mut all = Vec::new();
        for (id, recent) in &self.agents {
            let points: Vec<Point> = recent
                .points
                .iter()
                .filter(|point| (from..until).contains(&point.at))
                .copied()
                .collect();
            if !points.is_empty() {
                all.push((id.clone(), recent.name.clone(), points));
            }
        }
        all
    }

    /// The first second that is not in the store and has something to store, before `until`.
    pub(crate) fn first_unstored(&self, until: u64) -> Option<u64> {
        self.agents
            .values()
            .flat_map(|recent| {
                recent
                    .points
                    .iter()
                    .map(|point| point.at)
                    .find(|at| *at >= self.stored_until)
            })
            .filter(|at| *at < until)
            .min()
    }

    pub(crate) fn stored_until(&self) -> u64 {
        self.stored_until
    }

    /// Everything before that second is in the store; what is old enough is forgotten here.
    pub(crate) fn stored(&mut self, until: u64, now: u64) {
        self.stored_until = self.stored_until.max(until);
        let oldest = now.saturating_sub(KEPT).min(self.stored_until);
        self.agents.retain(|_, recent| {
            while recent.points.front().is_some_and(|point| point.at < oldest) {
                recent.points.pop_front();
            }
            !recent.points.is_empty()
        });
    }

    /// The clock was wrong: what was noted for later than this second never was.
    pub(crate) fn forget_after(&mut self, second: u64) {
        self.stored_until = self.stored_until.min(second);
        self.agents.clear();
    }

    /// Seconds of agents that were lost for want of a disk.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl Recent {
    fn new(name: Shown) -> Self {
        Self {
            meter: None,
            name,
            points: VecDeque::new(),
        }
    }

    /// Points come in order, but for the last seconds, which may come in parts.
    fn take(&mut self, point: Point) {
        let place = self.points.partition_point(|known| known.at < point.at);
        match self.points.get_mut(place) {
            Some(known) if known.at == point.at => known.absorb(&point),
            _ => self.points.insert(place, point),
        }
    }
}
