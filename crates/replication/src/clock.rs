//! Notices a wall clock that was moved. Nothing is timed by it; but a clock turned back makes records lie.

use crate::Now;
use crate::holes::enforced;

/// A wall clock may fall behind the boot clock by so much before it counts as turned back.
const BACKWARD_MS: i64 = 2_000;
/// And be ahead of it by so much.
const FORWARD_MS: i64 = 60_000;
/// A disciplined clock drifts by less than one part in this many. Many small steps are a jump too.
const DRIFT: i64 = 1_000;

/// What the wall clock ought to show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// Wall minus boot, in milliseconds.
    offset_ms: i64,
    followed_ms: i64,
}

impl Clock {
    pub(crate) fn new(now: Now) -> Self {
        let boot_ms = boot_ms(now);
        Self {
            offset_ms: wall_ms(now).saturating_sub(boot_ms),
            followed_ms: boot_ms,
        }
    }

    /// By how much the clock was moved since it was last seen, if it was.
    pub(crate) fn observe(&mut self, now: Now) -> Option<i64> {
        let boot_ms = boot_ms(now);
        let offset_ms = wall_ms(now).saturating_sub(boot_ms);
        let moved = offset_ms.saturating_sub(self.offset_ms);
        if !(-BACKWARD_MS..=FORWARD_MS).contains(&moved) {
            *self = Self::new(now);
            return Some(moved);
        }
        let drift = boot_ms.saturating_sub(self.followed_ms) / DRIFT;
        if enforced!(ClockDrift, true) {
            self.offset_ms += moved.clamp(-drift.max(0), drift.max(0));
            self.followed_ms += drift * DRIFT;
        } else {
            self.offset_ms = offset_ms;
        }
        None
    }

    /// By how much a clock is behind the latest time that was ever recorded, if that is too much.
    pub(crate) fn behind(high_ms: u64, now: Now) -> Option<i64> {
        let high = i64::try_from(high_ms).unwrap_or(i64::MAX);
        let behind = wall_ms(now).saturating_sub(high);
        enforced!(ClockAcrossRestart, behind < -BACKWARD_MS).then_some(behind)
    }
}

fn boot_ms(now: Now) -> i64 {
    (now.boot_ns / 1_000_000) as i64
}

fn wall_ms(now: Now) -> i64 {
    i64::try_from(now.wall_ms).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(boot_ms: u64, wall_ms: u64) -> Now {
        Now {
            boot_ns: boot_ms * 1_000_000,
            wall_ms,
        }
    }

    #[test]
    fn drift_is_followed_and_a_jump_is_not() {
        let mut clock = Clock::new(at(0, 1_000_000));
        // A day at 500 parts in a million, seen every ten seconds.
        for step in 1..8_640u64 {
            let boot = step * 10_000;
            assert_eq!(
                clock.observe(at(boot, 1_000_000 + boot - boot / 2_000)),
                None
            );
        }
        let mut clock = Clock::new(at(0, 1_000_000));
        assert_eq!(clock.observe(at(10, 1_000_010 - 2_000)), None);
        assert_eq!(clock.observe(at(20, 1_000_020 - 2_001)), Some(-2_001));
        assert_eq!(clock.observe(at(30, 1_000_030 - 2_001)), None, "told once");
        assert_eq!(clock.observe(at(40, 1_000_040 + 58_000)), Some(60_001));
    }

    #[test]
    fn clocks_at_their_ends_are_no_danger() {
        let mut clock = Clock::new(at(0, u64::MAX));
        let _ = clock.observe(Now {
            boot_ns: u64::MAX,
            wall_ms: 0,
        });
        let _ = clock.observe(Now {
            boot_ns: 0,
            wall_ms: u64::MAX,
        });
        assert!(Clock::behind(u64::MAX, at(0, 0)).is_some());
    }
}
