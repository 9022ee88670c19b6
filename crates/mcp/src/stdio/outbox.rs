//! What waits to be written.

use crate::message::Message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

#[derive(Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    /// What of it is written.
    written: usize,
}

/// As much as any pipe takes that takes anything.
const ROOM: usize = 4096;

/// A buffer that once was large is not kept.
const KEPT: usize = 256 << 10;

impl Outbox {
    pub(super) fn put(&mut self, message: &Message) {
        message.write(&mut self.bytes);
        self.bytes.push(b'\n');
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
        self.written = 0;
    }

    /// Drops what waits, but for the line that is half written.
    pub(super) fn drop_unbegun(&mut self) {
        let begun = self.written > 0 && self.bytes.get(self.written - 1) != Some(&b'\n');
        let rest = &self.bytes[self.written..];
        let keep = match begun {
            true => rest
                .iter()
                .position(|byte| *byte == b'\n')
                .map_or(0, |end| end + 1),
            false => 0,
        };
        self.bytes.truncate(self.written + keep);
    }

    fn wrote(&mut self, count: usize) {
        self.written += count;
        if self.is_empty() {
            self.clear();
        }
    }

    /// Writes as much as a non-blocking descriptor takes.
    pub(super) fn flush(&mut self, to: BorrowedFd<'_>) -> Result<(), Errno> {
        while !self.is_empty() {
            match rustix::io::write(to, &self.bytes[self.written..]) {
                Ok(count) => self.wrote(count),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Writes as much as a blocking descriptor takes without blocking.
    pub(super) fn flush_patiently(&mut self, to: BorrowedFd<'_>) -> Result<(), Errno> {
        while !self.is_empty() {
            let mut fds = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
            match poll(&mut fds, Some(&Timespec::default())) {
                Ok(0) | Err(Errno::INTR) => return Ok(()),
                Ok(_) => {}
                Err(errno) => return Err(errno),
            }
            let end = self.bytes.len().min(self.written + ROOM);
            match rustix::io::write(to, &self.bytes[self.written..end]) {
                Ok(count) => self.wrote(count),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Writes it all, for a last time, unless the other side takes nothing for a while.
    pub(super) fn flush_blocking(&mut self, to: BorrowedFd<'_>) {
        let patience = Timespec {
            tv_sec: 2,
            tv_nsec: 0,
        };
        while !self.is_empty() {
            let mut fds = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
            match poll(&mut fds, Some(&patience)) {
                Err(Errno::INTR) => continue,
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            if self.flush_patiently(to).is_err() {
                return;
            }
        }
    }
}
