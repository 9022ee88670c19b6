//! One writer at a time.

use std::fs::File;
use std::io;

use rustix::fs::{FlockOperation, flock};

use crate::disk::Disk;

/// What to do while another process holds the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Wait until it lets go.
    Block,
    /// Fail at once.
    Fail,
}

/// The lock file, open for as long as we may want the lock.
pub(crate) struct LockFile(File);

/// The right to write. Ends with this value.
pub(crate) struct Held(File);

impl LockFile {
    pub(crate) fn open(disk: &Disk) -> io::Result<Self> {
        disk.open_lock().map(LockFile)
    }

    /// `None` if another process has it and we were not to wait.
    pub(crate) fn lock(self, wait: Wait) -> io::Result<Option<Held>> {
        let operation = match wait {
            Wait::Block => FlockOperation::LockExclusive,
            Wait::Fail => FlockOperation::NonBlockingLockExclusive,
        };
        loop {
            return match flock(&self.0, operation) {
                Ok(()) => Ok(Some(Held(self.0))),
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
                Err(error) => Err(error.into()),
            };
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Closing is not enough: a process forked by another thread may hold a copy of the descriptor for a moment.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}
