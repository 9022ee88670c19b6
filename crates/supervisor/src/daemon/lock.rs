//! One daemon for a state directory.

use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use crate::error::RunError;
use crate::state::StateDir;

/// Takes the place of the daemon, for as long as the result is held.
pub(super) fn take(state: &StateDir) -> Result<OwnedFd, RunError> {
    let path = state.path().join("fleet/daemon.lock");
    let fail = |errno: rustix::io::Errno| RunError::State {
        path: path.clone(),
        source: errno.into(),
    };
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let lock = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)).map_err(fail)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(RunError::Refused {
            what: format!("a supervisor runs in {} already", state.path().display()),
            hint: "`belljar supervisor status` shows it; BELLJAR_STATE_DIR names another place"
                .into(),
        }),
        Err(errno) => Err(fail(errno)),
    }
}
