//! The ledger from outside: the format on disk, bounds, keys, ages, proofs.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belljar_ledger::{
    AppendError, Checkpoint, Durability, Fault, KnownKey, Ledger, MAX_ENTRY, MaxAge, OpenError,
    Options, ProofFile, Reader, SignError, Signer, Unproven, VerifyOptions, Wait, verify,
    verify_and_visit,
};
use support::{Key, ORIGIN, check, grow, key, known, open, open_waiting};

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

#[test]
fn the_layout_is_that_of_the_specification() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut ledger = open(&log);
    grow(&mut ledger, 250);
    grow(&mut ledger, 20);
    let length = |file: &str| fs::metadata(log.join(file)).unwrap().len();
    assert_eq!(length("tile/0/000"), 8192);
    assert_eq!(length("tile/0/001.p/14"), 14 * 32);
    assert_eq!(length("tile/1/000.p/1"), 32);
    assert!(!log.join("tile/0/000.p").exists());
    let bundle = fs::read(log.join("tile/entries/001.p/14")).unwrap();
    assert_eq!(bundle[..11], *b"\x00\x09entry 256");
    let note = fs::read_to_string(log.join("checkpoint")).unwrap();
    let lines: Vec<_> = note.lines().collect();
    assert_eq!(lines[..2], [ORIGIN, "270"]);
    assert!(lines[3].starts_with("time ") && lines[4].starts_with("durable "));
    assert_eq!(lines[5], "");
    assert!(lines[6].starts_with(&format!("\u{2014} {ORIGIN} ")));
    assert_eq!(
        fs::metadata(&log).unwrap().permissions().mode() & 0o777,
        0o700
    );
}

#[test]
fn a_signed_note_of_others_verifies() {
    // The example of C2SP signed-note: key of golang.org/x/mod/sumdb/note's documentation.
    let key: KnownKey = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
        .parse()
        .unwrap();
    assert_eq!(key.name(), "PeterNeumann");
    assert_eq!(key.id().to_string(), "c74f20a3");
    assert_eq!(key.to_string().parse::<KnownKey>().unwrap(), key);
    for wrong in [
        "PeterNeumann",
        "PeterNeumann+c74f20a4+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
        "a b+00000000+AA==",
    ] {
        assert!(wrong.parse::<KnownKey>().is_err());
    }
}

#[test]
fn bounds_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path());
    assert_eq!(
        ledger.append(&[0; MAX_ENTRY + 1]),
        Err(AppendError::TooLong(MAX_ENTRY + 1))
    );
    ledger.append(&[1; MAX_ENTRY]).unwrap();
    ledger.append(b"").unwrap();
    ledger.commit(Durability::Power).unwrap();
    while ledger.append(&[2; MAX_ENTRY]).is_ok() {}
    assert_eq!(ledger.append(&[2; MAX_ENTRY]), Err(AppendError::Backlog));
    ledger.discard();
    assert_eq!(ledger.pending(), 0);
    grow(&mut ledger, 1);
    assert_eq!(check(dir.path()).checkpoint.size(), 3);
    let reader = Reader::open(dir.path()).unwrap();
    assert_eq!(reader.entry(0).unwrap().unwrap().len(), MAX_ENTRY);
    assert_eq!(reader.entry(1).unwrap().unwrap(), b"");
    assert_eq!(reader.entry(3).unwrap(), None);
    for origin in ["", "two\nlines"] {
        let opened =
            Ledger::lock_and_open(dir.path(), origin, key(), Options::default(), Wait::Fail);
        assert!(matches!(opened, Err(OpenError::Origin)));
    }
}

#[test]
fn keys_can_change_while_the_log_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path());
    grow(&mut ledger, 3);
    let old = ledger.checkpoint().clone();
    let next = Key::named("belljar.test/next", 2);
    ledger.sign_with(next.clone()).unwrap();
    grow(&mut ledger, 1);
    drop(ledger);
    let next_known = KnownKey::of(&*next).unwrap();
    let options = VerifyOptions {
        since: Some(old),
        ..VerifyOptions::default()
    };
    assert!(matches!(
        verify(dir.path(), &known(), &options),
        Err(Fault::UnknownKey { .. })
    ));
    let verified = verify(dir.path(), std::slice::from_ref(&next_known), &options).unwrap();
    assert_eq!(verified.signed_by, next_known);
    // The old signer may open it again only if it is told of the new key.
    assert!(matches!(
        open_waiting(dir.path(), Wait::Fail),
        Err(OpenError::Damaged(Fault::UnknownKey { .. }))
    ));
    let options = Options {
        known_keys: vec![next_known],
        ..Options::default()
    };
    let (mut ledger, _) =
        Ledger::lock_and_open(dir.path(), ORIGIN, key(), options, Wait::Fail).unwrap();
    grow(&mut ledger, 1);
    check(dir.path());
}

/// Has a public key that is not the one it signs with, or does not sign at all.
struct BadSigner {
    signs: bool,
}

impl Signer for BadSigner {
    fn key_name(&self) -> &str {
        ORIGIN
    }
    fn verifying_key(&self) -> [u8; 32] {
        Key::named(ORIGIN, 77).verifying_key()
    }
    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SignError> {
        if self.signs {
            key().sign(message)
        } else {
            Err(SignError::new("the token was pulled out"))
        }
    }
}

#[test]
fn a_signer_that_does_not_fit_makes_no_log() {
    let dir = tempfile::tempdir().unwrap();
    for signs in [true, false] {
        let signer = Arc::new(BadSigner { signs });
        let opened = Ledger::lock_and_open(
            dir.path(),
            ORIGIN,
            signer.clone(),
            Options::default(),
            Wait::Fail,
        );
        assert!(matches!(opened, Err(OpenError::Seal(_))));
        assert!(!dir.path().join("checkpoint").exists());
        let other = tempfile::tempdir().unwrap();
        let mut ledger = open(other.path());
        assert!(ledger.sign_with(signer).is_err());
        grow(&mut ledger, 1);
        check(other.path());
    }
}

#[test]
fn another_log_under_the_same_key_is_not_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = Ledger::lock_and_open(
        dir.path(),
        "belljar.test/other",
        key(),
        Options::default(),
        Wait::Fail,
    )
    .unwrap();
    grow(&mut ledger, 1);
    drop(ledger);
    let options = VerifyOptions {
        origin: Some(ORIGIN.to_owned()),
        ..VerifyOptions::default()
    };
    assert!(matches!(
        verify(dir.path(), &known(), &options),
        Err(Fault::OtherLog { .. })
    ));
    assert!(matches!(
        open_waiting(dir.path(), Wait::Fail),
        Err(OpenError::Damaged(Fault::OtherLog { .. }))
    ));
}

#[test]
fn a_quiet_log_grows_stale_unless_it_is_signed_anew() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        clock: || at(1000),
        ..Options::default()
    };
    let (mut ledger, _) =
        Ledger::lock_and_open(dir.path(), ORIGIN, key(), options, Wait::Fail).unwrap();
    grow(&mut ledger, 2);
    drop(ledger);
    let within = |now: u64| {
        let age = MaxAge {
            age: Duration::from_secs(60),
            now: at(now),
        };
        verify(
            dir.path(),
            &known(),
            &VerifyOptions {
                max_age: Some(age),
                ..VerifyOptions::default()
            },
        )
    };
    within(1060).unwrap();
    assert!(matches!(within(1061), Err(Fault::Stale { age }) if age == Duration::from_secs(61)));
    let options = Options {
        clock: || at(1050),
        ..Options::default()
    };
    let (mut ledger, _) =
        Ledger::lock_and_open(dir.path(), ORIGIN, key(), options, Wait::Fail).unwrap();
    ledger.refresh(Durability::Crash).unwrap();
    assert_eq!(within(1061).unwrap().checkpoint.size(), 2);
}

#[test]
fn a_log_that_was_deleted_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        min_size: 4,
        ..Options::default()
    };
    let opened = Ledger::lock_and_open(&dir.path().join("log"), ORIGIN, key(), options, Wait::Fail);
    assert!(matches!(
        opened,
        Err(OpenError::Damaged(Fault::Truncated {
            have: 0,
            expected: 4
        }))
    ));
}

#[test]
fn proofs_stand_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path());
    grow(&mut ledger, 300);
    let text = Reader::open(dir.path())
        .unwrap()
        .proof_file(7)
        .unwrap()
        .to_string();
    assert!(text.starts_with("c2sp.org/tlog-proof@v1\nindex 7\n"));
    let proof = ProofFile::parse(text.as_bytes()).unwrap();
    assert_eq!(proof.to_string(), text);
    assert_eq!(
        proof.verify(b"entry 7", ORIGIN, &known()).unwrap().name(),
        ORIGIN
    );
    assert_eq!(
        proof.verify(b"entry 8", ORIGIN, &known()),
        Err(Unproven::OtherEntry { index: 7 })
    );
    assert!(matches!(
        proof.verify(b"entry 7", "other", &known()),
        Err(Unproven::OtherLog(_))
    ));
    assert!(matches!(
        proof.verify(b"entry 7", ORIGIN, &[]),
        Err(Unproven::Checkpoint(_))
    ));
    let moved = text.replace("index 7", "index 8");
    assert!(
        ProofFile::parse(moved.as_bytes())
            .unwrap()
            .verify(b"entry 7", ORIGIN, &known())
            .is_err()
    );
    let with_extra = text.replacen("index 7", "extra aGk=\nindex 7", 1);
    assert_eq!(
        ProofFile::parse(with_extra.as_bytes()).unwrap().extra(),
        Some(&b"hi"[..])
    );
    // Cut or changed anywhere, it is refused: never a panic.
    for n in 0..text.len() {
        assert!(ProofFile::parse(&text.as_bytes()[..n]).is_err());
        let mut bytes = text.clone().into_bytes();
        bytes[n] ^= 1;
        let refused = ProofFile::parse(&bytes)
            .map(|proof| proof.verify(b"entry 7", ORIGIN, &known()).is_err());
        assert!(refused.unwrap_or(true), "byte {n}");
    }
}

#[test]
fn verifying_shows_the_entries() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path());
    grow(&mut ledger, 700);
    let mut seen = 0;
    verify_and_visit(
        dir.path(),
        &known(),
        &VerifyOptions::default(),
        |index, bytes| {
            assert_eq!(bytes, format!("entry {index}").as_bytes());
            assert_eq!(index, seen);
            seen += 1;
        },
    )
    .unwrap();
    assert_eq!(seen, 700);
}

#[test]
fn checkpoints_are_parsed_strictly() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let note = ledger.checkpoint().note().to_owned();
    Checkpoint::parse(note.as_bytes()).unwrap();
    for (from, to) in [
        ("\n0\n", "\n00\n"),
        ("\n0\n", "\n+0\n"),
        ("\n0\n", "\n\n"),
        ("time ", "time x"),
        ("durable 0", "durable 1"),
        ("\u{2014} ", "- "),
        ("=\n", "\n"),
        ("\n\n", "\n"),
    ] {
        let changed = note.replacen(from, to, 1);
        assert_ne!(changed, note);
        assert!(
            Checkpoint::parse(changed.as_bytes()).is_err(),
            "{from:?} to {to:?}"
        );
    }
    assert!(Checkpoint::parse(&vec![b'x'; 1 << 20]).is_err());
}
