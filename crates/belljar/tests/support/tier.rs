//! Which tier a test's boxes are of, and what is known to be different there.

use std::cell::Cell;

/// As policies name them.
pub(crate) const GVISOR: &str = "gvisor";
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
        CONTAINER => format!("sandbox_tier: container\nimage: {}\n", super::IMAGE),
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
        Difference::OwnFiles,
    ];

    /// Where it is so.
    fn tier(self) -> &'static str {
        match self {
            Difference::OwnFiles => CONTAINER,
            _ => GVISOR,
        }
    }

    /// Why, as docs/tiers.md tells users.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Difference::OpenInit => {
                "`/proc/1/environ` and `/proc/1/maps` can be read: that init has nothing of the keeper's in either"
            }
            Difference::UncountedProcesses => {
                "Processes beyond `max_processes` are refused without being counted among the violations"
            }
            Difference::PermissionBits => {
                "`access(2)` answers by permission bits alone; writing to what is read-only fails when it is tried"
            }
            Difference::OwnDevices => {
                "`/dev` and `/sys` are gVisor's own, `/dev/fuse` and `/dev/net/tun` included"
            }
            Difference::OwnProcesses => {
                "The program's processes are not processes of the host: `ps` outside shows gVisor's"
            }
            Difference::SampledPeak => {
                "Without a control group the peak of memory is the largest of the looks at it"
            }
            Difference::ShortStatus => "`/proc/self/status` has fewer lines",
            Difference::OwnFiles => {
                "Of the host's files there are the working directory and what the policy's paths name; the home directory is empty and the box's own"
            }
        }
    }
}

/// Whether this test's boxes are different in this.
pub(crate) fn differs(in_what: Difference) -> bool {
    Difference::ALL.contains(&in_what) && tier() == Some(in_what.tier())
}
