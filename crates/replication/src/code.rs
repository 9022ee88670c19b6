//! The stable codes of every decision and every end.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

belljar_policy::codes! {
    /// Why something was refused, or how a worker ended. The codes are stable: scripts and ledgers keep them.
    pub enum Code {
        /// As many workers as the contract allows are alive or promised.
        DenyQuota = "deny_quota",
        /// The parent's last child was registered too recently.
        DenyCooldown = "deny_cooldown",
        /// The child would be deeper than the contract allows.
        DenyDepth = "deny_depth",
        /// The claimed depth is not the parent's plus one.
        DenyDepthSpoof = "deny_depth_spoof",
        /// The parent is quarantined.
        DenyQuarantined = "deny_quarantined",
        /// A stop condition holds, or could not be evaluated.
        DenyStopCondition = "deny_stop_condition",
        /// The kill switch is engaged.
        DenyKillSwitch = "deny_kill_switch",
        /// The parent has not so much left.
        DenyBudget = "deny_budget",
        /// No such parent is alive.
        DenyParentUnknown = "deny_parent_unknown",
        /// The parent's time, or the grant's, is over.
        DenyExpired = "deny_expired",
        /// The wall clock was turned back, and nobody has acknowledged it.
        DenyClock = "deny_clock",
        /// The child's capability is not within its parent's. Decided by the caller.
        DenyCapability = "deny_capability",
        /// A worker with this id is alive, or a grant with this number is outstanding.
        DenyDuplicate = "deny_duplicate",
        /// The controller's own record contradicts itself; it grants nothing any more.
        DenyInconsistent = "deny_inconsistent",
        /// The manifest's signature does not hold. Decided by the caller.
        RejectSignature = "reject_signature",
        /// The manifest was used, withdrawn or never issued.
        RejectReplay = "reject_replay",
        /// The manifest, or one above it, is revoked.
        RejectRevoked = "reject_revoked",
        /// The manifest is of another epoch.
        RejectEpoch = "reject_epoch",
        /// The manifest says something else than the grant.
        RejectMismatch = "reject_mismatch",
        /// Silent for longer than the heartbeat timeout.
        ReapStale = "reap_stale",
        /// Its time was over.
        Expired = "expired",
        /// Killed by an operator.
        KilledOperator = "killed_operator",
        /// Killed by the kill switch.
        KilledKillSwitch = "killed_kill_switch",
        /// Killed by a stop condition.
        KilledStopCondition = "killed_stop_condition",
        /// Killed for using more than its budget.
        KilledBudget = "killed_budget",
        /// Its parent ended.
        ParentExit = "parent_exit",
        /// The controller was shut down.
        Shutdown = "shutdown",
        /// It exited by itself.
        Exited = "exited",
        /// It was alive when the controller stopped without ending it.
        Lost = "lost",
        /// Its manifest, or one above it, was revoked.
        Revoked = "revoked",
        /// Its box could not be started.
        LaunchFailed = "launch_failed",
        /// Quarantined by an operator.
        QuarantinedOperator = "quarantined_operator",
        /// Quarantined by a stop condition.
        QuarantinedStopCondition = "quarantined_stop_condition",
        /// Quarantined because the key that signed its manifest is compromised.
        QuarantinedKey = "quarantined_key",
    }
}

impl Code {
    /// Whether it says how a worker ended.
    #[must_use]
    pub fn is_end(self) -> bool {
        matches!(
            self,
            Self::ReapStale
                | Self::Expired
                | Self::KilledOperator
                | Self::KilledKillSwitch
                | Self::KilledStopCondition
                | Self::KilledBudget
                | Self::ParentExit
                | Self::Shutdown
                | Self::Exited
                | Self::Lost
                | Self::Revoked
                | Self::LaunchFailed
        )
    }

    /// Whether it says why a worker was quarantined.
    #[must_use]
    pub fn is_quarantine(self) -> bool {
        matches!(
            self,
            Self::QuarantinedOperator | Self::QuarantinedStopCondition | Self::QuarantinedKey
        )
    }

    /// Whether it refuses something.
    #[must_use]
    pub fn is_refusal(self) -> bool {
        !self.is_end() && !self.is_quarantine()
    }

    /// What to do about it, in one line.
    #[must_use]
    pub fn hint(self) -> &'static str {
        match self {
            Self::DenyQuota => "wait until a worker ends, or raise max_replicas",
            Self::DenyCooldown => "wait for the cooldown to pass, then ask again",
            Self::DenyDepth => "raise max_depth, or let an ancestor make the replica",
            Self::DenyDepthSpoof => "leave the depth out: it follows from the parent",
            Self::DenyQuarantined => "an operator must release the worker first",
            Self::DenyStopCondition => "see which condition holds and why",
            Self::DenyKillSwitch => "an operator must reset the kill switch first",
            Self::DenyBudget => {
                "ask for less, wait until a sibling ends, or raise that part of `budget` in the contract"
            }
            Self::DenyParentUnknown => "only a live worker can have replicas",
            Self::DenyExpired => "ask for a new grant from a live parent",
            Self::DenyClock => "check the host's clock, then acknowledge the jump",
            Self::DenyCapability => "ask for no more than the parent has",
            Self::DenyDuplicate => "use a fresh random id",
            Self::DenyInconsistent => "stop the controller and fold the ledger again",
            Self::RejectSignature | Self::RejectMismatch => "present the manifest as it was issued",
            Self::RejectReplay | Self::RejectRevoked | Self::RejectEpoch => {
                "ask for a new manifest"
            }
            _ => "see the worker's record in the ledger",
        }
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::from_code(&text).ok_or_else(|| serde::de::Error::custom("an unknown code"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_says_what_it_is() {
        for code in Code::ALL {
            let refuses = code.code().starts_with("deny_") || code.code().starts_with("reject_");
            assert_eq!(code.is_refusal(), refuses, "{}", code.code());
            assert_eq!(code.is_quarantine(), code.code().starts_with("quarantined"));
            assert_eq!(Code::from_code(code.code()), Some(*code));
        }
    }
}
