//! A kill at every change to the file system, and file systems that fail.

use rustix::io::Errno;

use super::faults::{Faults, Plan};
use super::kit::{self, check, entries, entry, open};
use crate::disk::Step;
use crate::{AppendError, CommitError, Durability};

/// Before the commit that is cut off, and after it.
const CASES: &[(u64, u64)] = &[
    (0, 1),
    (0, 3),
    (1, 2),
    (5, 9),
    (255, 257),
    (256, 257),
    (256, 300),
    (200, 530),
];

fn cut_off(before: u64, after: u64, durability: Durability) {
    Faults::plan(Plan::None);
    let start = tempfile::tempdir().unwrap();
    kit::make(start.path(), before, 100);
    for at in 0.. {
        let dir = tempfile::tempdir().unwrap();
        kit::copy(start.path(), dir.path());
        let faults = Faults::plan(Plan::None);
        let (mut ledger, _) = open(dir.path()).unwrap();
        if durability == Durability::Power {
            // All is synced, and one record is in the journal.
            ledger.refresh(durability).unwrap();
            ledger.refresh(durability).unwrap();
        }
        faults.change(Plan::KillAt(at));
        for n in before..after {
            ledger.append(&entry(n)).unwrap();
        }
        let acknowledged = ledger.commit(durability).is_ok();
        drop(ledger);
        let whole = faults.steps().len() <= at;
        assert_eq!(acknowledged, whole);

        // As found by a verifier before anything is mended.
        let found = check(dir.path())
            .unwrap_or_else(|fault| panic!("{before}..{after} at {at}: {fault}"))
            .checkpoint
            .size();
        assert!(found == before || found == after, "{found} is between");
        assert!(!acknowledged || found == after);
        let size = recover(dir.path(), at);
        assert!(size == before || size == after, "{size} is between");
        assert!(size >= found);
        if whole {
            break;
        }
    }
}

/// Opens, kills the opening at each of its steps too, and goes on appending. Returns the size after opening.
fn recover(dir: &std::path::Path, at: usize) -> u64 {
    // Each step of a small log, and some of each kind of a larger one.
    let stride = if check(dir).unwrap().checkpoint.size() < 20 {
        1
    } else {
        4
    };
    for again in (at % stride..).step_by(stride) {
        let faults = Faults::plan(Plan::KillAt(again));
        let opened = open(dir);
        let finished = faults.steps().len() <= again;
        assert_eq!(opened.is_ok(), finished);
        drop(opened);
        check(dir).unwrap();
        if finished {
            break;
        }
    }
    Faults::plan(Plan::None);
    let (mut ledger, recovery) = open(dir).unwrap();
    let size = ledger.size();
    assert!(recovery.is_clean(), "mended once at {at}: {recovery:?}");
    assert!(
        !check(dir).unwrap().torn_tail,
        "nothing is left past the checkpoint"
    );
    kit::grow(&mut ledger, size + 3, 2);
    assert!(!check(dir).unwrap().torn_tail);
    let expected: Vec<_> = (0..size + 3).map(entry).collect();
    assert_eq!(entries(dir), expected);
    size
}

#[test]
fn a_kill_at_any_step_leaves_the_log_before_or_after() {
    for (before, after) in CASES {
        cut_off(*before, *after, Durability::Crash);
    }
}

#[test]
fn a_kill_at_any_step_of_a_durable_commit_too() {
    for (before, after) in [(1, 2), (5, 9), (255, 257)] {
        cut_off(before, after, Durability::Power);
    }
}

#[test]
fn recovery_says_what_it_dropped() {
    let dir = tempfile::tempdir().unwrap();
    kit::make(dir.path(), 10, 10);
    let faults = Faults::plan(Plan::None);
    let (mut ledger, _) = open(dir.path()).unwrap();
    let mut length = 0;
    for n in 10..14 {
        ledger.append(&entry(n)).unwrap();
        length += entry(n).len() as u64 + 2;
    }
    // The entries are written; the rename after them is not reached.
    faults.change(Plan::KillAt(1));
    assert!(ledger.commit(Durability::Crash).is_err());
    drop(ledger);
    Faults::plan(Plan::None);
    let (_, recovery) = open(dir.path()).unwrap();
    assert_eq!(
        (recovery.dropped_entries, recovery.dropped_bytes),
        (4, length)
    );
}

#[test]
fn a_full_disk_at_any_step_stops_the_ledger_and_keeps_the_log() {
    for at in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let faults = Faults::plan(Plan::None);
        let (mut ledger, _) = open(dir.path()).unwrap();
        kit::grow(&mut ledger, 254, 100);
        faults.change(Plan::FailAt(at, Errno::NOSPC));
        for n in 254..258 {
            ledger.append(&entry(n)).unwrap();
        }
        let committed = ledger.commit(Durability::Power);
        if faults.steps().len() <= at {
            committed.unwrap();
            break;
        }
        assert!(matches!(committed, Err(CommitError::Io(_))));
        // The disk works again; the ledger must not trust it before it was opened anew.
        assert_eq!(ledger.append(b"more"), Err(AppendError::Poisoned));
        assert!(matches!(
            ledger.commit(Durability::Crash),
            Err(CommitError::Poisoned)
        ));
        assert!(matches!(
            ledger.refresh(Durability::Crash),
            Err(CommitError::Poisoned)
        ));
        drop(ledger);
        Faults::plan(Plan::None);
        let (ledger, _) = open(dir.path()).unwrap();
        assert!(ledger.size() == 254 || ledger.size() == 258);
        check(dir.path()).unwrap();
    }
}

#[test]
fn a_failed_sync_is_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let faults = Faults::plan(Plan::None);
    let (mut ledger, _) = open(dir.path()).unwrap();
    kit::grow(&mut ledger, 3, 3);
    faults.change(Plan::FailOn(Step::Sync, Errno::IO));
    ledger.append(b"lost").unwrap();
    assert!(matches!(
        ledger.commit(Durability::Power),
        Err(CommitError::Io(_))
    ));
    assert_eq!(ledger.append(b"more"), Err(AppendError::Poisoned));
    drop(ledger);
    Faults::plan(Plan::None);
    assert_eq!(
        check(dir.path()).unwrap().checkpoint.size(),
        3,
        "no checkpoint over unsynced data"
    );
}

#[test]
fn a_durable_commit_costs_one_sync() {
    let dir = tempfile::tempdir().unwrap();
    let faults = Faults::plan(Plan::None);
    let (mut ledger, _) = open(dir.path()).unwrap();
    ledger.append(b"the first makes the journal").unwrap();
    ledger.commit(Durability::Power).unwrap();
    faults.change(Plan::None);
    for n in 0..600 {
        ledger.append(&entry(n)).unwrap();
    }
    assert_eq!(ledger.commit(Durability::Power).unwrap().durable(), 601);
    let steps = faults.steps();
    assert_eq!(
        steps[..2],
        [Step::Write, Step::Sync],
        "before anything else"
    );
    assert!(!steps[2..].contains(&Step::Sync));
}

#[test]
fn a_durable_commit_after_others_syncs_before_and_after_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let faults = Faults::plan(Plan::None);
    let (mut ledger, _) = open(dir.path()).unwrap();
    // Not synced: a durable commit must make up for it.
    kit::grow(&mut ledger, 300, 300);
    assert_eq!(ledger.checkpoint().durable(), 0);
    faults.change(Plan::None);
    ledger.append(b"x").unwrap();
    assert_eq!(ledger.commit(Durability::Power).unwrap().durable(), 301);
    let steps = faults.steps();
    let swap = steps
        .iter()
        .rposition(|step| *step == Step::Rename)
        .unwrap();
    let last_write = steps.iter().rposition(|step| *step == Step::Write).unwrap();
    let syncs = |steps: &[Step]| steps.iter().filter(|step| **step == Step::Sync).count();
    // Two bundles, two hash tiles, one above; their directories.
    assert!(syncs(&steps[..last_write]) >= 5 + 4, "{steps:?}");
    assert_eq!(
        steps[last_write..swap],
        [Step::Write, Step::Sync],
        "the checkpoint itself"
    );
    assert_eq!(steps[swap..], [Step::Rename, Step::Sync], "and its name");
}
