//! The gVisor tier: the program runs on a kernel of its own in user space, `runsc`, which stands in one of our boxes.
//!
//! `runsc run` takes the place of the program there: it sees the plan's view and nothing else, is in the box's process,
//! network and user namespaces and control group, and dies with the box's pid 1. It has capabilities in the box's own user
//! namespace, because it makes namespaces and mounts of its own; it has none outside. A program that breaks out of gVisor's
//! kernel is in a chroot without files, under gVisor's own system call filter and under ours, in a box that leads nowhere.
//!
//! On gVisor's kernel the program has an init before it, as in the native tier: [`inner`], this very executable.
//!
//! The network: where the plan's is closed, gVisor's is too. Otherwise gVisor's sockets are those of the box's own network
//! namespace, where all leads to the keeper, as in the native tier.

mod bundle;
mod followed;
mod inner;
mod noted;
mod runtime;

pub use inner::take_over;
pub use runtime::{Runtime, Version};

use crate::host::Missing;
use crate::native::{LaunchError, Rule, Verdict, When};
use crate::order::Order;
use crate::plan::{Entry, Limits, Network, Plan, Watch};
use crate::show::Show;
use crate::tier::{
    Console, Descriptors, Furniture, Inside, Landlocked, Told, Wall, rules_of_a_wall, rules_traced,
    rules_without,
};
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// What it needs lies below the box's /dev, which the program never sees: it has gVisor's own.
const PLACE: &str = "/dev/belljar";
/// What pid 1 in there needs, below that.
const INNER: &str = "/dev/belljar/inner";
/// The word that makes this program pid 1 in there.
const WORD: &str = "gvisor-init";

/// The box's user is root to gVisor, in a user namespace of one user: without that, `runsc` asks a set-id helper for a map,
/// and its file server insists on being user 0. The host sees the plan's user.
pub(crate) const INSIDE: Inside = Inside { uid: 0, gid: 0 };

/// What `runsc` needs for its namespaces, mounts, file server and stub processes: CAP_CHOWN, DAC_OVERRIDE,
/// DAC_READ_SEARCH, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, SYS_CHROOT, SYS_PTRACE, SYS_ADMIN, SETFCAP.
pub(crate) const RIGHTS: u32 = 0x1ff | 1 << 18 | 1 << 19 | 1 << 21 | 1 << 31;

/// Calls of the native filter's list that `runsc` makes itself.
const NEEDED: &[&str] = &[
    "clone",
    "unshare",
    "setns",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "modify_ldt",
    "personality",
];

/// Host threads that gVisor may have for each of the program's, and for itself. Its kernel holds the plan's number; this
/// is the bound on a kernel that was broken out of.
const THREADS_EACH: u32 = 8;
const OWN_THREADS: u32 = 256;

pub(crate) fn group_limits(limits: &Limits) -> Limits {
    let processes = limits.processes;
    Limits {
        processes: processes.map(|n| n.saturating_mul(THREADS_EACH).saturating_add(OWN_THREADS)),
        ..limits.clone()
    }
}

/// Whether gVisor can do all that the plan says.
pub(crate) fn can_carry(plan: &Plan, runtime: &Runtime) -> Result<(), Missing> {
    runtime.version()?;
    runtime.demand_out_of_reach(plan)?;
    if plan.watch == Watch::Files {
        return Err(Missing {
            what: "sandbox_tier gvisor can't note which files a program names".into(),
            hint: "learn with sandbox_tier: seccomp; the policy holds in both".into(),
        });
    }
    Ok(())
}

pub(crate) fn wall<'p>(
    plan: &'p Plan,
    runtime: &Runtime,
    console: Console,
) -> Result<Wall<'p>, LaunchError> {
    let version = runtime.version()?;
    let place = Path::new(PLACE);
    let inner = Path::new(INNER);
    let own = std::env::current_exe().map_err(|_| Missing {
        what: "sandbox_tier gvisor needs to know where belljar is".into(),
        hint: "mount /proc".into(),
    })?;
    let program = place.join("runsc");
    Ok(Wall {
        argv: Cow::Owned(arguments(plan, version)),
        // Nothing of the program's: it is the program's kernel that this is for.
        env: Cow::Owned(vec![("PATH".into(), "/nowhere".into())]),
        workdir: Path::new("/"),
        rules: rules_of_runsc(),
        // What the program may use is in the bundle.
        limits: vec![(libc::RLIMIT_CORE, 0)],
        usual_files: None,
        descriptors: Descriptors::Many,
        landlock: Landlocked::No,
        furniture: vec![
            Furniture::Program {
                at: program.clone(),
                source: runtime.path().to_owned(),
            },
            Furniture::Text {
                at: place.join("bundle/config.json"),
                bytes: bundle::config(plan, console).to_string().into_bytes(),
            },
            Furniture::Private {
                at: place.join("state"),
            },
            Furniture::Private { at: inner.into() },
            Furniture::Program {
                at: inner.join("init"),
                source: own,
            },
            Furniture::Text {
                at: inner.join("order"),
                bytes: Order::of(plan).encode(),
            },
            Furniture::Blank {
                at: inner.join("told"),
                size: crate::told::SIZE,
            },
        ],
        told: Some(Told {
            file: inner.join("told"),
            rules: rules_traced(plan.spawn),
        }),
        program: Cow::Owned(program),
    })
}

/// The native filter, as far as `runsc` can do without the calls. It makes none of the others itself.
fn rules_of_runsc() -> Vec<Rule> {
    let mut rules = rules_of_a_wall(
        rules_without(NEEDED),
        "asked of the host's kernel by gVisor's, which has no need of it",
    );
    rules.push(FEWER_BARRIERS);
    rules
}

/// Each `runsc` that starts asks which memory barriers there are and registers for one that only its KVM platform has a use
/// for. The host's kernel has it wait until every processor has passed by: 5 to 15 ms, for each of its four starts. So it
/// hears of the one kind that it uses.
const FEWER_BARRIERS: Rule = Rule {
    call: libc::SYS_membarrier,
    name: "membarrier",
    when: When::OneOf(0, &[QUERY]),
    verdict: Verdict::Answer(GLOBAL),
    why: "gVisor would wait long for a kind that it has no use for",
};
const QUERY: u32 = 0;
const GLOBAL: i64 = 1;

fn arguments(plan: &Plan, version: Version) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = [
        "runsc",
        "--root=/dev/belljar/state",
        // We are nobody in particular outside our namespace, and have made the control group.
        "--rootless",
        "--ignore-cgroups",
        // The host may change what is shown; and what the program writes is for the host to see.
        "--file-access=shared",
        "--overlay2=none",
        match is_closed(plan) {
            true => "--network=none",
            false => "--network=host",
        },
        match plan
            .shows
            .iter()
            .any(|show| matches!(show, Show::Door { .. }))
        {
            // The one door: init connects in gVisor's place, and to no other socket of the host's.
            true => "--host-uds=open",
            false => "--host-uds=none",
        },
    ]
    .map(OsString::from)
    .into();
    arguments.extend(version.flags().iter().map(OsString::from));
    arguments.extend(["run", "--bundle=/dev/belljar/bundle", &plan.id].map(OsString::from));
    arguments
}

/// Whether nobody outside needs to reach into its network or be reached from it.
fn is_closed(plan: &Plan) -> bool {
    plan.network == Network::Closed && plan.entry == Entry::Closed && plan.answered_port.is_none()
}

/// A path of ours.
fn text(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_was_broken_out_of_has_a_bound_on_its_threads_and_all_other_limits() {
        let limits = Limits {
            processes: Some(64),
            memory_bytes: Some(1 << 30),
            ..Limits::default()
        };
        let group = group_limits(&limits);
        assert_eq!(group.processes, Some(64 * THREADS_EACH + OWN_THREADS));
        assert_eq!(group.memory_bytes, limits.memory_bytes);
        assert_eq!(group_limits(&Limits::default()).processes, None);
    }
}
