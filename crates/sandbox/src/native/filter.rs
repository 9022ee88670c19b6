//! The system calls a boxed process may not make, as data, and the compiler from that data to classic BPF.
//!
//! A deny list on top of walls that hold without it: what stands here is either a way to talk to parts of the kernel
//! that agents have no business with (attack surface), or a way around a wall. Calls whose verdict does not depend on
//! their arguments cost nothing at run time: the kernel caches "always allowed" per call number.

use crate::plan::Spawn;
use crate::sys::SockFilter;
use rustix::io::Errno;

/// What happens to a call that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It fails with this error; programs probe for it routinely, so nobody is told.
    Fail(Errno),
    /// Init is asked. It answers with this error and reports a violation.
    Report(Errno),
    /// Init is asked and makes the call in the box's place (see `init::connect`).
    Mediate,
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

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

mod op {
    pub(super) const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    pub(super) const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
    pub(super) const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    pub(super) const IF_ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
    pub(super) const IF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
    pub(super) const RETURN: u16 = 0x06; // BPF_RET | BPF_K
}

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const X32_BIT: u32 = 0x4000_0000;

/// Where an argument's low half is in `seccomp_data` (little-endian targets only).
fn argument(index: u8) -> u32 {
    16 + 8 * u32::from(index)
}

fn plain(code: u16, k: u32) -> SockFilter {
    SockFilter {
        code,
        jump_true: 0,
        jump_false: 0,
        k,
    }
}

fn branch(code: u16, k: u32, jump_true: u8, jump_false: u8) -> SockFilter {
    SockFilter {
        code,
        jump_true,
        jump_false,
        k,
    }
}

/// Compiles rules into a program. A wrong architecture or an x32 call kills the process.
pub(crate) fn compile(rules: &[Rule]) -> Vec<SockFilter> {
    let mut program = vec![
        plain(op::LOAD, OFFSET_ARCH),
        branch(op::IF_EQUAL, AUDIT_ARCH, 1, 0),
        plain(op::RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        plain(op::LOAD, OFFSET_NUMBER),
        branch(op::IF_AT_LEAST, X32_BIT, 0, 1),
        plain(op::RETURN, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    // The kernel runs the program for every call number once, to learn which are always allowed, so it should be
    // short for most: blocks are sorted by number, and a call skips all groups of blocks below its own.
    let mut calls: Vec<libc::c_long> = rules.iter().map(|rule| rule.call).collect();
    calls.sort_unstable();
    calls.dedup();
    for group in calls.chunks(GROUP) {
        let mut blocks = Vec::new();
        for call in group {
            blocks.extend(block(*call, rules));
        }
        // What is in no block of its group is in none.
        blocks.push(plain(op::RETURN, libc::SECCOMP_RET_ALLOW));
        let highest = group.last().map_or(0, |call| *call as u32);
        let length = u8::try_from(blocks.len()).unwrap_or(u8::MAX);
        program.push(branch(op::IF_AT_LEAST, highest + 1, length, 0));
        program.extend(blocks);
    }
    program.push(plain(op::RETURN, libc::SECCOMP_RET_ALLOW));
    program
}

/// How many calls share a group: about the square root of how many there are.
const GROUP: usize = 9;

/// All rules of one call: skipped whole by other calls, ended by "allow".
fn block(call: libc::c_long, rules: &[Rule]) -> Vec<SockFilter> {
    let mut body = Vec::new();
    for rule in rules.iter().filter(|rule| rule.call == call) {
        body.extend(condition(rule.when, rule.verdict));
    }
    body.push(plain(op::RETURN, libc::SECCOMP_RET_ALLOW));
    let length = u8::try_from(body.len()).unwrap_or(u8::MAX);
    let mut block = vec![branch(op::IF_EQUAL, call as u32, 0, length)];
    block.extend(body);
    block
}

/// Instructions that return the verdict when the condition holds, and fall through when not.
fn condition(when: When, verdict: Verdict) -> Vec<SockFilter> {
    let action = plain(
        op::RETURN,
        match verdict {
            Verdict::Fail(errno) => libc::SECCOMP_RET_ERRNO | errno.raw_os_error() as u32,
            Verdict::Report(_) | Verdict::Mediate => libc::SECCOMP_RET_USER_NOTIF,
        },
    );
    match when {
        When::Always => vec![action],
        When::AnyBit(arg, bits) => {
            vec![
                plain(op::LOAD, argument(arg)),
                branch(op::IF_ANY_BIT, bits, 0, 1),
                action,
            ]
        }
        When::NoBit(arg, bits) => {
            vec![
                plain(op::LOAD, argument(arg)),
                branch(op::IF_ANY_BIT, bits, 1, 0),
                action,
            ]
        }
        When::BothBits(first, bits, second, more) => vec![
            plain(op::LOAD, argument(first)),
            branch(op::IF_ANY_BIT, bits, 0, 3),
            plain(op::LOAD, argument(second)),
            branch(op::IF_ANY_BIT, more, 0, 1),
            action,
        ],
        When::OneOf(arg, values) => {
            let mut code = vec![plain(op::LOAD, argument(arg))];
            code.extend(any_of(values, 0, 1));
            code.push(action);
            code
        }
        When::NoneOf(arg, values) => {
            let mut code = vec![plain(op::LOAD, argument(arg))];
            code.extend(any_of(values, 1, 0));
            code.push(action);
            code
        }
        When::TypeNot(first, flags, values) => {
            let tests = any_of(values, 1, 0);
            let rest = 2 + tests.len() as u8 + 1;
            let mut code = vec![
                plain(op::LOAD, argument(0)),
                branch(op::IF_EQUAL, first, 0, rest),
                plain(op::LOAD, argument(1)),
                plain(op::AND, !flags),
            ];
            code.extend(tests);
            code.push(action);
            code
        }
        When::ProtocolNot(first, protocol) => vec![
            plain(op::LOAD, argument(0)),
            branch(op::IF_EQUAL, first, 0, 3),
            plain(op::LOAD, argument(2)),
            branch(op::IF_EQUAL, protocol, 1, 0),
            action,
        ],
    }
}

/// Tests the loaded value against each of `values`; jumps `if_found` or `if_not` past the last test.
fn any_of(values: &[u32], if_found: u8, if_not: u8) -> Vec<SockFilter> {
    let last = values.len().saturating_sub(1);
    values
        .iter()
        .enumerate()
        .map(|(at, value)| {
            let remaining = (last - at) as u8;
            branch(
                op::IF_EQUAL,
                *value,
                remaining + if_found,
                if at == last { if_not } else { 0 },
            )
        })
        .collect()
}

/// The rule behind a notification, for its errno and its name in reports.
pub(crate) fn rule_of(rules: &[Rule], call: i32, args: &[u64; 6]) -> Option<usize> {
    rules
        .iter()
        .position(|rule| rule.call == libc::c_long::from(call) && matches(rule.when, args))
}

fn matches(when: When, args: &[u64; 6]) -> bool {
    let low = |index: u8| {
        args.get(usize::from(index))
            .map_or(0, |value| *value as u32)
    };
    match when {
        When::Always => true,
        When::AnyBit(arg, bits) => low(arg) & bits != 0,
        When::NoBit(arg, bits) => low(arg) & bits == 0,
        When::OneOf(arg, values) => values.contains(&low(arg)),
        When::NoneOf(arg, values) => !values.contains(&low(arg)),
        When::BothBits(first, bits, second, more) => {
            low(first) & bits != 0 && low(second) & more != 0
        }
        When::TypeNot(first, flags, values) => {
            low(0) == first && !values.contains(&(low(1) & !flags))
        }
        When::ProtocolNot(first, protocol) => low(0) == first && low(2) != protocol,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program the way the kernel does.
    fn run(program: &[SockFilter], arch: u32, call: u32, args: [u64; 6]) -> u32 {
        let word = |offset: u32| match offset {
            OFFSET_NUMBER => call,
            OFFSET_ARCH => arch,
            other => args[((other - 16) / 8) as usize] as u32,
        };
        let (mut at, mut value) = (0usize, 0u32);
        loop {
            let step = program[at];
            at += 1;
            let jump = |yes: bool| usize::from(if yes { step.jump_true } else { step.jump_false });
            match step.code {
                op::LOAD => value = word(step.k),
                op::AND => value &= step.k,
                op::IF_EQUAL => at += jump(value == step.k),
                op::IF_ANY_BIT => at += jump(value & step.k != 0),
                op::IF_AT_LEAST => at += jump(value >= step.k),
                op::RETURN => return step.k,
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn program_agrees_with_the_rules_it_was_made_from() {
        for spawn in [Spawn::Allow, Spawn::Refuse] {
            let rules = rules(spawn, true);
            let program = compile(&rules);
            let interesting = [
                0u64,
                1,
                2,
                3,
                5,
                15,
                16,
                38,
                40,
                0o644,
                0o4755,
                0o2755,
                0x5412,
                0x541c,
                0x0800_0000,
                0x1000_0000,
                0x10000,
                0o100,
                0o20000000,
                0o20200000,
                u64::from(u32::MAX),
                0x8_0001,
                0x8_0005,
                0x8_0002,
            ];
            for call in 0..500u32 {
                for a in interesting {
                    for b in interesting {
                        let args = [a, b, b, a, 0, 0];
                        let expected = match rule_of(&rules, call as i32, &args) {
                            None => libc::SECCOMP_RET_ALLOW,
                            Some(i) => match rules[i].verdict {
                                Verdict::Fail(e) => {
                                    libc::SECCOMP_RET_ERRNO | e.raw_os_error() as u32
                                }
                                _ => libc::SECCOMP_RET_USER_NOTIF,
                            },
                        };
                        assert_eq!(
                            run(&program, AUDIT_ARCH, call, args),
                            expected,
                            "call {call} args {args:x?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn other_architectures_and_x32_are_killed() {
        let program = compile(&rules(Spawn::Allow, false));
        assert_eq!(
            run(&program, 0x4000_0003, 1, [0; 6]),
            libc::SECCOMP_RET_KILL_PROCESS
        );
        assert_eq!(
            run(&program, AUDIT_ARCH, X32_BIT | 1, [0; 6]),
            libc::SECCOMP_RET_KILL_PROCESS
        );
    }

    #[test]
    fn every_rule_says_why() {
        assert!(
            rules(Spawn::Refuse, true)
                .iter()
                .all(|rule| !rule.why.is_empty())
        );
    }
}
