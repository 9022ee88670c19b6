//! Landlock's three system calls. The `landlock` crate allocates, which is not allowed where these are called.

use super::check;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;

#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

/// Landlock's ABI version on this kernel, or `None` where it is absent or off.
pub(crate) fn landlock_abi() -> Option<u32> {
    // SAFETY: with this flag the call takes no pointer and has no effect.
    let version = check(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<RulesetAttr>(),
            0usize,
            CREATE_RULESET_VERSION,
        )
    });
    version.ok().and_then(|v| u32::try_from(v).ok())
}

/// A ruleset under construction.
pub(crate) struct LandlockRules {
    fd: OwnedFd,
    handled: u64,
}

impl LandlockRules {
    /// A ruleset that denies every right in `handled` but where a rule grants it, and cuts off what `scoped` names.
    pub(crate) fn new(abi: u32, handled: u64, scoped: u64) -> Result<Self, Errno> {
        let attr = RulesetAttr {
            handled_access_fs: handled,
            handled_access_net: 0,
            scoped,
        };
        // Older kernels know a shorter structure and refuse a longer one only if its tail is not zero.
        let size: usize = match abi {
            0..=3 => 8,
            4..=5 => 16,
            _ => 24,
        };
        // SAFETY: `attr` is valid for `size` bytes, and the kernel only reads it.
        let fd = check(unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const attr,
                size,
                0u32,
            )
        })?;
        // SAFETY: the kernel just made this descriptor for us alone.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        Ok(Self { fd, handled })
    }

    /// Grants `access` at and below `place`.
    pub(crate) fn allow(&self, place: BorrowedFd<'_>, access: u64) -> Result<(), Errno> {
        let attr = PathBeneathAttr {
            allowed_access: access & self.handled,
            parent_fd: place.as_raw_fd(),
        };
        // SAFETY: `attr` is a valid rule of the named type, and the kernel only reads it.
        check(unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                self.fd.as_raw_fd(),
                RULE_PATH_BENEATH,
                &raw const attr,
                0u32,
            )
        })
        .map(drop)
    }

    /// Restricts this thread and its descendants for good.
    pub(crate) fn enforce(self) -> Result<(), Errno> {
        // SAFETY: no pointer is passed.
        check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, self.fd.as_raw_fd(), 0u32) })
            .map(drop)
    }
}
