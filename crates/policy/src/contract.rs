//! The replication contract: how many copies of itself an agent may make, how deep, how fast, for how long.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Amount, Budget, Capability, Limits};

/// What becomes of the replicas of an agent that ends. Ordered from least to most power left.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum OnParentExit {
    /// They end with it.
    #[default]
    Kill,
    /// They go on, within what their nearest living ancestor was granted.
    Keep,
}

/// What happens when a stop condition holds. Ordered by strictness.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum OnTrigger {
    /// No grants while it holds.
    #[default]
    Deny,
    /// No grants, and the worker it holds for is frozen.
    Quarantine,
    /// No grants, and the worker it holds for is killed.
    Kill,
}

/// An expression over the fleet that stops replication when it is true.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopCondition {
    /// Its name in decisions and reports.
    pub name: String,
    /// A CEL expression.
    pub when: String,
    /// What happens when it holds.
    #[serde(default)]
    pub on_trigger: OnTrigger,
    /// The line of the contract file it stands on; 0 if it comes from no file.
    #[serde(default)]
    pub line: u32,
}

/// What one replica's box may hold: the seed's `ResourceSpec`. It narrows the capability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceSpec {
    /// CPUs: 0.5 is half of one.
    pub cpu_limit: Option<f64>,
    /// Memory in mebibytes.
    pub memory_limit_mb: Option<u64>,
}

impl ResourceSpec {
    /// Narrows `limits` to what one replica's box may hold.
    pub fn narrow(&self, limits: &mut Limits) {
        let percent = self.cpu_limit.map(|cpus| cpus * 100.0);
        limits.cpu_percent = match (limits.cpu_percent, percent) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let memory = self
            .memory_limit_mb
            .map(|mb| mb.saturating_mul(crate::limits::MIB));
        limits.memory_bytes = match (limits.memory_bytes, memory) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

/// Which signature lineage manifests carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignerKind {
    /// Ed25519: whoever verifies can't sign.
    #[default]
    Ed25519,
    /// HMAC-SHA256, for experiments on one machine: whoever verifies could sign.
    Hmac,
}

/// The replication contract of one family of agents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contract {
    /// File name, for messages.
    pub name: String,
    /// Generations below the root: 0 means that the root makes no copies.
    pub max_depth: u32,
    /// Workers alive at once, roots included.
    pub max_replicas: u32,
    /// The least time between two children of one parent.
    pub cooldown: Duration,
    /// How long a worker may live; none means as long as its parent.
    pub expiration: Option<Duration>,
    /// How long a worker may stay silent before it is reaped; none means it need not speak.
    pub heartbeat_timeout: Option<Duration>,
    /// What becomes of the replicas of an agent that ends.
    pub on_parent_exit: OnParentExit,
    /// What one replica's box may hold.
    pub resources: ResourceSpec,
    /// What the whole family may use together.
    pub budget: Budget,
    /// When to stop.
    pub stop_conditions: Vec<StopCondition>,
    /// Which signature manifests carry.
    pub signer: SignerKind,
}

impl Contract {
    /// A contract with the seed's four numbers and nothing else.
    #[must_use]
    pub fn new(
        max_depth: u32,
        max_replicas: u32,
        cooldown: Duration,
        expiration: Option<Duration>,
    ) -> Self {
        Self {
            name: "contract".to_owned(),
            max_depth,
            max_replicas,
            cooldown,
            expiration,
            heartbeat_timeout: None,
            on_parent_exit: OnParentExit::default(),
            resources: ResourceSpec::default(),
            budget: Budget::UNBOUNDED,
            stop_conditions: Vec::new(),
            signer: SignerKind::default(),
        }
    }
}

impl Contract {
    /// What one box takes of the family's budget for itself: no more than it needs, and no more than its even share,
    /// so that the first of a family leaves room for the others.
    #[must_use]
    pub fn box_need(&self, need: &Budget) -> Budget {
        let boxes = u64::from(self.max_replicas.max(1));
        Budget::from_fn(|d| match self.budget.of(d).number() {
            Some(whole) => need
                .of(d)
                .min(Amount::of((whole / boxes).max(whole.min(1)))),
            None => need.of(d),
        })
    }
}

impl Capability {
    /// What a box with these limits holds of a budget for itself. A whole mebibyte is counted for a part of one.
    #[must_use]
    pub fn own_need(&self) -> Budget {
        let limits = &self.limits;
        Budget {
            replicas: Amount::ZERO,
            cpu_ms: limits
                .cpu_time
                .map(|t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX))
                .into(),
            memory_mb: limits
                .memory_bytes
                .map(|b| b.div_ceil(crate::limits::MIB))
                .into(),
            pids: limits.processes.map(u64::from).into(),
            tokens: Amount::ZERO,
            micro_usd: Amount::ZERO,
        }
    }

    /// Narrows the box's limits to what it was given for itself.
    pub fn confine_to(&mut self, own: &Budget) {
        let limits = &mut self.limits;
        if let Some(ms) = own.cpu_ms.number() {
            let granted = Duration::from_millis(ms);
            limits.cpu_time = Some(limits.cpu_time.map_or(granted, |t| t.min(granted)));
        }
        if let Some(mb) = own.memory_mb.number() {
            let granted = mb.saturating_mul(crate::limits::MIB);
            limits.memory_bytes = Some(limits.memory_bytes.map_or(granted, |b| b.min(granted)));
        }
        if let Some(pids) = own.pids.number() {
            let granted = u32::try_from(pids).unwrap_or(u32::MAX);
            limits.processes = Some(limits.processes.map_or(granted, |p| p.min(granted)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_box_confined_to_its_own_part_needs_no_more_than_it() {
        let mut capability = Capability::closed(Arc::from("test"));
        capability.limits.memory_bytes = Some(300 * crate::limits::MIB + 1);
        let own = Budget {
            memory_mb: Amount::of(256),
            pids: Amount::of(9),
            cpu_ms: Amount::of(1500),
            ..Budget::ZERO
        };
        assert_eq!(capability.own_need().memory_mb, Amount::of(301));
        capability.confine_to(&own);
        assert!(capability.own_need().within(&own).is_ok());
        assert_eq!(
            capability.limits.cpu_time,
            Some(Duration::from_millis(1500))
        );
    }

    #[test]
    fn every_box_of_a_family_fits_in_its_budget() {
        let mut contract = Contract::new(2, 4, Duration::ZERO, None);
        contract.budget.pids = Amount::of(64);
        contract.budget.memory_mb = Amount::of(2);
        let need = contract.box_need(&Budget {
            cpu_ms: Amount::of(5),
            memory_mb: Amount::of(0),
            ..Budget::UNBOUNDED
        });
        assert_eq!(need.pids, Amount::of(16));
        assert_eq!(need.cpu_ms, Amount::of(5));
        assert_eq!(need.memory_mb, Amount::ZERO);
        assert_eq!(need.tokens, Amount::UNBOUNDED);
        assert_eq!(
            contract.box_need(&Budget::UNBOUNDED).memory_mb,
            Amount::of(1)
        );
    }

    #[test]
    fn a_resource_spec_narrows_and_never_widens() {
        let spec = ResourceSpec {
            cpu_limit: Some(0.5),
            memory_limit_mb: Some(256),
        };
        let mut limits = Limits {
            memory_bytes: Some(64 * crate::limits::MIB),
            ..Limits::default()
        };
        spec.narrow(&mut limits);
        assert_eq!(limits.memory_bytes, Some(64 * crate::limits::MIB));
        assert_eq!(limits.cpu_percent, Some(50.0));
    }

    #[test]
    fn a_contract_survives_its_document() {
        let mut contract = Contract::new(3, 10, Duration::from_millis(1500), None);
        contract.stop_conditions.push(StopCondition {
            name: "crowd".to_owned(),
            when: "workers.active > 5".to_owned(),
            on_trigger: OnTrigger::Kill,
            line: 7,
        });
        let text = serde_json::to_string(&contract).unwrap();
        assert_eq!(serde_json::from_str::<Contract>(&text).unwrap(), contract);
    }
}
