//! Holding a thread by tracing it: whatever signals it gets, it runs again only when its tracer says so, or is gone.

use super::check;
use rustix::io::Errno;

// From <linux/ptrace.h>.
const SEIZE: libc::c_long = 0x4206;
const INTERRUPT: libc::c_long = 0x4207;
const DETACH: libc::c_long = 17;

/// Takes hold of a thread of this pid namespace. It stops as soon as it leaves the kernel.
pub(crate) fn hold_thread(thread: u32) -> Result<(), Errno> {
    trace(SEIZE, thread)?;
    trace(INTERRUPT, thread)
}

/// Lets go of a thread that was held and has stopped.
pub(crate) fn release_thread(thread: u32) -> Result<(), Errno> {
    trace(DETACH, thread)
}

fn trace(request: libc::c_long, thread: u32) -> Result<(), Errno> {
    // SAFETY: none of the three requests reads or writes memory of ours; address and data are zero.
    check(unsafe {
        libc::syscall(
            libc::SYS_ptrace,
            request,
            libc::c_long::from(thread),
            0usize,
            0usize,
        )
    })
    .map(drop)
}
