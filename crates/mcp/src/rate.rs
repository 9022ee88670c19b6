//! How often a call may be made: exactly so many in any minute.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use belljar_policy::RateUse;

const WINDOW_MS: u64 = 60_000;

/// Every rate of a policy, with what was used of it. A bucket that refills would let through twice the rate around a
/// full one, so the calls of the last minute are counted.
#[derive(Debug, Default)]
pub(crate) struct Rates(HashMap<(usize, Option<usize>), Log>);

/// When, in milliseconds, and how many.
#[derive(Debug, Default)]
struct Log {
    total: u64,
    times: VecDeque<(u64, u32)>,
}

impl Rates {
    /// Counts a call against all of its rates, or says which of them is used up; then it counts against none.
    pub(crate) fn take<'r>(
        &mut self,
        now: Duration,
        rates: &'r [RateUse],
    ) -> Result<(), &'r RateUse> {
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        for rate in rates {
            let log = self.0.entry((rate.layer, rate.rule)).or_default();
            log.forget(now);
            if log.total >= u64::from(rate.per_minute) {
                return Err(rate);
            }
        }
        for rate in rates {
            self.0
                .entry((rate.layer, rate.rule))
                .or_default()
                .count(now);
        }
        Ok(())
    }
}

impl Log {
    fn forget(&mut self, now: u64) {
        while let Some((at, count)) = self.times.front()
            && now.saturating_sub(*at) >= WINDOW_MS
        {
            self.total -= u64::from(*count);
            self.times.pop_front();
        }
    }

    fn count(&mut self, now: u64) {
        self.total += 1;
        match self.times.back_mut() {
            Some((at, count)) if *at == now && *count < u32::MAX => *count += 1,
            _ => self.times.push_back((now, 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(rule: Option<usize>, per_minute: u32) -> RateUse {
        RateUse {
            layer: 0,
            rule,
            per_minute,
            origin: None,
        }
    }

    #[test]
    fn no_minute_holds_more_than_the_least_of_the_rates() {
        let mut rates = Rates::default();
        let both = [rate(None, 3), rate(Some(0), 1)];
        let at = Duration::from_secs;
        assert!(rates.take(at(0), &both).is_ok());
        assert_eq!(rates.take(at(1), &both).unwrap_err().rule, Some(0));
        // What was refused counted against nothing.
        assert!(rates.take(at(2), &both[..1]).is_ok());
        assert!(rates.take(at(3), &both[..1]).is_ok());
        assert_eq!(rates.take(at(4), &both[..1]).unwrap_err().rule, None);
        assert!(rates.take(at(60), &both).is_ok());
        assert!(rates.take(at(61), &both[..1]).is_err());
        assert!(rates.take(at(62), &both[..1]).is_ok());
    }
}
