//! What a reviewer signs: a DSSE envelope around a statement about exactly one tree, judged on exactly this evidence.

use belljar_manifest::keys::{KeyId, PublicKey, SecretKey};
use data_encoding::{BASE64, HEXLOWER};
use serde::{Deserialize, Serialize};

use super::registry::ReviewerName;
use crate::proposal::Digests;

/// The type that is signed along with the statement, so that a signature of something else never fits.
const PAYLOAD_TYPE: &str = "application/vnd.belljar.review.v1+json";
/// The most bytes an envelope may have.
pub const MOST_ENVELOPE_BYTES: u64 = 64 * 1024;
/// The most bytes of a reviewer's words.
pub const MOST_TEXT_BYTES: usize = 16 * 1024;

/// The first part that is not the same in both.
#[must_use]
pub fn difference(ours: &Digests, theirs: &Digests) -> Option<&'static str> {
    let parts = [
        ("base_tree", &ours.base_tree, &theirs.base_tree),
        (
            "candidate_tree",
            &ours.candidate_tree,
            &theirs.candidate_tree,
        ),
        ("evidence", &ours.evidence, &theirs.evidence),
        ("policy", &ours.policy, &theirs.policy),
    ];
    let found = parts.into_iter().find(|(_, ours, theirs)| ours != theirs);
    found.map(|(name, _, _)| name)
}

/// What a reviewer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Make it real.
    Approve,
    /// Don't.
    Reject,
    /// Neither.
    Comment,
}

impl Verdict {
    /// The word in documents.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Reject => "reject",
            Self::Comment => "comment",
        }
    }
}

/// Why a proposal was rejected: for the agent to learn from, and for statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It does something wrong.
    Incorrect,
    /// Tests are missing, weak or beside the point.
    Tests,
    /// It touches more than it says, or than it should.
    Scope,
    /// It opens a hole.
    Security,
    /// It costs time, memory or money.
    Performance,
    /// It changes what others rely on.
    Behaviour,
    /// Nobody can maintain it.
    Clarity,
    /// Nobody needs it.
    Unneeded,
    /// Its description is not what it does.
    Misleading,
    /// None of these; the words say which.
    Other,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Incorrect,
        Self::Tests,
        Self::Scope,
        Self::Security,
        Self::Performance,
        Self::Behaviour,
        Self::Clarity,
        Self::Unneeded,
        Self::Misleading,
        Self::Other,
    ];

    /// The word in documents.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Incorrect => "incorrect",
            Self::Tests => "tests",
            Self::Scope => "scope",
            Self::Security => "security",
            Self::Performance => "performance",
            Self::Behaviour => "behaviour",
            Self::Clarity => "clarity",
            Self::Unneeded => "unneeded",
            Self::Misleading => "misleading",
            Self::Other => "other",
        }
    }

    /// The reason of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == name)
    }
}

/// One thing said by one person about one proposal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// The version of the form.
    pub v: u8,
    /// What is said.
    pub verdict: Verdict,
    /// About which proposal.
    pub proposal: String,
    /// By whom.
    pub reviewer: ReviewerName,
    /// What was looked at.
    pub digests: Digests,
    /// When, in seconds of Unix time.
    pub issued_s: u64,
    /// Until when it counts.
    pub expires_s: u64,
    /// The step of the one-time code that was shown with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_factor: Option<u64>,
    /// Why, when it is a rejection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<Reason>,
    /// In words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// A signed statement, as it is kept: DSSE, so that other tools can check it too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Envelope {
    payload_type: String,
    payload: String,
    signatures: Vec<Signature>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signature {
    keyid: String,
    sig: String,
}

/// A statement can't be signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The key is of the wrong kind.
    #[error("a reviewer's key is an Ed25519 key")]
    Algorithm,
    /// The statement has no form that could be signed.
    #[error("the statement can't be encoded")]
    Encode(#[from] serde_json::Error),
}

impl Envelope {
    /// Signs a statement.
    ///
    /// # Errors
    /// When the key is not an Ed25519 key.
    pub fn sign(statement: &Statement, key: &SecretKey) -> Result<Self, SignError> {
        let payload = serde_json::to_vec(statement)?;
        let signature = key
            .sign_ed25519(&signed_bytes(&payload))
            .map_err(|_| SignError::Algorithm)?;
        Ok(Self {
            payload_type: PAYLOAD_TYPE.to_owned(),
            payload: BASE64.encode(&payload),
            signatures: vec![Signature {
                keyid: key.id().to_string(),
                sig: BASE64.encode(&signature),
            }],
        })
    }

    /// Which key signed, as it says itself.
    #[must_use]
    pub fn key(&self) -> Option<KeyId> {
        match self.signatures.as_slice() {
            [one] => one.keyid.parse().ok(),
            _ => None,
        }
    }

    /// The statement, if this key signed it. Exactly one signature and exactly our type: nothing is left to choose.
    #[must_use]
    pub fn open(&self, key: &PublicKey) -> Option<Statement> {
        let [signature] = self.signatures.as_slice() else {
            return None;
        };
        if self.payload_type != PAYLOAD_TYPE || signature.keyid != key.id().to_string() {
            return None;
        }
        let payload = BASE64.decode(self.payload.as_bytes()).ok()?;
        let signature = BASE64.decode(signature.sig.as_bytes()).ok()?;
        if !key.verifies(&signed_bytes(&payload), &signature) {
            return None;
        }
        let statement: Statement = serde_json::from_slice(&payload).ok()?;
        (statement.v == 1).then_some(statement)
    }

    /// SHA-256 of what was signed.
    #[must_use]
    pub fn digest(&self) -> String {
        use sha2::Digest as _;
        HEXLOWER.encode(&sha2::Sha256::digest(self.payload.as_bytes()))
    }
}

/// DSSE's pre-authentication encoding: lengths before words, so that nothing can be shifted between them.
fn signed_bytes(payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "DSSEv1 {} {PAYLOAD_TYPE} {} ",
        PAYLOAD_TYPE.len(),
        payload.len()
    )
    .into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}
