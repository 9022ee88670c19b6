//! What the microvm tier needs: of the bridge, and of a guest's pid 1.

use super::{check, last_errno, set_limit};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Starts a program that the kernel kills when this thread ends, held to this limit if one is given.
pub(crate) fn spawn_to_die_with_us(
    command: &mut Command,
    limit: Option<(libc::__rlimit_resource_t, u64)>,
) -> io::Result<Child> {
    let us = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: between fork and exec it only makes a few system calls, which neither allocate nor lock.
    let command = unsafe {
        command.pre_exec(move || {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0).into())?;
            if libc::getppid() != us {
                return Err(Errno::SRCH.into());
            }
            match limit {
                Some((resource, value)) => Ok(set_limit(resource, value)?),
                None => Ok(()),
            }
        })
    };
    command.spawn()
}

/// Gives this process mounts, objects, names and control groups of its own, all but those of the network.
pub(crate) fn leave_pid_1s_namespaces() -> Result<(), Errno> {
    let flags = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP;
    // SAFETY: no pointers are passed.
    check(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// Calls a port of the host's, as a guest.
pub(crate) fn call_host(port: u32) -> Result<OwnedFd, Errno> {
    // SAFETY: no pointers are passed.
    let number = check(
        unsafe { libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) }.into(),
    )?;
    // SAFETY: the number is a descriptor that was just opened, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(number as RawFd) };
    // SAFETY: all zeros are a value of this type.
    let mut host: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    host.svm_family = libc::AF_VSOCK as libc::sa_family_t;
    host.svm_cid = libc::VMADDR_CID_HOST;
    host.svm_port = port;
    let size = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
    // SAFETY: the address is as long as is said, and outlives the call.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const host).cast(), size) }.into())?;
    Ok(socket)
}

/// Lets a descriptor pass to the programs that are started.
pub(crate) fn keep_on_exec(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: no pointers are passed; a number that is no descriptor is an error.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }.into()).map(drop)
}

/// Ignores signals, here and in no program that is started.
pub(crate) fn ignore_signals(signals: &[i32]) {
    for signal in signals {
        // SAFETY: SIG_IGN is valid for every signal that can be ignored.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

/// Ends this process by a signal, as if nobody handled it.
pub(crate) fn die_by(signal: i32) -> ! {
    super::reset_signals();
    // SAFETY: no pointers are passed.
    unsafe {
        libc::raise(signal);
        // One that kills nobody.
        libc::_exit(128 + signal)
    }
}

/// Raises the part of a resource limit that a process may raise by itself to all it may have.
pub(crate) fn raise_soft_limit(resource: libc::__rlimit_resource_t) -> Result<(), Errno> {
    super::set_soft_limit(resource, u64::MAX)
}

/// The processor's own counter of time.
pub(crate) fn processor_counter() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every 64-bit processor has it, and Linux lets programs read it.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// Loads a kernel module from a file, which may be compressed.
pub(crate) fn load_module(file: BorrowedFd<'_>, is_compressed: bool) -> Result<(), Errno> {
    const COMPRESSED: libc::c_int = 4;
    let flags = if is_compressed { COMPRESSED } else { 0 };
    // SAFETY: the parameters are an empty C string.
    check(unsafe {
        libc::syscall(
            libc::SYS_finit_module,
            file.as_raw_fd(),
            c"".as_ptr(),
            flags,
        )
    })
    .map(drop)
}

/// Gives the kernel bytes nobody can guess.
pub(crate) fn add_entropy(random: BorrowedFd<'_>, bytes: [u8; 64]) -> Result<(), Errno> {
    const RNDADDENTROPY: libc::c_ulong = 0x4008_5203;
    #[repr(C)]
    struct Pool {
        bits: libc::c_int,
        size: libc::c_int,
        bytes: [u8; 64],
    }
    let pool = Pool {
        bits: 512,
        size: 64,
        bytes,
    };
    // SAFETY: `pool` is what this request takes, and outlives the call.
    check(unsafe { libc::ioctl(random.as_raw_fd(), RNDADDENTROPY as _, &raw const pool) }.into())
        .map(drop)
}

/// Has the kernel draw on what it was given at once. By itself it would go on for a minute with what it had before.
pub(crate) fn reseed(random: BorrowedFd<'_>) -> Result<(), Errno> {
    const RNDRESEEDCRNG: libc::c_ulong = 0x5207;
    // SAFETY: the request takes no argument.
    check(unsafe { libc::ioctl(random.as_raw_fd(), RNDRESEEDCRNG as _) }.into()).map(drop)
}

/// Asks what answers at /dev/kvm which version of its interface it speaks.
pub(crate) fn kvm_version(kvm: BorrowedFd<'_>) -> Result<libc::c_int, Errno> {
    const KVM_GET_API_VERSION: libc::c_ulong = 0xae00;
    // SAFETY: the request takes no argument.
    let version = unsafe { libc::ioctl(kvm.as_raw_fd(), KVM_GET_API_VERSION as _, 0) };
    check(version.into()).map(|_| version)
}

/// Makes a machine, and lets go of it.
pub(crate) fn try_kvm_machine(kvm: BorrowedFd<'_>) -> Result<(), Errno> {
    const KVM_CREATE_VM: libc::c_ulong = 0xae01;
    // SAFETY: the request takes no pointer; what it returns is a descriptor of ours, or an error.
    unsafe {
        let machine = libc::ioctl(kvm.as_raw_fd(), KVM_CREATE_VM as _, 0);
        check(machine.into())?;
        libc::close(machine);
    }
    Ok(())
}

/// Waits for any child to end: which, and how. Nothing when there is none.
pub(crate) fn await_child() -> Option<(i32, i32)> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is writable.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
        match pid {
            pid if pid > 0 => return Some((pid, status)),
            _ if last_errno() == Errno::INTR => {}
            _ => return None,
        }
    }
}

/// Ends a machine of which this process is pid 1.
pub(crate) fn restart_machine() -> ! {
    // SAFETY: no pointers are passed.
    unsafe {
        libc::sync();
        libc::reboot(libc::RB_AUTOBOOT);
        libc::_exit(1)
    }
}
