//! Init's ear for what a program's own kernel tells (see [`crate::told`]). Nothing here may allocate, lock or panic.

use super::peer::Text;
use crate::sys;
use crate::told::{Account, Heard, ProgramEnd, SIZE, is_over};
use rustix::event::Timespec;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::ffi::CStr;

/// How often it looks where the host gives it no way to be woken.
const SELDOMEST: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// What is said of the program's end.
pub(super) struct Said {
    pub(super) end: Option<ProgramEnd>,
    /// Whether the last of its processes is gone.
    pub(super) is_over: bool,
}

/// A file in which somebody writes.
pub(super) struct Told<'a> {
    file: &'a CStr,
    news: Option<News>,
    account: Account,
}

/// How init is woken when something was written.
struct News {
    /// Readable then.
    signals: OwnedFd,
    /// Open for as long as it is watched.
    _directory: OwnedFd,
}

impl News {
    fn of(file: &CStr) -> Option<Self> {
        let bytes = file.to_bytes();
        let end = bytes.iter().rposition(|byte| *byte == b'/')?;
        let mut directory = Text::new();
        directory.push(bytes.get(..end)?);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory.as_c_str()?, flags, Mode::empty()).ok()?;
        let signals = sys::watch_signals(&[libc::SIGIO]).ok()?;
        sys::signal_writes_in(directory.as_fd()).ok()?;
        Some(Self {
            signals,
            _directory: directory,
        })
    }
}

impl<'a> Told<'a> {
    pub(super) fn listen(file: &'a CStr) -> Self {
        Self {
            file,
            news: News::of(file),
            account: Account::new(),
        }
    }

    pub(super) fn news(&self) -> Option<BorrowedFd<'_>> {
        self.news.as_ref().map(|news| news.signals.as_fd())
    }

    /// How long to wait for other things at most.
    pub(super) fn longest_wait(&self) -> Option<Timespec> {
        self.news.is_none().then_some(SELDOMEST)
    }

    /// Takes in what is written there; `tell` hears which rules were hit how often.
    pub(super) fn hear(&mut self, heard: Heard, tell: impl FnMut(usize, u32)) -> Option<Said> {
        if let Some(news) = &self.news {
            // That there was something is all it says; words that nobody has taken yet are one.
            let _ = sys::next_signal(news.signals.as_fd());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(self.file, flags, Mode::empty()).ok()?;
        let mut bytes = [0; SIZE];
        // What was not written yet is zero.
        rustix::io::read(file, &mut bytes).ok()?;
        self.account.take(&bytes, heard, tell);
        Some(Said {
            end: ProgramEnd::decode(&bytes),
            is_over: is_over(&bytes),
        })
    }
}
