//! Every byte of a small log flipped, every file cut at every length: what verifying says, and what opening does.

use std::fs;
use std::path::{Path, PathBuf};

use super::kit::{self, check, entry, open};
use crate::bundle::Entries;
use crate::{
    Checkpoint, Durability, Fault, Ledger, OpenError, Place, Unsigned, VerifyOptions, verify,
};

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn name(dir: &Path, path: &Path) -> String {
    path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned()
}

/// What belongs to the log; the rest can be anything.
fn signed_files(dir: &Path) -> Vec<PathBuf> {
    files(dir)
        .into_iter()
        .filter(|path| name(dir, path).starts_with("tile/") || name(dir, path) == "checkpoint")
        .collect()
}

/// Which entry of its bundle a byte belongs to, its length included.
fn entry_at(bundle: &[u8], offset: usize) -> u64 {
    let mut entries = Entries::of(bundle);
    let mut n = 0;
    while entries.next().is_some() {
        if bundle.len() - entries.rest().len() > offset {
            return n;
        }
        n += 1;
    }
    panic!("no entry at {offset}");
}

fn assert_named(dir: &Path, path: &Path, bundle: &[u8], offset: usize, fault: &Fault) {
    match name(dir, path).as_str() {
        "checkpoint" => assert!(
            matches!(fault, Fault::Unsigned(_) | Fault::UnknownKey { .. }),
            "checkpoint, byte {offset}: {fault}"
        ),
        file if file.starts_with("tile/entries/") => {
            let first = if file.contains("000") { 0 } else { 256 };
            let expected = first + entry_at(bundle, offset);
            assert!(
                matches!(fault, Fault::Tampered(Place::Entry(n)) if *n == expected),
                "{file}, byte {offset}, entry {expected}: {fault}"
            );
        }
        file => {
            let level: u32 = file.split('/').nth(1).unwrap().parse().unwrap();
            let index = if file.contains("000") { 0 } else { 1 };
            assert!(
                matches!(fault, Fault::Tampered(Place::Tile { level: l, index: i }) if (*l, *i) == (level, index)),
                "{file}, byte {offset}: {fault}"
            );
        }
    }
}

/// Opening must refuse, or leave a log that holds with every entry it had.
fn assert_opening_is_safe(dir: &Path, size: u64) {
    if let Ok((ledger, _)) = open(dir) {
        assert_eq!(ledger.size(), size);
    }
}

#[test]
fn a_flipped_bit_anywhere_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    kit::make(dir, 12, 5);
    for path in signed_files(dir) {
        let whole = fs::read(&path).unwrap();
        for offset in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[offset] ^= 1 << (offset % 8);
            fs::write(&path, &bytes).unwrap();
            let fault = check(dir).expect_err("a changed log passes");
            assert_named(dir, &path, &whole, offset, &fault);
            assert_opening_is_safe(dir, 12);
            assert!(open(dir).is_err(), "the right edge is checked by opening");
        }
        fs::write(&path, &whole).unwrap();
    }
    check(dir).unwrap();
}

#[test]
fn a_flipped_bit_in_a_log_of_several_tiles_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    kit::make(dir, 300, 300);
    for path in signed_files(dir) {
        let whole = fs::read(&path).unwrap();
        for offset in (0..whole.len()).step_by(211) {
            let mut bytes = whole.clone();
            bytes[offset] ^= 0x10;
            fs::write(&path, &bytes).unwrap();
            let fault = check(dir).expect_err("a changed log passes");
            assert_named(dir, &path, &whole, offset, &fault);
        }
        fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn a_file_cut_anywhere_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    kit::make(dir, 12, 5);
    for path in signed_files(dir) {
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let fault = check(dir).expect_err("a cut log passes");
            match name(dir, &path).as_str() {
                "checkpoint" => assert!(matches!(fault, Fault::Unsigned(Unsigned::Malformed(_)))),
                file if file.starts_with("tile/entries/") => {
                    let left = entry_at(&whole, length);
                    assert!(
                        matches!(fault, Fault::Truncated { have, expected: 12 } if have == left),
                        "{length}: {fault}"
                    );
                }
                _ => assert!(
                    matches!(fault, Fault::Tampered(Place::Tile { .. })),
                    "{fault}"
                ),
            }
            assert!(open(dir).is_err(), "fewer entries than were signed for");
            assert_eq!(
                fs::read(&path).unwrap(),
                whole[..length],
                "refusing leaves the evidence"
            );
        }
        fs::remove_file(&path).unwrap();
        check(dir).expect_err("a log with a file missing passes");
        assert!(open(dir).is_err());
        fs::write(&path, &whole).unwrap();
    }
    check(dir).unwrap();
}

#[test]
fn what_is_past_the_checkpoint_is_reported_and_cleared() {
    let dir = tempfile::tempdir().unwrap();
    kit::make(dir.path(), 12, 12);
    for path in signed_files(dir.path()) {
        if name(dir.path(), &path) == "checkpoint" {
            continue;
        }
        let whole = fs::read(&path).unwrap();
        fs::write(&path, [&whole[..], &[0, 3, b'x']].concat()).unwrap();
        assert!(check(dir.path()).unwrap().torn_tail);
        let (ledger, recovery) = open(dir.path()).unwrap();
        assert_eq!((ledger.size(), recovery.dropped_bytes), (12, 3));
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
}

#[test]
fn bytes_after_a_full_tile_are_tampering() {
    let dir = tempfile::tempdir().unwrap();
    kit::make(dir.path(), 300, 300);
    for (file, place) in [
        ("tile/entries/000", Place::Bundle(0)),
        ("tile/0/000", Place::Tile { level: 0, index: 0 }),
    ] {
        let path = dir.path().join(file);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, [&whole[..], &[1]].concat()).unwrap();
        let fault = check(dir.path()).unwrap_err();
        assert!(
            matches!(&fault, Fault::Tampered(found) if *found == place),
            "{fault}"
        );
        fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn an_entry_changed_along_with_its_hashes_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let forged = tempfile::tempdir().unwrap();
    kit::make(dir.path(), 600, 300);
    let other = kit::TestKey::named(kit::ORIGIN, 9);
    let (mut ledger, _) = Ledger::lock_and_open(
        forged.path(),
        kit::ORIGIN,
        other,
        kit::options(),
        crate::Wait::Fail,
    )
    .unwrap();
    for n in 0..600 {
        let bytes = if n == 300 {
            b"forged".to_vec()
        } else {
            entry(n)
        };
        ledger.append(&bytes).unwrap();
    }
    ledger.commit(Durability::Crash).unwrap();
    // A bundle with its tile: the level above gives it away.
    for file in ["tile/entries/001", "tile/0/001"] {
        fs::copy(forged.path().join(file), dir.path().join(file)).unwrap();
    }
    let expected = Place::Entries {
        first: 256,
        last: 511,
    };
    assert!(matches!(check(dir.path()), Err(Fault::Tampered(place)) if place == expected));
    // And the level above as well: the root does.
    let above = "tile/1/000.p/2";
    fs::copy(forged.path().join(above), dir.path().join(above)).unwrap();
    assert!(matches!(
        check(dir.path()),
        Err(Fault::Tampered(Place::Root))
    ));
    // And the checkpoint: its key is not known.
    fs::copy(
        forged.path().join("checkpoint"),
        dir.path().join("checkpoint"),
    )
    .unwrap();
    assert!(matches!(check(dir.path()), Err(Fault::UnknownKey { .. })));
    assert!(matches!(
        open(dir.path()),
        Err(OpenError::Damaged(Fault::UnknownKey { .. }))
    ));
}

#[test]
fn opening_signs_nothing_on_top_of_a_forged_end() {
    let (dir, forged) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    kit::make(dir.path(), 5, 5);
    let (mut ledger, _) = open(forged.path()).unwrap();
    kit::grow(&mut ledger, 4, 4);
    ledger.append(b"forged").unwrap();
    ledger.commit(Durability::Crash).unwrap();
    for file in ["tile/entries/000.p/5", "tile/0/000.p/5"] {
        fs::copy(forged.path().join(file), dir.path().join(file)).unwrap();
    }
    assert!(matches!(
        open(dir.path()),
        Err(OpenError::Damaged(Fault::Tampered(Place::Root)))
    ));
}

#[test]
fn a_changed_hash_does_not_hide_which_entry_was_changed() {
    let dir = tempfile::tempdir().unwrap();
    kit::make(dir.path(), 600, 600);
    for (file, offset) in [("tile/0/000", 40), ("tile/entries/001", 5)] {
        let path = dir.path().join(file);
        let mut bytes = fs::read(&path).unwrap();
        bytes[offset] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let fault = check(dir.path()).unwrap_err();
    assert!(
        matches!(fault, Fault::Tampered(Place::Entry(256))),
        "{fault}"
    );
}

#[test]
fn a_piece_taken_from_the_middle_is_not_a_cut_off_end() {
    let dir = tempfile::tempdir().unwrap();
    kit::make(dir.path(), 600, 600);
    fs::remove_file(dir.path().join("tile/entries/001")).unwrap();
    assert!(matches!(
        check(dir.path()),
        Err(Fault::Tampered(Place::Entry(256)))
    ));
    fs::remove_file(dir.path().join("tile/entries/002.p/88")).unwrap();
    assert!(matches!(
        check(dir.path()),
        Err(Fault::Truncated {
            have: 256,
            expected: 600
        })
    ));
}

#[test]
fn an_older_state_is_told_by_an_earlier_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = open(dir.path()).unwrap();
    kit::grow(&mut ledger, 20, 20);
    let early = Checkpoint::parse(ledger.checkpoint().note().as_bytes()).unwrap();
    kit::grow(&mut ledger, 30, 5);
    let late = ledger.checkpoint().clone();
    drop(ledger);
    let since = |since: &Checkpoint, dir: &Path| {
        let options = VerifyOptions {
            since: Some(since.clone()),
            ..VerifyOptions::default()
        };
        verify(dir, &kit::known(), &options)
    };
    since(&early, dir.path()).unwrap();
    since(&late, dir.path()).unwrap();
    // Put back to the state of 20 entries: it holds in itself, and was signed.
    let older = tempfile::tempdir().unwrap();
    kit::make(older.path(), 20, 20);
    check(older.path()).unwrap();
    assert!(matches!(
        since(&late, older.path()),
        Err(Fault::Truncated {
            have: 20,
            expected: 30
        })
    ));
    // Another history under the same key.
    let other = tempfile::tempdir().unwrap();
    let (mut ledger, _) = open(other.path()).unwrap();
    for n in 0..40u64 {
        ledger.append(&entry(n + u64::from(n > 10))).unwrap();
    }
    ledger.commit(Durability::Crash).unwrap();
    check(other.path()).unwrap();
    assert!(matches!(
        since(&early, other.path()),
        Err(Fault::Tampered(Place::History { size: 20 }))
    ));
}

#[test]
fn no_checkpoint_is_no_log() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(
        check(dir.path()),
        Err(Fault::Unsigned(Unsigned::Missing))
    ));
    assert!(matches!(
        check(&dir.path().join("absent")),
        Err(Fault::Unsigned(Unsigned::Missing))
    ));
    kit::make(dir.path(), 3, 3);
    fs::remove_file(dir.path().join("checkpoint")).unwrap();
    assert!(matches!(
        check(dir.path()),
        Err(Fault::Unsigned(Unsigned::Missing))
    ));
    assert!(matches!(
        open(dir.path()),
        Err(OpenError::Damaged(Fault::Unsigned(Unsigned::Missing)))
    ));
}
