//! The system calls a boxed process may not make, as data.
//!
//! A deny list on top of walls that hold without it: what stands here is either a way to talk to parts of the kernel
//! that agents have no business with (attack surface), or a way around a wall.

use super::watched::Watched;
use crate::plan::Spawn;
use rustix::io::Errno;

/// What happens to a call that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It fails with this error; programs probe for it routinely, so nobody is told.
    Fail(Errno),
    /// Init is asked. It answers with this error and reports a violation.
    Report(Errno),
    /// The caller's tracer is asked, where a kernel can't ask as above. It answers with this error and reports a violation.
    Trace(Errno),
    /// Init is asked and answers this in the kernel's place.
    Answer(i64),
    /// Init is asked and makes the call in the box's place (see `init::connect`).
    Mediate,
    /// Init is told, notes it, and lets the call go on (see `super::watched`).
    Watch(Watched),
}

impl Verdict {
    /// What a call fails with where somebody is asked who lets no call go on.
    pub(crate) fn errno(self) -> Errno {
        match self {
            Verdict::Fail(errno) | Verdict::Report(errno) | Verdict::Trace(errno) => errno,
            Verdict::Answer(_) | Verdict::Mediate | Verdict::Watch(_) => Errno::PERM,
        }
    }
}

/// When a rule matches. Arguments are compared by their low 32 bits: all those named here are ints to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Always,
    /// Any of these bits set in argument `.0`.
    AnyBit(u8, u32),
    /// None of these bits set in argument `.0`.
    NoBit(u8, u32),
    /// Argument `.0` is one of these.
    OneOf(u8, &'static [u32]),
    /// Argument `.0` is none of these.
    NoneOf(u8, &'static [u32]),
    /// Any of `.1` set in argument `.0`, and any of `.3` set in argument `.2`.
    BothBits(u8, u32, u8, u32),
    /// Argument 0 is `.0`, and argument 1 without the flag bits `.1` is none of `.2`.
    TypeNot(u32, u32, &'static [u32]),
    /// Argument 0 is `.0`, and argument 2 is not `.1`.
    ProtocolNot(u32, u32),
    /// Argument 0 is `.0`, and argument 2 is `.1`.
    ProtocolIs(u32, u32),
}

/// One line of the filter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    pub(crate) call: libc::c_long,
    pub(crate) name: &'static str,
    pub(crate) when: When,
    pub(crate) verdict: Verdict,
    /// Why it is there.
    pub(crate) why: &'static str,
}

const NEW_NAMESPACES: u32 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u32
    | 0x80; // CLONE_NEWTIME
const SET_ID_BITS: u32 = 0o6000;
// Without O_DIRECTORY, which is part of O_TMPFILE's value but means something else alone.
const CREATES: u32 = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;
const FAMILIES: &[u32] = &[
    libc::AF_UNIX as u32,
    libc::AF_INET as u32,
    libc::AF_INET6 as u32,
    libc::AF_NETLINK as u32,
];
const TERMINAL_INJECTION: &[u32] = &[0x5412, 0x541c, 0x5423]; // TIOCSTI, TIOCLINUX, TIOCSETD
const UNIX_TYPES: &[u32] = &[libc::SOCK_STREAM as u32, libc::SOCK_SEQPACKET as u32];
const INTERNET_TYPES: &[u32] = &[libc::SOCK_STREAM as u32, libc::SOCK_DGRAM as u32];
const SOCKET_FLAGS: u32 = !0xf;
const PERSONALITIES: &[u32] = &[0, 0x0008, 0xffff_ffff]; // PER_LINUX, PER_LINUX32, "which is it?"

macro_rules! rule {
    ($call:ident, $when:expr, $verdict:expr, $why:literal) => {
        Rule {
            call: libc::$call,
            name: {
                // "SYS_ptrace" without its prefix.
                stringify!($call).split_at(4).1
            },
            when: $when,
            verdict: $verdict,
            why: $why,
        }
    };
}

/// Every rule.
pub(crate) fn rules(spawn: Spawn, memory_is_sampled: bool) -> Vec<Rule> {
    use Verdict::{Fail, Mediate, Report};
    use When::*;
    const PERM: Errno = Errno::PERM;
    const NOSYS: Errno = Errno::NOSYS;
    let mut rules = vec![
        rule!(
            SYS_openat,
            BothBits(2, CREATES, 3, SET_ID_BITS),
            Report(PERM),
            "a set-id file would outlive the box"
        ),
        rule!(
            SYS_ioctl,
            OneOf(1, TERMINAL_INJECTION),
            Report(PERM),
            "types into the user's terminal"
        ),
        rule!(
            SYS_clone,
            AnyBit(0, NEW_NAMESPACES),
            Report(PERM),
            "nested namespaces regain capabilities"
        ),
        // Its arguments are in memory, where a filter can't look. C libraries fall back to clone.
        rule!(SYS_clone3, Always, Fail(NOSYS), "flags can't be checked"),
        // A stream socket could reach a host's socket wherever one is visible, so init connects in the box's place.
        rule!(SYS_connect, Always, Mediate, "Unix sockets of the host"),
        rule!(
            SYS_socket,
            NoneOf(0, FAMILIES),
            Report(Errno::AFNOSUPPORT),
            "vsock, packet, alg… reach the host or the kernel"
        ),
        rule!(
            SYS_socket,
            TypeNot(libc::AF_UNIX as u32, SOCKET_FLAGS, UNIX_TYPES),
            Report(Errno::PROTONOSUPPORT),
            "a datagram names its receiver on every send"
        ),
        rule!(
            SYS_socket,
            ProtocolNot(libc::AF_NETLINK as u32, 0),
            Report(Errno::PROTONOSUPPORT),
            "only routing queries, of the box's own network"
        ),
        // The kernel refuses these to the box anyway; here the attempt is seen.
        rule!(
            SYS_socket,
            TypeNot(libc::AF_INET as u32, SOCKET_FLAGS, INTERNET_TYPES),
            Report(PERM),
            "raw packets"
        ),
        rule!(
            SYS_socket,
            TypeNot(libc::AF_INET6 as u32, SOCKET_FLAGS, INTERNET_TYPES),
            Report(PERM),
            "raw packets"
        ),
        rule!(
            SYS_socket,
            ProtocolIs(libc::AF_INET as u32, libc::IPPROTO_ICMP as u32),
            Report(Errno::ACCESS),
            "pings carry anything"
        ),
        rule!(
            SYS_socket,
            ProtocolIs(libc::AF_INET6 as u32, libc::IPPROTO_ICMPV6 as u32),
            Report(Errno::ACCESS),
            "pings carry anything"
        ),
        rule!(
            SYS_socketpair,
            NoneOf(0, &[libc::AF_UNIX as u32]),
            Report(Errno::AFNOSUPPORT),
            "rare families are kernel attack surface"
        ),
        rule!(
            SYS_socketpair,
            TypeNot(libc::AF_UNIX as u32, SOCKET_FLAGS, UNIX_TYPES),
            Report(Errno::PROTONOSUPPORT),
            "a datagram names its receiver on every send"
        ),
        rule!(
            SYS_fchmod,
            AnyBit(1, SET_ID_BITS),
            Report(PERM),
            "a set-id file would outlive the box"
        ),
        rule!(
            SYS_fchmodat,
            AnyBit(2, SET_ID_BITS),
            Report(PERM),
            "a set-id file would outlive the box"
        ),
        rule!(
            SYS_mknodat,
            AnyBit(2, SET_ID_BITS),
            Report(PERM),
            "a set-id file would outlive the box"
        ),
        // Mode and flags are in memory. Programs fall back to openat and fchmodat.
        rule!(
            SYS_openat2,
            Always,
            Fail(NOSYS),
            "its mode can't be checked"
        ),
        Rule {
            call: 452,
            name: "fchmodat2",
            when: Always,
            verdict: Fail(NOSYS),
            why: "older fchmodat is checked",
        },
        // io_uring performs calls that no filter sees.
        rule!(
            SYS_io_uring_setup,
            Always,
            Fail(NOSYS),
            "performs calls unseen by the filter"
        ),
        rule!(
            SYS_io_uring_enter,
            Always,
            Fail(NOSYS),
            "performs calls unseen by the filter"
        ),
        rule!(
            SYS_io_uring_register,
            Always,
            Fail(NOSYS),
            "performs calls unseen by the filter"
        ),
        rule!(
            SYS_ptrace,
            Always,
            Report(PERM),
            "takes over other processes"
        ),
        rule!(
            SYS_process_vm_readv,
            Always,
            Report(PERM),
            "reads other processes"
        ),
        rule!(
            SYS_process_vm_writev,
            Always,
            Report(PERM),
            "writes other processes"
        ),
        rule!(
            SYS_process_madvise,
            Always,
            Report(PERM),
            "acts on other processes' memory"
        ),
        rule!(
            SYS_pidfd_getfd,
            Always,
            Report(PERM),
            "takes other processes' descriptors"
        ),
        rule!(
            SYS_kcmp,
            Always,
            Report(PERM),
            "compares kernel pointers of processes"
        ),
        rule!(SYS_bpf, Always, Report(PERM), "kernel attack surface"),
        rule!(
            SYS_userfaultfd,
            Always,
            Report(PERM),
            "holds the kernel still in exploits"
        ),
        rule!(
            SYS_perf_event_open,
            Always,
            Report(PERM),
            "kernel attack surface, side channels"
        ),
        rule!(
            SYS_add_key,
            Always,
            Report(PERM),
            "keyrings are not namespaced"
        ),
        rule!(
            SYS_request_key,
            Always,
            Report(PERM),
            "keyrings are not namespaced"
        ),
        rule!(
            SYS_keyctl,
            Always,
            Report(PERM),
            "keyrings are not namespaced"
        ),
        rule!(SYS_unshare, Always, Report(PERM), "new namespaces"),
        rule!(SYS_setns, Always, Report(PERM), "other namespaces"),
        rule!(SYS_mount, Always, Report(PERM), "changes the view"),
        rule!(SYS_umount2, Always, Report(PERM), "uncovers what is hidden"),
        rule!(SYS_pivot_root, Always, Report(PERM), "changes the view"),
        rule!(SYS_chroot, Always, Report(PERM), "changes the view"),
        rule!(SYS_move_mount, Always, Report(PERM), "new mount API"),
        rule!(SYS_open_tree, Always, Report(PERM), "new mount API"),
        rule!(SYS_fsopen, Always, Report(PERM), "new mount API"),
        rule!(SYS_fsconfig, Always, Report(PERM), "new mount API"),
        rule!(SYS_fsmount, Always, Report(PERM), "new mount API"),
        rule!(SYS_fspick, Always, Report(PERM), "new mount API"),
        rule!(SYS_mount_setattr, Always, Report(PERM), "new mount API"),
        rule!(
            SYS_name_to_handle_at,
            Always,
            Fail(Errno::OPNOTSUPP),
            "names files without a path"
        ),
        rule!(
            SYS_open_by_handle_at,
            Always,
            Report(PERM),
            "opens files without a path"
        ),
        rule!(SYS_kexec_load, Always, Report(PERM), "replaces the kernel"),
        rule!(
            SYS_kexec_file_load,
            Always,
            Report(PERM),
            "replaces the kernel"
        ),
        rule!(SYS_init_module, Always, Report(PERM), "loads kernel code"),
        rule!(SYS_finit_module, Always, Report(PERM), "loads kernel code"),
        rule!(
            SYS_delete_module,
            Always,
            Report(PERM),
            "unloads kernel code"
        ),
        rule!(SYS_reboot, Always, Report(PERM), "the host's"),
        rule!(SYS_swapon, Always, Report(PERM), "the host's"),
        rule!(SYS_swapoff, Always, Report(PERM), "the host's"),
        rule!(SYS_acct, Always, Report(PERM), "the host's"),
        rule!(SYS_quotactl, Always, Report(PERM), "the host's"),
        rule!(
            SYS_syslog,
            Always,
            Report(PERM),
            "kernel addresses and the host's log"
        ),
        rule!(SYS_settimeofday, Always, Report(PERM), "the host's clock"),
        rule!(SYS_clock_settime, Always, Report(PERM), "the host's clock"),
        rule!(
            SYS_personality,
            NoneOf(0, PERSONALITIES),
            Report(PERM),
            "turns protections off"
        ),
        rule!(
            SYS_lookup_dcookie,
            Always,
            Report(PERM),
            "kernel attack surface"
        ),
        rule!(SYS_vhangup, Always, Report(PERM), "the user's terminal"),
        rule!(
            SYS_fanotify_init,
            Always,
            Report(PERM),
            "watches the whole file system"
        ),
    ];
    rules.extend(pid_1_rules());
    rules.extend(architecture_rules());
    if spawn == Spawn::Refuse {
        const NO_SPAWN: &str = "permissions lacks spawn_subprocess";
        rules.push(rule!(
            SYS_clone,
            NoBit(0, libc::CLONE_THREAD as u32),
            Report(PERM),
            "permissions lacks spawn_subprocess"
        ));
        #[cfg(target_arch = "x86_64")]
        for (call, name) in [(libc::SYS_fork, "fork"), (libc::SYS_vfork, "vfork")] {
            rules.push(Rule {
                call,
                name,
                when: Always,
                verdict: Report(PERM),
                why: NO_SPAWN,
            });
        }
        let _ = NO_SPAWN;
    }
    if memory_is_sampled {
        // Memory that is in no process's resident set can't be counted by sampling.
        rules.push(rule!(
            SYS_memfd_create,
            Always,
            Fail(NOSYS),
            "its pages can't be counted here"
        ));
        rules.push(rule!(
            SYS_shmget,
            Always,
            Fail(NOSYS),
            "its pages can't be counted here"
        ));
    }
    rules
}

/// What would bear on the box's pid 1, which is the agent's user as far as the kernel looks: its limits, its turn on the
/// processors, its input and output. The number is in a register and no namespace gives it another meaning, so nothing can
/// change between the look and the call. Its signals are the kernel's to keep off, and its memory Landlock's.
fn pid_1_rules() -> Vec<Rule> {
    use Verdict::Report;
    use When::OneOf;
    const PERM: Errno = Errno::PERM;
    const PID_1: &[u32] = &[1];
    const PRIO_USER: &[u32] = &[libc::PRIO_USER];
    const IOPRIO_WHO_USER: &[u32] = &[3];
    let mut rules = vec![
        rule!(
            SYS_prlimit64,
            OneOf(0, PID_1),
            Report(PERM),
            "the limits of the box's pid 1"
        ),
        rule!(
            SYS_setpriority,
            OneOf(0, PRIO_USER),
            Report(PERM),
            "means the box's pid 1 too: name processes"
        ),
        rule!(
            SYS_ioprio_set,
            OneOf(0, IOPRIO_WHO_USER),
            Report(PERM),
            "means the box's pid 1 too: name processes"
        ),
    ];
    let by_second = [
        (libc::SYS_setpriority, "setpriority"),
        (libc::SYS_ioprio_set, "ioprio_set"),
    ];
    let by_first = [
        (libc::SYS_sched_setparam, "sched_setparam"),
        (libc::SYS_sched_setscheduler, "sched_setscheduler"),
        (libc::SYS_sched_setattr, "sched_setattr"),
        (libc::SYS_sched_setaffinity, "sched_setaffinity"),
        (libc::SYS_migrate_pages, "migrate_pages"),
        (libc::SYS_move_pages, "move_pages"),
    ];
    let places = by_second.iter().map(|call| (1, call));
    let places = places.chain(by_first.iter().map(|call| (0, call)));
    rules.extend(places.map(|(argument, (call, name))| Rule {
        call: *call,
        name,
        when: OneOf(argument, PID_1),
        verdict: Report(PERM),
        why: "the turn of the box's pid 1 on the host",
    }));
    rules
}

#[cfg(target_arch = "x86_64")]
fn architecture_rules() -> Vec<Rule> {
    use Verdict::Report;
    use When::*;
    const PERM: Errno = Errno::PERM;
    vec![
        rule!(
            SYS_open,
            BothBits(1, CREATES, 2, SET_ID_BITS),
            Report(PERM),
            "a set-id file would outlive the box"
        ),
        rule!(
            SYS_creat,
            AnyBit(1, SET_ID_BITS),
            Report(PERM),
            "a set-id file would outlive the box"
        ),
        rule!(
            SYS_chmod,
            AnyBit(1, SET_ID_BITS),
            Report(PERM),
            "a set-id file would outlive the box"
        ),
        rule!(
            SYS_mknod,
            AnyBit(1, SET_ID_BITS),
            Report(PERM),
            "a set-id file would outlive the box"
        ),
        rule!(
            SYS_modify_ldt,
            Always,
            Report(PERM),
            "kernel attack surface"
        ),
        rule!(SYS_iopl, Always, Report(PERM), "hardware"),
        rule!(SYS_ioperm, Always, Report(PERM), "hardware"),
        rule!(SYS_uselib, Always, Report(PERM), "kernel attack surface"),
        rule!(SYS_ustat, Always, Report(PERM), "kernel attack surface"),
    ]
}

#[cfg(not(target_arch = "x86_64"))]
fn architecture_rules() -> Vec<Rule> {
    Vec::new()
}
