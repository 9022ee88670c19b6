//! Numbers of a scenario that a sweep can vary.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::law::{Offspring, Span, nanoseconds};
use crate::scenario::{Scenario, Strategy};

macro_rules! parameters {
    ($($variant:ident = $name:literal,)*) => {
        /// A number of a scenario.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Parameter { $(
            #[doc = concat!("`", $name, "`")]
            $variant,
        )* }

        impl Parameter {
            /// The names in documents.
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            /// The name in documents.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The one with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

parameters! {
    MaxDepth = "max_depth",
    MaxReplicas = "max_replicas",
    CooldownSeconds = "cooldown_seconds",
    ExpirationSeconds = "expiration_seconds",
    HeartbeatTimeoutSeconds = "heartbeat_timeout_seconds",
    OffspringMean = "offspring_mean",
    OffspringK = "offspring_k",
    Probability = "probability",
    StepSeconds = "step_seconds",
    LifetimeSeconds = "lifetime_seconds",
    KillDelaySeconds = "kill_delay_seconds",
    LostHeartbeats = "lost_heartbeats",
}

impl Parameter {
    /// Puts a value into a scenario. Where a time must be above zero, it is at least a millisecond.
    pub fn set(self, scenario: &mut Scenario, value: f64) {
        let contract = &mut scenario.contract;
        // The casts saturate; negative numbers are not in a file.
        match self {
            Self::MaxDepth => contract.max_depth = value.round() as u32,
            Self::MaxReplicas => contract.max_replicas = (value.round() as u32).max(1),
            Self::CooldownSeconds => contract.cooldown = duration(value),
            Self::ExpirationSeconds => contract.expiration = Some(duration(value.max(0.001))),
            Self::HeartbeatTimeoutSeconds => {
                contract.heartbeat_timeout = Some(duration(value.max(0.001)))
            }
            Self::KillDelaySeconds => {
                scenario.faults.kill_delay = match scenario.faults.kill_delay {
                    Span::Exponential(_) => Span::Exponential(value),
                    _ => Span::Fixed(value),
                }
            }
            Self::LostHeartbeats => scenario.faults.lost_heartbeats = value.min(1.0),
            _ => scenario
                .groups
                .iter_mut()
                .for_each(|group| self.set_in(group, value)),
        }
    }

    fn set_in(self, group: &mut crate::scenario::Group, value: f64) {
        match self {
            Self::OffspringMean => {
                group.offspring = match group.offspring {
                    Offspring::NegativeBinomial { k, .. } => {
                        Offspring::NegativeBinomial { mean: value, k }
                    }
                    _ => Offspring::Poisson(value),
                }
            }
            Self::OffspringK => {
                if let Offspring::NegativeBinomial { k, .. } = &mut group.offspring {
                    *k = value.max(1e-6);
                }
            }
            Self::Probability => {
                if let Strategy::Random(p) = &mut group.strategy {
                    *p = value.min(1.0);
                }
            }
            Self::StepSeconds => group.pace_ns = nanoseconds(value.max(0.001)),
            Self::LifetimeSeconds => {
                group.lifetime = match group.lifetime {
                    Span::Exponential(_) => Span::Exponential(value),
                    _ => Span::Fixed(value),
                }
            }
            _ => {}
        }
    }
}

fn duration(seconds: f64) -> Duration {
    Duration::from_nanos(nanoseconds(seconds))
}
