//! Making every process of the box hold still, where no control group does it. Runs in init, so nothing here may
//! allocate, lock or panic.

use super::peer::Text;
use crate::sys;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::mem::MaybeUninit;

/// How still a box is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stillness {
    /// Something is still on its way out of the kernel.
    Pending,
    /// All is stopped, but could be continued from inside: a timer can send a signal.
    Stopped,
    /// All is stopped and held: no signal but the last one has any effect.
    Held,
}

/// Stops every process and takes hold of it.
pub(super) fn stop_all() -> Stillness {
    /// A process in the middle of a system call needs a moment. Who waits longer is asked again by the keeper.
    const LOOKS: usize = 20;
    // One call for all: the kernel lets no fork slip between.
    sys::signal_all(libc::SIGSTOP);
    let mut reached = Stillness::Pending;
    for _ in 0..LOOKS {
        let mut least = Stillness::Held;
        let walked = every_thread(|tasks, thread| {
            // Refused for one that is held already, or where the host lets nobody trace: then what its state says counts.
            let _ = sys::hold_thread(thread);
            least = least.min(stillness_of(tasks, thread));
        });
        reached = if walked { least } else { Stillness::Pending };
        if reached == Stillness::Held {
            break;
        }
        rustix::thread::sched_yield();
    }
    reached
}

/// Lets every process go on.
pub(super) fn continue_all() {
    every_thread(|_, thread| {
        let _ = sys::release_thread(thread);
    });
    sys::signal_all(libc::SIGCONT);
}

/// Lets go of a thread that stopped only when all were let go already; whether it was one.
pub(super) fn release_late(thread: i32) -> bool {
    u32::try_from(thread).is_ok_and(|thread| sys::release_thread(thread).is_ok())
}

/// Does something with every thread of the box but init's; whether all could be listed.
fn every_thread(mut act: impl FnMut(BorrowedFd<'_>, u32)) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(proc_directory) = rustix::fs::open(c"/proc", flags, Mode::empty()) else {
        return false;
    };
    every_number(proc_directory.as_fd(), |pid| {
        // Init itself is to go on.
        if pid == 1 {
            return;
        }
        let mut path = Text::new();
        path.push_number(pid);
        path.push(b"/task");
        let Some(path) = path.as_c_str() else { return };
        // One that can't be opened has ended.
        if let Ok(tasks) = rustix::fs::openat(&proc_directory, path, flags, Mode::empty()) {
            every_number(tasks.as_fd(), |thread| act(tasks.as_fd(), thread));
        }
    })
}

/// Does something with every entry of a directory whose name is a number; whether all could be listed.
fn every_number(directory: BorrowedFd<'_>, mut act: impl FnMut(u32)) -> bool {
    let mut space = [const { MaybeUninit::<u8>::uninit() }; 2048];
    let mut entries = RawDir::new(directory, &mut space);
    while let Some(entry) = entries.next() {
        match entry {
            Ok(entry) => {
                let name = entry.file_name().to_bytes();
                if let Some(number) = parse(name, 10).and_then(|number| u32::try_from(number).ok())
                {
                    act(number);
                }
            }
            // The process has ended while it was looked at.
            Err(Errno::NOENT | Errno::SRCH) => return true,
            Err(_) => return false,
        }
    }
    true
}

fn stillness_of(tasks: BorrowedFd<'_>, thread: u32) -> Stillness {
    match state_of(tasks, thread) {
        // `t`: held. The others have ended.
        None | Some(b't' | b'Z' | b'X' | b'x') => Stillness::Held,
        Some(b'T') => Stillness::Stopped,
        // No signal gets a maker out of that wait but the last one. Its child is looked at like everybody else, and while
        // that one holds still the maker can't return to the program.
        Some(b'D') if waits_for_child(tasks, thread) => Stillness::Held,
        Some(_) => Stillness::Pending,
    }
}

/// Whether a thread waits in `vfork` until its child runs another program or ends. Where it may not be asked: no.
fn waits_for_child(tasks: BorrowedFd<'_>, thread: u32) -> bool {
    let mut text = [0u8; 64];
    let Some(text) = read_of(tasks, thread, b"/syscall", &mut text) else {
        return false;
    };
    // The call's number, and its arguments in hexadecimal; `running` for one that is in no call.
    let mut words = text.split(|byte| *byte == b' ');
    let call = words.next().and_then(|word| parse(word, 10));
    let flags = words
        .next()
        .and_then(|word| parse(word.strip_prefix(b"0x")?, 16));
    match (call, flags) {
        #[cfg(target_arch = "x86_64")]
        (Some(call), _) if call == libc::SYS_vfork as u64 => true,
        (Some(call), Some(flags)) => {
            call == libc::SYS_clone as u64 && flags & libc::CLONE_VFORK as u64 != 0
        }
        _ => false,
    }
}

fn parse(digits: &[u8], radix: u32) -> Option<u64> {
    let mut number = 0u64;
    for digit in digits {
        let digit = char::from(*digit).to_digit(radix)?;
        number = number
            .checked_mul(u64::from(radix))?
            .checked_add(u64::from(digit))?;
    }
    (!digits.is_empty()).then_some(number)
}

/// The letter for what a thread does, unless it has ended.
fn state_of(tasks: BorrowedFd<'_>, thread: u32) -> Option<u8> {
    let mut text = [0u8; 128];
    // The name, in parentheses, may contain anything, but has at most 15 characters; the state follows the last one.
    let text = read_of(tasks, thread, b"/stat", &mut text)?;
    let end = text.iter().rposition(|byte| *byte == b')')?;
    text.get(end + 2).copied()
}

/// The beginning of a file about a thread.
fn read_of<'t>(
    tasks: BorrowedFd<'_>,
    thread: u32,
    name: &[u8],
    text: &'t mut [u8],
) -> Option<&'t [u8]> {
    let mut path = Text::new();
    path.push_number(thread);
    path.push(name);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(tasks, path.as_c_str()?, flags, Mode::empty()).ok()?;
    let length = rustix::io::read(&file, &mut *text).ok()?;
    text.get(..length)
}
