//! What took time in a live run, told from the controller's record: a simulation in which the same takes as long is the run's twin.

use std::collections::BTreeMap;

use belljar_replication::{Code, Event, What, WorkerId};
use serde::{Deserialize, Serialize};

use crate::law::Span;
use crate::rng::Stream;
use crate::scenario::{Group, Latency, Operation, Scenario, Strategy};
use crate::world::RunKey;

/// Times that were seen, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delays {
    /// From a registration until the first request, less the wait that the strategy has before it.
    pub start: Vec<u64>,
    /// From an answer until the next request, less the same.
    pub request: Vec<u64>,
    /// From a registration until the end, less the lifetime that was drawn.
    pub life: Vec<u64>,
}

impl Delays {
    /// Those of another run too.
    pub fn add(&mut self, other: Self) {
        self.start.extend(other.start);
        self.request.extend(other.request);
        self.life.extend(other.life);
    }

    /// What a simulation takes for them: the means. None if nothing was seen.
    #[must_use]
    pub fn latency(&self) -> Option<Latency> {
        let start = mean_seconds(&self.start)?;
        let request = mean_seconds(&self.request).unwrap_or(0.0);
        // A lifetime is counted from the start.
        let exit = mean_seconds(&self.life).map_or(0.0, |life| (life - start).max(0.0));
        Some(Latency {
            start: Span::Fixed(start),
            request: Span::Fixed(request),
            exit: Span::Fixed(exit),
        })
    }
}

fn mean_seconds(times: &[u64]) -> Option<f64> {
    let sum: f64 = times.iter().map(|ns| *ns as f64).sum();
    (!times.is_empty()).then(|| sum / times.len() as f64 / 1e9)
}

struct Known {
    stream: Stream,
    born_ns: u64,
    /// How long it lives, if that is known.
    life_ns: Option<u64>,
    children: u64,
    has_asked: bool,
    /// When it would ask next if nothing took time.
    ready_ns: u64,
}

/// What took time in the record of one live run. Only of strategies that ask at every step, as others may have let one pass; and
/// lifetimes only where there is one root, as else nobody knows which was started first.
#[must_use]
pub fn delays<'a>(
    scenario: &Scenario,
    key: RunKey,
    events: impl IntoIterator<Item = &'a Event>,
) -> Delays {
    let mut found = Delays::default();
    let [group] = scenario.groups.as_slice() else {
        return found;
    };
    let steps = match group.strategy {
        Strategy::Greedy | Strategy::Chain => 1,
        Strategy::Conservative => 4,
        _ => return found,
    };
    let wait_ns = group.pace_ns.saturating_mul(steps);
    let comes_later = |(_, act): &(u64, Operation)| *act == Operation::AdmitRoot;
    let is_only_root = group.roots == 1 && !scenario.operations.iter().any(comes_later);
    let run = Stream::of_run(key.seed, u64::from(key.stream), u64::from(key.replicate));
    let mut alive: BTreeMap<WorkerId, Known> = BTreeMap::new();
    let mut promised: BTreeMap<WorkerId, WorkerId> = BTreeMap::new();
    for event in events {
        let at_ns = event.at.boot_ns;
        match &event.what {
            What::RootAdmitted(root) => {
                let known = Known::new(group, run.child(0), at_ns, wait_ns, is_only_root);
                alive.insert(root.worker, known);
            }
            What::Issued(issued) => {
                promised.insert(issued.worker, issued.parent);
                if let Some(known) = alive.get_mut(&issued.parent) {
                    known.asked(at_ns, &mut found);
                }
            }
            What::Registered { worker, .. } => {
                let parent = promised.remove(worker);
                if let Some(parent) = parent.and_then(|parent| alive.get_mut(&parent)) {
                    let stream = parent.stream.child(parent.children);
                    parent.children += 1;
                    parent.ready_ns = at_ns.saturating_add(wait_ns);
                    let known = Known::new(group, stream, at_ns, wait_ns, is_only_root);
                    alive.insert(*worker, known);
                }
            }
            What::Refused(refused) => {
                let parent = refused.parent.and_then(|parent| alive.get_mut(&parent));
                if let Some(known) = parent {
                    known.asked(at_ns, &mut found);
                    // How long a cooldown still lasts is for the agent to know: its next request is not measured.
                    known.ready_ns = match refused.code {
                        Code::DenyCooldown => u64::MAX,
                        _ => at_ns.saturating_add(wait_ns),
                    };
                }
            }
            What::Ended { worker, code } => {
                let known = alive.remove(worker);
                if let Some(life_ns) = known
                    .filter(|_| *code == Code::Exited)
                    .and_then(|known| Some(known.born_ns.saturating_add(known.life_ns?)))
                {
                    found.life.push(at_ns.saturating_sub(life_ns));
                }
            }
            _ => {}
        }
    }
    found
}

impl Known {
    fn new(
        group: &Group,
        mut stream: Stream,
        born_ns: u64,
        wait_ns: u64,
        is_known_life: bool,
    ) -> Self {
        let origin = stream;
        // As the agent draws them.
        let _ = group.offspring.draw(&mut stream);
        let life_ns = group.lifetime.draw(&mut stream);
        Self {
            stream: origin,
            born_ns,
            life_ns: (is_known_life && life_ns != u64::MAX).then_some(life_ns),
            children: 0,
            has_asked: false,
            ready_ns: born_ns.saturating_add(wait_ns),
        }
    }

    /// It asked, and the controller has decided.
    fn asked(&mut self, at_ns: u64, found: &mut Delays) {
        if let Some(late_ns) = at_ns.checked_sub(self.ready_ns) {
            match self.has_asked {
                false => found.start.push(late_ns),
                true => found.request.push(late_ns),
            }
        }
        self.has_asked = true;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use belljar_policy::{Budget, Contract};
    use belljar_replication::{Issued, Jti, Now, RootAdmitted, Share};

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const SHARE: Share = Share {
        granted: Budget::ZERO,
        own: Budget::ZERO,
    };

    fn at(ms: u64, what: What) -> Event {
        let now = Now {
            boot_ns: 5 * SECOND + ms * 1_000_000,
            wall_ms: 0,
        };
        Event::new(now, what)
    }

    fn child(ms: u64, id: u128) -> [Event; 2] {
        let (jti, worker) = (Jti(id), WorkerId(id));
        let issued = Issued {
            jti,
            worker,
            parent: WorkerId(1),
            share: SHARE,
            lapses_ns: u64::MAX,
        };
        let registered = What::Registered {
            jti,
            worker,
            expires_ns: None,
        };
        [
            at(ms, What::Issued(Box::new(issued))),
            at(ms + 5, registered),
        ]
    }

    #[test]
    fn what_took_time_is_what_waits_and_lives_do_not_explain() {
        let contract = Contract::new(3, 9, Duration::ZERO, None);
        let mut group = Group::new(Strategy::Greedy);
        group.lifetime = Span::Fixed(4.0);
        let scenario = Scenario::new(contract, group, 60 * SECOND);
        let root = RootAdmitted {
            jti: Jti(1),
            worker: WorkerId(1),
            share: SHARE,
            expires_ns: None,
        };
        let mut events = vec![at(0, What::RootAdmitted(Box::new(root)))];
        events.extend(child(1_080, 2));
        events.extend(child(2_105, 3));
        let ended = What::Ended {
            worker: WorkerId(1),
            code: Code::Exited,
        };
        events.push(at(4_090, ended));
        let key = RunKey {
            seed: 1,
            cell: 0,
            replicate: 0,
            stream: 0,
        };
        let found = delays(&scenario, key, &events);
        assert_eq!(found.start, [80_000_000]);
        assert_eq!(found.request, [20_000_000], "since the answer at 1085 ms");
        assert_eq!(found.life, [90_000_000]);
        let latency = found.latency().expect("something was seen");
        assert_eq!(latency.start, Span::Fixed(0.08));
        let Span::Fixed(exit) = latency.exit else {
            panic!("a mean");
        };
        assert!((exit - 0.01).abs() < 1e-9);
    }
}
