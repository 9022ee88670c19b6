//! Output kept for the caller: all of it is taken, the first part is kept.

use crate::rotation::Rotated;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::Write;

/// What is kept of each stream in memory.
pub(crate) const KEPT: usize = 1 << 20;

/// One stream.
#[derive(Debug)]
pub(crate) struct Capture {
    source: Option<OwnedFd>,
    store: Store,
    truncated: bool,
}

/// Where the first part goes.
#[derive(Debug)]
enum Store {
    Nothing,
    Memory(Vec<u8>),
    File { file: File, room: u64 },
    Rotated(Rotated),
}

/// What there is at the end.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The text, unless it went to a file.
    pub(crate) text: Option<String>,
    /// Whether there was more.
    pub(crate) truncated: bool,
}

impl Capture {
    /// A pipe whose first part is kept in memory, and the end to write to.
    pub(crate) fn in_memory() -> Result<(Self, OwnedFd), Errno> {
        Self::new(Store::Memory(Vec::new()))
    }

    /// The same, kept in a file.
    pub(crate) fn to_file(file: File, limit: u64) -> Result<(Self, OwnedFd), Errno> {
        Self::new(Store::File { file, room: limit })
    }

    /// The same, kept in files that follow each other.
    pub(crate) fn rotated(files: Rotated) -> Result<(Self, OwnedFd), Errno> {
        Self::new(Store::Rotated(files))
    }

    /// No stream: it goes where it goes without us.
    pub(crate) fn idle() -> Self {
        Self {
            source: None,
            store: Store::Nothing,
            truncated: false,
        }
    }

    fn new(store: Store) -> Result<(Self, OwnedFd), Errno> {
        let (source, sink) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&source, rustix::fs::OFlags::NONBLOCK)?;
        let capture = Self {
            source: Some(source),
            store,
            truncated: false,
        };
        Ok((capture, sink))
    }

    /// What to wait on, while there can be more.
    pub(crate) fn source(&self) -> Option<BorrowedFd<'_>> {
        self.source.as_ref().map(|fd| fd.as_fd())
    }

    /// Takes what is there, a bounded amount at a time so that one stream can't keep the keeper from its limits.
    pub(crate) fn take(&mut self) {
        let mut buffer = [0u8; 16 << 10];
        for _ in 0..16 {
            let Some(source) = &self.source else { return };
            match rustix::io::read(source, &mut buffer) {
                Ok(0) => self.source = None,
                Ok(length) => self.truncated |= !self.store.keep(&buffer[..length]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.source = None,
            }
        }
    }

    /// Takes the rest after the last writer is gone.
    pub(crate) fn finish(&mut self) -> Kept {
        while self.source.is_some() {
            let before = self.store.length();
            self.take();
            if self.store.length() == before && !self.truncated {
                break;
            }
            if self.truncated {
                // Everything that is kept is kept.
                self.source = None;
            }
        }
        let text = match &self.store {
            Store::Memory(kept) => Some(String::from_utf8_lossy(kept).into_owned()),
            Store::Nothing | Store::File { .. } | Store::Rotated(_) => None,
        };
        Kept {
            text,
            truncated: self.truncated,
        }
    }
}

impl Store {
    /// Keeps what there is room for; whether that was all.
    fn keep(&mut self, bytes: &[u8]) -> bool {
        match self {
            Store::Nothing => true,
            Store::Memory(kept) => {
                let room = KEPT - kept.len();
                kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
                bytes.len() <= room
            }
            Store::File { file, room } => {
                let take = usize::try_from(*room)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                // A file that can't be written to keeps no more: the box goes on, and the result says "truncated".
                let written = file.write_all(&bytes[..take]);
                *room = written.as_ref().map_or(0, |()| *room - take as u64);
                written.is_ok() && take == bytes.len()
            }
            Store::Rotated(files) => files.write(bytes),
        }
    }

    /// How much can still change; only compared with itself.
    fn length(&self) -> u64 {
        match self {
            Store::Nothing => 0,
            Store::Memory(kept) => kept.len() as u64,
            Store::File { room, .. } => u64::MAX - room,
            Store::Rotated(files) => files.total(),
        }
    }
}
