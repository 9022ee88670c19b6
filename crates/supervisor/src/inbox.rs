//! What agents propose to change in their own code, kept until an operator has it judged: `<state>/evolve/inbox/`.
//!
//! An agent's door says whose it is. Nothing here reads what it says; no box sees the directory.

use std::fs;
use std::path::{Path, PathBuf};

use belljar_gate::record::sha256_hex;
use serde_json::{Map, Value};

/// The most that one agent has waiting.
pub const MOST_WAITING: usize = 16;
/// The most that is kept of one agent, answered or not.
const MOST_KEPT: usize = 256;

/// The letters of a state directory.
#[derive(Clone, Debug)]
pub struct Inbox {
    root: PathBuf,
}

/// One proposal of an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Letter {
    /// What it is called: `WORKER-DIGEST`.
    pub name: String,
    /// Who sent it.
    pub worker: String,
    /// What became of it, if anything has.
    pub answer: Option<Map<String, Value>>,
}

/// A letter can't be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// Too many wait.
    #[error("{MOST_WAITING} proposals of this agent wait already, or {MOST_KEPT} are kept")]
    Full,
    /// The disk refused.
    #[error("the proposal can't be kept")]
    Io(#[from] std::io::Error),
}

impl Inbox {
    /// Those of this state directory.
    #[must_use]
    pub fn of(state: &Path) -> Self {
        Self {
            root: state.join("evolve").join("inbox"),
        }
    }

    /// Keeps a request. The same one again has the same name, and is kept once.
    ///
    /// # Errors
    /// When too many wait, or the disk refuses.
    pub fn put(&self, worker: &str, text: &str) -> Result<String, InboxError> {
        let digest = &sha256_hex(text.as_bytes())[..16];
        let name = format!("{worker}-{digest}");
        let directory = self.root.join(worker);
        let file = directory.join(format!("{digest}.yaml"));
        if file.exists() {
            return Ok(name);
        }
        let all = self.of_worker(worker);
        let waiting = all.iter().filter(|letter| letter.answer.is_none()).count();
        if waiting >= MOST_WAITING || all.len() >= MOST_KEPT {
            return Err(InboxError::Full);
        }
        fs::create_dir_all(&directory)?;
        replace(&file, text.as_bytes())?;
        Ok(name)
    }

    /// Those of one agent, by name.
    #[must_use]
    pub fn of_worker(&self, worker: &str) -> Vec<Letter> {
        let Ok(items) = fs::read_dir(self.root.join(worker)) else {
            return Vec::new();
        };
        let names = items.flatten().map(|item| item.file_name());
        let digests =
            names.filter_map(|name| Some(name.to_str()?.strip_suffix(".yaml")?.to_owned()));
        let mut all: Vec<Letter> = digests
            .map(|digest| Letter {
                name: format!("{worker}-{digest}"),
                worker: worker.to_owned(),
                answer: self.answer_of(worker, &digest),
            })
            .collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// Those of every agent.
    #[must_use]
    pub fn all(&self) -> Vec<Letter> {
        let Ok(items) = fs::read_dir(&self.root) else {
            return Vec::new();
        };
        let workers = items
            .flatten()
            .filter_map(|item| item.file_name().into_string().ok());
        let mut workers: Vec<String> = workers.collect();
        workers.sort();
        workers
            .iter()
            .flat_map(|worker| self.of_worker(worker))
            .collect()
    }

    /// The letter of this name and what it says, if there is one.
    #[must_use]
    pub fn read(&self, name: &str) -> Option<(Letter, Vec<u8>)> {
        let letter = self.all().into_iter().find(|letter| letter.name == name)?;
        let bytes = fs::read(self.file(&letter, "yaml")).ok()?;
        Some((letter, bytes))
    }

    /// Says what became of a letter; its sender can read it.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn answer(&self, letter: &Letter, answer: &Map<String, Value>) -> Result<(), InboxError> {
        let bytes = serde_json::to_vec(answer).map_err(std::io::Error::other)?;
        replace(&self.file(letter, "json"), &bytes)?;
        Ok(())
    }

    fn answer_of(&self, worker: &str, digest: &str) -> Option<Map<String, Value>> {
        let bytes = fs::read(self.root.join(worker).join(format!("{digest}.json"))).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    fn file(&self, letter: &Letter, kind: &str) -> PathBuf {
        let digest = letter.name.rsplit('-').next().unwrap_or_default();
        self.root
            .join(&letter.worker)
            .join(format!("{digest}.{kind}"))
    }
}

fn replace(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    belljar_files::replace(file, bytes, belljar_files::PRIVATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_kept_once_and_only_so_many() {
        let state = tempfile::tempdir().unwrap();
        let inbox = Inbox::of(state.path());
        let name = inbox.put("w1", "a: 1").unwrap();
        assert_eq!(inbox.put("w1", "a: 1").unwrap(), name);
        for n in 1..MOST_WAITING {
            inbox.put("w1", &format!("n: {n}")).unwrap();
        }
        assert!(matches!(inbox.put("w1", "more"), Err(InboxError::Full)));
        // Another agent has room of its own, and sees its own alone.
        inbox.put("w2", "b: 1").unwrap();
        assert_eq!(inbox.of_worker("w2").len(), 1);
        let (letter, bytes) = inbox.read(&name).unwrap();
        assert_eq!(bytes, b"a: 1");
        let mut answer = Map::new();
        answer.insert("status".into(), "rejected".into());
        inbox.answer(&letter, &answer).unwrap();
        assert_eq!(inbox.read(&name).unwrap().0.answer, Some(answer));
        // What is answered makes room.
        assert!(inbox.put("w1", "more").is_ok());
        assert!(inbox.read("../../etc/passwd").is_none());
    }
}
