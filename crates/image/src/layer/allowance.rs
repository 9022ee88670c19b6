//! What may be read of an archive: what its files hold, and a little for each entry besides. What is skipped is unpacked too,
//! and a few compressed bytes can stand for any number of them.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// For the archive itself, its end mark included.
const FIRST: u64 = 16 << 20;
/// For an entry: its headers, a long path and link, times and attributes.
const PER_ENTRY: u64 = 16 << 10;

/// Bytes that may still be read.
#[derive(Clone)]
pub(super) struct Allowance(Rc<Cell<u64>>);

impl Allowance {
    pub(super) fn new() -> Self {
        Self(Rc::new(Cell::new(FIRST)))
    }

    /// One more entry.
    pub(super) fn entry(&self) {
        self.grant(PER_ENTRY);
    }

    /// A file's content, which has a bound of its own.
    pub(super) fn grant(&self, bytes: u64) {
        self.0.set(self.0.get().saturating_add(bytes));
    }

    pub(super) fn is_spent(&self) -> bool {
        self.0.get() == 0
    }
}

/// A reader that stops where the allowance does.
pub(super) struct Allowed<R> {
    pub(super) from: R,
    pub(super) allowance: Allowance,
}

impl<R: Read> Read for Allowed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.allowance.0.get();
        if left == 0 {
            return Err(io::Error::other("it holds more than its files"));
        }
        let most = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let read = self.from.read(buffer.get_mut(..most).unwrap_or_default())?;
        self.allowance.0.set(left.saturating_sub(read as u64));
        Ok(read)
    }
}
