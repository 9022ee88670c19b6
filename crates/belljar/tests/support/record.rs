//! A state directory with a record in it, and the binary to ask about it. No box is started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use belljar_gate::keyring::{KeyDir, KeySource};
use belljar_gate::record::RunEvent;
use belljar_gate::{Durability, FleetGate, FleetOptions, Hands, LogKind, RunGate};
use belljar_policy::Contract;
use belljar_replication::{Code, WorkerId};
use serde_json::Value;
use tempfile::TempDir;

use super::belljar;
use super::leftovers::files_below;
use super::watch::{Finished, finish};

pub(crate) struct Record {
    place: TempDir,
}

/// Carries nothing out: there are no boxes.
struct NoHands;

impl Hands for NoHands {
    fn kill(&self, _: WorkerId, _: Code) {}
    fn freeze(&self, _: WorkerId) {}
    fn thaw(&self, _: WorkerId) {}
}

impl Record {
    pub(crate) fn new() -> Record {
        let place = tempfile::tempdir().expect("a directory");
        fs::create_dir(place.path().join("state")).expect("a state directory");
        Record { place }
    }

    /// One with so many entries in the log of runs.
    pub(crate) fn of(entries: usize) -> Record {
        let record = Record::new();
        (0..entries).for_each(|n| record.note(&format!("entry {n}")));
        record
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.place.path().join("state")
    }

    /// A file beside the state directory.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    pub(crate) fn gate(&self) -> RunGate {
        RunGate::of(&self.state(), KeySource::Directory)
    }

    /// Puts an entry on record; its text is anybody's.
    pub(crate) fn note(&self, text: &str) {
        let reason = text.to_owned();
        self.gate()
            .note(
                RunEvent::KillSwitchReset { reason, by: None },
                Durability::Crash,
            )
            .expect("an entry");
    }

    pub(crate) fn fleet(&self, contract: Contract) -> FleetGate {
        let options = FleetOptions {
            contract,
            predicates: Vec::new(),
            keys: KeySource::Directory,
            hands: Box::new(NoHands),
        };
        FleetGate::open(&self.state(), options).expect("a fleet")
    }

    /// A fleet that was opened and closed, with its log noted in the other.
    pub(crate) fn with_fleet(&self) {
        let fleet = self.fleet(Contract::new(2, 4, Duration::ZERO, None));
        // Answered when what was decided before is on record.
        fleet.log_state().expect("a log");
        fleet.anchor().expect("a note of it");
    }

    pub(crate) fn log(&self, log: LogKind) -> PathBuf {
        log.directory(&self.state())
    }

    pub(crate) fn keyset_file(&self) -> PathBuf {
        KeyDir::of(&self.state(), KeySource::Directory).keyset_file()
    }

    /// `belljar`, with nothing in its environment but where the state is.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(belljar());
        command
            .args(words)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("BELLJAR_STATE_DIR", self.state())
            .current_dir(self.place.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn belljar(&self, words: &[&str]) -> Finished {
        finish(self.command(words).spawn().expect("start belljar"))
    }

    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let finished = self.belljar(words);
        serde_json::from_slice(&finished.stdout).unwrap_or_else(|error| {
            panic!(
                "{words:?}: {error}: {}\n{}",
                finished.stdout(),
                finished.stderr()
            )
        })
    }

    /// `belljar audit verify --output json` with further words: the exit code, which the answer repeats, and the answer.
    #[track_caller]
    pub(crate) fn verify(&self, words: &[&str]) -> (i32, Value) {
        let mut all = vec!["audit", "verify", "--output", "json"];
        all.extend(words);
        let finished = self.belljar(&all);
        let answer: Value = serde_json::from_slice(&finished.stdout)
            .unwrap_or_else(|error| panic!("{all:?}: {error}: {}", finished.stderr()));
        assert_eq!(answer["exit_code"], finished.code(), "{answer}");
        assert_eq!(answer["ok"], finished.code() == 0, "{answer}");
        (finished.code(), answer)
    }

    #[track_caller]
    pub(crate) fn assert_holds(&self) {
        for log in ["runs", "fleet"] {
            let (code, answer) = self.verify(&["--log", log]);
            assert_eq!(code, 0, "{answer}");
        }
    }

    /// The files that a log consists of: what lies beside them is no part of it.
    pub(crate) fn files(&self, log: LogKind) -> Vec<PathBuf> {
        let mut files = files_below(&self.log(log).join("tile"));
        files.push(self.log(log).join("checkpoint"));
        files.sort();
        files
    }
}

/// Changes one byte of a file while `look` looks.
pub(crate) fn with_flipped(file: &Path, at: usize, look: impl FnOnce()) {
    let good = fs::read(file).expect("a file");
    let mut bad = good.clone();
    bad[at] ^= 1;
    fs::write(file, &bad).expect("damage it");
    look();
    fs::write(file, &good).expect("put it back");
}
