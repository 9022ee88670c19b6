//! Why a manifest is refused, in stable codes.

use std::borrow::Cow;

use crate::keys::VerifyFault;

belljar_policy::codes! {
    /// Why a manifest is refused.
    pub enum RejectReason {
        /// The signature is not the key's, or not for these bytes.
        Signature = "reject_signature",
        /// It was used before. The controller's to find; it is listed so that all codes are in one table.
        Replay = "reject_replay",
        /// It, or one above it, was revoked.
        Revoked = "reject_revoked",
        /// It is of another epoch than the verifier's.
        Epoch = "reject_epoch",
        /// Its time is over.
        Expired = "reject_expired",
        /// Its time has not come.
        NotYetValid = "reject_not_yet_valid",
        /// Its key is compromised.
        KeyCompromised = "reject_key_compromised",
        /// Its key is not in the keyset.
        KeyUnknown = "reject_key_unknown",
        /// Its key is one that anybody could sign for.
        KeyWeak = "reject_key_weak",
        /// Its HMAC key is not at hand.
        KeyMissing = "reject_key_missing",
        /// It is not a manifest, or not in its one spelling.
        Malformed = "reject_malformed",
        /// It has more than its parent.
        Attenuation = "reject_attenuation",
        /// It does not follow its parent.
        Chain = "reject_chain",
    }
}

/// A manifest was refused: why, and what exactly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {detail}", .reason.code())]
pub struct Rejection {
    /// The stable reason.
    pub reason: RejectReason,
    /// What exactly, for people.
    pub detail: Cow<'static, str>,
}

impl Rejection {
    pub(super) fn new(reason: RejectReason, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason,
            detail: detail.into(),
        }
    }

    pub(super) fn malformed(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(RejectReason::Malformed, detail)
    }
}

impl From<VerifyFault> for Rejection {
    fn from(fault: VerifyFault) -> Self {
        let reason = match fault {
            VerifyFault::Unknown(_) => RejectReason::KeyUnknown,
            VerifyFault::Compromised(_) => RejectReason::KeyCompromised,
            VerifyFault::Weak(..) => RejectReason::KeyWeak,
            VerifyFault::Missing(_) => RejectReason::KeyMissing,
            VerifyFault::Signature(_) => RejectReason::Signature,
        };
        Self::new(reason, fault.to_string())
    }
}
