//! C2SP signed notes: a text, a blank line, and signature lines.

use crate::base64;
use crate::key::{InvalidKey, KeyId, KnownKey, SignError, Signer, is_name};

/// A checkpoint with a few dozen cosignatures fits; nothing longer is read.
pub(crate) const MAX_NOTE: usize = 16 * 1024;
const MARK: &str = "\u{2014} ";

/// A note taken apart, its signatures not yet checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note<'a> {
    /// With its last newline: what was signed.
    pub(crate) text: &'a str,
    signatures: Vec<Line<'a>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line<'a> {
    name: &'a str,
    id: KeyId,
    signature: Vec<u8>,
}

/// The bytes are no signed note.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a signed note: {0}")]
pub struct InvalidNote(pub(crate) &'static str);

/// A note that can't be trusted, and why.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Distrust {
    /// Known keys signed nothing here.
    #[error("signed by {name} ({id}), which is not among the known keys")]
    UnknownKey {
        /// Name in the first signature line.
        name: String,
        /// Key id in that line.
        id: KeyId,
    },
    /// The line names a known key, and the signature is not that key's.
    #[error("the signature under the name {name} is invalid")]
    BadSignature {
        /// Whose signature it claims to be.
        name: String,
    },
}

/// Signing a note failed.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The signer itself failed.
    #[error("can't sign")]
    Sign(#[from] SignError),
    /// The signer's name or key is unusable.
    #[error("the signer's key is unusable")]
    Key(#[from] InvalidKey),
    /// The signature does not belong to the key that the signer names.
    #[error("the signer's signature does not fit its own public key")]
    Mismatch,
}

impl<'a> Note<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, InvalidNote> {
        if bytes.len() > MAX_NOTE {
            return Err(InvalidNote("too long"));
        }
        let note = std::str::from_utf8(bytes).map_err(|_| InvalidNote("not UTF-8"))?;
        if note.bytes().any(|b| b < 0x20 && b != b'\n') {
            return Err(InvalidNote("control characters"));
        }
        let split = note.rfind("\n\n").ok_or(InvalidNote("no signature"))?;
        let (text, lines) = (&note[..=split], &note[split + 2..]);
        let lines = lines
            .strip_suffix('\n')
            .ok_or(InvalidNote("cut off in a signature line"))?;
        let signatures = lines
            .split('\n')
            .map(Line::parse)
            .collect::<Option<Vec<_>>>()
            .ok_or(InvalidNote("a malformed signature line"))?;
        Ok(Note { text, signatures })
    }

    /// The key that signed. A bad signature under a known key spoils the note, whatever else signed it.
    pub(crate) fn signed_by<'k>(&self, known: &'k [KnownKey]) -> Result<&'k KnownKey, Distrust> {
        let mut signer = None;
        for line in &self.signatures {
            let Some(key) = known
                .iter()
                .find(|key| key.name() == line.name && key.id() == line.id)
            else {
                continue;
            };
            match <&[u8; 64]>::try_from(&line.signature[..]) {
                Ok(signature) if key.verifies(self.text.as_bytes(), signature) => {
                    signer = signer.or(Some(key));
                }
                _ => {
                    return Err(Distrust::BadSignature {
                        name: line.name.to_owned(),
                    });
                }
            }
        }
        signer.ok_or_else(|| {
            let first = self.signatures.first();
            Distrust::UnknownKey {
                name: first.map(|line| line.name.to_owned()).unwrap_or_default(),
                id: first.map_or(KeyId(0), |line| line.id),
            }
        })
    }
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (name, encoded) = line.strip_prefix(MARK)?.split_once(' ')?;
        let bytes = base64::decode(encoded)?;
        let (id, signature) = bytes.split_first_chunk::<4>()?;
        (is_name(name) && !signature.is_empty()).then(|| Line {
            name,
            id: KeyId(u32::from_be_bytes(*id)),
            signature: signature.to_vec(),
        })
    }
}

/// A signer with its key looked at once, not at each signature.
pub(crate) struct Seal {
    signer: std::sync::Arc<dyn Signer>,
    key: KnownKey,
}

impl Seal {
    pub(crate) fn new(signer: std::sync::Arc<dyn Signer>) -> Result<Self, SealError> {
        let key = KnownKey::of(&*signer)?;
        Ok(Seal { signer, key })
    }

    /// Signs something once: a signer with a wrong public key would make a log that nobody can verify.
    pub(crate) fn check(&self) -> Result<(), SealError> {
        let probe = b"belljar ledger: does this signer fit its key?\n";
        if self.key.verifies(probe, &self.signer.sign(probe)?) {
            Ok(())
        } else {
            Err(SealError::Mismatch)
        }
    }

    pub(crate) fn key(&self) -> &KnownKey {
        &self.key
    }

    /// The whole note for a text that ends in a newline.
    pub(crate) fn sign(&self, text: &str) -> Result<String, SealError> {
        let signature = self.signer.sign(text.as_bytes())?;
        let mut bytes = [0u8; 68];
        bytes[..4].copy_from_slice(&self.key.id().0.to_be_bytes());
        bytes[4..].copy_from_slice(&signature);
        let name = self.key.name();
        Ok(format!("{text}\n{MARK}{name} {}\n", base64::encode(&bytes)))
    }
}
