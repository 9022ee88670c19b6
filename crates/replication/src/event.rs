//! What is recorded. The state is the fold of these events and of nothing else.

use belljar_policy::Contract;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::account::{Share, Usage};
use crate::{BootId, Code, Jti, Now, WorkerId};

/// One entry of the record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// The version of the encoding.
    pub v: Version,
    /// When it was decided.
    pub at: Now,
    /// What happened.
    pub what: What,
}

impl Event {
    /// An event of the present version.
    #[must_use]
    pub fn new(at: Now, what: What) -> Self {
        Self {
            v: Version,
            at,
            what,
        }
    }
}

/// The version of the encoding, 1. Another one is refused, not guessed at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version;

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(1)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u8::deserialize(deserializer)? {
            1 => Ok(Self),
            other => Err(serde::de::Error::custom(format!(
                "events of version {other} are not known here"
            ))),
        }
    }
}

crate::kind_first! {
    "What",
    /// What happened. The tags are stable.
    #[derive(Clone, Debug, PartialEq)]
    pub enum What {
        /// A controller took over. Whoever lived under the last one is lost; grants are void.
        ControllerStarted {
            /// The boot it runs in.
            boot: BootId,
        },
        /// The contract that holds from now on.
        ContractSet {
            /// All of it.
            contract: Box<Contract>,
        },
        /// A grant: the parent is debited, the child may register once.
        Issued(Box<Issued>),
        /// A child registered with its grant. Its box is not yet confirmed.
        Registered {
            /// The grant it used.
            jti: Jti,
            /// The new worker.
            worker: WorkerId,
            /// When its time is over, on the boot clock.
            expires_ns: Option<u64>,
        },
        /// A root was admitted by the operator.
        RootAdmitted(Box<RootAdmitted>),
        /// Something was refused.
        Refused(Box<Refused>),
        /// A grant is void without having been used.
        Withdrawn {
            /// Which.
            jti: Jti,
            /// Why.
            why: WithdrawnWhy,
        },
        /// The worker's box runs.
        Started {
            /// Which.
            worker: WorkerId,
        },
        /// A worker ended. Those below it that end too have their own entries, before this one.
        Ended {
            /// Which.
            worker: WorkerId,
            /// How.
            code: Code,
        },
        /// A worker is frozen and gets no grants.
        Quarantined {
            /// Which.
            worker: WorkerId,
            /// Why.
            code: Code,
        },
        /// An operator released a worker from quarantine.
        Released {
            /// Which.
            worker: WorkerId,
        },
        /// An operator pulled the kill switch.
        KillSwitchEngaged {
            /// For whom.
            scope: Scope,
        },
        /// An operator reset the fleet's kill switch.
        KillSwitchReset {},
        /// A worker's manifest is revoked, and those below it.
        Revoked {
            /// Whose.
            worker: WorkerId,
        },
        /// All manifests of earlier epochs are void.
        EpochBumped {
            /// The new epoch.
            epoch: u64,
        },
        /// The wall clock moved against the boot clock.
        ClockJumped {
            /// By how much; below zero is backward.
            by_ms: i64,
        },
        /// An operator looked at the clock and accepts it.
        ClockAcknowledged {},
        /// A worker used something up.
        UsageReported {
            /// Who.
            worker: WorkerId,
            /// What, since the last report.
            usage: Usage,
            /// How its meter stood then, where it has one that outlives whoever reads it. Nothing follows from it but that the
            /// next reader charges what came after.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            reading: Option<Usage>,
        },
        /// A stop condition holds that did not hold before.
        StopConditionTriggered {
            /// Its name.
            name: String,
            /// For whom; nobody in particular if it is about the fleet.
            worker: Option<WorkerId>,
        },
    }
}

/// A grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Issued {
    /// Its single-use number.
    pub jti: Jti,
    /// The worker to be.
    pub worker: WorkerId,
    /// Its parent.
    pub parent: WorkerId,
    /// What it gets.
    pub share: Share,
    /// When the grant lapses unused, on the boot clock.
    pub lapses_ns: u64,
}

/// A root, admitted and registered in one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RootAdmitted {
    /// The number of its manifest.
    pub jti: Jti,
    /// The new worker.
    pub worker: WorkerId,
    /// What it gets.
    pub share: Share,
    /// When its time is over, on the boot clock.
    pub expires_ns: Option<u64>,
}

/// A refusal: who asked for what, and why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    /// Why not.
    pub code: Code,
    /// At which step.
    pub step: Step,
    /// The worker to be.
    pub worker: WorkerId,
    /// The parent it named.
    pub parent: Option<WorkerId>,
    /// The number of the manifest.
    pub jti: Jti,
    /// The dimension or the condition, if one stands behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Where something was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Admitting a root.
    Root,
    /// Asking for a grant.
    Issue,
    /// Registering with one.
    Register,
}

/// Why a grant is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WithdrawnWhy {
    /// Nobody registered in time.
    Lapsed,
    /// Its issuer took it back.
    TakenBack,
    /// The kill switch covers it.
    KillSwitch,
    /// It is revoked.
    Revoked,
}

/// Whom the kill switch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Everyone; latched until an operator resets it.
    Fleet,
    /// A worker and all its descendants, also where the worker itself has ended.
    Subtree(WorkerId),
    /// One worker; its children follow the contract's `on_parent_exit`.
    Worker(WorkerId),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_stable_and_other_versions_refused() {
        let event = Event::new(
            Now::default(),
            What::Ended {
                worker: WorkerId(7),
                code: Code::ReapStale,
            },
        );
        let text = serde_json::to_string(&event).expect("plain data");
        assert_eq!(
            text,
            r#"{"v":1,"at":{"boot_ns":0,"wall_ms":0},"what":{"kind":"ended","worker":"00000000000000000000000000000007","code":"reap_stale"}}"#
        );
        assert_eq!(
            serde_json::from_str::<Event>(&text).expect("the same"),
            event
        );
        assert!(serde_json::from_str::<Event>(&text.replace("\"v\":1", "\"v\":2")).is_err());
        assert!(
            serde_json::from_str::<Event>(&text.replace("\"code\"", "\"x\":1,\"code\"")).is_err()
        );
    }
}
