//! At most so many in any minute.

use std::collections::VecDeque;
use std::time::Duration;

const WINDOW_MS: u64 = 60_000;

/// Counts what happened in the last minute, exactly: a bucket that refills would let through twice the rate around a full
/// one.
#[derive(Debug)]
pub(crate) struct RateLog {
    most: usize,
    /// When, in milliseconds since the engine started; it grows with use only.
    times: VecDeque<u64>,
}

impl RateLog {
    pub(crate) fn new(per_minute: u32) -> Self {
        Self {
            most: per_minute as usize,
            times: VecDeque::new(),
        }
    }

    /// Counts one more if there is room for it.
    pub(crate) fn take(&mut self, now: Duration) -> bool {
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        while self
            .times
            .front()
            .is_some_and(|at| now.saturating_sub(*at) >= WINDOW_MS)
        {
            self.times.pop_front();
        }
        let room = self.times.len() < self.most;
        if room {
            self.times.push_back(now);
        }
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_minute_holds_more_than_the_rate() {
        let mut log = RateLog::new(3);
        let mut take = |second: u64| log.take(Duration::from_secs(second));
        assert_eq!(
            [take(0), take(30), take(30), take(59)],
            [true, true, true, false]
        );
        assert_eq!([take(60), take(61), take(89)], [true, false, false]);
        assert_eq!([take(90), take(90), take(90)], [true, true, false]);
    }
}
