//! What is built on the log: resuming, snapshots, group commit.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::sync::Arc;

use belljar_ledger::{
    CommitError, Durability, Fault, KnownKey, Ledger, MAX_ENTRY, OpenError, Options, Reader,
    SignError, Signer, UnusableSnapshot, Wait, WriteError, Writer,
};
use support::{Key, ORIGIN, check, grow, key, known, open};

#[test]
fn resuming_notices_what_others_did() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut ledger = open(&log);
    grow(&mut ledger, 255);
    ledger.append(b"never committed").unwrap();
    let (mut ledger, recovery) = ledger.release().lock_and_resume(Wait::Fail).unwrap();
    assert!(recovery.is_clean());
    grow(&mut ledger, 1);
    let released = ledger.release();
    let mut other = open(&log);
    grow(&mut other, 2);
    let (mut ledger, _) = match released.lock_and_resume(Wait::Fail) {
        Err(OpenError::Locked) => {
            let size = other.size();
            let released = other.release();
            assert_eq!(released.checkpoint().size(), size);
            released.lock_and_resume(Wait::Fail).unwrap()
        }
        _ => panic!("two writers at once"),
    };
    assert_eq!(ledger.size(), 258);
    grow(&mut ledger, 1);
    let released = ledger.release();
    grow(&mut open(&log), 5);
    let (ledger, _) = released.lock_and_resume(Wait::Fail).unwrap();
    assert_eq!(ledger.size(), 264);
    // Put back to an earlier state meanwhile.
    let released = ledger.release();
    fs::rename(log.join("checkpoint.spare"), log.join("checkpoint")).unwrap();
    assert!(matches!(
        released.lock_and_resume(Wait::Fail),
        Err(OpenError::Damaged(Fault::Truncated {
            have: 259,
            expected: 264
        }))
    ));
}

#[test]
fn a_log_put_in_the_place_of_a_released_one_is_opened_anew() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut ledger = open(&log);
    grow(&mut ledger, 2);
    let released = ledger.release();
    fs::rename(&log, dir.path().join("aside")).unwrap();
    assert!(matches!(
        released.lock_and_resume(Wait::Fail),
        Err(OpenError::Damaged(Fault::Truncated {
            have: 0,
            expected: 2
        }))
    ));
}

#[test]
fn snapshots_are_bound_to_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path());
    assert!(ledger.read_snapshot().unwrap().is_none());
    grow(&mut ledger, 300);
    ledger.write_snapshot(280, b"state at 280").unwrap();
    assert!(ledger.write_snapshot(301, b"of the future").is_err());
    grow(&mut ledger, 20);
    let snapshot = ledger.read_snapshot().unwrap().unwrap();
    assert_eq!(
        (snapshot.size, &snapshot.payload[..]),
        (280, &b"state at 280"[..])
    );
    let reader = Reader::open(dir.path()).unwrap();
    assert_eq!(reader.read_snapshot(&known()).unwrap().unwrap(), snapshot);
    assert!(matches!(
        reader.read_snapshot(&[]),
        Err(UnusableSnapshot::Distrust(_))
    ));

    let file = dir.path().join("snapshot");
    let whole = fs::read(&file).unwrap();
    for n in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[n] ^= 1;
        fs::write(&file, &bytes).unwrap();
        assert!(ledger.read_snapshot().is_err(), "byte {n}");
        fs::write(&file, &whole[..n]).unwrap();
        assert!(ledger.read_snapshot().is_err(), "cut at {n}");
    }
    // Of a log with another history, and of one that is ahead of ours.
    let other = tempfile::tempdir().unwrap();
    let mut theirs = open(other.path());
    theirs.append(b"another beginning").unwrap();
    grow(&mut theirs, 10);
    theirs.write_snapshot(5, b"state").unwrap();
    fs::copy(other.path().join("snapshot"), &file).unwrap();
    assert!(matches!(
        ledger.read_snapshot(),
        Err(UnusableSnapshot::OtherLog)
    ));
    fs::write(other.path().join("snapshot"), &whole).unwrap();
    assert!(matches!(
        theirs.read_snapshot(),
        Err(UnusableSnapshot::Ahead {
            size: 280,
            log_size: 11
        })
    ));
    fs::remove_file(&file).unwrap();
    assert!(ledger.read_snapshot().unwrap().is_none());
    check(dir.path());
}

#[test]
fn many_threads_share_commits() {
    let dir = tempfile::tempdir().unwrap();
    let writer = Writer::start(open(dir.path())).unwrap();
    let mut indexes: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let handle = writer.handle().clone();
                scope.spawn(move || {
                    let tickets: Vec<_> = (0..50)
                        .map(|n| {
                            handle.append(format!("{thread}/{n}").into_bytes(), Durability::Power)
                        })
                        .collect();
                    tickets
                        .into_iter()
                        .map(|ticket| ticket.wait().unwrap())
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    indexes.sort_unstable();
    assert_eq!(indexes, (0..400).collect::<Vec<_>>());
    let together = writer
        .handle()
        .append_many(vec![b"a".to_vec(), b"b".to_vec()], Durability::Crash);
    assert_eq!(together.wait_for_range().unwrap(), 400..402);
    let refused = writer.handle().append_many(
        vec![b"c".to_vec(), vec![0; MAX_ENTRY + 1]],
        Durability::Crash,
    );
    assert!(matches!(refused.wait(), Err(WriteError::Append(_))));
    assert_eq!(
        writer.handle().refresh(Durability::Power).unwrap().size(),
        402
    );
    let next = Key::named("belljar.test/next", 2);
    let signed = writer.handle().sign_with(next.clone()).unwrap();
    assert_eq!(
        signed
            .signed_by(&[KnownKey::of(&*next).unwrap()])
            .unwrap()
            .name(),
        "belljar.test/next"
    );
    let handle = writer.handle().clone();
    let ledger = writer.close().unwrap();
    assert_eq!(ledger.size(), 402);
    assert!(matches!(
        handle.append(b"late".to_vec(), Durability::Crash).wait(),
        Err(WriteError::Ended)
    ));
}

/// Signs until it is told not to.
struct Fickle(std::sync::atomic::AtomicBool);

impl Signer for Fickle {
    fn key_name(&self) -> &str {
        ORIGIN
    }
    fn verifying_key(&self) -> [u8; 32] {
        key().verifying_key()
    }
    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SignError> {
        match self.0.load(std::sync::atomic::Ordering::SeqCst) {
            true => key().sign(message),
            false => Err(SignError::new("no")),
        }
    }
}

#[test]
fn an_entry_that_was_refused_does_not_come_in_later() {
    let dir = tempfile::tempdir().unwrap();
    let signer = Arc::new(Fickle(true.into()));
    let (ledger, _) = Ledger::lock_and_open(
        dir.path(),
        ORIGIN,
        signer.clone(),
        Options::default(),
        Wait::Fail,
    )
    .unwrap();
    let writer = Writer::start(ledger).unwrap();
    let append = |bytes: &[u8]| {
        writer
            .handle()
            .append(bytes.to_vec(), Durability::Crash)
            .wait()
    };
    append(b"one").unwrap();
    signer.0.store(false, std::sync::atomic::Ordering::SeqCst);
    match append(b"refused").unwrap_err() {
        WriteError::Commit(error) => assert!(matches!(*error, CommitError::Seal(_))),
        error => panic!("{error}"),
    }
    signer.0.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(append(b"two").unwrap(), 1);
    let reader = Reader::open(dir.path()).unwrap();
    assert_eq!(reader.entry(1).unwrap().unwrap(), b"two");
    assert_eq!(reader.size(), 2);
}
