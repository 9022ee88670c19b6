//! The file that tokens are kept in. Every change is made under a lock and replaces it as a whole.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belljar_api::Name;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::text::Digest;
use super::{Role, TokenId, TokenText};

/// A token as it is kept: everything but the secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRecord {
    /// Which one.
    pub id: TokenId,
    /// What its owner calls it; records name it so.
    pub name: Name,
    /// What it lets its holder do.
    pub role: Role,
    /// When it was made.
    pub created_ms: u64,
    /// When it ends; absent where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// When it was last used, give or take an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_ms: Option<u64>,
    /// When it was revoked, where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_ms: Option<u64>,
    #[serde(with = "hex")]
    sha256: Digest,
}

impl TokenRecord {
    /// Whether it opens anything at this moment.
    #[must_use]
    pub fn is_good(&self, now_ms: u64) -> bool {
        self.revoked_ms.is_none() && self.expires_ms.is_none_or(|end| now_ms < end)
    }

    pub(crate) fn digest(&self) -> &Digest {
        &self.sha256
    }
}

/// What a new token is to be.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// What its owner calls it.
    pub name: Name,
    /// What it lets its holder do.
    pub role: Role,
    /// How long it is good for; without end where absent.
    pub lifetime: Option<Duration>,
}

/// Why tokens can't be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file can't be used.
    #[error("the tokens in {} can't be {doing}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The file is not one of ours.
    #[error("{} is no file of tokens", path.display())]
    Broken {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Others could have put tokens into it.
    #[error("{} may be changed by others than its owner, or is not yours", path.display())]
    Exposed {
        /// Which.
        path: PathBuf,
    },
    /// No token, or several, begin like that.
    #[error("{} begins the id of {}", given, if *found == 0 { "no token" } else { "several tokens" })]
    Unknown {
        /// What was given.
        given: String,
        /// How many it fits.
        found: usize,
    },
    /// There are as many as may be.
    #[error(
        "there are {} tokens that are still good, which is the most",
        TokenFile::MOST
    )]
    TooMany,
    /// The kernel gives no random bytes.
    #[error("there are no random bytes to be had")]
    Random(#[from] io::Error),
}

impl TokenError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::File { .. } => "see that BELLJAR_STATE_DIR can be written to, and whose it is",
            Self::Broken { .. } => {
                "restore it from a copy, or move it away and make new tokens; until then every token is refused"
            }
            Self::Exposed { .. } => {
                "look at what is in it, then `chmod 600` it; until then every token is refused"
            }
            Self::Unknown { .. } => "`belljar token list` shows the ids",
            Self::TooMany => "revoke those that nobody uses: `belljar token list` says when",
            Self::Random(_) => "this is no state a Linux system should be in",
        }
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    tokens: Vec<TokenRecord>,
}

/// The tokens of a state directory.
#[derive(Clone, Debug)]
pub struct TokenFile {
    directory: PathBuf,
}

impl TokenFile {
    /// The most tokens that are good at once.
    pub const MOST: usize = 1000;
    /// The most bytes of the file: some 400 for each token, and those that are not good any more.
    const MOST_BYTES: u64 = 4 * 1024 * 1024;

    /// The tokens of a state directory, whether or not there are any yet.
    #[must_use]
    pub fn of(state: &Path) -> Self {
        Self {
            directory: state.join("web"),
        }
    }

    /// Where they are.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.join("tokens.json")
    }

    /// Makes a token. Its text is in the answer and nowhere else.
    pub fn create(&self, new: NewToken) -> Result<(TokenRecord, TokenText), TokenError> {
        let text = TokenText::fresh()?;
        let now = now_ms();
        let record = TokenRecord {
            id: TokenId::fresh()?,
            name: new.name,
            role: new.role,
            created_ms: now,
            expires_ms: new.lifetime.map(|time| now.saturating_add(millis(time))),
            last_used_ms: None,
            revoked_ms: None,
            sha256: text.digest(),
        };
        self.change(|tokens| {
            if tokens.iter().filter(|token| token.is_good(now)).count() >= Self::MOST {
                return Err(TokenError::TooMany);
            }
            // What is over is kept for whoever wonders, but not without end.
            while tokens.len() >= Self::MOST {
                match tokens.iter().position(|token| !token.is_good(now)) {
                    Some(old) => drop(tokens.remove(old)),
                    None => break,
                }
            }
            tokens.push(record.clone());
            Ok(())
        })?;
        Ok((record, text))
    }

    /// All tokens, those that are over too.
    pub fn list(&self) -> Result<Vec<TokenRecord>, TokenError> {
        Ok(self.read()?.tokens)
    }

    /// Ends a token, known by its id or the beginning of it. A server that runs notices by itself.
    pub fn revoke(&self, given: &str) -> Result<TokenRecord, TokenError> {
        let now = now_ms();
        self.change(|tokens| {
            let mut fit = tokens
                .iter_mut()
                .filter(|token| !given.is_empty() && token.id.as_str().starts_with(given));
            match (fit.next(), fit.count()) {
                (Some(token), 0) => {
                    token.revoked_ms.get_or_insert(now);
                    Ok(token.clone())
                }
                (found, more) => Err(TokenError::Unknown {
                    given: given.to_owned(),
                    found: usize::from(found.is_some()) + more,
                }),
            }
        })
    }

    /// Notes when tokens were used. One that is not there any more is left out.
    pub(crate) fn note_used(&self, used: &[(TokenId, u64)]) -> Result<(), TokenError> {
        self.change(|tokens| {
            for token in tokens {
                if let Some((_, at)) = used.iter().find(|(id, _)| *id == token.id) {
                    token.last_used_ms = Some(token.last_used_ms.unwrap_or(0).max(*at));
                }
            }
            Ok(())
        })
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&mut Vec<TokenRecord>) -> Result<T, TokenError>,
    ) -> Result<T, TokenError> {
        let failed = |source| self.failed("changed", source);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)
            .map_err(failed)?;
        // The lock has a file of its own: the one with the tokens is another one after each change.
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.directory.join("tokens.lock"))
            .map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        let mut content = self.read()?;
        let done = change(&mut content.tokens)?;
        content.version = 1;
        let bytes =
            serde_json::to_vec_pretty(&content).map_err(|error| failed(io::Error::other(error)))?;
        self.replace(&bytes).map_err(failed)?;
        Ok(done)
    }

    fn read(&self) -> Result<Content, TokenError> {
        let path = self.path();
        let failed = |source| self.failed("read", source);
        let mut bytes = Vec::new();
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Content::default()),
            Err(error) => return Err(failed(error)),
        };
        let about = file.metadata().map_err(failed)?;
        let mine = rustix::process::geteuid().as_raw();
        if about.mode() & 0o022 != 0 || (about.uid() != mine && about.uid() != 0) {
            return Err(TokenError::Exposed { path });
        }
        file.take(Self::MOST_BYTES)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        serde_json::from_slice(&bytes).map_err(|source| TokenError::Broken { path, source })
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        belljar_files::replace(&self.path(), bytes, belljar_files::PRIVATE)
    }

    fn failed(&self, doing: &'static str, source: io::Error) -> TokenError {
        TokenError::File {
            path: self.path(),
            doing,
            source,
        }
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, millis)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

mod hex {
    use data_encoding::HEXLOWER;
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    use super::Digest;

    pub(super) fn serialize<S: Serializer>(digest: &Digest, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&HEXLOWER.encode(digest))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = HEXLOWER.decode(text.as_bytes()).map_err(D::Error::custom)?;
        Digest::try_from(bytes).map_err(|_| D::Error::custom("not 32 bytes"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn new(role: Role) -> NewToken {
        NewToken {
            name: Name::new("ada's laptop").unwrap(),
            role,
            lifetime: Some(Duration::from_secs(60)),
        }
    }

    #[test]
    fn a_token_is_kept_as_a_hash_in_a_file_of_its_owners() {
        let state = tempfile::tempdir().unwrap();
        let file = TokenFile::of(state.path());
        assert_eq!(file.list().unwrap(), []);
        let (record, text) = file.create(new(Role::Viewer)).unwrap();
        assert_eq!(file.list().unwrap(), std::slice::from_ref(&record));
        let kept = fs::read_to_string(file.path()).unwrap();
        assert!(!kept.contains(text.reveal()), "the secret is in the file");
        assert!(!kept.contains(&text.reveal()[3..]));
        let mode = fs::metadata(file.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(record.is_good(record.created_ms));
        assert!(!record.is_good(record.created_ms + 60_000));
    }

    #[test]
    fn a_token_is_revoked_by_the_beginning_of_its_id_and_only_if_that_is_one() {
        let state = tempfile::tempdir().unwrap();
        let file = TokenFile::of(state.path());
        let (record, _) = file.create(new(Role::Admin)).unwrap();
        file.create(new(Role::Admin)).unwrap();
        assert!(matches!(file.revoke(""), Err(TokenError::Unknown { .. })));
        assert!(matches!(
            file.revoke("zz"),
            Err(TokenError::Unknown { found: 0, .. })
        ));
        let revoked = file.revoke(&record.id.as_str()[..11]).unwrap();
        assert_eq!(revoked.id, record.id);
        assert!(!revoked.is_good(record.created_ms));
        let still: Vec<_> = file.list().unwrap();
        assert_eq!(
            still
                .iter()
                .filter(|token| token.revoked_ms.is_some())
                .count(),
            1
        );
    }

    #[test]
    fn a_file_that_others_may_change_is_not_believed() {
        let state = tempfile::tempdir().unwrap();
        let file = TokenFile::of(state.path());
        file.create(new(Role::Admin)).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(file.list(), Err(TokenError::Exposed { .. })));
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(file.path(), "{").unwrap();
        assert!(matches!(file.list(), Err(TokenError::Broken { .. })));
        assert!(matches!(
            file.create(new(Role::Admin)),
            Err(TokenError::Broken { .. })
        ));
    }

    #[test]
    fn hands_that_make_tokens_at_once_lose_none() {
        let state = tempfile::tempdir().unwrap();
        let file = TokenFile::of(state.path());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        file.create(new(Role::Viewer)).unwrap();
                    }
                });
            }
        });
        assert_eq!(file.list().unwrap().len(), 20);
    }
}
