//! The keys while a controller runs: rotation without a restart, and distrust that takes effect at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use belljar_ledger::Signer;
use belljar_manifest::keys::{KeyId, KeyState};
use belljar_replication::WorkerId;

use crate::keyring::{Edition, KeyDir, Keyring};
use crate::log::LogKind;

/// The keyring that whoever seals a manifest uses.
#[derive(Clone, Debug)]
pub(crate) struct SharedKeyring(Arc<Mutex<Keyring>>);

impl SharedKeyring {
    pub(crate) fn new(keyring: Keyring) -> Self {
        Self(Arc::new(Mutex::new(keyring)))
    }

    pub(crate) fn current(&self) -> Keyring {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn replace(&self, keyring: Keyring) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = keyring;
    }
}

/// Looks whether the keys on disk changed.
pub(crate) struct KeyWatch {
    /// The keys that sign the log.
    log: Watched,
    /// The keys that sign manifests, where those are others.
    manifests: Option<Watched>,
    vouchers: HashMap<WorkerId, Voucher>,
}

/// Which key vouches for a worker, and who is its parent.
struct Voucher {
    key: KeyId,
    parent: Option<WorkerId>,
}

struct Watched {
    directory: KeyDir,
    seen: Option<Edition>,
    shared: SharedKeyring,
}

/// What changed.
pub(crate) struct News {
    /// Who signs the log from now on, if it is somebody else.
    pub(crate) signer: Option<Arc<dyn Signer>>,
    /// The key that signs.
    pub(crate) signing: KeyId,
    /// Workers whose manifest nobody can believe any more.
    pub(crate) distrusted: Vec<WorkerId>,
}

impl Watched {
    fn new(directory: KeyDir, shared: SharedKeyring) -> Self {
        let seen = directory.edition();
        Self {
            directory,
            seen,
            shared,
        }
    }

    /// The new keyring, if there is one.
    fn look(&mut self) -> Option<Keyring> {
        let edition = self.directory.edition();
        if edition == self.seen {
            return None;
        }
        // A set that can't be read is looked at again next time.
        let fresh = self.directory.load().ok()?;
        self.seen = edition;
        self.shared.replace(fresh.clone());
        Some(fresh)
    }
}

impl KeyWatch {
    pub(crate) fn new(
        log: (KeyDir, SharedKeyring),
        manifests: Option<(KeyDir, SharedKeyring)>,
    ) -> Self {
        Self {
            log: Watched::new(log.0, log.1),
            manifests: manifests.map(|(directory, shared)| Watched::new(directory, shared)),
            vouchers: HashMap::new(),
        }
    }

    /// The keys that manifests are sealed with.
    pub(crate) fn sealing(&self) -> Keyring {
        let watched = self.manifests.as_ref().unwrap_or(&self.log);
        watched.shared.current()
    }

    /// Remembers which key vouches for a worker.
    pub(crate) fn vouched(&mut self, worker: WorkerId, parent: Option<WorkerId>, key: KeyId) {
        self.vouchers.insert(worker, Voucher { key, parent });
    }

    /// The parent of a worker whose box is not yet gone.
    pub(crate) fn parent_of(&self, worker: WorkerId) -> Option<WorkerId> {
        self.vouchers.get(&worker)?.parent
    }

    /// Forgets workers that are no more.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.vouchers.remove(&worker);
    }

    /// What changed since the last look.
    pub(crate) fn news(&mut self) -> Option<News> {
        let log = self.log.look();
        let manifests = self.manifests.as_mut().and_then(Watched::look);
        if log.is_none() && manifests.is_none() {
            return None;
        }
        let signing = self.log.shared.current().id();
        let vouching = self.sealing();
        let is_believed = |id: &KeyId| {
            let key = vouching.keyset().key(*id);
            key.is_some_and(|key| key.state() != KeyState::Compromised)
        };
        Some(News {
            signer: log
                .and_then(|ring| ring.log_signer(LogKind::Fleet.origin()))
                .map(|signer| Arc::new(signer) as _),
            signing,
            distrusted: self
                .vouchers
                .iter()
                .filter(|(_, voucher)| !is_believed(&voucher.key))
                .map(|(worker, _)| *worker)
                .collect(),
        })
    }
}
