//! The agent in a live box: when it asks, beats and exits. It keeps no clock of its own.

use serde::{Deserialize, Serialize};

use crate::rng::Stream;
use crate::scenario::{Group, Scenario, Strategy};

const NEVER: u64 = u64::MAX;
/// How many requests an adversary makes at once.
const AT_ONCE: u32 = 8;
const MILLISECOND: u64 = 1_000_000;

/// What a live worker is told: who it is and how it behaves. It finds this in its box.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Where its random numbers come from.
    pub key: u64,
    /// How it behaves.
    pub group: Group,
    /// The time between two heartbeats, in nanoseconds; none if nobody listens for them.
    pub beat_ns: Option<u64>,
}

impl Task {
    pub(super) fn of(group: &Group, scenario: &Scenario, key: u64) -> Self {
        let timeout = scenario.contract.heartbeat_timeout;
        Self {
            key,
            group: *group,
            beat_ns: timeout
                .map(|span| (u64::try_from(span.as_nanos()).unwrap_or(NEVER) / 3).max(MILLISECOND)),
        }
    }
}

/// What it does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Asks for a replica, or for several at once. Each has its task's random key.
    Ask(Vec<u64>),
    /// Says that it lives.
    Beat,
    /// Exits.
    Exit,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A replica was let in.
    Granted,
    /// It was refused.
    Refused {
        /// The stable code.
        code: String,
        /// How long to wait, if the refusal says so, in nanoseconds.
        wait_ns: Option<u64>,
    },
}

/// An agent. Moments are nanoseconds since its box began.
#[derive(Clone, Debug)]
pub struct Subject {
    task: Task,
    stream: Stream,
    wants: u32,
    children: u64,
    step_ns: u64,
    beat_ns: u64,
    exit_ns: u64,
}

impl Subject {
    /// An agent at the beginning of its life. It draws what its simulated twin draws.
    #[must_use]
    pub fn new(task: Task) -> Self {
        let mut stream = Stream::keyed(task.key);
        let wants = task.group.offspring.draw(&mut stream);
        let exit_ns = task.group.lifetime.draw(&mut stream);
        let steps = if task.group.strategy == Strategy::Conservative {
            4
        } else {
            1
        };
        Self {
            wants,
            children: 0,
            step_ns: match wants {
                0 => NEVER,
                _ => task.group.pace_ns.saturating_mul(steps),
            },
            beat_ns: task.beat_ns.unwrap_or(NEVER),
            exit_ns,
            stream,
            task,
        }
    }

    /// Whether it does what it can to outlive its end.
    #[must_use]
    pub fn resists(&self) -> bool {
        self.task.group.strategy == Strategy::ShutdownResister
    }

    /// The task of a child with this key.
    #[must_use]
    pub fn child(&self, key: u64) -> Task {
        Task { key, ..self.task }
    }

    /// When it does something next; never is the end of time.
    #[must_use]
    pub fn next_ns(&self) -> u64 {
        self.step_ns.min(self.beat_ns).min(self.exit_ns)
    }

    /// What it does at this moment, if its time has come.
    pub fn act(&mut self, now_ns: u64) -> Option<Deed> {
        if now_ns >= self.exit_ns {
            return Some(Deed::Exit);
        }
        if now_ns >= self.beat_ns {
            self.beat_ns = now_ns.saturating_add(self.task.beat_ns.unwrap_or(NEVER));
            return Some(Deed::Beat);
        }
        if now_ns < self.step_ns {
            return None;
        }
        self.step_ns = now_ns.saturating_add(self.task.group.pace_ns);
        let times = match self.task.group.strategy {
            Strategy::Random(p) if self.stream.uniform() >= p => return None,
            Strategy::OrphanMaker if self.children > 0 => return Some(Deed::Exit),
            Strategy::QuotaRacer | Strategy::CooldownDodger => AT_ONCE,
            _ => 1,
        };
        let first = self.children;
        let keys = (first..).take(times.min(self.wants) as usize);
        Some(Deed::Ask(
            keys.map(|ordinal| self.stream.child(ordinal).key())
                .collect(),
        ))
    }

    /// What came of its requests.
    pub fn hear(&mut self, now_ns: u64, answers: &[Answer]) {
        let granted = answers
            .iter()
            .filter(|answer| **answer == Answer::Granted)
            .count() as u32;
        self.children += u64::from(granted);
        self.wants = match self.wants {
            u32::MAX => u32::MAX,
            wants => wants.saturating_sub(granted),
        };
        let pace_ns = self.task.group.pace_ns;
        let refused = answers.iter().find_map(|answer| match answer {
            Answer::Granted => None,
            Answer::Refused { code, wait_ns } => Some((code.as_str(), *wait_ns)),
        });
        let wait_ns = match (self.task.group.strategy, refused) {
            _ if self.wants == 0 => NEVER,
            (Strategy::Random(_), _) => pace_ns,
            (Strategy::Conservative, Some(_)) => NEVER,
            (Strategy::Conservative, None) => pace_ns.saturating_mul(4),
            (Strategy::Burst(_), None) => 0,
            (_, None) => pace_ns,
            // Resisters ask on, whatever they were told.
            (strategy, Some((code, _)))
                if is_final(code) && strategy != Strategy::ShutdownResister =>
            {
                NEVER
            }
            // A millisecond too early: it must be refused again.
            (Strategy::CooldownDodger, Some((_, Some(wait)))) => {
                wait.saturating_sub(MILLISECOND).max(MILLISECOND)
            }
            (Strategy::QuotaRacer, Some(_)) => pace_ns,
            (_, Some((_, wait))) => wait.unwrap_or(pace_ns).max(MILLISECOND),
        };
        self.step_ns = now_ns.saturating_add(wait_ns);
    }
}

/// Whether asking again is of no use.
fn is_final(code: &str) -> bool {
    use belljar_replication::Code;
    matches!(
        Code::from_code(code),
        Some(Code::DenyDepth | Code::DenyParentUnknown | Code::DenyKillSwitch | Code::DenyExpired)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::law::{Offspring, Span};

    const SECOND: u64 = 1_000_000_000;

    fn task(strategy: Strategy) -> Task {
        Task {
            key: 7,
            group: Group::new(strategy),
            beat_ns: None,
        }
    }

    fn refused(code: &str, wait_ns: Option<u64>) -> Answer {
        Answer::Refused {
            code: code.to_owned(),
            wait_ns,
        }
    }

    #[test]
    fn a_greedy_one_asks_again_as_soon_as_it_may_and_not_where_it_never_may() {
        let mut subject = Subject::new(task(Strategy::Greedy));
        assert_eq!(subject.next_ns(), SECOND);
        assert_eq!(subject.act(SECOND - 1), None);
        assert!(matches!(subject.act(SECOND), Some(Deed::Ask(keys)) if keys.len() == 1));
        subject.hear(SECOND, &[refused("deny_cooldown", Some(5))]);
        assert_eq!(subject.next_ns(), SECOND + MILLISECOND);
        subject.hear(SECOND, &[refused("deny_depth", None)]);
        assert_eq!(subject.next_ns(), NEVER);
    }

    #[test]
    fn children_draw_what_their_simulated_twins_draw() {
        let mut subject = Subject::new(task(Strategy::Greedy));
        let twin = Stream::keyed(7);
        for ordinal in 0..3 {
            let now = subject.next_ns();
            let Some(Deed::Ask(keys)) = subject.act(now) else {
                panic!("it asks");
            };
            assert_eq!(keys, [twin.child(ordinal).key()]);
            subject.hear(now, &[Answer::Granted]);
        }
    }

    #[test]
    fn whoever_wants_no_more_asks_no_more_and_exits_in_its_time() {
        let mut one = task(Strategy::Chain);
        one.group.lifetime = Span::Fixed(9.0);
        let mut subject = Subject::new(one);
        assert!(subject.act(SECOND).is_some());
        subject.hear(SECOND, &[Answer::Granted]);
        assert_eq!(subject.next_ns(), 9 * SECOND);
        assert_eq!(subject.act(9 * SECOND), Some(Deed::Exit));
        one.group.offspring = Offspring::Fixed(0);
        assert_eq!(Subject::new(one).next_ns(), 9 * SECOND);
    }

    #[test]
    fn an_orphan_maker_leaves_when_it_has_a_child_and_a_racer_asks_for_many() {
        let mut orphan = Subject::new(task(Strategy::OrphanMaker));
        assert!(matches!(orphan.act(SECOND), Some(Deed::Ask(_))));
        orphan.hear(SECOND, &[Answer::Granted]);
        assert_eq!(orphan.act(2 * SECOND), Some(Deed::Exit));
        let mut racer = Subject::new(task(Strategy::QuotaRacer));
        assert!(matches!(racer.act(SECOND), Some(Deed::Ask(keys)) if keys.len() == 8));
    }
}
