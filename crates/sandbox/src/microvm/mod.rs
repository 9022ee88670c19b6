//! The microvm tier: the program runs on a kernel of its own in a virtual machine, which stands in one of our boxes.
//!
//! In the program's place is [`bridge`], this very executable: it starts QEMU or Firecracker beside it, in the same box, and
//! carries files, input, output, signals and the end across one channel. The machine has no network, no disk and no other device. So a
//! program that breaks its guest's kernel has that channel before it, whose other end believes nothing; one that breaks out
//! of the emulator is where every program of the native tier is: in the box, under the same mounts, filter and limits.
//!
//! The view of files is the box's. It is told to nobody twice: the bridge serves what it sees itself.

mod bridge;
mod carrier;
mod flows;
mod guest;
mod kept;
mod kvm;
mod parts;
mod wire;

pub use bridge::clock_words;
pub use carrier::Carrier;
pub use kept::KeepError;
pub use kvm::{Accelerator, try_kvm};
pub use parts::{Emulation, Parts};

use crate::host::Missing;
use crate::native::{LaunchError, resource_limits, rules};
use crate::order::Order;
use crate::plan::{Limits, Network, Plan, Spawn, Watch};
use crate::tier::{Descriptors, Furniture, Landlocked, Told, Wall, rules_inside, rules_of_a_wall};
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What it needs lies below the box's /dev, which the guest never sees: it has its own.
const PLACE: &str = "/dev/belljar";
/// Where the bridge tells of the program (see [`crate::told`]), in a directory of its own: all around is read-only.
const TELLING: &str = "telling";
const TOLD: &str = "telling/told";
/// Where Firecracker and the bridge find each other's sockets.
const SOCKETS: &str = "sockets";
/// The words that make this program the bridge, or a guest's pid 1.
const BRIDGE_WORD: &str = "microvm-bridge";
pub(crate) const GUEST_WORD: &str = "microvm-guest";
/// A second word to a guest's pid 1: the channel is a call to the host, not a port.
const VSOCK_WORD: &str = "vsock";
/// What it calls.
const CHANNEL_PORT: u32 = 1;

/// By which the bridge says that its guest had too little memory, and that its guest failed. No program's end looks like
/// either: see [`bridge`].
pub(crate) const OUT_OF_MEMORY_SIGNAL: i32 = 64;
pub(crate) const FAILED_SIGNAL: i32 = 63;

/// How long a guest may take to come up on the slowest host.
pub(crate) const SLOWEST_START: Duration = Duration::from_secs(300);

/// A guest's memory where the plan has no limit.
const USUAL_MEMORY: u64 = 1 << 30;
/// The least that a guest has for its program.
const LEAST_MEMORY: u64 = 512 << 20;
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
        guest::live(match words.get(2) {
            Some(word) if word == OsStr::new(VSOCK_WORD) => guest::Line::Vsock,
            _ => guest::Line::Port,
        });
    }
    if word != OsStr::new(BRIDGE_WORD) {
        return None;
    }
    let [megabytes, carrier, begin] = words.get(2..)? else {
        return None;
    };
    let machine = bridge::Hardware {
        megabytes: megabytes.to_str()?.parse().ok()?,
        carrier: Carrier::from_word(carrier.to_str()?)?,
    };
    match begin.to_str()? {
        BOOT_WORD => Some(bridge::run(machine, bridge::Begin::Boot)),
        RESUME_WORD => Some(bridge::run(machine, bridge::Begin::Resume)),
        KEEP_WORD => Some(bridge::keep(machine)),
        _ => None,
    }
}

const BOOT_WORD: &str = "boot";
const RESUME_WORD: &str = "resume";
const KEEP_WORD: &str = "keep";

/// How a box's guest comes to be.
#[derive(Debug, Clone)]
enum Beginning {
    /// Its kernel starts.
    Boot,
    /// It goes on from where one was kept.
    Resume(Arc<kept::Kept>),
    /// Its kernel starts, and what has started is written to the box's output instead of running a program.
    Keep { megabytes: u64, links: Links },
}

/// Whether a guest's kernel is given what it takes to lead a network's packets. One that does not need it has less to attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    Without,
    With,
}

impl Links {
    fn of(network: &Network) -> Self {
        match network {
            Network::Closed => Self::Without,
            Network::Guarded { .. } => Self::With,
        }
    }
}

impl Beginning {
    fn word(&self) -> &'static str {
        match self {
            Self::Boot => BOOT_WORD,
            Self::Resume(_) => RESUME_WORD,
            Self::Keep { .. } => KEEP_WORD,
        }
    }
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

/// How large a guest for these limits is. Sizes are few, so that few guests have to be kept; what a program may have of them
/// is counted inside.
fn guest_megabytes(limits: &Limits, parts: &Parts) -> u64 {
    let own = limits.memory_bytes.unwrap_or(USUAL_MEMORY);
    let own = own
        .max(LEAST_MEMORY)
        .checked_next_power_of_two()
        .unwrap_or(own);
    own.saturating_add(KERNEL_MEMORY + 2 * parts.image_bytes()) >> 20
}

/// Whether a guest can do all that the plan says.
pub(crate) fn can_carry(plan: &Plan, parts: &Parts) -> Result<(), Missing> {
    let refuse = |what: &str, hint: &str| {
        Err(Missing {
            what: format!("sandbox_tier {} {what}", parts.carrier().tier()),
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
    let (megabytes, links) = match parts.beginning() {
        Beginning::Keep { megabytes, links } => (*megabytes, *links),
        Beginning::Boot | Beginning::Resume(_) => (
            guest_megabytes(&plan.limits, parts),
            Links::of(&plan.network),
        ),
    };
    let order = Order::of(plan).encode();
    let mut furniture = parts.furniture(links);
    furniture.push(Furniture::Text {
        at: place("order"),
        bytes: order,
    });
    let told = match parts.beginning() {
        // It runs no program.
        Beginning::Keep { .. } => None,
        Beginning::Boot | Beginning::Resume(_) => {
            furniture.push(Furniture::Private { at: place(TELLING) });
            furniture.push(Furniture::Blank {
                at: place(TOLD),
                size: crate::told::SIZE,
            });
            Some(Told {
                file: place(TOLD),
                rules: rules_inside(plan.spawn),
            })
        }
    };
    Ok(Wall {
        argv: Cow::Owned(vec![
            "belljar".into(),
            BRIDGE_WORD.into(),
            megabytes.to_string().into(),
            parts.carrier().word().into(),
            parts.beginning().word().into(),
        ]),
        // Nothing of the program's: that is in the order.
        env: Cow::Owned(Vec::new()),
        workdir: Path::new("/"),
        rules: rules_of_a_wall(
            rules(Spawn::Allow, false),
            "asked of the host's kernel by the guest's machine, which has no need of it",
        ),
        limits: own_limits(plan, sampled),
        usual_files: None,
        descriptors: Descriptors::Usual,
        landlock: Landlocked::Yes,
        furniture,
        told,
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
