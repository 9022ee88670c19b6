//! Processes, mounts, capabilities and signals.

use super::{check, last_errno};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use std::ffi::CStr;
use std::mem::offset_of;

/// What `fork` or `clone_into` returned.
pub(crate) enum Fork {
    /// In the new process.
    Child,
    /// In the old one.
    Parent {
        /// The new process, in our pid namespace.
        pid: i32,
        /// A handle on it that no other process can take over.
        handle: OwnedFd,
    },
}

/// The namespaces a box's first process is born into.
pub(crate) const BIRTH_NAMESPACES: u64 = (libc::CLONE_NEWUSER | libc::CLONE_NEWPID) as u64;

/// Those it makes itself: a network takes longer than all others together, and its keeper has better to do than to wait.
const OWN_NAMESPACES: libc::c_int =
    libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// Leaves the rest of the host's namespaces behind.
pub(crate) fn leave_namespaces() -> Result<(), Errno> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::unshare(OWN_NAMESPACES) } as _).map(drop)
}

/// Begins a session. Nothing is made of the answer: gVisor's kernel says 0 where Linux says which.
pub(crate) fn begin_session() {
    // SAFETY: no pointers are passed.
    unsafe { libc::setsid() };
}

/// Enters a new user namespace, in which nobody is mapped yet.
pub(crate) fn enter_user_namespace() -> Result<(), Errno> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::unshare(libc::CLONE_NEWUSER) } as _).map(drop)
}

/// Copies this process into new namespaces (and, with `cgroup`, straight into that v2 group).
///
/// The child must use only what does not allocate: other threads of the old process, with their locks, are gone.
/// It sends no SIGCHLD and is invisible to a plain `wait`, so a host program's own child handling never meets it.
pub(crate) fn clone_into(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> Result<Fork, Errno> {
    let mut handle: i32 = -1;
    // SAFETY: an all-zero clone_args is valid.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = namespaces | libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut handle as u64;
    if let Some(group) = cgroup {
        // libc's constant of this name is too narrow to hold it.
        const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = group.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM the child gets its own copy of all memory, as with fork; `args` outlives the call.
    let pid = check(unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const args,
            size_of::<libc::clone_args>(),
        )
    })?;
    if pid == 0 {
        return Ok(Fork::Child);
    }
    // SAFETY: on success the kernel wrote a fresh descriptor into `handle`.
    let handle = unsafe { OwnedFd::from_raw_fd(handle) };
    Ok(Fork::Parent {
        pid: pid as i32,
        handle,
    })
}

/// Makes this process's control group the root of all it can see of them.
pub(crate) fn hide_cgroup() -> Result<(), Errno> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) } as _).map(drop)
}

/// A plain fork by system call: no handlers run, nothing is locked. The child is a normal child (SIGCHLD).
pub(crate) fn fork() -> Result<i32, Errno> {
    // SAFETY: as in `clone_into`; no pointers are passed.
    let pid = check(unsafe {
        libc::syscall(
            libc::SYS_clone,
            libc::SIGCHLD as libc::c_ulong,
            0usize,
            0usize,
            0usize,
            0usize,
        )
    })?;
    Ok(pid as i32)
}

/// Ends this process at once, without running any handler.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: never returns and touches no memory of ours.
    unsafe { libc::_exit(code) }
}

/// A null-terminated array of C strings for `execve`, in memory that the new process has in common.
#[derive(Clone, Copy)]
pub(crate) struct CStrings<'m> {
    /// Each points to a C string that lives as long; the last is null.
    pointers: &'m [*const libc::c_char],
}

impl<'m> CStrings<'m> {
    pub(crate) fn put<P: super::Published>(
        memory: &'m super::SharedMemory<P>,
        strings: &[std::ffi::CString],
    ) -> Result<Self, Errno> {
        let mut pointers = Vec::with_capacity(strings.len() + 1);
        for string in strings {
            pointers.push(memory.put_c_str(string)?.as_ptr());
        }
        pointers.push(std::ptr::null());
        Ok(Self {
            pointers: memory.put_all(&pointers)?,
        })
    }
}

/// Replaces this process's program; returns only on failure.
pub(crate) fn execute(program: &CStr, argv: CStrings<'_>, env: CStrings<'_>) -> Errno {
    // SAFETY: all three are valid, null-terminated and outlive the call.
    unsafe {
        libc::execve(
            program.as_ptr(),
            argv.pointers.as_ptr(),
            env.pointers.as_ptr(),
        )
    };
    last_errno()
}

/// Flags for [`set_mount_flags`].
pub(crate) mod mount_flag {
    pub(crate) const READ_ONLY: u64 = 0x1;
    pub(crate) const NO_SUID: u64 = 0x2;
    pub(crate) const NO_DEV: u64 = 0x4;
    pub(crate) const ID_MAP: u64 = 0x0010_0000;
}

#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Sets flags on a mount, or on a whole tree of them.
pub(crate) fn set_mount_flags(
    tree: BorrowedFd<'_>,
    flags: u64,
    recursive: bool,
    id_map: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let attr = MountAttr {
        attr_set: flags,
        attr_clr: 0,
        propagation: 0,
        userns_fd: id_map.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    let recurse = if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string and `attr` is valid for its size.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | recurse,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// Makes sure that no program started from here on can gain a capability but those in `keep` (a bit each).
pub(crate) fn bound_capabilities(keep: u32) -> Result<(), Errno> {
    for capability in (0..64).filter(|number| u64::from(keep) >> number & 1 == 0) {
        // SAFETY: no pointers are passed. The kernel answers EINVAL past the last capability it has.
        let dropped = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        if dropped < 0 {
            return match last_errno() {
                Errno::INVAL => Ok(()),
                other => Err(other),
            };
        }
    }
    Ok(())
}

/// Gives up every capability but those in `keep` (a bit each), for good.
pub(crate) fn drop_capabilities(keep: u32) -> Result<(), Errno> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    // SAFETY: no pointers are passed.
    unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        )
    };
    let header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let low = Data {
        effective: keep,
        permitted: keep,
        inheritable: 0,
    };
    let data = [
        low,
        Data {
            effective: 0,
            permitted: 0,
            inheritable: 0,
        },
    ];
    // SAFETY: `header` and both `data` elements are valid for this version of the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }).map(drop)
}

/// CAP_SYS_PTRACE's bit.
pub(crate) const CAP_SYS_PTRACE: u32 = 1 << 19;

/// Becomes `uid` and `gid` with no further groups. Needs the right to; only this thread, so only in a child.
pub(crate) fn become_user(uid: u32, gid: u32) -> Result<(), Errno> {
    // SAFETY: a count of zero reads no memory; the other calls take no pointers.
    unsafe {
        check(libc::syscall(
            libc::SYS_setgroups,
            0usize,
            std::ptr::null::<u32>(),
        ))?;
        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
    }
    Ok(())
}

/// Marks every descriptor from `first` up to be closed on exec.
pub(crate) fn close_on_exec_from(first: u32) -> Result<(), Errno> {
    const CLOSE_RANGE_CLOEXEC: u32 = 4;
    // SAFETY: no pointers are passed.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, CLOSE_RANGE_CLOEXEC) })
        .map(drop)
}

/// Closes every descriptor in `first..=last`. The caller must not use any owner of them again.
pub(crate) fn close_range(first: u32, last: u32) {
    if first <= last {
        // SAFETY: no pointers are passed; only our own init uses it, which then keeps no owner of a closed one.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0u32) };
    }
}

/// Brings the loopback interface of this network namespace up.
pub(crate) fn raise_loopback() -> Result<(), Errno> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: `request` is a valid ifreq that outlives the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } as _)
        .map(drop)
}

/// Wipes the environment this process was given. For a process that never looks at it again.
pub(crate) fn forget_environment() {
    unsafe extern "C" {
        static mut environ: *const *mut libc::c_char;
    }
    // SAFETY: `environ` is null or ends with a null; its strings are this process's own copies, writable, and no other thread
    // exists in a process that came from a fork to read them meanwhile.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            let text = *at;
            std::ptr::write_bytes(text, 0, libc::strlen(text));
            at = at.add(1);
        }
    }
}

/// Lets a socket have any address as its own, so that connections meant for others can be led to it.
pub(crate) fn pose_as_anyone(socket: BorrowedFd<'_>, v6: bool) -> Result<(), Errno> {
    const IPV6_TRANSPARENT: libc::c_int = 75;
    let (level, option) = match v6 {
        false => (libc::SOL_IP, libc::IP_TRANSPARENT),
        true => (libc::SOL_IPV6, IPV6_TRANSPARENT),
    };
    let on: libc::c_int = 1;
    // SAFETY: the pointer and length describe `on`, which outlives the call.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    } as _)
    .map(drop)
}

/// Blocks every signal and returns a descriptor that reports SIGCHLD.
pub(crate) fn watch_children() -> Result<OwnedFd, Errno> {
    // SAFETY: both sets are initialised by sigfillset/sigemptyset before use; a null old set is allowed.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        let mut child: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut child);
        libc::sigaddset(&raw mut child, libc::SIGCHLD);
        let fd = check(
            libc::signalfd(-1, &raw const child, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) as _,
        )?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

/// Blocks `signals` in this thread and returns a descriptor that reports them.
pub(crate) fn watch_signals(signals: &[i32]) -> Result<OwnedFd, Errno> {
    // SAFETY: the set is initialised by sigemptyset before use; a null old set is allowed.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        let fd =
            check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) as _)?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

/// The next reported signal, or `None` when there is none waiting.
pub(crate) fn next_signal(watch: BorrowedFd<'_>) -> Option<i32> {
    take_signal(watch).ok().flatten()
}

/// The same, with where it came from.
pub(crate) fn next_signal_that_came(watch: BorrowedFd<'_>) -> Option<Came> {
    take(watch).ok().flatten()
}

/// A signal that came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Came {
    pub(crate) signal: i32,
    /// From the kernel, for a key at a terminal, say: not from a process.
    pub(crate) by_kernel: bool,
}

/// The same, telling "none waits" from an error.
pub(crate) fn take_signal(watch: BorrowedFd<'_>) -> Result<Option<i32>, Errno> {
    Ok(take(watch)?.map(|came| came.signal))
}

fn take(watch: BorrowedFd<'_>) -> Result<Option<Came>, Errno> {
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    match rustix::io::read(watch, &mut info)? {
        n if n == info.len() => {
            let number = |at: usize| {
                i32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]])
            };
            Ok(Some(Came {
                signal: number(offset_of!(libc::signalfd_siginfo, ssi_signo)),
                by_kernel: number(offset_of!(libc::signalfd_siginfo, ssi_code)) > 0,
            }))
        }
        _ => Ok(None),
    }
}

/// Puts every signal back to its default action and unblocks all, as a fresh program expects.
pub(crate) fn reset_signals() {
    for signal in 1..=64 {
        // SAFETY: SIG_DFL is valid for every signal; the kernel refuses KILL and STOP, which never change.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    unblock_signals();
}

/// The same in a process whose beginning we know: handlers don't survive what is executed next, so what is left is the one
/// signal that our own runtime ignores. Where a call takes long, sixty of them are felt.
pub(crate) fn reset_own_signals() {
    // SAFETY: SIG_DFL is valid for this signal.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    unblock_signals();
}

fn unblock_signals() {
    // SAFETY: the set is initialised by sigemptyset before use.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Blocks every signal in this thread until [`SignalsBlocked`] is dropped.
pub(crate) struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    pub(crate) fn new() -> Self {
        // SAFETY: both sets are initialised before use.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut old: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
            Self(old)
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set was filled by the kernel in `new`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}

/// How a child changed state.
pub(crate) enum ChildState {
    Ended {
        pid: i32,
        status: i32,
    },
    /// By a signal; or, if it is traced, at this event, which is 0 where there was none.
    Stopped {
        pid: i32,
        signal: i32,
        event: i32,
    },
    NoneWaiting,
    NoChildren,
}

/// Takes one child's change of state, if any waits.
pub(crate) fn next_child_state() -> ChildState {
    let mut status = 0;
    // SAFETY: `status` is writable.
    let pid = unsafe {
        libc::waitpid(
            -1,
            &raw mut status,
            libc::WNOHANG | libc::WUNTRACED | libc::__WALL,
        )
    };
    match pid {
        0 => ChildState::NoneWaiting,
        p if p > 0 && libc::WIFSTOPPED(status) => ChildState::Stopped {
            pid,
            signal: libc::WSTOPSIG(status),
            event: status >> 16,
        },
        p if p > 0 => ChildState::Ended { pid, status },
        _ => ChildState::NoChildren,
    }
}

/// What processes used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) cpu: std::time::Duration,
    pub(crate) largest_process_bytes: u64,
}

impl From<&libc::rusage> for Usage {
    fn from(used: &libc::rusage) -> Self {
        let time = |t: libc::timeval| {
            std::time::Duration::from_secs(t.tv_sec as u64)
                + std::time::Duration::from_micros(t.tv_usec as u64)
        };
        Self {
            cpu: time(used.ru_utime) + time(used.ru_stime),
            largest_process_bytes: used.ru_maxrss as u64 * 1024,
        }
    }
}

/// How a reaped process ended, and what it and all it waited for used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reaped {
    pub(crate) status: i32,
    pub(crate) usage: Usage,
}

/// What this process and all it waited for have used so far.
pub(crate) fn own_usage() -> Usage {
    let mut all = Usage::default();
    for who in [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN] {
        // SAFETY: an all-zero rusage is valid.
        let mut used: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `used` is writable.
        if unsafe { libc::getrusage(who, &raw mut used) } == 0 {
            let used = Usage::from(&used);
            all.cpu += used.cpu;
            all.largest_process_bytes = all.largest_process_bytes.max(used.largest_process_bytes);
        }
    }
    all
}

/// Waits for a process made by [`clone_into`] to end and takes its accounts.
pub(crate) fn reap(pid: i32) -> Result<Reaped, Errno> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is valid.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both out-pointers are writable.
        let got = unsafe { libc::wait4(pid, &raw mut status, libc::__WALL, &raw mut used) };
        if got >= 0 {
            break;
        }
        match last_errno() {
            Errno::INTR => {}
            other => return Err(other),
        }
    }
    Ok(Reaped {
        status,
        usage: Usage::from(&used),
    })
}

/// Duplicates descriptor `number` of the process `handle` refers to.
pub(crate) fn take_descriptor(handle: BorrowedFd<'_>, number: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: no pointers are passed.
    let fd =
        check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, handle.as_raw_fd(), number, 0u32) })?;
    // SAFETY: the kernel just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Connects a socket to an address in its raw form, as another process gave it.
pub(crate) fn connect_raw(socket: BorrowedFd<'_>, address: &[u8]) -> Result<(), Errno> {
    // SAFETY: the pointer and length describe `address`; the kernel checks its contents.
    check(unsafe {
        libc::connect(
            socket.as_raw_fd(),
            address.as_ptr().cast(),
            address.len() as libc::socklen_t,
        )
    } as _)
    .map(drop)
}

/// Makes `pgid` the foreground group of the terminal. The caller blocks SIGTTOU.
pub(crate) fn set_foreground(terminal: BorrowedFd<'_>, pgid: i32) {
    // SAFETY: no pointers are passed.
    unsafe { libc::tcsetpgrp(terminal.as_raw_fd(), pgid) };
}

/// Sets one resource limit, soft and hard alike. Where the hard limit is lower already, it stays.
pub(crate) fn set_limit(resource: libc::__rlimit_resource_t, value: u64) -> Result<(), Errno> {
    let mut now = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `now` is a writable rlimit.
    check(unsafe { libc::getrlimit(resource, &raw mut now) } as _)?;
    let value = value.min(now.rlim_max);
    let limit = libc::rlimit {
        rlim_cur: value,
        rlim_max: value,
    };
    // SAFETY: `limit` is a readable rlimit.
    check(unsafe { libc::setrlimit(resource, &raw const limit) } as _).map(drop)
}

/// Sets the part of a resource limit that a process may raise again by itself.
pub(crate) fn set_soft_limit(resource: libc::__rlimit_resource_t, value: u64) -> Result<(), Errno> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a writable rlimit.
    check(unsafe { libc::getrlimit(resource, &raw mut limit) } as _)?;
    limit.rlim_cur = value.min(limit.rlim_max);
    // SAFETY: `limit` is a readable rlimit.
    check(unsafe { libc::setrlimit(resource, &raw const limit) } as _).map(drop)
}

/// Sends a signal to every process of this pid namespace but pid 1 and the caller.
pub(crate) fn signal_all(signal: i32) {
    // SAFETY: no pointers are passed.
    unsafe { libc::kill(-1, signal) };
}
