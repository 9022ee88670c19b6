//! Reading a secret from where a policy says it is.

use crate::error::RunError;
use crate::secret_store::{LONGEST_SECRET, SecretStore};
use crate::state::StateDir;
use belljar_gate::in_full;
use belljar_policy::{Places, SecretPlace, SecretSource, ServerHeader};
use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// How long a command may take to print a secret.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at it.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Reads secrets from where policies say they are.
#[derive(Clone, Debug)]
pub struct SecretReader {
    places: Places,
    store: SecretStore,
    attendance: Attendance,
}

/// Who is there when a command runs.
#[derive(Clone, Debug)]
enum Attendance {
    /// Whoever started it: they see what it complains of, and may be asked something.
    User,
    /// Nobody: the terminal is the agent's by now. Whoever waits may be told not to.
    Nobody(Arc<AtomicBool>),
}

impl SecretReader {
    /// A reader for a policy whose paths start at these places.
    #[must_use]
    pub fn new(places: &Places, state: &StateDir) -> Self {
        Self {
            places: places.clone(),
            store: SecretStore::of(state),
            attendance: Attendance::User,
        }
    }

    /// The same, for when nobody is there. What it runs is ended once that flag is set.
    pub(super) fn unattended(&self, is_over: Arc<AtomicBool>) -> Self {
        Self {
            attendance: Attendance::Nobody(is_over),
            ..self.clone()
        }
    }

    /// What an MCP server is told in a header, as it is sent. `what` names it in an error.
    ///
    /// # Errors
    /// When it is not where the policy says, or can't stand in a header.
    pub fn server_header(
        &self,
        header: &ServerHeader,
        what: &str,
    ) -> Result<Zeroizing<String>, RunError> {
        let value = self.for_header(&header.source, what)?;
        Ok(match header.place {
            SecretPlace::Bearer => Zeroizing::new(format!("Bearer {}", *value)),
            SecretPlace::Header(_) => value,
        })
    }

    /// A secret that a request can have in its head. `what` names it in an error, which never shows any of it.
    ///
    /// # Errors
    /// When it is not where the policy says, or can't stand in a header.
    pub fn for_header(
        &self,
        source: &SecretSource,
        what: &str,
    ) -> Result<Zeroizing<String>, RunError> {
        let fail = |why: String| RunError::Refused {
            what: format!("{what}: {why}"),
            hint: hint(source),
        };
        let value = self.read(source).map_err(fail)?;
        if value.is_empty() || value.bytes().any(|byte| !(b' '..=b'~').contains(&byte)) {
            return Err(fail(format!(
                "{source} holds nothing that can stand in a header"
            )));
        }
        Ok(value)
    }

    /// A secret without its final line end.
    pub(super) fn read(&self, source: &SecretSource) -> Result<Zeroizing<String>, String> {
        let text = match source {
            SecretSource::Env(name) => Zeroizing::new(
                std::env::var_os(name)
                    .ok_or_else(|| format!("the variable {name} is not set"))?
                    .into_encoded_bytes(),
            ),
            SecretSource::File(rule) => {
                let path = rule
                    .resolve(&self.places)
                    .ok_or_else(|| format!("{rule} is nowhere on this host"))?;
                let file = std::fs::File::open(&path)
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                read_whole(file).map_err(|error| format!("{}: {error}", path.display()))?
            }
            SecretSource::Store(name) => {
                let found = self.store.get(name).map_err(|error| in_full(&error))?;
                return found.ok_or_else(|| format!("there is no stored secret {name}"));
            }
            SecretSource::Command(words) => run(words, &self.attendance)?,
        };
        let mut text = Zeroizing::new(
            std::str::from_utf8(&text)
                .map_err(|_| "it is not text".to_owned())?
                .to_owned(),
        );
        if text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        Ok(text)
    }
}

/// What to do where a secret is not.
pub(super) fn hint(source: &SecretSource) -> String {
    match source {
        SecretSource::Env(name) => format!("set {name} where belljar is started"),
        SecretSource::File(path) => format!("put the secret alone into {path}, readable to you"),
        SecretSource::Store(name) => format!("put it there: belljar secret set {name}"),
        SecretSource::Command(_) => "the command must print the secret and end with 0".to_owned(),
    }
}

fn read_whole(from: impl std::io::Read) -> Result<Zeroizing<Vec<u8>>, String> {
    // Sized beforehand: a buffer that grows leaves its old copies unwiped.
    let mut bytes = Zeroizing::new(Vec::with_capacity(LONGEST_SECRET + 1));
    from.take(LONGEST_SECRET as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() > LONGEST_SECRET {
        return Err(format!("longer than {LONGEST_SECRET} bytes"));
    }
    Ok(bytes)
}

fn run(words: &[String], attendance: &Attendance) -> Result<Zeroizing<Vec<u8>>, String> {
    let (program, arguments) = words.split_first().ok_or("no command")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(match attendance {
            Attendance::User => Stdio::inherit(),
            Attendance::Nobody(_) => Stdio::null(),
        })
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let deadline = Instant::now() + PATIENCE;
    let (say, heard) = mpsc::channel();
    match child.stdout.take() {
        // Not waited for: what the program leaves behind may hold its output open for ever.
        Some(out) => std::thread::spawn(move || {
            let _ = say.send(read_whole(out));
        }),
        None => return Err(format!("{program}: it has no output")),
    };
    let Some(status) = await_end(&mut child, deadline, attendance) else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(format!("{program} did not end in {PATIENCE:?}"));
    };
    let bytes = loop {
        match heard.recv_timeout(LONGEST_PAUSE) {
            Ok(read) => break read.map_err(|why| format!("what {program} printed is {why}"))?,
            Err(RecvTimeoutError::Timeout) if attendance.waits_until(deadline) => {}
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!("{program} left its output open"));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(format!("{program}: its output could not be read"));
            }
        }
    };
    match status.success() {
        true => Ok(bytes),
        false => Err(format!("{program} failed ({status})")),
    }
}

impl Attendance {
    fn waits_until(&self, deadline: Instant) -> bool {
        let is_over = match self {
            Self::User => false,
            Self::Nobody(is_over) => is_over.load(Ordering::Acquire),
        };
        !is_over && Instant::now() < deadline
    }
}

/// Looks ever more seldom: most such commands take milliseconds, some ask a person.
fn await_end(
    child: &mut Child,
    deadline: Instant,
    attendance: &Attendance,
) -> Option<std::process::ExitStatus> {
    let mut pause = Duration::from_millis(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if attendance.waits_until(deadline) => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Ok(None) | Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: &SecretSource) -> Result<Zeroizing<String>, String> {
        let place = tempfile::tempdir().unwrap();
        let state = StateDir::at(place.path().join("state")).unwrap();
        let store = SecretStore::of(&state);
        store
            .set("kept", &Zeroizing::new("from-the-store".to_owned()))
            .unwrap();
        let places = Places {
            home: "/nonexistent".into(),
            work: "/".into(),
            homes: Vec::new(),
        };
        SecretReader::new(&places, &state).read(source)
    }

    fn command(words: &[&str]) -> SecretSource {
        SecretSource::Command(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn what_a_command_prints_is_taken_without_its_line_end() {
        let read =
            |words: &[&str]| super::tests::read(&command(words)).map(|text| text.to_string());
        assert_eq!(read(&["printf", "key\\n"]), Ok("key".to_owned()));
        assert_eq!(read(&["printf", "a\\nb\\r\\n"]), Ok("a\nb".to_owned()));
        assert!(read(&["false"]).is_err());
        assert!(read(&["/nonexistent/program"]).is_err());
    }

    #[test]
    fn more_than_a_secret_can_be_is_refused_without_being_held() {
        let endless = command(&["head", "-c", "1000000", "/dev/zero"]);
        assert!(read(&endless).is_err());
    }

    #[test]
    fn an_error_says_where_and_never_what() {
        let said = read(&command(&["sh", "-c", "echo hunter2; exit 3"])).unwrap_err();
        assert!(!said.contains("hunter2"), "{said}");
        let said = read(&SecretSource::Env("NO_SUCH_VARIABLE_4711".into()));
        assert!(said.unwrap_err().contains("NO_SUCH_VARIABLE_4711"));
    }

    #[test]
    fn a_stored_secret_is_read_by_its_name() {
        let stored = |name: &str| read(&SecretSource::Store(name.to_owned()));
        assert_eq!(stored("kept").unwrap().as_str(), "from-the-store");
        assert_eq!(
            stored("other").unwrap_err(),
            "there is no stored secret other"
        );
    }
}
