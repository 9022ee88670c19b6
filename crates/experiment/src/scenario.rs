//! One situation to simulate: a contract, who lives under it, and what goes wrong.

use belljar_policy::Contract;
use serde::{Deserialize, Serialize};

use crate::law::{Offspring, Span};

/// How often the population is noted over the horizon.
pub const SAMPLES: usize = 60;

/// How a worker goes about replicating. The last seven try to break the contract.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Asks at every step, and again as soon as it may.
    Greedy,
    /// Asks at every fourth step, and never again after a refusal.
    Conservative,
    /// Asks at each step with this probability.
    Random(f64),
    /// Wants one child, so that the family is a line.
    Chain,
    /// Wants so many children at once, after its first step.
    Burst(u32),
    /// Collects many grants, then registers them all.
    QuotaRacer,
    /// Collects grants before the cooldown begins, and asks a nanosecond before it is over.
    CooldownDodger,
    /// Alters what its grants say.
    Forger,
    /// Uses manifests twice, also those of children that ended.
    Replayer,
    /// Leaves children and grants behind and exits.
    OrphanMaker,
    /// Goes on asking and registering after it was killed.
    ShutdownResister,
    /// Turns the wall clock back before it asks.
    ClockRoller,
}

impl Strategy {
    /// The adversaries.
    pub const ADVERSARIES: [Self; 7] = [
        Self::QuotaRacer,
        Self::CooldownDodger,
        Self::Forger,
        Self::Replayer,
        Self::OrphanMaker,
        Self::ShutdownResister,
        Self::ClockRoller,
    ];

    /// How many children it wants if no law says otherwise.
    #[must_use]
    pub fn usual_offspring(&self) -> Offspring {
        match self {
            Self::Chain => Offspring::Fixed(1),
            Self::Burst(size) => Offspring::Fixed(*size),
            _ => Offspring::Unlimited,
        }
    }
}

/// Roots that are alike; their descendants are like them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// How many roots.
    pub roots: u32,
    /// How they replicate.
    pub strategy: Strategy,
    /// How many children each wants.
    pub offspring: Offspring,
    /// How long each lives if nobody ends it.
    pub lifetime: Span,
    /// The time between two steps, in nanoseconds.
    pub pace_ns: u64,
    /// Memory that each box holds, in MiB.
    pub memory_mb: u64,
    /// What each uses up in a second.
    pub use_per_second: Use,
}

/// What is used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// CPU time, in milliseconds.
    pub cpu_ms: u64,
    /// Model tokens.
    pub tokens: u64,
    /// Money, in millionths of a US dollar.
    pub micro_usd: u64,
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Faults {
    /// When the controller crashes, in nanoseconds. It starts again from its record.
    pub crashes_ns: Vec<u64>,
    /// How long a start takes; nobody is answered until then.
    pub restart_ns: u64,
    /// The probability that a heartbeat is lost.
    pub lost_heartbeats: f64,
    /// A part of the workers is cut off for a time.
    pub partition: Option<Partition>,
    /// How long it takes from the order to kill until the box is dead.
    pub kill_delay: Span,
    /// When the wall clock jumps (nanoseconds), and by how much (milliseconds).
    pub clock_jumps: Vec<(u64, i64)>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            crashes_ns: Vec::new(),
            restart_ns: 0,
            lost_heartbeats: 0.0,
            partition: None,
            kill_delay: Span::Fixed(0.0),
            clock_jumps: Vec::new(),
        }
    }
}

/// What takes time with real boxes, and none in a simulation unless it is said here.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// From a worker's registration until it lives: its steps and its lifetime are counted from then.
    pub start: Span,
    /// What a request takes: a worker's next step is later by so much.
    pub request: Span,
    /// From a worker's last breath until the controller knows.
    pub exit: Span,
}

impl Latency {
    /// None at all.
    pub const NONE: Self = Self {
        start: Span::Fixed(0.0),
        request: Span::Fixed(0.0),
        exit: Span::Fixed(0.0),
    };

    fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    fn none() -> Self {
        Self::NONE
    }
}

/// Workers that are cut off: they are not heard, and orders to kill wait until it is over.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Partition {
    /// When it begins, in nanoseconds.
    pub from_ns: u64,
    /// When it is over.
    pub until_ns: u64,
    /// Which part of the workers.
    pub fraction: f64,
}

/// What an operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Pulls the kill switch of the fleet.
    KillSwitch,
    /// Resets it.
    Reset,
    /// Starts another root, like those of the first group.
    AdmitRoot,
    /// Freezes every root.
    QuarantineRoots,
    /// Releases them.
    ReleaseRoots,
    /// Accepts the clock as it is.
    AcknowledgeClock,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// What holds.
    pub contract: Contract,
    /// Who begins.
    pub groups: Vec<Group>,
    /// What goes wrong.
    pub faults: Faults,
    /// What takes time.
    #[serde(default = "Latency::none", skip_serializing_if = "Latency::is_none")]
    pub latency: Latency,
    /// What operators do, and when (nanoseconds).
    pub operations: Vec<(u64, Operation)>,
    /// When the simulation ends, in nanoseconds.
    pub horizon_ns: u64,
    /// It also ends when so many workers have lived: the family counts as one that did not die out.
    pub max_workers: u64,
    /// More workers than this alive at once break the stop conditions; for scenarios made to test these.
    pub stop_peak: Option<u64>,
}

impl Scenario {
    /// A scenario without faults and operators.
    #[must_use]
    pub fn new(contract: Contract, group: Group, horizon_ns: u64) -> Self {
        Self {
            contract,
            groups: vec![group],
            faults: Faults::default(),
            latency: Latency::NONE,
            operations: Vec::new(),
            horizon_ns,
            max_workers: 1_000_000,
            stop_peak: None,
        }
    }
}

impl Group {
    /// One root with this strategy: a step a second, immortal, no use of anything.
    #[must_use]
    pub fn new(strategy: Strategy) -> Self {
        Self {
            roots: 1,
            strategy,
            offspring: strategy.usual_offspring(),
            lifetime: Span::Forever,
            pace_ns: 1_000_000_000,
            memory_mb: 0,
            use_per_second: Use::default(),
        }
    }
}
