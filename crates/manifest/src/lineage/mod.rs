//! Lineage manifests: signed papers that say who a worker is, who made it, and what it may do and use at most.
//!
//! A manifest is a [DSSE](https://github.com/secure-systems-lab/dsse) envelope around one JSON payload. What is signed
//! is the bytes; what was verified is a [`Verified`], which comes from nowhere else. Each document has exactly one
//! spelling, so a digest names a document and two readers can't see different things in it.
//!
//! Everything here is stateless. That a manifest is used once, that siblings share a budget and that a clock was not
//! turned back is the controller's to know.

mod capability_document;
mod capability_wire;
mod chain;
mod egress_wire;
mod envelope;
mod ids;
mod limits_wire;
mod network_wire;
mod payload;
mod rejection;
mod tools_wire;
mod wire_text;

pub use capability_document::{CapabilityDocument, Unrepresentable};
pub use chain::{ChainFault, MAX_CHAIN, Revocations, VerifiedChain, check_link, verify_chain};
pub use envelope::{Envelope, MAX_ENVELOPE_BYTES, SealError, Verified};
pub use ids::{Digest, InvalidDigest, InvalidJti, InvalidWorkerId, Jti, WorkerId};
pub use payload::{
    InvalidPayload, MAX_PAYLOAD_BYTES, MAX_REASON_BYTES, PAYLOAD_TYPE, ParentLink, Payload,
};
pub use rejection::{RejectReason, Rejection};
