//! What a program may not do that no mount forbids: Landlock's rights, and limits on each process.

use crate::plan::Plan;
use crate::sys;
use rustix::fd::AsFd;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CStr;

/// The Landlock rules: what is granted where, as seen inside.
#[derive(Clone, Copy)]
pub(crate) struct Landlock<'m> {
    pub(crate) abi: u32,
    pub(crate) handled: u64,
    pub(crate) scoped: u64,
    pub(crate) grants: &'m [(&'m CStr, u64)],
}

impl<'m> Landlock<'m> {
    /// What a kernel of this ABI can hold of it.
    pub(crate) fn at(abi: u32, grants: &'m [(&'m CStr, u64)]) -> Self {
        Self {
            abi,
            handled: handled_rights(abi),
            scoped: scopes(abi),
            grants,
        }
    }

    /// Restricts this thread and its descendants for good.
    pub(crate) fn enforce(&self) -> Result<(), Errno> {
        let rules = sys::LandlockRules::new(self.abi, self.handled, self.scoped)?;
        for (path, rights) in self.grants {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let place = rustix::fs::open(*path, flags, Mode::empty())?;
            // Rights that only directories have are refused on files.
            let is_directory =
                FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode) == FileType::Directory;
            const FILE_RIGHTS: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15;
            let rights = if is_directory {
                *rights
            } else {
                *rights & FILE_RIGHTS
            };
            rules.allow(place.as_fd(), rights)?;
        }
        rules.enforce()
    }
}

/// Where all may be changed.
pub(crate) const ALL_RIGHTS: u64 = u64::MAX;

/// Descriptors, terminals and the like are written through these two; other walls hold what is in them.
pub(crate) const COMMON_GRANTS: [(&CStr, u64); 2] = [
    (c"/dev", right::WRITE_FILE | right::IOCTL_DEV),
    (c"/proc", right::WRITE_FILE),
];

mod right {
    pub(super) const EXECUTE: u64 = 1;
    pub(super) const WRITE_FILE: u64 = 1 << 1;
    pub(super) const READ_FILE: u64 = 1 << 2;
    pub(super) const READ_DIR: u64 = 1 << 3;
    pub(super) const TRUNCATE: u64 = 1 << 14;
    pub(super) const IOCTL_DEV: u64 = 1 << 15;
    pub(super) const READ: u64 = EXECUTE | READ_FILE | READ_DIR;
}

/// Every right to change something that Landlock can withhold at this ABI. Reading and executing are not among them:
/// all that is in the view may be read, and a right that is not withheld costs nothing on every open. Nor is
/// truncation, which is asked for on every open, and which read-only mounts forbid by themselves.
fn handled_rights(abi: u32) -> u64 {
    let all = match abi {
        0 | 1 => (1 << 13) - 1,
        2 => (1 << 14) - 1,
        3 | 4 => (1 << 15) - 1,
        _ => (1 << 16) - 1,
    };
    all & !(right::READ | right::TRUNCATE)
}

/// Abstract Unix sockets and signals to processes outside, from ABI 6.
fn scopes(abi: u32) -> u64 {
    if abi >= 6 { 0b11 } else { 0 }
}

/// Limits that the kernel holds each process to.
pub(crate) fn resource_limits(plan: &Plan, sampled: bool) -> Vec<(libc::__rlimit_resource_t, u64)> {
    let limits = &plan.limits;
    let mut out = vec![
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_MEMLOCK, 8 << 20),
        (libc::RLIMIT_MSGQUEUE, 1 << 20),
    ];
    if let Some(files) = limits.open_files {
        out.push((libc::RLIMIT_NOFILE, u64::from(files)));
    }
    if let Some(bytes) = limits.file_size_bytes {
        out.push((libc::RLIMIT_FSIZE, bytes));
    }
    if sampled && let Some(processes) = limits.processes {
        // Counted in the box's own user namespace, so it holds for the tree. Init is one of them.
        out.push((libc::RLIMIT_NPROC, u64::from(processes) + 1));
    }
    if let Some(cpu) = limits.cpu_time {
        // A backstop for a keeper that gets no CPU itself: each process alone.
        out.push((libc::RLIMIT_CPU, cpu.as_secs() + 2));
    }
    if sampled && let Some(bytes) = limits.memory_bytes {
        // A backstop between two looks. Generous: reserved memory is not used memory.
        out.push((
            libc::RLIMIT_DATA,
            bytes.saturating_mul(4).saturating_add(256 << 20),
        ));
    }
    out
}
