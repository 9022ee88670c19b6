//! Measures a ledger on this machine: `cargo run --release -p belljar-ledger --example measure [DIRECTORY]`.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_ledger::{
    Durability, KnownKey, Ledger, Options, Reader, SignError, Signer, VerifyOptions, Wait, Writer,
    verify,
};
use ed25519_dalek::{Signer as _, SigningKey};

const ORIGIN: &str = "belljar.example/measure";
const ENTRY: [u8; 512] = [b'e'; 512];

struct Key(SigningKey);

impl Signer for Key {
    fn key_name(&self) -> &str {
        ORIGIN
    }
    fn verifying_key(&self) -> [u8; 32] {
        self.0.verifying_key().to_bytes()
    }
    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SignError> {
        Ok(self.0.sign(message).to_bytes())
    }
}

fn main() {
    let at = std::env::args_os()
        .nth(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let scratch = tempfile::tempdir_in(at).unwrap();
    let dir = |name: &str| scratch.path().join(name);
    signatures();
    lone_runs(&dir("lone"));
    for (threads, under_way) in [(1, 1), (64, 1), (64, 16)] {
        group_commit(
            &dir(&format!("group-{threads}-{under_way}")),
            threads,
            under_way,
        );
    }
    million(&dir("million"));
}

fn open(dir: &Path) -> Ledger {
    let key = Arc::new(Key(SigningKey::from_bytes(&[1; 32])));
    Ledger::lock_and_open(dir, ORIGIN, key, Options::default(), Wait::Fail)
        .unwrap()
        .0
}

fn signatures() {
    let key = SigningKey::from_bytes(&[1; 32]);
    let start = Instant::now();
    let signatures: Vec<_> = (0..2000u32).map(|n| key.sign(&n.to_be_bytes())).collect();
    println!("sign                     {:?}", start.elapsed() / 2000);
    let start = Instant::now();
    for (n, signature) in (0u32..).zip(&signatures) {
        key.verifying_key()
            .verify_strict(&n.to_be_bytes(), signature)
            .unwrap();
    }
    println!("verify_strict            {:?}", start.elapsed() / 2000);
}

fn lone_runs(dir: &Path) {
    const RUNS: usize = 2000;
    drop(open(dir));
    let cpu = cpu_time();
    let (mut opened, mut resumed) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let start = Instant::now();
        let mut ledger = open(dir);
        ledger.append(&ENTRY).unwrap();
        ledger.commit(Durability::Crash).unwrap();
        let released = ledger.release();
        opened.push(start.elapsed());
        let start = Instant::now();
        let (mut ledger, _) = released.lock_and_resume(Wait::Fail).unwrap();
        ledger.append(&ENTRY).unwrap();
        ledger.commit(Durability::Crash).unwrap();
        drop(ledger);
        resumed.push(start.elapsed());
    }
    let cpu = (cpu_time() - cpu) / (2 * RUNS as u32);
    println!("open, append, commit     {:?} (median)", median(opened));
    println!("resume, append, commit   {:?} (median)", median(resumed));
    println!("processor time of both   {cpu:?} (mean)");
}

/// Unlike the clock on the wall, not stretched by what else runs on the machine.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn group_commit(dir: &Path, threads: usize, under_way: usize) {
    let writer = Writer::start(open(dir)).unwrap();
    let rounds = 3000 / threads.min(30) / under_way.min(3);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let handle = writer.handle();
                let append = || handle.append(ENTRY.to_vec(), Durability::Power);
                let mut tickets: std::collections::VecDeque<_> =
                    (0..under_way).map(|_| append()).collect();
                for _ in 0..rounds * under_way {
                    tickets.pop_front().unwrap().wait().unwrap();
                    tickets.push_back(append());
                }
                for ticket in tickets {
                    ticket.wait().unwrap();
                }
            });
        }
    });
    let entries = writer.close().unwrap().size();
    let rate = entries as f64 / start.elapsed().as_secs_f64();
    println!("durable, {threads:2} threads x {under_way:2}  {rate:.0} entries/s");
}

fn million(dir: &Path) {
    const ENTRIES: u64 = 1_000_000;
    let mut ledger = open(dir);
    let start = Instant::now();
    while ledger.size() < ENTRIES {
        for _ in 0..4000 {
            ledger.append(&ENTRY).unwrap();
        }
        ledger.commit(Durability::Crash).unwrap();
    }
    let per_second = |start: Instant| ENTRIES as f64 / start.elapsed().as_secs_f64();
    println!(
        "bulk append              {:.0} entries/s",
        per_second(start)
    );
    drop(ledger);
    let start = Instant::now();
    drop(open(dir));
    println!("open of a million        {:?}", start.elapsed());
    let reader = Reader::open(dir).unwrap();
    let start = Instant::now();
    let mut entries = reader.entries(0);
    let mut bytes = 0;
    while let Some(entry) = entries.next_borrowed() {
        bytes += entry.unwrap().1.len();
    }
    println!(
        "read                     {:.0} entries/s ({bytes} bytes)",
        per_second(start)
    );
    let start = Instant::now();
    let known = [KnownKey::of(&Key(SigningKey::from_bytes(&[1; 32]))).unwrap()];
    verify(dir, &known, &VerifyOptions::default()).unwrap();
    println!(
        "verify                   {:.0} entries/s",
        per_second(start)
    );
    let start = Instant::now();
    reader.proof_file(ENTRIES / 3).unwrap();
    println!("inclusion proof          {:?}", start.elapsed());
    println!("peak memory              {} kB", peak_memory());
}

fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
