//! Power cuts: of what was not synced, any part may be gone.

use std::fs;
use std::path::Path;

use super::kit::{self, check, entries, entry, grow, open};
use crate::{Durability, Ledger, Reader};

/// Pseudo-random numbers, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Takes away pieces of tiles past what was synced, and goes back to another checkpoint.
fn cut_power(dir: &Path, synced: u64, size: u64, dice: &mut Dice) {
    let lose = |path: &Path, keep: u64, dice: &mut Dice| {
        let Ok(length) = fs::metadata(path).map(|meta| meta.len()) else {
            return;
        };
        match dice.roll(3) {
            0 => {}
            // Never below what was synced.
            1 => fs::File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_len(keep)
                .unwrap(),
            _ => {
                let mut bytes = fs::read(path).unwrap();
                let from = keep + dice.roll(length - keep + 1);
                bytes[from as usize..].fill(0);
                fs::write(path, bytes).unwrap();
            }
        }
    };
    let reader = Reader::open(dir).unwrap();
    for row in crate::tile::rows(size) {
        for piece in crate::tile::pieces(row, row.items(synced), row.items(size)) {
            let path = dir.join(piece.tile.path(piece.to));
            let keep = match row {
                crate::tile::Row::Hashes(_) => piece.from * 32,
                crate::tile::Row::Entries => reader
                    .entries(piece.tile.index * 256)
                    .take(piece.from as usize)
                    .map(|entry| entry.unwrap().bytes.len() as u64 + 2)
                    .sum(),
            };
            lose(&path, keep, dice);
            // The new name may be lost, too: then the file has the one that was synced.
            if piece.from > 0 && dice.roll(2) == 0 {
                let synced_name = dir.join(piece.tile.path(piece.from));
                fs::create_dir_all(synced_name.parent().unwrap()).unwrap();
                fs::rename(&path, synced_name).unwrap();
            } else if piece.from == 0 && dice.roll(3) == 0 {
                fs::remove_file(&path).unwrap();
            }
        }
    }
    match dice.roll(3) {
        0 => {}
        1 => fs::rename(dir.join("checkpoint.spare"), dir.join("checkpoint")).unwrap(),
        _ => fs::write(dir.join("checkpoint"), b"").unwrap(),
    }
}

fn durable(ledger: &mut Ledger, to: u64) {
    for n in ledger.size()..to {
        ledger.append(&entry(n)).unwrap();
    }
    ledger.commit(Durability::Power).unwrap();
}

#[test]
fn what_was_durably_committed_survives_any_loss_of_the_rest() {
    let mut dice = Dice(42);
    for (synced, first, second) in [
        (0, 1, 2),
        (0, 300, 301),
        (3, 9, 20),
        (250, 256, 260),
        (255, 700, 1030),
        (256, 257, 512),
    ] {
        for _ in 0..10 {
            let dir = tempfile::tempdir().unwrap();
            let (mut ledger, _) = open(dir.path()).unwrap();
            grow(&mut ledger, synced, 100);
            if synced > 0 {
                ledger.refresh(Durability::Power).unwrap();
            }
            durable(&mut ledger, first);
            durable(&mut ledger, second);
            drop(ledger);
            cut_power(dir.path(), synced, second, &mut dice);
            let (mut ledger, _) = open(dir.path()).unwrap();
            assert_eq!(ledger.size(), second);
            assert!(!check(dir.path()).unwrap().torn_tail);
            grow(&mut ledger, second + 2, 1);
            check(dir.path()).unwrap();
            assert_eq!(
                entries(dir.path()),
                (0..second + 2).map(entry).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn a_piece_lost_from_the_middle_comes_back_though_the_end_is_whole() {
    for file in ["tile/entries/001", "tile/0/001", "tile/1/000.p/3"] {
        let dir = tempfile::tempdir().unwrap();
        let (mut ledger, _) = open(dir.path()).unwrap();
        durable(&mut ledger, 400);
        durable(&mut ledger, 1000);
        drop(ledger);
        fs::write(dir.path().join(file), b"").unwrap();
        assert_eq!(open(dir.path()).unwrap().0.size(), 1000);
        check(dir.path()).unwrap();
        assert!(entries(dir.path()).into_iter().eq((0..1000).map(entry)));
    }
}

#[test]
fn a_full_journal_is_emptied_and_the_tiles_synced() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = open(dir.path()).unwrap();
    let journal = dir.path().join("journal");
    let (mut longest, mut emptied) = (0, 0);
    for _ in 0..40 {
        for _ in 0..16 {
            ledger.append(&[7; 40_000]).unwrap();
        }
        ledger.commit(Durability::Power).unwrap();
        let bytes = fs::read(&journal).unwrap();
        longest = longest.max(bytes.len());
        emptied += u32::from(crate::journal::records(&bytes).is_empty());
    }
    assert!(longest <= 8 << 20);
    assert!(emptied >= 2);
    drop(ledger);
    check(dir.path()).unwrap();
    assert_eq!(open(dir.path()).unwrap().0.size(), 640);
}

/// An entry of which a few hundred fill a journal.
fn large(n: u64) -> Vec<u8> {
    n.to_be_bytes().repeat(2500)
}

/// Commits durably until the journal was emptied, and so often again; gives back the journal as it was before.
fn through_an_emptied_journal(ledger: &mut Ledger, journal: &Path, more: u64) -> Vec<u8> {
    let commit = |ledger: &mut Ledger, count: u64| {
        for n in ledger.size()..ledger.size() + count {
            ledger.append(&large(n)).unwrap();
        }
        ledger.commit(Durability::Power).unwrap();
    };
    loop {
        let before = fs::read(journal).unwrap_or_default();
        commit(ledger, 10);
        if crate::journal::records(&fs::read(journal).unwrap()).is_empty() {
            (0..more).for_each(|_| commit(ledger, 1));
            return before;
        }
    }
}

#[test]
fn records_of_an_earlier_pass_count_no_more() {
    for more in [0, 1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let (mut ledger, _) = open(dir.path()).unwrap();
        let journal = dir.path().join("journal");
        through_an_emptied_journal(&mut ledger, &journal, more);
        let (size, left) = (ledger.size(), fs::read(&journal).unwrap());
        assert_eq!(crate::journal::records(&left).len() as u64, more);
        // What the pass before left is still there, behind what counts.
        let stale = left.windows(4).filter(|bytes| bytes == b"BJL1").count();
        assert!(stale as u64 > more + 10, "{stale}");
        drop(ledger);
        for roll in 0..10 {
            let cut = tempfile::tempdir().unwrap();
            kit::copy(dir.path(), cut.path());
            cut_power(cut.path(), size - more, size, &mut Dice(roll));
            if more == 0 {
                // The last sync was of everything, the checkpoint too.
                fs::copy(dir.path().join("checkpoint"), cut.path().join("checkpoint")).unwrap();
            }
            let (ledger, _) = open(cut.path()).unwrap();
            assert_eq!(ledger.size(), size);
            check(cut.path()).unwrap();
            assert!(entries(cut.path()).into_iter().eq((0..size).map(large)));
        }
    }
}

#[test]
fn a_signature_of_an_earlier_pass_is_not_taken_for_the_last() {
    let seal = crate::note::Seal::new(kit::key()).unwrap();
    let record = |time| {
        let head = crate::checkpoint::Head {
            origin: kit::ORIGIN,
            size: 0,
            root: crate::Hash::of_nothing(),
            time,
            durable: 0,
        };
        let checkpoint = crate::checkpoint::Checkpoint::sign(&head, &seal).unwrap();
        crate::journal::encode(0, &checkpoint, &[])
    };
    let found = |times: &[u64]| {
        let bytes: Vec<u8> = times.iter().flat_map(|time| record(*time)).collect();
        crate::journal::records(&bytes).len()
    };
    assert_eq!(found(&[10, 10, 11]), 3);
    assert_eq!(found(&[10, 9, 11]), 1);
}

#[test]
fn a_journal_that_was_emptied_in_vain_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = open(dir.path()).unwrap();
    let journal = dir.path().join("journal");
    let before = through_an_emptied_journal(&mut ledger, &journal, 0);
    let size = ledger.size();
    drop(ledger);
    // That it was emptied was not yet on the disk when the power was cut.
    fs::write(&journal, before).unwrap();
    let (mut ledger, _) = open(dir.path()).unwrap();
    assert_eq!(ledger.size(), size);
    durable(&mut ledger, size + 5);
    drop(ledger);
    assert_eq!(open(dir.path()).unwrap().0.size(), size + 5);
    check(dir.path()).unwrap();
}

#[test]
fn whoever_resumes_sees_what_another_did_to_the_journal() {
    use super::faults::{Faults, Plan};
    // Only opened it, which empties the journal; and was killed when its own record was synced, before all else.
    for kill in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (mut ledger, _) = open(dir.path()).unwrap();
        durable(&mut ledger, 3);
        durable(&mut ledger, 4);
        let released = ledger.release();
        let faults = Faults::plan(Plan::None);
        let (mut other, _) = open(dir.path()).unwrap();
        if kill {
            faults.change(Plan::KillAt(2));
            other.append(&entry(4)).unwrap();
            assert!(other.commit(Durability::Power).is_err());
        }
        drop(other);
        Faults::plan(Plan::None);
        let (mut ledger, _) = released.lock_and_resume(crate::Wait::Fail).unwrap();
        let size = 4 + u64::from(kill);
        assert_eq!(ledger.size(), size);
        durable(&mut ledger, 9);
        drop(ledger);
        for roll in 0..10 {
            let cut = tempfile::tempdir().unwrap();
            kit::copy(dir.path(), cut.path());
            cut_power(cut.path(), size, 9, &mut Dice(roll));
            assert_eq!(open(cut.path()).unwrap().0.size(), 9);
            check(cut.path()).unwrap();
            assert!(entries(cut.path()).into_iter().eq((0..9).map(entry)));
        }
    }
}

#[test]
fn whoever_resumes_alone_goes_on_where_he_was() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = open(dir.path()).unwrap();
    for size in 1..9 {
        durable(&mut ledger, size);
        let released = ledger.release();
        assert!(released.is_current().unwrap(), "{size}");
        ledger = released.lock_and_resume(crate::Wait::Fail).unwrap().0;
    }
    let bytes = fs::read(dir.path().join("journal")).unwrap();
    assert_eq!(crate::journal::records(&bytes).len(), 8);
}

#[test]
fn a_journal_never_takes_back_what_came_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = open(dir.path()).unwrap();
    durable(&mut ledger, 5);
    grow(&mut ledger, 9, 2);
    drop(ledger);
    // The tail is damaged: not a case for the journal, which ends before it.
    let bundle = dir.path().join("tile/entries/000.p/9");
    let length = fs::metadata(&bundle).unwrap().len();
    fs::File::options()
        .write(true)
        .open(&bundle)
        .unwrap()
        .set_len(length - 1)
        .unwrap();
    assert!(open(dir.path()).is_err());
    assert!(bundle.exists());
}

#[test]
fn a_journal_of_another_log_or_key_is_ignored() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    kit::make(ours.path(), 4, 4);
    let other = kit::TestKey::named(kit::ORIGIN, 8);
    let (mut ledger, _) = Ledger::lock_and_open(
        theirs.path(),
        kit::ORIGIN,
        other,
        kit::options(),
        crate::Wait::Fail,
    )
    .unwrap();
    durable(&mut ledger, 9);
    drop(ledger);
    fs::copy(theirs.path().join("journal"), ours.path().join("journal")).unwrap();
    let (mut ledger, _) = open(ours.path()).unwrap();
    assert_eq!(ledger.size(), 4);
    durable(&mut ledger, 6);
    drop(ledger);
    assert_eq!(open(ours.path()).unwrap().0.size(), 6);
    check(ours.path()).unwrap();
}

#[test]
fn a_kill_after_the_sync_is_made_good_by_opening() {
    use super::faults::{Faults, Plan};
    let dir = tempfile::tempdir().unwrap();
    let faults = Faults::plan(Plan::None);
    let (mut ledger, _) = open(dir.path()).unwrap();
    durable(&mut ledger, 3);
    faults.change(Plan::KillAt(2));
    ledger.append(&entry(3)).unwrap();
    assert!(ledger.commit(Durability::Power).is_err());
    drop(ledger);
    Faults::plan(Plan::None);
    assert_eq!(check(dir.path()).unwrap().checkpoint.size(), 3);
    let (ledger, recovery) = open(dir.path()).unwrap();
    assert_eq!((ledger.size(), recovery.replayed_entries), (4, 1));
    assert_eq!(check(dir.path()).unwrap().checkpoint.size(), 4);
}
