//! Real boxes instead of simulated ones: what an agent in a box does, and what the controller's record says of it afterwards.
//!
//! Nothing here starts a box: the caller does, by the same door as any family's. A live worker draws its random numbers as its
//! simulated twin does, by its place in the family, so that both can be compared pair by pair.

mod chronicle;
mod delays;
mod subject;

pub use chronicle::{Observed, Switched, chronicle};
pub use delays::{Delays, delays};
pub use subject::{Answer, Deed, Subject, Task};

use crate::file::Experiment;
use crate::rng::Stream;
use crate::scenario::{Faults, Latency, Operation, Scenario, Strategy, Use};
use crate::world::RunKey;

/// The most boxes at once: live runs are small.
pub const MOST_BOXES: u32 = 64;
/// The longest live run.
pub const MOST_SECONDS: u64 = 600;

/// Why an experiment can't be run with real boxes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLive {
    /// A simulated fault.
    #[error("faults are simulated; real boxes have only those that come about")]
    Faults,
    /// What a live run measures.
    #[error("latency is simulated; what takes time with real boxes is measured")]
    Latency,
    /// What the controller's own interface does not let an agent try.
    #[error(
        "the strategy {0} is simulated: no door of a real box takes a manifest or a clock from an agent"
    )]
    Strategy(&'static str),
    /// What is measured in a real box and not laid down.
    #[error("memory_mb and what is used per second are simulated; a real box uses what it uses")]
    Uses,
    /// A second life of the fleet, whose first one's boxes would be counted with it.
    #[error("a reset of the kill switch is simulated: a live run ends with its switch")]
    Reset,
    /// Too large.
    #[error("{boxes} boxes at once are more than {MOST_BOXES}")]
    Boxes {
        /// By which contract.
        boxes: u32,
    },
    /// Too long.
    #[error("{seconds} s are more than {MOST_SECONDS}")]
    Long {
        /// Of one run.
        seconds: u64,
    },
}

impl NotLive {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Faults => "leave faults out",
            Self::Strategy(_) => {
                "live: greedy, conservative, random, chain, burst, quota_racer, cooldown_dodger, orphan_maker, shutdown_resister"
            }
            Self::Uses | Self::Reset | Self::Latency => "leave it out",
            Self::Boxes { .. } => "lower the contract's max_replicas",
            Self::Long { .. } => "lower horizon_seconds",
        }
    }
}

/// Refuses an experiment that can't be run with real boxes.
///
/// # Errors
/// The first reason why.
pub fn check(experiment: &Experiment) -> Result<(), NotLive> {
    for point in experiment.points() {
        check_scenario(&experiment.scenario_at(&point))?;
    }
    Ok(())
}

fn check_scenario(scenario: &Scenario) -> Result<(), NotLive> {
    let faults = Faults {
        restart_ns: scenario.faults.restart_ns,
        ..Faults::default()
    };
    if scenario.faults != faults {
        return Err(NotLive::Faults);
    }
    if scenario.latency != Latency::NONE {
        return Err(NotLive::Latency);
    }
    for group in &scenario.groups {
        match group.strategy {
            Strategy::Forger => return Err(NotLive::Strategy("forger")),
            Strategy::Replayer => return Err(NotLive::Strategy("replayer")),
            Strategy::ClockRoller => return Err(NotLive::Strategy("clock_roller")),
            _ => {}
        }
        if group.memory_mb > 0 || group.use_per_second != Use::default() {
            return Err(NotLive::Uses);
        }
    }
    let acts = || scenario.operations.iter().map(|(_, operation)| *operation);
    if acts().any(|act| act == Operation::Reset) {
        return Err(NotLive::Reset);
    }
    let boxes = scenario.contract.max_replicas;
    if boxes > MOST_BOXES {
        return Err(NotLive::Boxes { boxes });
    }
    let seconds = scenario.horizon_ns / 1_000_000_000;
    if seconds > MOST_SECONDS {
        return Err(NotLive::Long { seconds });
    }
    Ok(())
}

/// What the roots of a run find in their boxes, in the order in which they are started; then those that an operator starts.
#[must_use]
pub fn roots(scenario: &Scenario, key: RunKey) -> Vec<Task> {
    let stream = Stream::of_run(key.seed, u64::from(key.stream), u64::from(key.replicate));
    let first = scenario
        .groups
        .iter()
        .flat_map(|group| std::iter::repeat_n(group, group.roots as usize));
    let later = scenario
        .operations
        .iter()
        .filter(|(_, operation)| *operation == Operation::AdmitRoot)
        .filter_map(|_| scenario.groups.first());
    (0u64..)
        .zip(first.chain(later))
        .map(|(ordinal, group)| Task::of(group, scenario, stream.child(ordinal).key()))
        .collect()
}
