//! What a lineage manifest says.

use std::borrow::Cow;

use belljar_policy::Budget;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::capability_document::{CapabilityDocument, Unrepresentable};
use super::ids::{Digest, Jti, WorkerId};
use crate::contract_file::MAX_GENERATIONS;
use crate::keys::KeyId;

/// The type of a lineage manifest's payload. It is signed, so that no other document can pass for one.
pub const PAYLOAD_TYPE: &str = "application/vnd.belljar.lineage+json;version=1";

/// The most bytes a payload may have.
pub const MAX_PAYLOAD_BYTES: usize = 256 * 1024;

/// The most bytes a manifest's reason may have.
pub const MAX_REASON_BYTES: usize = 1024;

/// Who made a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParentLink {
    /// The parent.
    pub worker: WorkerId,
    /// The digest of the parent's manifest: its envelope, byte for byte.
    pub envelope: Digest,
}

/// What a lineage manifest says of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The worker.
    pub worker: WorkerId,
    /// Who made it; none for a root.
    pub parent: Option<ParentLink>,
    /// Generations above it; 0 for a root.
    pub depth: u32,
    /// How deep its descendants may be.
    pub depth_ceiling: u32,
    /// The number of the issue: later issues have larger ones.
    pub seq: u64,
    /// The name of the issue, which may be used once.
    pub jti: Jti,
    /// The epoch of the issue. Raising the epoch revokes everything before.
    pub epoch: u64,
    /// Not valid before, in milliseconds of Unix time.
    pub not_before_ms: u64,
    /// Not valid from then on, in milliseconds of Unix time; none is without end. The controller enforces the end by a
    /// clock that can't be set; this is for other machines.
    pub expires_ms: Option<u64>,
    /// What it may do.
    pub capability: CapabilityDocument,
    /// What it and its descendants may use together.
    pub budget: Budget,
    /// The digest of the program; see [`Digest::of_program`].
    pub program: Digest,
    /// The digest of the state it starts from.
    pub state: Option<Digest>,
    /// The digest of the contract; see [`Digest::of_contract`].
    pub policy: Digest,
    /// Why it was asked for, in the asker's words.
    pub reason: Option<String>,
}

/// Why a payload can't be one, whoever signs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPayload {
    /// A root below others, or a child without a parent.
    #[error("a worker has a parent exactly if its depth is above 0")]
    Root,
    /// Its own parent.
    #[error("a worker is its own parent")]
    OwnParent,
    /// Deeper than its own ceiling.
    #[error("the depth is above its ceiling")]
    Depth,
    /// A ceiling beyond what chains are checked to.
    #[error("the depth ceiling is above {MAX_GENERATIONS}")]
    Ceiling,
    /// Over before it begins.
    #[error("the manifest expires before it is valid")]
    Time,
    /// A reason that is too long or can't be shown.
    #[error("a reason is at most {MAX_REASON_BYTES} bytes without control characters")]
    Reason,
    /// Too large.
    #[error("the payload is larger than {MAX_PAYLOAD_BYTES} bytes")]
    TooLarge,
    /// The capability.
    #[error("the capability of the manifest is not sound")]
    Capability(#[source] Unrepresentable),
    /// A digest that is not the capability's.
    #[error("the capability digest is not the capability's")]
    CapabilityDigest,
    /// Not the JSON it should be.
    #[error("the payload is not a lineage manifest")]
    Json,
    /// Another spelling of the same.
    #[error("the payload is not in its one spelling")]
    NotCanonical,
}

/// The payload's fields in their order, which is part of its spelling.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PayloadWire<'a> {
    worker: WorkerId,
    parent: Option<ParentLink>,
    depth: u32,
    depth_ceiling: u32,
    seq: u64,
    jti: Jti,
    epoch: u64,
    not_before_ms: u64,
    expires_ms: Option<u64>,
    capability_digest: Digest,
    #[serde(borrow)]
    capability: &'a RawValue,
    budget: Budget,
    program: Digest,
    state: Option<Digest>,
    policy: Digest,
    #[serde(borrow)]
    reason: Option<Cow<'a, str>>,
    key: KeyId,
}

impl Payload {
    /// Checks what needs no parent, no key and no clock.
    fn check(&self) -> Result<(), InvalidPayload> {
        if self.parent.is_some() != (self.depth > 0) {
            return Err(InvalidPayload::Root);
        }
        if self.parent.is_some_and(|link| link.worker == self.worker) {
            return Err(InvalidPayload::OwnParent);
        }
        if self.depth > self.depth_ceiling {
            return Err(InvalidPayload::Depth);
        }
        if self.depth_ceiling > MAX_GENERATIONS {
            return Err(InvalidPayload::Ceiling);
        }
        if self.expires_ms.is_some_and(|end| end <= self.not_before_ms) {
            return Err(InvalidPayload::Time);
        }
        let sound = |reason: &str| {
            reason.len() <= MAX_REASON_BYTES && !reason.chars().any(char::is_control)
        };
        if !self.reason.as_deref().is_none_or(sound) {
            return Err(InvalidPayload::Reason);
        }
        Ok(())
    }

    /// The bytes to sign with this key.
    pub(super) fn encode(&self, key: KeyId) -> Result<Vec<u8>, InvalidPayload> {
        self.check()?;
        let wire = PayloadWire {
            worker: self.worker,
            parent: self.parent,
            depth: self.depth,
            depth_ceiling: self.depth_ceiling,
            seq: self.seq,
            jti: self.jti,
            epoch: self.epoch,
            not_before_ms: self.not_before_ms,
            expires_ms: self.expires_ms,
            capability_digest: self.capability.digest(),
            capability: self.capability.raw(),
            budget: self.budget,
            program: self.program,
            state: self.state,
            policy: self.policy,
            reason: self.reason.as_deref().map(Cow::Borrowed),
            key,
        };
        /// About what everything besides the capability takes.
        const AROUND: usize = 1536;
        let mut bytes = Vec::with_capacity(self.capability.text().len() + AROUND);
        serde_json::to_writer(&mut bytes, &wire).map_err(|_| InvalidPayload::Json)?;
        if bytes.len() > MAX_PAYLOAD_BYTES {
            return Err(InvalidPayload::TooLarge);
        }
        Ok(bytes)
    }

    /// Reads signed bytes, if they are in their one spelling; and the key they name.
    pub(super) fn decode(bytes: &[u8]) -> Result<(Self, KeyId), InvalidPayload> {
        if bytes.len() > MAX_PAYLOAD_BYTES {
            return Err(InvalidPayload::TooLarge);
        }
        let wire: PayloadWire<'_> =
            serde_json::from_slice(bytes).map_err(|_| InvalidPayload::Json)?;
        let capability = CapabilityDocument::read(wire.capability.to_owned())
            .map_err(InvalidPayload::Capability)?;
        if capability.digest() != wire.capability_digest {
            return Err(InvalidPayload::CapabilityDigest);
        }
        let key = wire.key;
        let payload = Self {
            worker: wire.worker,
            parent: wire.parent,
            depth: wire.depth,
            depth_ceiling: wire.depth_ceiling,
            seq: wire.seq,
            jti: wire.jti,
            epoch: wire.epoch,
            not_before_ms: wire.not_before_ms,
            expires_ms: wire.expires_ms,
            capability,
            budget: wire.budget,
            program: wire.program,
            state: wire.state,
            policy: wire.policy,
            reason: wire.reason.map(Cow::into_owned),
        };
        if payload.encode(key)? != bytes {
            return Err(InvalidPayload::NotCanonical);
        }
        Ok((payload, key))
    }
}
