//! A kernel counter of the CPU time of a process and everything it will ever fork.

use super::check;
use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use std::time::Duration;

/// The first fields of `perf_event_attr`, as of its first published size.
#[repr(C)]
#[derive(Default)]
struct EventAttributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    address: u64,
}

const SOFTWARE: u32 = 1;
const TASK_CLOCK: u64 = 1;
const INHERIT: u64 = 1 << 1;
/// What an unprivileged process must promise; the task clock counts all time regardless.
const EXCLUDE_KERNEL_AND_HYPERVISOR: u64 = 1 << 5 | 1 << 6;

/// Counts this process and its future descendants from now on, also those that nobody waits for. Some hosts forbid it.
pub(crate) fn open_cpu_counter() -> Result<OwnedFd, Errno> {
    let attributes = EventAttributes {
        kind: SOFTWARE,
        size: size_of::<EventAttributes>() as u32,
        config: TASK_CLOCK,
        flags: INHERIT | EXCLUDE_KERNEL_AND_HYPERVISOR,
        ..Default::default()
    };
    const CLOSE_ON_EXEC: libc::c_ulong = 8;
    // SAFETY: `attributes` is valid for the size it names.
    let fd = check(unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            0,
            -1,
            -1,
            CLOSE_ON_EXEC,
        )
    })?;
    // SAFETY: the kernel just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The time counted so far.
pub(crate) fn read_cpu_counter(counter: BorrowedFd<'_>) -> Result<Duration, Errno> {
    let mut nanoseconds = [0u8; 8];
    rustix::io::read(counter, &mut nanoseconds)?;
    Ok(Duration::from_nanos(u64::from_ne_bytes(nanoseconds)))
}
