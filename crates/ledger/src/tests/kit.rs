//! What the tests share: a signer, small logs, and a tree so simple that it is right at a glance.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ed25519_dalek::{Signer as _, SigningKey};

use crate::{
    Durability, Fault, Hash, KnownKey, Ledger, OpenError, Options, Reader, Recovery, SignError,
    Signer, Verified, VerifyOptions, Wait, verify,
};

pub(crate) const ORIGIN: &str = "belljar.test/log";

pub(crate) struct TestKey {
    name: String,
    key: SigningKey,
}

impl TestKey {
    pub(crate) fn named(name: &str, seed: u8) -> Arc<Self> {
        Arc::new(TestKey {
            name: name.to_owned(),
            key: SigningKey::from_bytes(&[seed; 32]),
        })
    }
}

impl Signer for TestKey {
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

pub(crate) fn key() -> Arc<TestKey> {
    TestKey::named(ORIGIN, 7)
}

pub(crate) fn known() -> Vec<KnownKey> {
    vec![KnownKey::of(&*key()).unwrap()]
}

pub(crate) fn test_time() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

pub(crate) fn options() -> Options {
    Options {
        clock: test_time,
        ..Options::default()
    }
}

pub(crate) fn open(dir: &Path) -> Result<(Ledger, Recovery), OpenError> {
    Ledger::lock_and_open(dir, ORIGIN, key(), options(), Wait::Fail)
}

/// Entries of many lengths, all different.
pub(crate) fn entry(n: u64) -> Vec<u8> {
    format!(
        "{{\"n\":{n},\"pad\":\"{}\"}}",
        "x".repeat((n * 7 % 23) as usize)
    )
    .into_bytes()
}

/// Appends entries up to a size, in commits of `step`.
pub(crate) fn grow(ledger: &mut Ledger, to: u64, step: u64) {
    while ledger.size() < to {
        let upto = to.min(ledger.size() + step);
        for n in ledger.size()..upto {
            assert_eq!(ledger.append(&entry(n)).unwrap(), n);
        }
        ledger.commit(Durability::Crash).unwrap();
    }
}

pub(crate) fn make(dir: &Path, size: u64, step: u64) {
    let (mut ledger, _) = open(dir).unwrap();
    grow(&mut ledger, size, step);
}

/// Copies a log.
pub(crate) fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub(crate) fn check(dir: &Path) -> Result<Verified, Fault> {
    verify(dir, &known(), &VerifyOptions::default())
}

pub(crate) fn entries(dir: &Path) -> Vec<Vec<u8>> {
    Reader::open(dir)
        .unwrap()
        .entries(0)
        .map(|entry| entry.unwrap().bytes)
        .collect()
}

/// The definition of RFC 6962, section 2.1, word for word.
pub(crate) fn naive_root(leaves: &[Hash]) -> Hash {
    match leaves {
        [] => Hash::of_nothing(),
        [leaf] => *leaf,
        _ => {
            let mut k = 1;
            while k * 2 < leaves.len() {
                k *= 2;
            }
            Hash::of_node(&naive_root(&leaves[..k]), &naive_root(&leaves[k..]))
        }
    }
}
