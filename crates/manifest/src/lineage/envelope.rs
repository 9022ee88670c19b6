//! The signed envelope around a payload.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use serde::Deserialize;

use super::ids::{Digest, WorkerId};
use super::payload::{InvalidPayload, MAX_PAYLOAD_BYTES, PAYLOAD_TYPE, Payload};
use super::rejection::{RejectReason, Rejection};
use crate::keys::{KeyId, Keyset, Signer};

/// The most bytes an envelope may have: the largest payload in base64, and room for the rest.
pub const MAX_ENVELOPE_BYTES: usize = MAX_PAYLOAD_BYTES.div_ceil(3) * 4 + 1024;

/// A signed manifest that nobody has verified yet. It says nothing until it is opened.
#[derive(Clone, PartialEq, Eq)]
pub struct Envelope {
    text: Arc<SignedText>,
    payload: Vec<u8>,
    key: KeyId,
    signature: Vec<u8>,
}

/// Why a payload was not signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the manifest can't be signed")]
pub struct SealError(#[from] InvalidPayload);

/// A manifest whose signature and form were verified. It comes from [`Envelope::open`] and nowhere else.
///
/// Verified is not valid: time, epoch and revocation are looked at by [`super::verify_chain`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    payload: Payload,
    key: KeyId,
    text: Arc<SignedText>,
}

/// The bytes of an envelope. Their digest is what children name; most workers have none, so it is made when it is asked for.
struct SignedText {
    bytes: Vec<u8>,
    digest: OnceLock<Digest>,
}

impl SignedText {
    fn new(bytes: Vec<u8>) -> Arc<Self> {
        let digest = OnceLock::new();
        Arc::new(Self { bytes, digest })
    }

    fn digest(&self) -> Digest {
        *self.digest.get_or_init(|| Digest::of(&self.bytes))
    }
}

impl PartialEq for SignedText {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for SignedText {}

impl std::fmt::Debug for SignedText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.digest())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvelopeWire<'a> {
    #[serde(rename = "payloadType", borrow)]
    payload_type: Cow<'a, str>,
    #[serde(borrow)]
    payload: Cow<'a, str>,
    #[serde(borrow)]
    signatures: [SignatureWire<'a>; 1],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignatureWire<'a> {
    keyid: KeyId,
    #[serde(borrow)]
    sig: Cow<'a, str>,
}

impl Envelope {
    /// Signs a payload.
    ///
    /// # Errors
    /// When the payload is one that no verifier would accept.
    pub fn seal(payload: &Payload, signer: &Signer<'_>) -> Result<Self, SealError> {
        let key = signer.id();
        let payload = payload.encode(key)?;
        let signature = signer.sign(&pre_authentication(&payload));
        let bytes = encode(&payload, key, &signature);
        Ok(Self {
            text: SignedText::new(bytes),
            payload,
            key,
            signature,
        })
    }

    /// Signs a payload and keeps it as verified: who signed it just now need not check the signature.
    pub fn seal_own(payload: Payload, signer: &Signer<'_>) -> Result<(Self, Verified), SealError> {
        let envelope = Self::seal(&payload, signer)?;
        let verified = Verified {
            payload,
            key: envelope.key,
            text: Arc::clone(&envelope.text),
        };
        Ok((envelope, verified))
    }

    /// Reads an envelope, if it is in its one spelling. It is not verified by that.
    ///
    /// # Errors
    /// `reject_malformed`, when it is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, Rejection> {
        if bytes.len() > MAX_ENVELOPE_BYTES {
            return Err(Rejection::malformed(format!(
                "the manifest is larger than {MAX_ENVELOPE_BYTES} bytes"
            )));
        }
        let wire: EnvelopeWire<'_> = serde_json::from_slice(bytes)
            .map_err(|_| Rejection::malformed("not an envelope with one signature"))?;
        if wire.payload_type != PAYLOAD_TYPE {
            return Err(Rejection::malformed("the payload is of another type"));
        }
        let base64 = |text: &str, what| {
            data_encoding::BASE64
                .decode(text.as_bytes())
                .map_err(|_| Rejection::malformed(what))
        };
        let payload = base64(&wire.payload, "the payload is not base64")?;
        let [signature] = wire.signatures;
        let key = signature.keyid;
        let signature = base64(&signature.sig, "the signature is not base64")?;
        if encode(&payload, key, &signature) != bytes {
            return Err(Rejection::malformed(
                "the envelope is not in its one spelling",
            ));
        }
        Ok(Self {
            text: SignedText::new(bytes.to_vec()),
            payload,
            key,
            signature,
        })
    }

    /// Verifies the signature with a keyset and reads the payload. The payload is not looked at before.
    ///
    /// # Errors
    /// Why the manifest is refused.
    pub fn open(&self, keys: &Keyset) -> Result<Verified, Rejection> {
        keys.verify(
            self.key,
            &pre_authentication(&self.payload),
            &self.signature,
        )?;
        let (payload, key) = Payload::decode(&self.payload)
            .map_err(|invalid| Rejection::malformed(invalid.to_string()))?;
        if key != self.key {
            return Err(Rejection::malformed(
                "the payload names another key than the envelope",
            ));
        }
        Ok(Verified {
            payload,
            key,
            text: Arc::clone(&self.text),
        })
    }

    /// The envelope as bytes: a JSON text.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.text.bytes
    }

    /// The digest of those bytes, which children name.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.text.digest()
    }

    /// The payload as it came: a JSON text, if it is a manifest at all. Nobody has vouched for it; it is to be
    /// looked at, not acted upon.
    #[must_use]
    pub fn unverified_payload(&self) -> &[u8] {
        &self.payload
    }

    /// The key that is said to have signed. Nothing is proved by it.
    #[must_use]
    pub fn claimed_key(&self) -> KeyId {
        self.key
    }
}

impl std::fmt::Debug for Envelope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Envelope({})", self.digest())
    }
}

impl Verified {
    /// What the manifest says.
    #[must_use]
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// The worker it is about.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.payload.worker
    }

    /// The key that signed it.
    #[must_use]
    pub fn key(&self) -> KeyId {
        self.key
    }

    /// The digest of its envelope, which children name.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.text.digest()
    }

    /// Checks its time by a wall clock: it begins with its first millisecond and is over with its last.
    ///
    /// # Errors
    /// `reject_not_yet_valid` or `reject_expired`.
    pub fn check_time(&self, now_ms: u64) -> Result<(), Rejection> {
        if now_ms < self.payload.not_before_ms {
            return Err(Rejection::new(
                RejectReason::NotYetValid,
                "the manifest's time has not come",
            ));
        }
        if self.payload.expires_ms.is_some_and(|end| now_ms >= end) {
            return Err(Rejection::new(
                RejectReason::Expired,
                "the manifest's time is over",
            ));
        }
        Ok(())
    }

    /// Checks that it is of this epoch: an older one is revoked, and a newer one says that the verifier lags behind.
    ///
    /// # Errors
    /// `reject_epoch`.
    pub fn check_epoch(&self, epoch: u64) -> Result<(), Rejection> {
        let own = self.payload.epoch;
        if own == epoch {
            return Ok(());
        }
        let detail = format!("the manifest is of epoch {own}, not of {epoch}");
        Err(Rejection::new(RejectReason::Epoch, detail))
    }
}

/// The one spelling of an envelope. Nothing in it needs escaping, so it is put together as it is.
fn encode(payload: &[u8], keyid: KeyId, signature: &[u8]) -> Vec<u8> {
    /// More than everything around the payload: the names, the type, the key's id and a signature.
    const AROUND: usize = 384;
    let base64 = &data_encoding::BASE64;
    let mut text = String::with_capacity(base64.encode_len(payload.len()) + AROUND);
    text.push_str(r#"{"payloadType":""#);
    text.push_str(PAYLOAD_TYPE);
    text.push_str(r#"","payload":""#);
    base64.encode_append(payload, &mut text);
    text.push_str(r#"","signatures":[{"keyid":""#);
    text.push_str(&keyid.to_string());
    text.push_str(r#"","sig":""#);
    base64.encode_append(signature, &mut text);
    text.push_str(r#""}]}"#);
    text.into_bytes()
}

/// What is signed: type and payload with their lengths, so that no two pairs run together to the same bytes.
fn pre_authentication(payload: &[u8]) -> Vec<u8> {
    let head = format!(
        "DSSEv1 {} {PAYLOAD_TYPE} {} ",
        PAYLOAD_TYPE.len(),
        payload.len()
    );
    [head.as_bytes(), payload].concat()
}
