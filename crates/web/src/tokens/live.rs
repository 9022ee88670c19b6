//! Tokens as a running server sees them: the file is read again as soon as it is another one.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};

use subtle::ConstantTimeEq;

use super::file::now_ms;
use super::{TokenFile, TokenId, TokenRecord, TokenText};

/// How coarse `last_used_ms` is.
const USED_MS: u64 = 60 * 60 * 1000;

/// What tells one version of the file from another. Every change makes a new file, so the number of the inode alone tells most of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    changed: (i64, i64),
    bytes: u64,
}

#[derive(Debug, Default)]
struct Seen {
    version: Option<Version>,
    tokens: Arc<Vec<TokenRecord>>,
    /// Uses that are not written down yet.
    used: HashMap<TokenId, u64>,
}

/// The tokens of a running server.
#[derive(Debug)]
pub(crate) struct LiveTokens {
    file: TokenFile,
    seen: Mutex<Seen>,
}

impl LiveTokens {
    pub(crate) fn new(file: TokenFile) -> Self {
        Self {
            file,
            seen: Mutex::default(),
        }
    }

    /// Where the tokens are.
    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.file.path()
    }

    /// The token with this text, if it is good now. All tokens are compared, each in constant time, so that the time it takes says
    /// nothing about them.
    pub(crate) fn find(&self, text: &TokenText) -> Option<TokenRecord> {
        let digest = text.digest();
        let now = now_ms();
        let mut found = None;
        for token in self.tokens().iter() {
            if bool::from(token.digest().ct_eq(&digest)) && token.is_good(now) {
                found = Some(token.clone());
            }
        }
        if let Some(token) = &found {
            self.note(token, now);
        }
        found
    }

    /// The token with this id, if it is good now.
    pub(crate) fn good(&self, id: &TokenId) -> Option<TokenRecord> {
        let now = now_ms();
        let tokens = self.tokens();
        let found = tokens.iter().find(|token| token.id == *id)?;
        found.is_good(now).then(|| found.clone())
    }

    /// Whether any token is good now.
    pub(crate) fn any_good(&self) -> bool {
        let now = now_ms();
        self.tokens().iter().any(|token| token.is_good(now))
    }

    /// Writes down which tokens were used, where an hour has passed since that was last done.
    pub(crate) fn write_uses(&self) {
        let used = std::mem::take(&mut self.lock().used);
        if !used.is_empty() {
            // It is for people who wonder which tokens are still needed: a full disk must not keep anybody out.
            let _not_written = self.file.note_used(&used.into_iter().collect::<Vec<_>>());
        }
    }

    fn note(&self, token: &TokenRecord, now: u64) {
        if token
            .last_used_ms
            .is_none_or(|last| now.saturating_sub(last) >= USED_MS)
        {
            self.lock().used.insert(token.id.clone(), now);
        }
    }

    /// The tokens as the file has them. When it can't be read there are none: nobody gets in by breaking it.
    fn tokens(&self) -> Arc<Vec<TokenRecord>> {
        let version = std::fs::metadata(self.file.path())
            .ok()
            .map(|about| Version {
                device: about.dev(),
                inode: about.ino(),
                changed: (about.ctime(), about.ctime_nsec()),
                bytes: about.size(),
            });
        let mut seen = self.lock();
        if version.is_none() || seen.version != version {
            // Read after the look at it: a change in between is noticed by the next look. What could not be read is tried again.
            let read = self.file.list();
            seen.version = version.filter(|_| read.is_ok());
            seen.tokens = Arc::new(read.unwrap_or_default());
        }
        Arc::clone(&seen.tokens)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
