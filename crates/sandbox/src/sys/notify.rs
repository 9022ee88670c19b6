//! Seccomp notifications: a system call waits while another process decides what it returns.

use super::{check, last_errno};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

// From <linux/seccomp.h>; libc has them as functions of the structures' sizes only on some targets.
const IOCTL_NOTIF_RECV: libc::c_ulong = 0xc050_2100;
const IOCTL_NOTIF_SEND: libc::c_ulong = 0xc018_2101;
const IOCTL_NOTIF_ID_VALID: libc::c_ulong = 0x4008_2102;
const IOCTL_NOTIF_SET_FLAGS: libc::c_ulong = 0x4008_2104;
/// Hand the CPU over synchronously: 35 µs become 5. By value, not by pointer.
const FD_SYNC_WAKE_UP: libc::c_ulong = 1;

/// A system call that waits for an answer.
pub(crate) struct Notification {
    pub(crate) id: u64,
    /// The calling thread, in the pid namespace of the receiver.
    pub(crate) thread: i32,
    pub(crate) number: i32,
    pub(crate) args: [u64; 6],
}

/// The answer.
pub(crate) enum Reply {
    Value(i64),
    Fail(Errno),
    /// The call is made after all, with what its arguments point to by then: never after a decision.
    GoOn,
}

impl Notification {
    /// Asks the kernel to wake the two sides in turn. Older kernels don't know how; nothing else changes.
    pub(crate) fn prefer_sync(listener: BorrowedFd<'_>) {
        // SAFETY: the flag is passed by value.
        unsafe { libc::ioctl(listener.as_raw_fd(), IOCTL_NOTIF_SET_FLAGS, FD_SYNC_WAKE_UP) };
    }

    /// Takes the next waiting call, if its caller has not died meanwhile.
    pub(crate) fn receive(listener: BorrowedFd<'_>) -> Result<Self, Errno> {
        // SAFETY: an all-zero seccomp_notif is valid, and the kernel demands it.
        let mut raw: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: `raw` is a writable seccomp_notif.
        if unsafe { libc::ioctl(listener.as_raw_fd(), IOCTL_NOTIF_RECV, &raw mut raw) } < 0 {
            return Err(last_errno());
        }
        Ok(Self {
            id: raw.id,
            thread: raw.pid as i32,
            number: raw.data.nr,
            args: raw.data.args,
        })
    }

    /// Whether the caller still waits, so that its pid can't have been given to another.
    pub(crate) fn still_waits(&self, listener: BorrowedFd<'_>) -> bool {
        // SAFETY: `id` is a readable u64.
        unsafe {
            libc::ioctl(
                listener.as_raw_fd(),
                IOCTL_NOTIF_ID_VALID,
                &raw const self.id,
            ) == 0
        }
    }

    /// Answers. A caller that died meanwhile needs no answer, so failure is not an error.
    pub(crate) fn answer(&self, listener: BorrowedFd<'_>, reply: Reply) {
        const FLAG_CONTINUE: u32 = 1;
        let (val, error, flags) = match reply {
            Reply::Value(value) => (value, 0, 0),
            Reply::Fail(errno) => (0, -errno.raw_os_error(), 0),
            Reply::GoOn => (0, 0, FLAG_CONTINUE),
        };
        let response = libc::seccomp_notif_resp {
            id: self.id,
            val,
            error,
            flags,
        };
        // SAFETY: `response` is a readable seccomp_notif_resp.
        unsafe { libc::ioctl(listener.as_raw_fd(), IOCTL_NOTIF_SEND, &raw const response) };
    }
}

/// Reads up to `into.len()` bytes of another process's memory.
pub(crate) fn read_memory(thread: i32, address: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: into.len(),
    };
    // SAFETY: `local` describes `into`; `remote` is checked by the kernel.
    let read = check(unsafe {
        libc::process_vm_readv(thread, &raw const local, 1, &raw const remote, 1, 0) as libc::c_long
    })?;
    Ok(read as usize)
}
