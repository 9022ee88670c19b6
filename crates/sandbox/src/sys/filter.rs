//! Installing a seccomp filter.

use super::check;
use rustix::fd::{FromRawFd, OwnedFd};
use rustix::io::Errno;

/// One instruction of classic BPF, laid out as the kernel's `sock_filter`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SockFilter {
    pub(crate) code: u16,
    pub(crate) jump_true: u8,
    pub(crate) jump_false: u8,
    pub(crate) k: u32,
}

#[repr(C)]
struct SockFprog {
    len: u16,
    filter: *const SockFilter,
}

/// Installs `filter` on this process for good and returns the descriptor on which its notifications arrive.
/// `no_new_privs` must be set.
pub(crate) fn install_filter(filter: &[SockFilter]) -> Result<OwnedFd, Errno> {
    let fd = install(filter, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    // SAFETY: the kernel just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The same for a filter that asks nobody, on a kernel that may not know how to.
pub(crate) fn install_silent_filter(filter: &[SockFilter]) -> Result<(), Errno> {
    install(filter, 0).map(drop)
}

fn install(filter: &[SockFilter], flags: libc::c_ulong) -> Result<libc::c_long, Errno> {
    let program = SockFprog {
        len: u16::try_from(filter.len()).map_err(|_| Errno::INVAL)?,
        filter: filter.as_ptr(),
    };
    // SAFETY: `program` points at `len` valid instructions that outlive the call; the kernel copies them.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    })
}

/// Whether this kernel's filters can hand a call to another process.
pub(crate) fn has_notifications() -> bool {
    let action = libc::SECCOMP_RET_USER_NOTIF;
    // SAFETY: `action` is a readable u32, which is what this operation takes.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0u32,
            &raw const action,
        )
    })
    .is_ok()
}
