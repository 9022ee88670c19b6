//! Init's ear for what a program's own kernel tells (see [`crate::told`]). Nothing here may allocate, lock or panic.

use crate::told::{Account, Heard, ProgramEnd, SIZE};
use rustix::event::Timespec;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{Mode, OFlags};
use std::ffi::CStr;

/// How often it looks where the host gives it no way to be woken.
const SELDOMEST: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// A file in which somebody writes.
pub(super) struct Told<'a> {
    file: &'a CStr,
    /// Readable when something was written. A user's processes have only so many.
    news: Option<OwnedFd>,
    account: Account,
}

impl<'a> Told<'a> {
    pub(super) fn listen(file: &'a CStr) -> Self {
        let news = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let news = news.and_then(|news| {
            inotify::add_watch(&news, file, WatchFlags::MODIFY)?;
            Ok(news)
        });
        Self {
            file,
            news: news.ok(),
            account: Account::new(),
        }
    }

    pub(super) fn news(&self) -> Option<BorrowedFd<'_>> {
        self.news.as_ref().map(AsFd::as_fd)
    }

    /// How long to wait for other things at most.
    pub(super) fn longest_wait(&self) -> Option<Timespec> {
        self.news.is_none().then_some(SELDOMEST)
    }

    /// Takes in what is written there; `tell` hears which rules were hit how often.
    pub(super) fn hear(
        &mut self,
        heard: Heard,
        tell: impl FnMut(usize, u32),
    ) -> Option<ProgramEnd> {
        if let Some(news) = &self.news {
            // That there was something is all it says; equal words that nobody has taken yet are one.
            let _ = rustix::io::read(news, &mut [0u8; 512]);
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(self.file, flags, Mode::empty()).ok()?;
        let mut bytes = [0; SIZE];
        // What was not written yet is zero.
        rustix::io::read(file, &mut bytes).ok()?;
        self.account.take(&bytes, heard, tell);
        ProgramEnd::decode(&bytes)
    }
}
