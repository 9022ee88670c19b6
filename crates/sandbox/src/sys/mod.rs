//! The one module with `unsafe`: system calls that no safe crate wraps.
//!
//! Much of it runs between `clone3` and `execve` in a copy of a process that may have had other threads, so nothing
//! here allocates, locks or panics; callers hand in C strings made beforehand.
#![allow(unsafe_code)]

mod changes;
mod counter;
mod diag;
mod filter;
mod landlock;
mod machine;
mod notify;
mod placeholder;
mod process;
mod rest;
mod shared;
mod trace;

pub(crate) use changes::signal_writes_in;
pub(crate) use counter::{open_cpu_counter, read_cpu_counter};
pub(crate) use diag::is_bound_here;
pub(crate) use filter::{SockFilter, has_notifications, install_filter, install_silent_filter};
pub(crate) use landlock::{LandlockRules, landlock_abi};
pub(crate) use machine::*;
pub(crate) use notify::{Notification, Reply};
pub(crate) use placeholder::Placeholder;
pub(crate) use process::*;
pub use rest::give_back_code;
pub(crate) use shared::{Published, SharedMemory};
pub(crate) use trace::{HeldCall, follow, go_on, hold_thread, release_thread, stay_stopped};

use rustix::io::Errno;

/// Turns a raw system call's result into a `Result`.
fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(result)
    }
}

/// The same for a call that answers with an address.
fn check_pointer(address: *mut libc::c_void) -> Result<std::ptr::NonNull<u8>, Errno> {
    match address {
        libc::MAP_FAILED => Err(last_errno()),
        address => std::ptr::NonNull::new(address.cast()).ok_or(Errno::NOMEM),
    }
}

fn last_errno() -> Errno {
    // SAFETY: __errno_location always returns a valid pointer to this thread's errno.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}
pub(crate) use notify::read_memory;
