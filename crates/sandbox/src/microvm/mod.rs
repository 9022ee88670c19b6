//! The microvm tier: the program runs on a kernel of its own in a virtual machine, which stands in one of our boxes.
//!
//! In the program's place is [`bridge`], this very executable: it starts QEMU beside it, in the same box, and carries files,
//! input, output, signals and the end across one channel. The machine has no network, no disk and no other device. So a
//! program that breaks its guest's kernel has that channel before it, whose other end believes nothing; one that breaks out
//! of the emulator is where every program of the native tier is: in the box, under the same mounts, filter and limits.
//!
//! The view of files is the box's. It is told to nobody twice: the bridge serves what it sees itself.

mod bridge;
mod flows;
mod guest;
mod parts;
mod wire;

pub use parts::{Emulation, Parts};

use crate::host::Missing;
use crate::native::{LaunchError, resource_limits, rules};
use crate::order::Order;
use crate::plan::{Limits, Network, Plan, Spawn, Watch};
use crate::tier::{Furniture, Landlocked, Wall};
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// What it needs lies below the box's /dev, which the guest never sees: it has its own.
const PLACE: &str = "/dev/belljar";
/// The words that make this program the bridge, or a guest's pid 1.
const BRIDGE_WORD: &str = "microvm-bridge";
pub(crate) const GUEST_WORD: &str = "microvm-guest";

/// By which the bridge says that its guest had too little memory, and that its guest failed. No program's end looks like
/// either: see [`bridge`].
pub(crate) const OUT_OF_MEMORY_SIGNAL: i32 = 64;
pub(crate) const FAILED_SIGNAL: i32 = 63;

/// A guest's memory where the plan has no limit.
const USUAL_MEMORY: u64 = 1 << 30;
/// What a guest's kernel needs for itself.
const KERNEL_MEMORY: u64 = 128 << 20;
/// What the emulator and the bridge need for themselves: translated code, tables, buffers.
const OWN_MEMORY: u64 = 384 << 20;
/// Threads of both.
const OWN_THREADS: u32 = 64;

fn place(name: &str) -> PathBuf {
    Path::new(PLACE).join(name)
}

/// Becomes the bridge or a guest's pid 1 where the command line says so; the number is the exit code. Any other command
/// line is none of this.
pub fn take_over(words: &[OsString]) -> Option<u8> {
    let word = words.get(1)?;
    if word == OsStr::new(GUEST_WORD) && rustix::process::getpid().is_init() {
        guest::live();
    }
    if word != OsStr::new(BRIDGE_WORD) {
        return None;
    }
    let megabytes = words.get(2)?.to_str()?.parse().ok()?;
    Some(bridge::run(megabytes))
}

/// How an end that is not the program's own is to be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// The guest had too little memory.
    OutOfMemory,
    /// The guest, its emulator or the channel failed.
    Failed,
}

/// What a bridge's wait status means beyond its program's end.
pub fn meaning(status: i32) -> Option<Meaning> {
    match libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)) {
        Some(OUT_OF_MEMORY_SIGNAL) => Some(Meaning::OutOfMemory),
        Some(FAILED_SIGNAL) => Some(Meaning::Failed),
        _ => None,
    }
}

/// What the box's control group is to hold: the guest's memory, and what carries it.
pub(crate) fn group_limits(limits: &Limits, parts: &Parts) -> Limits {
    let memory = limits.memory_bytes;
    Limits {
        memory_bytes: memory.map(|bytes| {
            // The first file system is there twice while the guest unpacks it.
            let own = OWN_MEMORY + KERNEL_MEMORY + 2 * parts.image_bytes();
            bytes.saturating_add(own)
        }),
        processes: limits.processes.map(|_| OWN_THREADS),
        ..limits.clone()
    }
}

fn guest_megabytes(plan: &Plan, parts: &Parts) -> u64 {
    let own = plan.limits.memory_bytes.unwrap_or(USUAL_MEMORY);
    own.saturating_add(KERNEL_MEMORY + 2 * parts.image_bytes()) >> 20
}

/// Whether a guest can do all that the plan says.
pub(crate) fn can_carry(plan: &Plan, parts: &Parts) -> Result<(), Missing> {
    let refuse = |what: &str, hint: &str| {
        Err(Missing {
            what: format!("sandbox_tier microvm {what}"),
            hint: hint.into(),
        })
    };
    if plan.network != Network::Closed && parts.network_modules().is_none() {
        return refuse(
            "needs a guest's kernel that can lead a network's packets (nft_tproxy, nfnetlink_log): this one can't",
            "install another (Debian: linux-image-cloud-amd64), or set sandbox_tier: gvisor or seccomp",
        );
    }
    if plan.watch == Watch::Files {
        return refuse(
            "can't note which files a program names",
            "learn with sandbox_tier: seccomp; the policy holds in both",
        );
    }
    Ok(())
}

pub(crate) fn wall<'p>(
    plan: &'p Plan,
    parts: &Parts,
    sampled: bool,
) -> Result<Wall<'p>, LaunchError> {
    let program = place("belljar");
    let megabytes = guest_megabytes(plan, parts).to_string();
    let order = Order::of(plan).encode();
    let mut furniture = parts.furniture(&plan.network);
    furniture.push(Furniture::Text {
        at: place("order"),
        bytes: order,
    });
    Ok(Wall {
        argv: Cow::Owned(vec!["belljar".into(), BRIDGE_WORD.into(), megabytes.into()]),
        // Nothing of the program's: that is in the order.
        env: Cow::Owned(Vec::new()),
        workdir: Path::new("/"),
        rules: rules(Spawn::Allow, false),
        limits: own_limits(plan, sampled),
        usual_files: None,
        landlock: Landlocked::Yes,
        furniture,
        told: None,
        program: Cow::Owned(program),
    })
}

/// What bridge and emulator are held to. The program's own open files and processes are counted in the guest.
fn own_limits(plan: &Plan, sampled: bool) -> Vec<(libc::__rlimit_resource_t, u64)> {
    let all = resource_limits(plan, sampled).into_iter();
    // The size of files is the bridge's to limit, once it has made the guest's first file system.
    const NOT_OURS: &[libc::__rlimit_resource_t] = &[
        libc::RLIMIT_NOFILE,
        libc::RLIMIT_NPROC,
        libc::RLIMIT_DATA,
        libc::RLIMIT_FSIZE,
    ];
    all.filter(|(resource, _)| !NOT_OURS.contains(resource))
        .collect()
}
