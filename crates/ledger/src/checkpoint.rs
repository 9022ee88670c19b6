//! The signed head of the log: how many entries, and the hash above them all.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::hash::Hash;
use crate::key::KnownKey;
use crate::note::{Distrust, InvalidNote, Note, Seal, SealError};

/// A checkpoint: text of C2SP tlog-checkpoint, in a signed note.
///
/// Parsing does not check signatures: see [`Checkpoint::signed_by`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    origin: String,
    size: u64,
    root: Hash,
    time: Option<u64>,
    durable: u64,
    note: String,
}

/// What a new checkpoint says.
pub(crate) struct Head<'a> {
    pub(crate) origin: &'a str,
    pub(crate) size: u64,
    pub(crate) root: Hash,
    /// Seconds since 1970.
    pub(crate) time: u64,
    /// Entries that are known to survive a power cut.
    pub(crate) durable: u64,
}

impl Checkpoint {
    /// Reads a checkpoint as it is on disk or in a proof. It is not yet trusted.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidNote> {
        let note = Note::parse(bytes)?;
        let mut lines = note.text.strip_suffix('\n').unwrap_or_default().split('\n');
        let origin = lines
            .next()
            .filter(|origin| is_origin(origin))
            .ok_or(InvalidNote("no origin"))?;
        let size = lines
            .next()
            .and_then(decimal)
            .ok_or(InvalidNote("no tree size"))?;
        let root = lines
            .next()
            .and_then(Hash::from_base64)
            .ok_or(InvalidNote("no root hash"))?;
        let mut time = None;
        let mut durable = 0;
        for line in lines {
            match line.split_once(' ') {
                _ if line.is_empty() => return Err(InvalidNote("an empty line")),
                Some(("time", seconds)) => {
                    time = Some(decimal(seconds).ok_or(InvalidNote("a malformed time"))?);
                }
                Some(("durable", entries)) => {
                    durable = decimal(entries)
                        .filter(|entries| *entries <= size)
                        .ok_or(InvalidNote("a malformed durable size"))?;
                }
                _ => {} // Extension lines of others are theirs.
            }
        }
        Ok(Checkpoint {
            origin: origin.to_owned(),
            size,
            root,
            time,
            durable,
            note: String::from_utf8_lossy(bytes).into_owned(),
        })
    }

    /// The known key that signed this checkpoint.
    pub fn signed_by<'k>(&self, known: &'k [KnownKey]) -> Result<&'k KnownKey, Distrust> {
        match Note::parse(self.note.as_bytes()) {
            Ok(note) => note.signed_by(known),
            // Not reached: the note was parsed when the checkpoint was made.
            Err(_) => Err(Distrust::BadSignature {
                name: self.origin.clone(),
            }),
        }
    }

    pub(crate) fn sign(head: &Head<'_>, seal: &Seal) -> Result<Self, SealError> {
        let Head {
            origin,
            size,
            root,
            time,
            durable,
        } = head;
        let text = format!("{origin}\n{size}\n{root}\ntime {time}\ndurable {durable}\n");
        Ok(Checkpoint {
            origin: (*origin).to_owned(),
            size: *size,
            root: *root,
            time: Some(*time),
            durable: *durable,
            note: seal.sign(&text)?,
        })
    }

    /// The same log at another size, in place of a checkpoint that was never signed. Not to be shown to anyone.
    pub(crate) fn stand_in(&self, size: u64, root: Hash) -> Self {
        Checkpoint {
            size,
            root,
            durable: size,
            note: String::new(),
            ..self.clone()
        }
    }

    /// Which log this is.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// How many entries.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The hash over all of them.
    pub fn root(&self) -> Hash {
        self.root
    }

    /// When it was signed, by the signer's clock.
    pub fn time(&self) -> Option<SystemTime> {
        self.time
            .and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)))
    }

    /// How many of the entries were known to be on stable storage when it was signed.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// The whole signed note: what a verifier keeps, to ask later whether history changed.
    pub fn note(&self) -> &str {
        &self.note
    }
}

/// Usable as the first line of a checkpoint.
pub(crate) fn is_origin(origin: &str) -> bool {
    (1..=255).contains(&origin.len()) && !origin.chars().any(char::is_control)
}

/// One text for one number: no sign, no leading zero.
pub(crate) fn decimal(text: &str) -> Option<u64> {
    let canonical =
        text == "0" || (!text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit()));
    if canonical { text.parse().ok() } else { None }
}
