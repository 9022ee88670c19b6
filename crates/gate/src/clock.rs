//! The clocks of this machine, read in one place.

use belljar_replication::Now;
use rustix::time::{ClockId, clock_gettime};

/// What time it is: on the clock that nobody can set, and on the one on the wall.
#[must_use]
pub fn now() -> Now {
    let nanoseconds = |clock| {
        let time = clock_gettime(clock);
        u64::try_from(time.tv_sec)
            .unwrap_or(0)
            .saturating_mul(1_000_000_000)
            .saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
    };
    Now {
        boot_ns: nanoseconds(ClockId::Boottime),
        wall_ms: nanoseconds(ClockId::Realtime) / 1_000_000,
    }
}

/// Which boot of this machine it is. Times since boot can be compared only within one.
#[must_use]
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}
