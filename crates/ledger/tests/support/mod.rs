//! A signer and small logs for the tests that use the crate from outside.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_ledger::{
    Durability, KnownKey, Ledger, OpenError, Options, Recovery, SignError, Signer, Verified,
    VerifyOptions, Wait, verify,
};
use ed25519_dalek::{Signer as _, SigningKey};

pub(crate) const ORIGIN: &str = "belljar.test/outside";

pub(crate) struct Key {
    name: String,
    key: SigningKey,
}

impl Key {
    pub(crate) fn named(name: &str, seed: u8) -> Arc<Key> {
        Arc::new(Key {
            name: name.to_owned(),
            key: SigningKey::from_bytes(&[seed; 32]),
        })
    }
}

impl Signer for Key {
    fn key_name(&self) -> &str {
        &self.name
    }
    fn verifying_key(&self) -> [u8; 32] {
        self.key.verifying_key().to_bytes()
    }
    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SignError> {
        Ok(self.key.sign(message).to_bytes())
    }
}

pub(crate) fn key() -> Arc<Key> {
    Key::named(ORIGIN, 1)
}

pub(crate) fn known() -> Vec<KnownKey> {
    vec![KnownKey::of(&*key()).unwrap()]
}

pub(crate) fn open_waiting(dir: &Path, wait: Wait) -> Result<(Ledger, Recovery), OpenError> {
    Ledger::lock_and_open(dir, ORIGIN, key(), Options::default(), wait)
}

pub(crate) fn open(dir: &Path) -> Ledger {
    open_waiting(dir, Wait::Fail).unwrap().0
}

/// Appends entries and commits them.
pub(crate) fn grow(ledger: &mut Ledger, entries: u64) {
    for _ in 0..entries {
        let index = ledger.size() + ledger.pending();
        ledger.append(format!("entry {index}").as_bytes()).unwrap();
    }
    ledger.commit(Durability::Crash).unwrap();
}

pub(crate) fn check(dir: &Path) -> Verified {
    let options = VerifyOptions {
        origin: Some(ORIGIN.to_owned()),
        ..VerifyOptions::default()
    };
    verify(dir, &known(), &options).unwrap()
}

/// Waits for a condition. A minute is far more than any needs.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "waited a minute for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
