//! Word of writes to files.

use super::check;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

const DN_MODIFY: libc::c_ulong = 2;
const DN_MULTISHOT: libc::c_ulong = 0x8000_0000;

/// Has the kernel send SIGIO to this process whenever a file in `directory` is written to, for as long as that is open.
/// The older of two ways: of the newer, inotify, a user has only so many, and who ends with one waits for the kernel to put it away, 5 to
/// 15 ms.
pub(crate) fn signal_writes_in(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    let fd = directory.as_raw_fd();
    // SAFETY: no pointers are passed.
    let asked = unsafe { libc::fcntl(fd, libc::F_NOTIFY, DN_MODIFY | DN_MULTISHOT) };
    check(libc::c_long::from(asked)).map(drop)
}
