//! The system calls that name files, as data: what a box is seen to do when its plan says to watch it.
//!
//! Nothing is decided by these rules. Init notes what it sees and lets the call go on; what may be done is the walls'
//! to say. So a program that changes a path while init looks can mislead the record about itself, and nothing else.

use super::rules::{Rule, Verdict, When};

/// What a watched call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) deed: Deed,
    pub(crate) first: Named,
    pub(crate) second: Named,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Asking whether it is there, and what it is.
    Look,
    /// Changing it: its contents, its name, its being there, its attributes.
    Write,
    /// Making what is not there yet; what is there stays as it is.
    Make,
    /// Running it.
    Execute,
    /// Making a process; about no file.
    Spawn,
    /// As the flags in this argument say.
    Open(u8),
}

/// How a call names a file. Numbers are those of arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    /// Not at all.
    Nothing,
    /// By a path, from a directory's descriptor or else from the working directory.
    Path {
        from: Option<u8>,
        path: u8,
        last: Last,
    },
    /// By a descriptor.
    Descriptor(u8),
    /// By a socket's address and its length.
    Address(u8, u8),
}

/// What becomes of a link in a path's last place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Last {
    Follow,
    Keep,
    /// Kept if any of these bits is set in this argument.
    KeepIf(u8, u32),
    /// Followed if any of these bits is set in this argument.
    FollowIf(u8, u32),
}

const NO_FOLLOW_AT: u32 = libc::AT_SYMLINK_NOFOLLOW as u32;
const EMPTY_PATH: u32 = libc::AT_EMPTY_PATH as u32;
const NO_FOLLOW_OPEN: u32 = libc::O_NOFOLLOW as u32;
const WHY: &str = "watched";

fn rule(call: libc::c_long, name: &'static str, when: When, watched: Watched) -> Rule {
    Rule {
        call,
        name,
        when,
        verdict: Verdict::Watch(watched),
        why: WHY,
    }
}

fn one(deed: Deed, first: Named) -> Watched {
    Watched {
        deed,
        first,
        second: Named::Nothing,
    }
}

fn two(deed: Deed, first: Named, second: Named) -> Watched {
    Watched {
        deed,
        first,
        second,
    }
}

/// A path from the working directory.
fn at(path: u8, last: Last) -> Named {
    Named::Path {
        from: None,
        path,
        last,
    }
}

/// A path from a directory that is given.
fn from(directory: u8, path: u8, last: Last) -> Named {
    Named::Path {
        from: Some(directory),
        path,
        last,
    }
}

macro_rules! watch {
    ($call:ident, $watched:expr) => {
        watch!($call, When::Always, $watched)
    };
    ($call:ident, $when:expr, $watched:expr) => {
        // "SYS_open" without its prefix.
        rule(
            libc::$call,
            stringify!($call).split_at(4).1,
            $when,
            $watched,
        )
    };
}

/// Every rule. They go behind those that refuse: what is refused is not done.
pub(crate) fn rules() -> Vec<Rule> {
    use Deed::{Execute, Look, Make, Open, Spawn, Write};
    use Last::{Follow, FollowIf, Keep, KeepIf};
    use When::{Always, NoBit};
    let mut rules = vec![
        watch!(
            SYS_openat,
            one(Open(2), from(0, 1, KeepIf(2, NO_FOLLOW_OPEN)))
        ),
        watch!(SYS_execve, one(Execute, at(0, Follow))),
        watch!(
            SYS_execveat,
            NoBit(4, EMPTY_PATH),
            one(Execute, from(0, 1, KeepIf(4, NO_FOLLOW_AT)))
        ),
        watch!(
            SYS_execveat,
            When::AnyBit(4, EMPTY_PATH),
            one(Execute, Named::Descriptor(0))
        ),
        watch!(
            SYS_clone,
            NoBit(0, libc::CLONE_THREAD as u32),
            one(Spawn, Named::Nothing)
        ),
        // What writes without opening.
        watch!(SYS_mkdirat, one(Make, from(0, 1, Keep))),
        watch!(SYS_mknodat, one(Make, from(0, 1, Keep))),
        watch!(SYS_unlinkat, one(Write, from(0, 1, Keep))),
        watch!(SYS_renameat, two(Write, from(0, 1, Keep), from(2, 3, Keep))),
        watch!(
            SYS_renameat2,
            two(Write, from(0, 1, Keep), from(2, 3, Keep))
        ),
        watch!(
            SYS_linkat,
            two(
                Write,
                from(0, 1, FollowIf(4, libc::AT_SYMLINK_FOLLOW as u32)),
                from(2, 3, Keep)
            )
        ),
        watch!(SYS_symlinkat, one(Make, from(1, 2, Keep))),
        watch!(SYS_truncate, one(Write, at(0, Follow))),
        watch!(SYS_fchmodat, one(Write, from(0, 1, Follow))),
        watch!(
            SYS_fchownat,
            one(Write, from(0, 1, KeepIf(4, NO_FOLLOW_AT)))
        ),
        watch!(
            SYS_utimensat,
            one(Write, from(0, 1, KeepIf(3, NO_FOLLOW_AT)))
        ),
        watch!(SYS_setxattr, one(Write, at(0, Follow))),
        watch!(SYS_lsetxattr, one(Write, at(0, Keep))),
        watch!(SYS_removexattr, one(Write, at(0, Follow))),
        watch!(SYS_lremovexattr, one(Write, at(0, Keep))),
        // A descriptor opened for reading is enough for these.
        watch!(SYS_fchmod, one(Write, Named::Descriptor(0))),
        watch!(SYS_fchown, one(Write, Named::Descriptor(0))),
        watch!(SYS_fsetxattr, one(Write, Named::Descriptor(0))),
        watch!(SYS_fremovexattr, one(Write, Named::Descriptor(0))),
        // A Unix socket with a name in the file system is a file.
        watch!(SYS_bind, one(Write, Named::Address(1, 2))),
        // Looking at something takes that it can be seen.
        watch!(SYS_chdir, one(Look, at(0, Follow))),
        watch!(
            SYS_newfstatat,
            NoBit(3, EMPTY_PATH),
            one(Look, from(0, 1, KeepIf(3, NO_FOLLOW_AT)))
        ),
        watch!(
            SYS_statx,
            NoBit(2, EMPTY_PATH),
            one(Look, from(0, 1, KeepIf(2, NO_FOLLOW_AT)))
        ),
        watch!(SYS_faccessat, one(Look, from(0, 1, Follow))),
        Rule {
            call: 439,
            name: "faccessat2",
            when: Always,
            verdict: Verdict::Watch(one(Look, from(0, 1, KeepIf(3, NO_FOLLOW_AT)))),
            why: WHY,
        },
        watch!(SYS_readlinkat, one(Look, from(0, 1, Keep))),
        watch!(SYS_statfs, one(Look, at(0, Follow))),
        watch!(SYS_getxattr, one(Look, at(0, Follow))),
        watch!(SYS_lgetxattr, one(Look, at(0, Keep))),
        watch!(SYS_listxattr, one(Look, at(0, Follow))),
        watch!(SYS_llistxattr, one(Look, at(0, Keep))),
        watch!(SYS_inotify_add_watch, one(Look, at(1, Follow))),
    ];
    rules.extend(architecture_rules());
    rules
}

#[cfg(target_arch = "x86_64")]
fn architecture_rules() -> Vec<Rule> {
    use Deed::{Look, Make, Open, Spawn, Write};
    use Last::{Follow, Keep, KeepIf};
    vec![
        watch!(SYS_open, one(Open(1), at(0, KeepIf(1, NO_FOLLOW_OPEN)))),
        watch!(SYS_creat, one(Write, at(0, Follow))),
        watch!(SYS_fork, one(Spawn, Named::Nothing)),
        watch!(SYS_vfork, one(Spawn, Named::Nothing)),
        watch!(SYS_mkdir, one(Make, at(0, Keep))),
        watch!(SYS_rmdir, one(Write, at(0, Keep))),
        watch!(SYS_unlink, one(Write, at(0, Keep))),
        watch!(SYS_mknod, one(Make, at(0, Keep))),
        watch!(SYS_rename, two(Write, at(0, Keep), at(1, Keep))),
        watch!(SYS_link, two(Write, at(0, Keep), at(1, Keep))),
        watch!(SYS_symlink, one(Make, at(1, Keep))),
        watch!(SYS_chmod, one(Write, at(0, Follow))),
        watch!(SYS_chown, one(Write, at(0, Follow))),
        watch!(SYS_lchown, one(Write, at(0, Keep))),
        watch!(SYS_utime, one(Write, at(0, Follow))),
        watch!(SYS_utimes, one(Write, at(0, Follow))),
        watch!(SYS_futimesat, one(Write, from(0, 1, Follow))),
        watch!(SYS_stat, one(Look, at(0, Follow))),
        watch!(SYS_lstat, one(Look, at(0, Keep))),
        watch!(SYS_access, one(Look, at(0, Follow))),
        watch!(SYS_readlink, one(Look, at(0, Keep))),
    ]
}

#[cfg(not(target_arch = "x86_64"))]
fn architecture_rules() -> Vec<Rule> {
    Vec::new()
}
