//! Calls that wait for an operator.
//!
//! Whoever holds a call writes it down in the state directory and waits; an operator's answer is a file beside it. So a
//! lone run, a supervisor, the command line and the dashboard see the same holds. Only the owner of the directory does,
//! and no box is shown it. A hold is locked while somebody waits for it: what is left of a process that died is not one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::judge::HoldAnswer;
use crate::private_files::{create, make_directory, put_new, random_id, read};

/// How often a waiting call looks for its answer.
const LOOK: Duration = Duration::from_millis(40);

/// A hold's name: twelve hexadecimal digits, so that it leads to no other file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HoldId(String);

impl HoldId {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for HoldId {
    type Error = AnswerError;

    fn try_from(text: String) -> Result<Self, AnswerError> {
        let is_id = text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then_some(Self(text)).ok_or(AnswerError::NoSuchHold)
    }
}

impl From<HoldId> for String {
    fn from(id: HoldId) -> Self {
        id.0
    }
}

impl std::fmt::Display for HoldId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A call that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    /// Its name.
    pub id: HoldId,
    /// The run whose call it is; empty where a server was wrapped.
    #[serde(default)]
    pub run: String,
    /// The server.
    pub server: String,
    /// The tool, or what else is asked.
    pub tool: String,
    /// The arguments, redacted as in the record.
    pub arguments: Value,
    /// Why it is held.
    pub code: String,
    /// The rule that holds it.
    pub rule: String,
    /// When it began to wait, in milliseconds since 1970.
    pub opened_ms: u64,
    /// When it is refused if nobody answers.
    pub deadline_ms: u64,
}

/// An operator's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the call may be made.
    pub allow: bool,
    /// Who says so.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// Why an answer was not taken.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// Nobody waits for it.
    #[error("no call waits under this id")]
    NoSuchHold,
    /// Somebody was quicker.
    #[error("the call is answered already")]
    Answered,
    /// The store can't be used.
    #[error("the holds can't be read or written")]
    Store(#[from] io::Error),
}

/// The holds of a state directory.
#[derive(Clone, Debug)]
pub struct Holds {
    directory: PathBuf,
}

/// A hold of this process, until it is answered or given up.
#[derive(Debug)]
pub struct Waiting {
    hold: PathBuf,
    answer: PathBuf,
    // The lock ends with it.
    _lock: File,
}

impl Holds {
    /// The holds in this state directory; their place is made.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn open(state: &Path) -> io::Result<Self> {
        let directory = state.join("mcp").join("holds");
        make_directory(&directory)?;
        Ok(Self { directory })
    }

    /// Writes a call down that waits. `make` is given its id and the times.
    ///
    /// # Errors
    /// When it can't be written: a call that nobody can be asked about is not let through.
    pub fn put(
        &self,
        wait: Duration,
        make: impl FnOnce(HoldId, u64, u64) -> Hold,
    ) -> io::Result<(Hold, Waiting)> {
        let id = HoldId(random_id()?);
        let now = now_ms();
        let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let hold = make(id.clone(), now, now.saturating_add(wait));
        let path = self.hold(&id);
        let mut file = create(&path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        file.write_all(&serde_json::to_vec(&hold)?)?;
        let waiting = Waiting {
            hold: path,
            answer: self.answer_file(&id),
            _lock: file,
        };
        Ok((hold, waiting))
    }

    /// The calls that wait, oldest first.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn list(&self) -> io::Result<Vec<Hold>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            let is_id = |id: &str| HoldId::try_from(id.to_owned()).is_ok();
            let is_hold = name.strip_suffix(".json").is_some_and(is_id);
            if is_hold && let Some(hold) = live(&path)? {
                found.push(hold);
            }
        }
        found.retain(|hold| !self.answer_file(&hold.id).exists());
        found.sort_by(|a, b| (a.opened_ms, &a.id).cmp(&(b.opened_ms, &b.id)));
        Ok(found)
    }

    /// Answers a call that waits, once.
    ///
    /// # Errors
    /// See [`AnswerError`].
    pub fn answer(&self, id: &HoldId, answer: &Answer) -> Result<Hold, AnswerError> {
        let hold = live(&self.hold(id))?.ok_or(AnswerError::NoSuchHold)?;
        if hold.deadline_ms <= now_ms() {
            return Err(AnswerError::NoSuchHold);
        }
        let bytes = serde_json::to_vec(answer).map_err(io::Error::from)?;
        put_new(&self.answer_file(id), &bytes).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => AnswerError::Answered,
            _ => AnswerError::Store(error),
        })?;
        Ok(hold)
    }

    fn hold(&self, id: &HoldId) -> PathBuf {
        self.directory.join(format!("{id}.json"))
    }

    fn answer_file(&self, id: &HoldId) -> PathBuf {
        self.directory.join(format!("{id}.answer"))
    }
}

impl Waiting {
    /// Waits for an answer, until the deadline or until nobody wants one. What was said comes with it, where somebody said something.
    #[must_use]
    pub fn wait(
        self,
        deadline: Instant,
        is_wanted: impl Fn() -> bool,
    ) -> (HoldAnswer, Option<Answer>) {
        loop {
            if let Ok(Some(bytes)) = read(&self.answer) {
                return judged(serde_json::from_slice(&bytes).ok());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !is_wanted() {
                return (HoldAnswer::TimedOut, None);
            }
            std::thread::sleep(left.min(LOOK));
        }
    }
}

/// An answer that can't be read is no leave.
fn judged(said: Option<Answer>) -> (HoldAnswer, Option<Answer>) {
    let answer = match &said {
        Some(Answer { allow: true, .. }) => HoldAnswer::Allowed,
        Some(Answer { by, reason, .. }) => HoldAnswer::Refused {
            by: by.clone(),
            reason: reason.clone(),
        },
        None => HoldAnswer::Refused {
            by: "nobody".to_owned(),
            reason: "the answer can't be read".to_owned(),
        },
    };
    (answer, said)
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // The hold first: an answer without one is nobody's.
        let _ = fs::remove_file(&self.hold);
        let _ = fs::remove_file(&self.answer);
    }
}

/// A hold that somebody waits for. What nobody does is cleared away.
fn live(path: &Path) -> io::Result<Option<Hold>> {
    let Some(bytes) = read(path)? else {
        return Ok(None);
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        // One that is just being written has no lock yet either, for a moment; it has no words yet.
        if !bytes.is_empty() {
            let _ = fs::remove_file(path);
            let _ = fs::remove_file(path.with_extension("answer"));
        }
        return Ok(None);
    }
    Ok(serde_json::from_slice(&bytes).ok())
}

fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(id: HoldId, opened_ms: u64, deadline_ms: u64) -> Hold {
        Hold {
            id,
            run: String::new(),
            server: "s".to_owned(),
            tool: "t".to_owned(),
            arguments: Value::Null,
            code: "hold_tool".to_owned(),
            rule: "f:1".to_owned(),
            opened_ms,
            deadline_ms,
        }
    }

    #[test]
    fn an_answer_from_elsewhere_reaches_who_waits_and_only_the_first_counts() {
        let scratch = tempfile::tempdir().unwrap();
        let holds = Holds::open(scratch.path()).unwrap();
        let (written, waiting) = holds.put(Duration::from_secs(600), hold).unwrap();
        let elsewhere = Holds::open(scratch.path()).unwrap();
        assert_eq!(elsewhere.list().unwrap().first(), Some(&written));
        let refuse = Answer {
            allow: false,
            by: "ann".to_owned(),
            reason: "not now".to_owned(),
        };
        let allow = Answer {
            allow: true,
            ..refuse.clone()
        };
        assert_eq!(elsewhere.answer(&written.id, &refuse).unwrap(), written);
        assert!(matches!(
            elsewhere.answer(&written.id, &allow),
            Err(AnswerError::Answered)
        ));
        assert_eq!(elsewhere.list().unwrap(), []);
        let (answer, _) = waiting.wait(Instant::now() + Duration::from_secs(600), || true);
        assert_eq!(
            answer,
            HoldAnswer::Refused {
                by: "ann".to_owned(),
                reason: "not now".to_owned()
            }
        );
        assert!(matches!(
            elsewhere.answer(&written.id, &allow),
            Err(AnswerError::NoSuchHold)
        ));
        assert_eq!(
            fs::read_dir(scratch.path().join("mcp/holds"))
                .unwrap()
                .count(),
            0
        );
    }

    #[test]
    fn nobody_answers_a_hold_that_is_over_or_never_was() {
        let scratch = tempfile::tempdir().unwrap();
        let holds = Holds::open(scratch.path()).unwrap();
        let (_, waiting) = holds.put(Duration::ZERO, hold).unwrap();
        assert_eq!(
            waiting.wait(Instant::now(), || true).0,
            HoldAnswer::TimedOut
        );
        let (dead, waiting) = holds.put(Duration::from_secs(600), hold).unwrap();
        // A process that was killed leaves its file, and no lock.
        let path = waiting.hold.clone();
        let bytes = fs::read(&path).unwrap();
        drop(waiting);
        fs::write(&path, bytes).unwrap();
        assert_eq!(holds.list().unwrap(), []);
        assert!(!path.exists());
        let answer = Answer {
            allow: true,
            by: String::new(),
            reason: String::new(),
        };
        let answered = holds.answer(&dead.id, &answer);
        assert!(matches!(answered, Err(AnswerError::NoSuchHold)));
        for id in ["../../../x", "", "zzzzzzzzzzzz", "0123456789ab/"] {
            let id = HoldId::try_from(id.to_owned());
            assert!(matches!(id, Err(AnswerError::NoSuchHold)), "{id:?}");
        }
    }

    #[test]
    fn only_the_owner_sees_holds() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = tempfile::tempdir().unwrap();
        let holds = Holds::open(scratch.path()).unwrap();
        let (_, waiting) = holds.put(Duration::from_secs(600), hold).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&holds.directory), mode(&waiting.hold)),
            (0o700, 0o600)
        );
    }
}
