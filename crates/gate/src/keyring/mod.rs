//! Keys on disk: the set everybody may read, and the secrets that only their owner may.

mod error;
mod files;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_ledger::{KnownKey, SignError, Signer};
use belljar_manifest::keys::{
    Algorithm, KeyId, KeyState, Keyset, KeysetError, MAX_KEYSET_BYTES, PreviousKey, SecretKey,
};
use zeroize::Zeroizing;

use belljar_files::replace;
pub use error::KeyError;
use files::{file_error, read_bounded, read_secret_file, secret_from_command};

/// Where the secret of the signing key is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KeySource {
    /// In the state directory.
    #[default]
    Directory,
    /// In this file.
    File(PathBuf),
    /// Printed by this command, run by `sh`.
    Command(String),
}

/// A directory of keys of one algorithm.
#[derive(Clone, Debug)]
pub struct KeyDir {
    directory: PathBuf,
    algorithm: Algorithm,
    source: KeySource,
}

/// Which file the keyset was. Two changes may fall into one tick of the file system's clock, but they are two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edition {
    inode: u64,
    modified: (i64, i64),
}

/// The keys, ready for use.
#[derive(Clone, Debug)]
pub struct Keyring {
    keyset: Arc<Keyset>,
    secret: Arc<SecretKey>,
}

impl KeyDir {
    /// The Ed25519 keys of a state directory: they sign the logs, and manifests unless the contract says otherwise.
    #[must_use]
    pub fn of(state: &Path, source: KeySource) -> Self {
        Self {
            directory: state.join("keys"),
            algorithm: Algorithm::Ed25519,
            source,
        }
    }

    /// The HMAC keys of a state directory, for contracts that ask for them.
    #[must_use]
    pub fn hmac_of(state: &Path) -> Self {
        Self {
            directory: state.join("keys").join("hmac"),
            algorithm: Algorithm::Hmac,
            source: KeySource::Directory,
        }
    }

    /// The file with the public part.
    #[must_use]
    pub fn keyset_file(&self) -> PathBuf {
        self.directory.join("keyset.json")
    }

    /// Tells whether the set was changed since: by whomever.
    pub(crate) fn edition(&self) -> Option<Edition> {
        let metadata = fs::metadata(self.keyset_file()).ok()?;
        Some(Edition {
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }

    /// The set, without any secret; empty if there is none yet.
    pub fn keyset(&self) -> Result<Keyset, KeyError> {
        match read_bounded(&self.keyset_file(), MAX_KEYSET_BYTES as u64 + 1) {
            Ok(bytes) => Keyset::parse(&bytes).map_err(|source| KeyError::Keyset {
                path: self.keyset_file(),
                source,
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Keyset::new()),
            Err(source) => Err(file_error(&self.keyset_file(), source)),
        }
    }

    /// The set and the secret of its signing key.
    pub fn load(&self) -> Result<Keyring, KeyError> {
        self.complete(self.keyset()?)
    }

    /// The same, with a first key made if there is none at all.
    pub fn load_or_init(&self, now_s: u64) -> Result<Keyring, KeyError> {
        self.init_if_empty(now_s)?;
        self.load()
    }

    /// Makes a first key if there is no set. One without a key that signs is left as it is: somebody took it away.
    pub(crate) fn init_if_empty(&self, now_s: u64) -> Result<(), KeyError> {
        if self.edition().is_none() {
            self.init(now_s)?;
        }
        Ok(())
    }

    fn complete(&self, mut keyset: Keyset) -> Result<Keyring, KeyError> {
        let id = keyset.signing_key().ok_or(KeyError::NoKey)?;
        let secret = Arc::new(self.secret(id)?);
        keyset.signer(&secret).map_err(|_| KeyError::WrongSecret {
            from: self.source_name(id),
            id,
        })?;
        if self.algorithm == Algorithm::Hmac {
            self.attach_hmac(&mut keyset)?;
        }
        Ok(Keyring {
            keyset: Arc::new(keyset),
            secret,
        })
    }

    /// HMAC signatures are checked with the secret: of retired keys too.
    fn attach_hmac(&self, keyset: &mut Keyset) -> Result<(), KeyError> {
        let ids: Vec<KeyId> = keyset
            .keys()
            .filter(|key| key.state() != KeyState::Compromised)
            .map(|key| key.id())
            .collect();
        for id in ids {
            keyset.attach_hmac(Arc::new(self.secret_in_directory(id)?))?;
        }
        Ok(())
    }

    fn source_name(&self, id: KeyId) -> String {
        match &self.source {
            KeySource::Directory => self.secret_file(id).display().to_string(),
            KeySource::File(path) => path.display().to_string(),
            KeySource::Command(_) => "BELLJAR_KEY_COMMAND".to_owned(),
        }
    }

    fn secret(&self, id: KeyId) -> Result<SecretKey, KeyError> {
        let secret = match &self.source {
            KeySource::Directory => self.secret_in_directory(id)?,
            _ => self.secret_from_elsewhere()?,
        };
        if secret.id() == id {
            Ok(secret)
        } else {
            Err(KeyError::WrongSecret {
                from: self.source_name(id),
                id,
            })
        }
    }

    fn secret_in_directory(&self, id: KeyId) -> Result<SecretKey, KeyError> {
        read_secret_file(&self.secret_file(id))
    }

    fn secret_from_elsewhere(&self) -> Result<SecretKey, KeyError> {
        match &self.source {
            KeySource::Directory => Err(KeyError::NoKey),
            KeySource::File(path) => read_secret_file(path),
            KeySource::Command(command) => secret_from_command(command),
        }
    }

    fn secret_file(&self, id: KeyId) -> PathBuf {
        self.directory.join(format!("{id}.key"))
    }

    /// The key whose id begins like this.
    pub fn find(&self, given: &str) -> Result<KeyId, KeyError> {
        find(&self.keyset()?, given)
    }

    /// Makes the first key, unless there is one; says which key signs.
    pub fn init(&self, now_s: u64) -> Result<KeyId, KeyError> {
        let _lock = self.lock()?;
        let mut keyset = self.keyset()?;
        if let Some(id) = keyset.signing_key() {
            return Ok(id);
        }
        let secret = self.new_secret()?;
        let id = keyset.add(&secret.identity(), now_s, None)?;
        self.put(&keyset, Some(&secret))?;
        Ok(id)
    }

    /// A new key that signs from now on; the one before is retired.
    pub fn rotate(&self, now_s: u64) -> Result<KeyId, KeyError> {
        let _lock = self.lock()?;
        let mut keyset = self.keyset()?;
        let secret = self.new_secret()?;
        let id = keyset.rotate(&secret.identity(), now_s, None, PreviousKey::Retire)?;
        self.put(&keyset, Some(&secret))?;
        Ok(id)
    }

    /// Lets a key verify but sign no more. A set whose signing key is retired gets a new one in the same step.
    pub fn retire(&self, key: &str, now_s: u64) -> Result<KeyId, KeyError> {
        self.demote(key, now_s, Keyset::retire)
    }

    /// Believes nothing any more that a key signed. A signing key is replaced in the same step.
    pub fn compromise(&self, key: &str, now_s: u64) -> Result<KeyId, KeyError> {
        self.demote(key, now_s, Keyset::compromise)
    }

    fn demote(
        &self,
        key: &str,
        now_s: u64,
        change: fn(&mut Keyset, KeyId) -> Result<(), KeysetError>,
    ) -> Result<KeyId, KeyError> {
        let _lock = self.lock()?;
        let mut keyset = self.keyset()?;
        let id = find(&keyset, key)?;
        let signed = keyset.signing_key() == Some(id);
        change(&mut keyset, id)?;
        let fresh = if signed {
            Some(self.new_secret()?)
        } else {
            None
        };
        if let Some(secret) = &fresh {
            keyset.add(&secret.identity(), now_s, None)?;
        }
        self.put(&keyset, fresh.as_ref())?;
        Ok(id)
    }

    /// A fresh key; or the one kept elsewhere, which its owner has replaced there.
    fn new_secret(&self) -> Result<SecretKey, KeyError> {
        if self.source != KeySource::Directory {
            return self.secret_from_elsewhere();
        }
        let mut seed = Zeroizing::new([0u8; 32]);
        let mut filled = 0;
        while filled < seed.len() {
            let part = seed.get_mut(filled..).unwrap_or_default();
            filled += rustix::rand::getrandom(part, rustix::rand::GetRandomFlags::empty())
                .map_err(|errno| file_error(Path::new("getrandom"), errno.into()))?;
        }
        Ok(match self.algorithm {
            Algorithm::Ed25519 => SecretKey::ed25519(&seed),
            Algorithm::Hmac => SecretKey::hmac(&seed),
        })
    }

    /// Writes the secret first: a set must not name a key that nobody has.
    fn put(&self, keyset: &Keyset, secret: Option<&SecretKey>) -> Result<(), KeyError> {
        if let (Some(secret), KeySource::Directory) = (secret, &self.source) {
            let path = self.secret_file(secret.id());
            replace(&path, secret.to_text().as_bytes(), 0o600)
                .map_err(|source| file_error(&path, source))?;
        }
        let path = self.keyset_file();
        replace(&path, keyset.to_json().as_bytes(), 0o644)
            .map_err(|source| file_error(&path, source))
    }

    fn lock(&self) -> Result<Locked, KeyError> {
        let fail = |source| file_error(&self.directory, source);
        if !self.directory.is_dir() {
            fs::create_dir_all(&self.directory).map_err(fail)?;
            use std::os::unix::fs::PermissionsExt as _;
            fs::set_permissions(&self.directory, fs::Permissions::from_mode(0o700))
                .map_err(fail)?;
        }
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.directory.join("lock"))
            .map_err(fail)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
            .map_err(|errno| fail(errno.into()))?;
        Ok(Locked(file))
    }
}

/// The lock is let go by name: a box that another thread starts holds a copy of the descriptor for a moment.
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, rustix::fs::FlockOperation::Unlock);
    }
}

impl Keyring {
    /// The set.
    #[must_use]
    pub fn keyset(&self) -> &Arc<Keyset> {
        &self.keyset
    }

    /// The secret of the key that signs.
    #[must_use]
    pub(crate) fn secret(&self) -> &SecretKey {
        &self.secret
    }

    /// The key that signs.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.secret.id()
    }

    /// Signs for the log of this origin.
    pub(crate) fn log_signer(&self, origin: &'static str) -> Option<LogSigner> {
        let public = self.secret.public_key()?.bytes();
        Some(LogSigner {
            origin,
            public,
            secret: Arc::clone(&self.secret),
        })
    }
}

/// The keys of a set whose signatures on this origin's log count.
pub fn known_keys(keyset: &Keyset, origin: &str) -> Vec<KnownKey> {
    keyset
        .keys()
        .filter(|key| key.state() != KeyState::Compromised)
        .filter_map(|key| key.public_key().ok().flatten())
        .filter_map(|public| KnownKey::new(origin, public.bytes()).ok())
        .collect()
}

/// Signs checkpoints of one log.
#[derive(Clone)]
pub(crate) struct LogSigner {
    origin: &'static str,
    public: [u8; 32],
    secret: Arc<SecretKey>,
}

impl Signer for LogSigner {
    fn key_name(&self) -> &str {
        self.origin
    }

    fn verifying_key(&self) -> [u8; 32] {
        self.public
    }

    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SignError> {
        self.secret.sign_ed25519(message).map_err(SignError::new)
    }
}

fn find(keyset: &Keyset, given: &str) -> Result<KeyId, KeyError> {
    let matching: Vec<KeyId> = keyset
        .keys()
        .map(|key| key.id())
        .filter(|id| !given.is_empty() && id.to_string().starts_with(given))
        .collect();
    match matching.as_slice() {
        [one] => Ok(*one),
        several => Err(KeyError::Ambiguous {
            given: given.to_owned(),
            found: several.len(),
        }),
    }
}
