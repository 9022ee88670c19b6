//! Sessions on the disk, so that a daemon that is started anew logs nobody out. Of a cookie there is its hash alone: whoever reads
//! the file can't take part in a session.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::tokens::TokenId;

/// No list of sessions is this large.
const MOST_BYTES: u64 = 4 << 20;

/// A session as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeptSession {
    /// The hex of the cookie's hash.
    pub(crate) cookie_sha256: String,
    pub(crate) token: TokenId,
    pub(crate) csrf: String,
    /// Milliseconds since 1970.
    pub(crate) began_ms: u64,
}

/// Where they are written.
#[derive(Debug, Clone)]
pub(crate) struct SessionFile(PathBuf);

impl SessionFile {
    /// Beside the tokens.
    pub(crate) fn beside(tokens: &Path) -> Self {
        Self(tokens.with_file_name("sessions.json"))
    }

    /// What a former life left. A file that others may write, or that can't be read, is none: then everybody logs in again.
    pub(crate) fn read(&self) -> Vec<KeptSession> {
        let Ok(file) = File::open(&self.0) else {
            return Vec::new();
        };
        let mine = rustix::process::geteuid().as_raw();
        let is_ours = file
            .metadata()
            .is_ok_and(|about| about.is_file() && about.uid() == mine && about.mode() & 0o077 == 0);
        let mut bytes = Vec::new();
        match file.take(MOST_BYTES).read_to_end(&mut bytes) {
            Ok(_) if is_ours => serde_json::from_slice(&bytes).unwrap_or_default(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn write(&self, sessions: &[KeptSession]) -> io::Result<()> {
        let bytes = serde_json::to_vec(sessions).map_err(io::Error::other)?;
        belljar_files::replace(&self.0, &bytes, belljar_files::PRIVATE)
    }
}
