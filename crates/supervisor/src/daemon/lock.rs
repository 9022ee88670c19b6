//! One daemon for a state directory, and its own word on how far it is.

use std::io::Read as _;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use crate::error::RunError;
use crate::state::StateDir;

/// How long one that was killed may take to be gone.
const PREDECESSOR: Duration = Duration::from_secs(10);
/// How often it is looked whether it is.
const LOOK: Duration = Duration::from_millis(20);
/// One that still looks alive after this long lives.
const SECOND_LOOK: Duration = Duration::from_millis(300);
/// The kernel's flag of a process that is about to be gone.
const EXITING: u64 = 0x4;
/// SIGKILL among signals that wait to be delivered.
const KILLED: u64 = 1 << 8;

/// Who has the place of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nobody.
    Free,
    /// Somebody, who is not ready yet.
    Taken(Option<u32>),
    /// This process, which serves.
    Ready(u32),
}

/// Who has the place of the daemon of a state directory. What the file says counts only as long as its lock is held.
#[must_use]
pub fn place_of(state: &StateDir) -> Place {
    let Ok(mut file) = std::fs::File::open(path(state)) else {
        return Place::Free;
    };
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return Place::Free;
    }
    let mut text = String::new();
    let _ = file.by_ref().take(64).read_to_string(&mut text);
    let mut words = text.split_ascii_whitespace();
    let pid = words.next().and_then(|pid| pid.parse().ok());
    match (pid, words.next()) {
        (Some(pid), Some("ready")) => Place::Ready(pid),
        (pid, _) => Place::Taken(pid),
    }
}

/// Waits for one that was killed and still holds the place: its last thread lets go of it.
///
/// # Errors
/// When one lives there, or does not go.
pub fn await_predecessor(state: &StateDir) -> Result<(), RunError> {
    let begun = Instant::now();
    loop {
        let holder = match place_of(state) {
            Place::Free => return Ok(()),
            Place::Taken(pid) => pid,
            Place::Ready(pid) => Some(pid),
        };
        let lives = holder.is_some_and(is_alive);
        let waited = begun.elapsed();
        if lives && waited > SECOND_LOOK || waited > PREDECESSOR {
            return Err(occupied(state, holder));
        }
        std::thread::sleep(LOOK);
    }
}

fn occupied(state: &StateDir, holder: Option<u32>) -> RunError {
    let who = holder.map_or_else(String::new, |pid| format!(", process {pid}"));
    RunError::Refused {
        what: format!(
            "a supervisor runs in {} already{who}",
            state.path().display()
        ),
        hint: "`belljar supervisor status` shows it; BELLJAR_STATE_DIR names another place".into(),
    }
}

/// Whether a process is there and not about to be gone.
fn is_alive(pid: u32) -> bool {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
    let (Ok(stat), Ok(status)) = (read("stat"), read("status")) else {
        return false;
    };
    // After the name, which may hold anything: the state, and as the seventh from there the flags.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let mut fields = fields.split(' ');
    let state = fields.next().unwrap_or_default();
    let flags: u64 = fields.nth(5).and_then(|it| it.parse().ok()).unwrap_or(0);
    let pending = status.lines().filter_map(|line| {
        let set = line
            .strip_prefix("SigPnd:")
            .or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    });
    let is_killed = pending.fold(0, |all, set| all | set) & KILLED != 0;
    !state.starts_with(['Z', 'X']) && flags & EXITING == 0 && !is_killed
}

fn path(state: &StateDir) -> std::path::PathBuf {
    state.path().join("fleet/daemon.lock")
}

/// The place of the daemon, for as long as this is held.
#[derive(Debug)]
pub(super) struct HeldPlace(OwnedFd);

impl HeldPlace {
    /// Takes it.
    pub(super) fn take(state: &StateDir) -> Result<Self, RunError> {
        let path = path(state);
        let fail = |errno: rustix::io::Errno| RunError::State {
            path: path.clone(),
            source: errno.into(),
        };
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let lock = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)).map_err(fail)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(occupied(state, None)),
            Err(errno) => return Err(fail(errno)),
        }
        let place = Self(lock);
        place.say("starting");
        Ok(place)
    }

    /// It serves.
    pub(super) fn is_ready(&self) {
        self.say("ready");
    }

    /// For whoever waits for it. A full disk keeps nobody from serving.
    fn say(&self, word: &str) {
        let text = format!("{} {word}\n", std::process::id());
        let _ = rustix::fs::ftruncate(&self.0, 0);
        let _ = rustix::io::pwrite(&self.0, text.as_bytes(), 0);
    }
}
