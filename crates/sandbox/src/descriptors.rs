//! How many descriptors this process may have: a keeper of many boxes needs more than the usual thousand.

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::IntoRawFd;
use std::sync::OnceLock;

/// The limit before it was raised: what boxes start with all the same.
static USUAL: OnceLock<u64> = OnceLock::new();

/// Raises this process's limit as far as it may go and returns it (`None`: without end). Boxes keep the limit from
/// before, because some programs take a high one ill.
pub fn raise_limit() -> Result<Option<u64>, Errno> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if let Some(usual) = current
        && current != maximum
    {
        USUAL.get_or_init(|| usual);
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        setrlimit(Resource::Nofile, raised)?;
    }
    Ok(maximum)
}

/// The limit before it was raised, if it was.
pub(crate) fn usual_limit() -> Option<u64> {
    USUAL.get().copied()
}

/// Has the table of open files grow, here and in all that is executed and started from here: a high number stays open, and
/// leads nowhere. Whoever may not have so many goes without.
pub(crate) fn make_room() {
    const HIGH: i32 = 384;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let nowhere = rustix::fs::open(c"/dev/null", flags, Mode::empty());
    let high = nowhere.and_then(|nowhere| rustix::io::fcntl_dupfd_cloexec(nowhere, HIGH));
    if let Ok(high) = high
        && rustix::io::fcntl_setfd(&high, FdFlags::empty()).is_ok()
    {
        let _ = high.into_raw_fd();
    }
}
