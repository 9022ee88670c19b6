//! Several processes: killed writers, the lock, readers beside a writer.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use belljar_ledger::{Durability, OpenError, Reader, Wait};
use support::{check, open, open_waiting, until};

/// Set for the processes that the tests start of themselves.
const DIRECTORY: &str = "BELLJAR_LEDGER_TEST_DIRECTORY";

/// This test's own program again, to run one of the functions below.
fn start(role: &str, dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([role, "--exact", "--ignored", "--nocapture"])
        .env(DIRECTORY, dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn directory() -> Option<std::path::PathBuf> {
    std::env::var_os(DIRECTORY).map(Into::into)
}

/// Appends until it is killed; says which entries were acknowledged.
#[test]
#[ignore = "started by the tests below"]
fn role_append_for_ever() {
    let Some(dir) = directory() else { return };
    let (mut ledger, _) = open_waiting(&dir, Wait::Block).unwrap();
    for round in 0u64.. {
        for _ in 0..=round % 70 {
            let next = ledger.size() + ledger.pending();
            ledger.append(format!("entry {next}").as_bytes()).unwrap();
        }
        let durability = if round % 4 == 0 {
            Durability::Power
        } else {
            Durability::Crash
        };
        ledger.commit(durability).unwrap();
        println!("\nacknowledged {}", ledger.size());
    }
}

/// Holds the lock until its standard input ends.
#[test]
#[ignore = "started by the tests below"]
fn role_hold_the_lock() {
    let Some(dir) = directory() else { return };
    let ledger = open(&dir);
    println!("\nlocked");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    drop(ledger);
}

#[test]
fn a_killed_writer_leaves_all_that_it_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut size = 0;
    for round in 0..15 {
        let mut child = start("role_append_for_ever", dir.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acknowledged = size;
        // Killed at another place each time: the child does not wait for us.
        for line in lines
            .by_ref()
            .map(Result::unwrap)
            .filter_map(number)
            .take(1 + round * 3)
        {
            acknowledged = line;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for number in lines.map_while(Result::ok).filter_map(number) {
            acknowledged = number;
        }
        assert!(check(dir.path()).checkpoint.size() >= acknowledged.min(size));
        let (ledger, _) = open_waiting(dir.path(), Wait::Fail).unwrap();
        assert!(
            ledger.size() >= acknowledged,
            "{} < {acknowledged}",
            ledger.size()
        );
        size = ledger.size();
        drop(ledger);
        assert!(!check(dir.path()).torn_tail);
        let reader = Reader::open(dir.path()).unwrap();
        for entry in reader.entries(0) {
            let entry = entry.unwrap();
            assert_eq!(entry.bytes, format!("entry {}", entry.index).as_bytes());
        }
    }
    assert!(size > 0);
}

fn number(line: String) -> Option<u64> {
    // A line cut off by the kill has no newline after it, but might be the beginning of a longer number: the next
    // acknowledged size is never smaller, so a shorter number only asks for less.
    line.strip_prefix("acknowledged ")?.parse().ok()
}

#[test]
fn a_second_writer_is_refused_or_waits() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = start("role_hold_the_lock", dir.path());
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    assert!(lines.any(|line| line == "locked"));
    assert!(matches!(
        open_waiting(dir.path(), Wait::Fail),
        Err(OpenError::Locked)
    ));
    // Reading needs no lock.
    assert_eq!(Reader::open(dir.path()).unwrap().size(), 0);
    let opened = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (ledger, _) = open_waiting(dir.path(), Wait::Block).unwrap();
            opened.store(true, Ordering::SeqCst);
            drop(ledger);
        });
        assert!(!opened.load(Ordering::SeqCst));
        let mut stdin = child.stdin.take().unwrap();
        stdin.flush().unwrap();
        drop(stdin);
        until("the lock", || opened.load(Ordering::SeqCst));
    });
    child.wait().unwrap();
    open_waiting(dir.path(), Wait::Fail).unwrap();
}

#[test]
fn a_reader_beside_a_writer_sees_whole_entries_only() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let mut child = start("role_append_for_ever", dir.path());
    let mut reader = Reader::open(dir.path()).unwrap();
    let mut next = 0;
    while next < 3000 {
        reader.refresh().unwrap();
        for entry in reader.entries(next) {
            let entry = entry.unwrap();
            assert_eq!(entry.index, next);
            assert_eq!(entry.bytes, format!("entry {next}").as_bytes());
            next += 1;
        }
        assert_eq!(next, reader.size());
        if next > 0 {
            let proof = reader.prove_inclusion(next - 1, next).unwrap();
            let bytes = reader.entry(next - 1).unwrap().unwrap();
            let leaf = belljar_ledger::Hash::of_entry(&bytes);
            assert!(proof.verify(&leaf, &reader.checkpoint().root()));
        }
        // A whole check may run beside the writer as well.
        assert!(check(dir.path()).checkpoint.size() >= reader.size());
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
