//! Output kept for the caller: all of it is taken, the first part is kept.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

/// What is kept of each stream.
pub(crate) const KEPT: usize = 1 << 20;

/// One stream.
#[derive(Debug)]
pub(crate) struct Capture {
    source: Option<OwnedFd>,
    kept: Vec<u8>,
    pub(crate) truncated: bool,
}

impl Capture {
    /// A pipe's reading end, and the end to write to.
    pub(crate) fn new() -> Result<(Self, OwnedFd), Errno> {
        let (source, sink) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&source, rustix::fs::OFlags::NONBLOCK)?;
        Ok((
            Self {
                source: Some(source),
                kept: Vec::new(),
                truncated: false,
            },
            sink,
        ))
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
                Ok(length) => {
                    let room = KEPT - self.kept.len();
                    self.truncated |= length > room;
                    self.kept.extend_from_slice(&buffer[..length.min(room)]);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.source = None,
            }
        }
    }

    /// Takes the rest after the last writer is gone.
    pub(crate) fn finish(&mut self) -> String {
        while self.source.is_some() {
            let before = self.kept.len();
            self.take();
            if self.kept.len() == before && !self.truncated {
                break;
            }
            if self.truncated {
                // Everything that is kept is kept.
                self.source = None;
            }
        }
        String::from_utf8_lossy(&self.kept).into_owned()
    }
}
