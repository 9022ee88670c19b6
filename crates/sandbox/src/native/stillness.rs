//! Making every process of the box hold still, where no control group does it. Runs in init, so nothing here may
//! allocate, lock or panic.

use super::peer::Text;
use crate::sys;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Mode, OFlags, RawDir};
use std::mem::MaybeUninit;

/// Whether a box holds still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stillness {
    Complete,
    /// Something is still on its way out of the kernel.
    Pending,
}

/// Stops every process. One call for all: the kernel lets no fork slip between.
pub(super) fn stop_all() -> Stillness {
    /// A process in the middle of a system call needs a moment. Who waits longer is asked again by the keeper.
    const LOOKS: usize = 20;
    sys::signal_all(libc::SIGSTOP);
    for _ in 0..LOOKS {
        if all_stand_still() {
            return Stillness::Complete;
        }
        rustix::thread::sched_yield();
    }
    Stillness::Pending
}

/// Lets every process go on.
pub(super) fn continue_all() {
    sys::signal_all(libc::SIGCONT);
}

fn all_stand_still() -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(proc_directory) = rustix::fs::open(c"/proc", flags, Mode::empty()) else {
        return false;
    };
    every_number(proc_directory.as_fd(), |pid| {
        // Init itself is to go on.
        if pid == 1 {
            return true;
        }
        let mut path = Text::new();
        path.push_number(pid);
        path.push(b"/task");
        let Some(path) = path.as_c_str() else {
            return false;
        };
        match rustix::fs::openat(&proc_directory, path, flags, Mode::empty()) {
            Ok(tasks) => every_number(tasks.as_fd(), |thread| stands_still(tasks.as_fd(), thread)),
            // It has ended.
            Err(_) => true,
        }
    })
}

/// Whether `holds` is true of every entry of a directory whose name is a number.
fn every_number(directory: BorrowedFd<'_>, mut holds: impl FnMut(u32) -> bool) -> bool {
    let mut space = [const { MaybeUninit::<u8>::uninit() }; 2048];
    let mut entries = RawDir::new(directory, &mut space);
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { return false };
        if let Some(number) = number(entry.file_name().to_bytes())
            && !holds(number)
        {
            return false;
        }
    }
    true
}

fn number(name: &[u8]) -> Option<u32> {
    let mut number = 0u32;
    for digit in name {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number = number.checked_mul(10)?.checked_add(u32::from(digit))?;
    }
    Some(number)
}

fn stands_still(tasks: BorrowedFd<'_>, thread: u32) -> bool {
    let mut path = Text::new();
    path.push_number(thread);
    path.push(b"/stat");
    let Some(path) = path.as_c_str() else {
        return false;
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(tasks, path, flags, Mode::empty()) else {
        return true;
    };
    let mut text = [0u8; 128];
    let Ok(length) = rustix::io::read(&file, &mut text) else {
        return true;
    };
    // The name, in parentheses, may contain anything, but has at most 15 characters; the state follows the last one.
    let text = text.get(..length).unwrap_or_default();
    let state = text
        .iter()
        .rposition(|byte| *byte == b')')
        .and_then(|at| text.get(at + 2));
    matches!(state, Some(b'T' | b't' | b'Z' | b'X' | b'x'))
}
