//! A worker's papers: its manifest, and the capability that it vouches for.

use std::sync::Arc;

use belljar_manifest::keys::{CannotSign, KeyId};
use belljar_manifest::lineage::{
    CapabilityDocument, Digest, Envelope, Jti, ParentLink, Payload, SealError, Verified, WorkerId,
};

use super::{Replicate, Seated, Wish};
use crate::permit::Permit;
use crate::run::Launch;

/// What a manifest says of a worker besides what the controller decides.
#[derive(Clone, Debug)]
pub struct Standing {
    /// What it may do.
    pub capability: CapabilityDocument,
    /// Digest of the program and its arguments.
    pub program: Digest,
    /// Digest of the state it starts from.
    pub state: Option<Digest>,
}

/// A signed manifest and what it says.
#[derive(Clone, Debug)]
pub struct Papers {
    envelope: Arc<Envelope>,
    verified: Arc<Verified>,
}

/// A manifest that can't be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PapersError {
    /// The key does not sign.
    #[error("the manifest can't be signed")]
    Key(#[from] CannotSign),
    /// What it would say is not sound.
    #[error("the manifest can't be written")]
    Seal(#[from] SealError),
    /// It does not hold against its own keys.
    #[error("the manifest does not hold")]
    Check(#[from] belljar_manifest::lineage::Rejection),
}

impl Papers {
    pub(super) fn of(envelope: Envelope, verified: Verified) -> Self {
        Self {
            envelope: Arc::new(envelope),
            verified: Arc::new(verified),
        }
    }

    pub(super) fn seal(
        wish: Wish,
        jti: belljar_replication::Jti,
        seated: &Seated,
        parent: Option<&Papers>,
        policy: Digest,
    ) -> Result<Self, PapersError> {
        let admitted = &seated.admitted;
        let payload = Payload {
            worker: WorkerId::from_u128(admitted.worker.0),
            parent: parent.map(|papers| ParentLink {
                worker: papers.verified.worker(),
                envelope: papers.verified.digest(),
            }),
            depth: admitted.depth,
            depth_ceiling: seated.depth_ceiling,
            seq: seated.seq,
            jti: Jti::from_u128(jti.0),
            epoch: seated.epoch,
            not_before_ms: seated.at.wall_ms,
            expires_ms: expires_ms(seated, parent),
            capability: wish.standing.capability,
            budget: admitted.share.granted,
            program: wish.standing.program,
            state: wish.standing.state,
            policy,
            reason: Some(wish.reason).filter(|reason| !reason.is_empty()),
        };
        let keyring = &seated.keyring;
        let signer = keyring.keyset().signer(keyring.secret())?;
        let (envelope, verified) = Envelope::seal_own(payload, &signer)?;
        Ok(Self::of(envelope, verified))
    }

    /// Whose they are.
    #[must_use]
    pub fn worker(&self) -> belljar_replication::WorkerId {
        belljar_replication::WorkerId(self.verified.worker().as_u128())
    }

    /// The signed bytes.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// What they say.
    #[must_use]
    pub fn payload(&self) -> &Payload {
        self.verified.payload()
    }

    /// The key that vouches for them.
    #[must_use]
    pub fn key(&self) -> KeyId {
        self.verified.key()
    }

    /// Whether somebody of this standing would have no more than these papers allow; else what would be more.
    pub(super) fn covers(&self, standing: &Standing) -> Result<(), String> {
        let (own, other) = (&self.payload().capability, &standing.capability);
        if own.digest() == other.digest() {
            return Ok(());
        }
        if own.places() != other.places() {
            return Err("it would work in other places".to_owned());
        }
        own.capability()
            .attenuate(other.capability(), own.places())
            .map_err(|excesses| {
                excesses
                    .first()
                    .map(ToString::to_string)
                    .unwrap_or_default()
            })
    }
}

impl Permit<Replicate> {
    /// Leave to have a replica is leave to start its box.
    pub fn into_launch(self) -> (Replicate, Permit<Launch>) {
        let (replicate, entry) = self.into_parts();
        let payload = replicate.papers.payload();
        let launch = Launch {
            run: replicate.admitted.worker.to_string(),
            program: String::new(),
            command_sha256: payload.program.to_string(),
            capability: payload.capability.capability().name.to_string(),
            capability_sha256: payload.capability.digest().to_string(),
            tier: payload.capability.capability().tier.as_str().to_owned(),
            // Found when its box is put up, and put on record then: see `FleetGate::image_used`.
            image: None,
        };
        (replicate, Permit::new(launch, entry))
    }
}

/// The end of its time on the wall's clock: for readers elsewhere. The controller goes by a clock that nobody can set.
fn expires_ms(seated: &Seated, parent: Option<&Papers>) -> Option<u64> {
    let own = seated.admitted.expires_ns.map(|ns| {
        let left = ns.saturating_sub(seated.at.boot_ns) / 1_000_000;
        seated
            .at
            .wall_ms
            .saturating_add(left)
            .max(seated.at.wall_ms + 1)
    });
    let above = parent.and_then(|papers| papers.payload().expires_ms);
    match (own, above) {
        (Some(own), Some(above)) => Some(own.min(above)),
        (own, above) => own.or(above),
    }
}
