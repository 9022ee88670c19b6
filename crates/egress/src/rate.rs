//! At most so many in any minute.

use std::collections::VecDeque;
use std::time::Duration;

const WINDOW_MS: u64 = 60_000;

/// Counts what happened in the last minute, exactly: a bucket that refills would let through twice the rate around a full
/// one. What happened in the same millisecond is counted together, so a high rate takes no more than a minute's worth.
#[derive(Debug)]
pub(crate) struct RateLog {
    most: u64,
    total: u64,
    /// When, in milliseconds since the engine started, and how many; it grows with use only.
    times: VecDeque<(u64, u32)>,
}

impl RateLog {
    pub(crate) fn new(per_minute: u32) -> Self {
        Self {
            most: u64::from(per_minute),
            total: 0,
            times: VecDeque::new(),
        }
    }

    /// Counts one more if there is room for it.
    pub(crate) fn take(&mut self, now: Duration) -> bool {
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        while let Some((at, count)) = self.times.front()
            && now.saturating_sub(*at) >= WINDOW_MS
        {
            self.total -= u64::from(*count);
            self.times.pop_front();
        }
        if self.total >= self.most {
            return false;
        }
        self.total += 1;
        match self.times.back_mut() {
            Some((at, count)) if *at == now && *count < u32::MAX => *count += 1,
            _ => self.times.push_back((now, 1)),
        }
        true
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

    #[test]
    fn a_high_rate_takes_little_memory() {
        let mut log = RateLog::new(u32::MAX);
        for at in 0..500_000_u64 {
            assert!(log.take(Duration::from_micros(at * 10)));
        }
        assert_eq!((log.total, log.times.len()), (500_000, 5000));
        assert!(log.take(Duration::from_secs(65)));
        assert_eq!((log.total, log.times.len()), (1, 1));
    }
}
