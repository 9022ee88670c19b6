//! What is wanted of declared agents, kept over restarts of the daemon and of the machine: one file for each that is not to run.
//!
//! A mark is on disk before whoever asked hears of it. Only somebody who starts the agent takes it away.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::apart::make_private;
use crate::error::RunError;
use crate::state::StateDir;

/// No mark is longer.
const LONGEST: u64 = 64 << 10;
const SUFFIX: &str = ".json";
/// The word for a mark that nobody can make anything of: whoever it is about stays as it is.
pub(super) const UNREADABLE: &str = "unreadable";

/// Why an agent is not to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StopMark {
    /// What it is called.
    pub(super) name: String,
    /// `stopped`, `killed` or `quarantined`, or the cause of its end.
    pub(super) code: String,
    /// Who wanted it; absent where it ended by itself.
    #[serde(default)]
    pub(super) by: Option<String>,
    /// When, in milliseconds since 1970.
    pub(super) at_ms: u64,
    /// What was said.
    pub(super) reason: String,
}

/// The marks of a state directory.
#[derive(Debug)]
pub(super) struct DesiredState {
    directory: PathBuf,
    marks: Mutex<Marks>,
}

#[derive(Debug, Default)]
struct Marks {
    by_name: HashMap<String, StopMark>,
    /// Whose file is not as it should be: the disk was full, say.
    unsaved: HashSet<String>,
}

impl DesiredState {
    /// Of a state directory; made if it is not there.
    pub(super) fn of(state: &StateDir) -> Result<Self, RunError> {
        let directory = state.path().join("fleet/desired");
        let fail = |source| RunError::State {
            path: directory.clone(),
            source,
        };
        make_private(&directory).map_err(fail)?;
        let mut by_name = HashMap::new();
        for entry in fs::read_dir(&directory).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            // Anything else is the draft of a daemon that was killed: nobody was answered on its strength.
            if let Some(name) = name_of(&path) {
                by_name.insert(name.clone(), read(&path, name));
            }
        }
        let marks = Marks {
            by_name,
            ..Marks::default()
        };
        Ok(Self {
            directory,
            marks: Mutex::new(marks),
        })
    }

    pub(super) fn get(&self, name: &str) -> Option<StopMark> {
        self.marks().by_name.get(name).cloned()
    }

    /// Marks an agent, durably. It holds in this daemon though the disk may not take it, and the disk is tried again.
    pub(super) fn mark(&self, mark: StopMark) -> io::Result<()> {
        let mut marks = self.marks();
        let name = mark.name.clone();
        marks.by_name.insert(name.clone(), mark);
        self.save(&mut marks, name)
    }

    /// The agent is wanted again. Where that can't be kept, it is not.
    pub(super) fn clear(&self, name: &str) -> io::Result<()> {
        let mut marks = self.marks();
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => self.settle()?,
        }
        marks.by_name.remove(name);
        marks.unsaved.remove(name);
        Ok(())
    }

    /// Tries again what could not be written. Says who is on disk now.
    pub(super) fn save_again(&self) -> Vec<String> {
        let mut marks = self.marks();
        let unsaved: Vec<_> = marks.unsaved.iter().cloned().collect();
        let saved = unsaved
            .into_iter()
            .filter(|name| self.save(&mut marks, name.clone()).is_ok());
        saved.collect()
    }

    fn save(&self, marks: &mut Marks, name: String) -> io::Result<()> {
        let Some(mark) = marks.by_name.get(&name) else {
            return Ok(());
        };
        let bytes = serde_json::to_vec(mark)?;
        let written = belljar_files::replace(&self.path(&name), &bytes, belljar_files::PRIVATE);
        match &written {
            Ok(()) => marks.unsaved.remove(&name),
            Err(_) => marks.unsaved.insert(name),
        };
        written
    }

    /// A name is durable once its directory is.
    fn settle(&self) -> io::Result<()> {
        fs::File::open(&self.directory)?.sync_all()
    }

    fn path(&self, name: &str) -> PathBuf {
        let hex: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
        self.directory.join(hex + SUFFIX)
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whom a file is about: any name can be one, so it is in hexadecimal digits.
fn name_of(path: &Path) -> Option<String> {
    let digits = path.file_name()?.to_str()?.strip_suffix(SUFFIX)?;
    let pairs = digits.as_bytes().chunks(2);
    let bytes: Option<Vec<u8>> = pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    String::from_utf8(bytes?).ok()
}

fn read(path: &Path, name: String) -> StopMark {
    let parse = || -> io::Result<StopMark> {
        let mut bytes = Vec::new();
        fs::File::open(path)?
            .take(LONGEST)
            .read_to_end(&mut bytes)?;
        Ok(serde_json::from_slice(&bytes)?)
    };
    let unreadable = |why: io::Error| StopMark {
        name: name.clone(),
        code: UNREADABLE.to_owned(),
        by: None,
        at_ms: 0,
        reason: format!("{} can't be read: {why}", path.display()),
    };
    match parse() {
        Ok(mark) if mark.name == name => mark,
        Ok(_) => unreadable(io::Error::other("it is about another agent")),
        Err(error) => unreadable(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_outlives_its_daemon_and_a_damaged_one_still_holds() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::at(directory.path().to_owned()).unwrap();
        let mark = |name: &str| StopMark {
            name: name.to_owned(),
            code: "killed".to_owned(),
            by: Some("ada".to_owned()),
            at_ms: 7,
            reason: "malicious".to_owned(),
        };
        let first = DesiredState::of(&state).unwrap();
        for name in ["../../etc/passwd", "clock", "gone"] {
            first.mark(mark(name)).unwrap();
        }
        first.clear("gone").unwrap();
        fs::write(first.path("clock"), b"{\"name\":\"").unwrap();
        fs::write(first.directory.join(".clock.json.draft"), b"x").unwrap();
        let second = DesiredState::of(&state).unwrap();
        assert_eq!(
            second.get("../../etc/passwd"),
            Some(mark("../../etc/passwd"))
        );
        assert_eq!(second.get("clock").unwrap().code, UNREADABLE);
        assert_eq!(second.get("gone"), None);
    }

    #[test]
    fn what_the_disk_did_not_take_holds_in_memory_and_is_written_later() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::at(directory.path().to_owned()).unwrap();
        let desired = DesiredState::of(&state).unwrap();
        let place = desired.directory.clone();
        fs::remove_dir(&place).unwrap();
        let mark = StopMark {
            name: "clock".to_owned(),
            code: "stopped".to_owned(),
            by: None,
            at_ms: 1,
            reason: String::new(),
        };
        assert!(desired.mark(mark.clone()).is_err());
        assert_eq!(desired.get("clock"), Some(mark.clone()));
        assert!(desired.save_again().is_empty());
        fs::create_dir(&place).unwrap();
        assert_eq!(desired.save_again(), ["clock"]);
        assert_eq!(DesiredState::of(&state).unwrap().get("clock"), Some(mark));
    }
}
