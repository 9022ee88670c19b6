//! Which tier a test's boxes are of, and what is known to be different there.

use std::cell::Cell;

/// As policies name them.
pub(crate) const GVISOR: &str = "gvisor";
pub(crate) const MICROVM: &str = "microvm";
pub(crate) const CONTAINER: &str = "container";

thread_local! {
    static TIER: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// The tier of boxes that this thread's test makes, where it is not the native one.
pub(crate) fn tier() -> Option<&'static str> {
    TIER.get()
}

/// Runs a test with its boxes on gVisor.
pub(crate) fn on_gvisor(test: impl FnOnce()) {
    on(GVISOR, test);
}

/// Runs a test with a guest in each of its boxes.
pub(crate) fn on_microvm(test: impl FnOnce()) {
    on(MICROVM, test);
}

/// Runs a test with its boxes in an image.
pub(crate) fn in_container(test: impl FnOnce()) {
    on(CONTAINER, test);
}

fn on(tier: &'static str, test: impl FnOnce()) {
    TIER.set(Some(tier));
    test();
    TIER.set(None);
}

/// The lines of a policy that say which tier.
pub(crate) fn tier_lines(tier: &str) -> String {
    match tier {
        MICROVM => format!("sandbox_tier: {MICROVM}\nallow_emulation: true\n"),
        CONTAINER => format!("sandbox_tier: {CONTAINER}\nimage: {}\n", super::IMAGE),
        other => format!("sandbox_tier: {other}\n"),
    }
}

/// Where a box of another tier is known to be different. A test that meets one asserts what holds there instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Difference {
    OpenInit,
    UncountedProcesses,
    PermissionBits,
    OwnDevices,
    OwnProcesses,
    SampledPeak,
    ShortStatus,
    MachinesTime,
    MachinesMemory,
    KernelThreads,
    OwnFiles,
}

impl Difference {
    pub(crate) const ALL: &[Difference] = &[
        Difference::OpenInit,
        Difference::UncountedProcesses,
        Difference::PermissionBits,
        Difference::OwnDevices,
        Difference::OwnProcesses,
        Difference::SampledPeak,
        Difference::ShortStatus,
        Difference::MachinesTime,
        Difference::MachinesMemory,
        Difference::KernelThreads,
        Difference::OwnFiles,
    ];

    /// In which tiers, and why, as docs/tiers.md tells users.
    pub(crate) fn reasons(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Difference::OpenInit => &[
                (
                    GVISOR,
                    "`/proc/1/environ` and `/proc/1/maps` can be read: that init has nothing of the keeper's in either",
                ),
                (
                    GVISOR,
                    "`/proc/1/oom_score_adj` can be written: nothing there reads it",
                ),
            ],
            Difference::UncountedProcesses => &[(
                GVISOR,
                "Processes beyond `max_processes` are refused without being counted among the violations",
            )],
            Difference::PermissionBits => &[
                (
                    GVISOR,
                    "`access(2)` answers by permission bits alone; writing to what is read-only fails when it is tried",
                ),
                (
                    MICROVM,
                    "`access(2)` answers by the permission bits that the guest sees; writing to what is read-only fails when \
                     it is tried",
                ),
            ],
            Difference::OwnDevices => &[
                (
                    GVISOR,
                    "`/dev` and `/sys` are gVisor's own, `/dev/fuse` and `/dev/net/tun` included",
                ),
                (
                    GVISOR,
                    "So is `/proc`: the `sysrq-trigger` that later releases have there can be opened, and does nothing",
                ),
            ],
            Difference::OwnProcesses => &[
                (
                    GVISOR,
                    "The program's processes are not processes of the host: `ps` outside shows gVisor's",
                ),
                (
                    MICROVM,
                    "The program's processes are not processes of the host: `ps` outside shows QEMU's",
                ),
            ],
            Difference::SampledPeak => &[(
                GVISOR,
                "Without a control group the peak of memory is the largest of the looks at it",
            )],
            Difference::ShortStatus => &[(GVISOR, "`/proc/self/status` has fewer lines")],
            Difference::MachinesTime => &[(
                MICROVM,
                "CPU time and the wall clock are those of the whole machine: the guest's start counts, and emulation \
                 multiplies what the program uses",
            )],
            Difference::MachinesMemory => &[(
                MICROVM,
                "The host's control group allows the emulator and the guest's kernel half a gigabyte more, and \
                 `peak_memory_mb` is theirs together",
            )],
            Difference::KernelThreads => {
                &[(MICROVM, "Its kernel's threads are to be seen in `/proc`")]
            }
            Difference::OwnFiles => &[(
                CONTAINER,
                "Of the host's files there are the working directory and what the policy's paths name; the home directory is \
                 empty and the box's own",
            )],
        }
    }
}

/// Whether this test's boxes are different in this.
pub(crate) fn differs(in_what: Difference) -> bool {
    let mut tiers = in_what.reasons().iter().map(|(tier, _)| *tier);
    Difference::ALL.contains(&in_what) && tiers.any(|there| tier() == Some(there))
}
