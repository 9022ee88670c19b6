//! The time by which samples and events are kept: it never goes back by itself, whatever is done to the wall clock.

use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A clock that was set back by more than this was wrong before, and is followed; by less, time goes on from where it was.
pub(crate) const FOLLOWED_BACK: Duration = Duration::from_secs(24 * 3600);

/// Milliseconds since 1970 by the wall clock, and by a clock that nobody sets.
pub(crate) type Source = Box<dyn Fn() -> (u64, u64) + Send + Sync>;

/// A wall clock that only goes forward, but for corrections by more than a day.
pub(crate) struct Clock {
    source: Source,
    last: Mutex<Last>,
}

#[derive(Clone, Copy)]
struct Last {
    told: u64,
    steady: u64,
}

impl Clock {
    /// Goes by these clocks, from no earlier than `from_ms`.
    pub(crate) fn new(source: Source, from_ms: u64) -> Self {
        let (_, steady) = source();
        Self {
            source,
            last: Mutex::new(Last {
                told: from_ms,
                steady,
            }),
        }
    }

    /// What time it is.
    pub(crate) fn now(&self) -> u64 {
        let (wall, steady) = (self.source)();
        let mut last = crate::store::locked(&self.last);
        let told = if wall >= last.told || last.told - wall > millis(FOLLOWED_BACK) {
            wall
        } else {
            last.told + steady.saturating_sub(last.steady)
        };
        *last = Last { told, steady };
        told
    }
}

/// The system's clocks.
pub(crate) fn system_clock() -> Source {
    let began = Instant::now();
    Box::new(move || (wall_ms(), millis(began.elapsed())))
}

/// The wall clock as it is.
pub(crate) fn wall_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, millis)
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A moment as people write it, in UTC.
pub(crate) fn utc(at_ms: u64) -> String {
    let (seconds, ms) = (at_ms / 1000, at_ms % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the odd day of a leap year comes last.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = era * 400 + year + later;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn moments_are_written_as_people_do() {
        assert_eq!(utc(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc(951_827_696_789), "2000-02-29T12:34:56.789Z");
    }

    #[test]
    fn time_goes_on_when_the_wall_clock_goes_back() {
        let now = Arc::new(Mutex::new((1_000_000_000_u64, 0_u64)));
        let shared = Arc::clone(&now);
        let clock = Clock::new(Box::new(move || *shared.lock().unwrap()), 0);
        let at = |wall, steady| {
            *now.lock().unwrap() = (wall, steady);
            clock.now()
        };
        assert_eq!(at(1_000_000_000, 0), 1_000_000_000);
        // An hour back: a second is a second all the same.
        assert_eq!(at(996_400_000, 1000), 1_000_001_000);
        assert_eq!(at(996_401_000, 2000), 1_000_002_000);
        // Caught up, it goes by the wall again, forward jumps and all.
        assert_eq!(at(2_000_000_000, 3000), 2_000_000_000);
        // By more than a day: it was wrong before.
        assert_eq!(at(1_000_000_000, 4000), 1_000_000_000);
    }
}
