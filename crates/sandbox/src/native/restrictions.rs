//! What a program may not do that no mount forbids: Landlock's rights, and limits on each process.

use crate::plan::Plan;
use std::ffi::CStr;

/// The Landlock rules: what is granted where, as seen inside.
#[derive(Clone, Copy)]
pub(crate) struct Landlock<'m> {
    pub(crate) abi: u32,
    pub(crate) handled: u64,
    pub(crate) scoped: u64,
    pub(crate) grants: &'m [(&'m CStr, u64)],
}

pub(super) mod right {
    pub(in super::super) const EXECUTE: u64 = 1;
    pub(in super::super) const WRITE_FILE: u64 = 1 << 1;
    pub(in super::super) const READ_FILE: u64 = 1 << 2;
    pub(in super::super) const READ_DIR: u64 = 1 << 3;
    pub(in super::super) const TRUNCATE: u64 = 1 << 14;
    pub(in super::super) const IOCTL_DEV: u64 = 1 << 15;
    pub(in super::super) const READ: u64 = EXECUTE | READ_FILE | READ_DIR;
}

/// Every right to change something that Landlock can withhold at this ABI. Reading and executing are not among them:
/// all that is in the view may be read, and a right that is not withheld costs nothing on every open. Nor is
/// truncation, which is asked for on every open, and which read-only mounts forbid by themselves.
pub(super) fn handled_rights(abi: u32) -> u64 {
    let all = match abi {
        0 | 1 => (1 << 13) - 1,
        2 => (1 << 14) - 1,
        3 | 4 => (1 << 15) - 1,
        _ => (1 << 16) - 1,
    };
    all & !(right::READ | right::TRUNCATE)
}

/// Abstract Unix sockets and signals to processes outside, from ABI 6.
pub(super) fn scopes(abi: u32) -> u64 {
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
