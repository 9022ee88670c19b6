//! Failed logins, counted by address and in all.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::Limits;

/// The most addresses that are remembered. More are counted together in the sum of all.
const ADDRESSES: usize = 4096;

/// Failed logins that are not forgiven yet. One is forgiven each `every`.
#[derive(Debug)]
struct Count {
    failures: u32,
    since: Instant,
    every: Duration,
}

impl Count {
    fn new(every: Duration, now: Instant) -> Self {
        Self {
            failures: 0,
            since: now,
            every: every.max(Duration::from_millis(1)),
        }
    }

    fn forgive(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since).as_nanos();
        let forgiven = passed / self.every.as_nanos();
        let forgiven = u32::try_from(forgiven).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_sub(forgiven);
        self.since = if self.failures == 0 {
            now
        } else {
            self.since + self.every * forgiven
        };
    }

    /// How long until one more may be tried.
    fn wait(&mut self, most: u32, now: Instant) -> Option<Duration> {
        self.forgive(now);
        let over = self.failures.saturating_add(1).checked_sub(most.max(1))?;
        let until = self.since + self.every * over;
        (over > 0).then(|| until.saturating_duration_since(now))
    }

    fn fail(&mut self, now: Instant) {
        self.forgive(now);
        self.failures = self.failures.saturating_add(1);
    }
}

#[derive(Debug)]
struct Counts {
    all: Count,
    by_address: HashMap<IpAddr, Count>,
}

/// The failed logins of a server.
#[derive(Debug)]
pub(crate) struct Attempts {
    of_one: u32,
    of_all: u32,
    every: Duration,
    counts: Mutex<Counts>,
}

impl Attempts {
    pub(crate) fn new(limits: &Limits, now: Instant) -> Self {
        Self {
            of_one: limits.logins_of_one,
            of_all: limits.logins,
            every: limits.login_every,
            counts: Mutex::new(Counts {
                all: Count::new(limits.login_every / 10, now),
                by_address: HashMap::new(),
            }),
        }
    }

    /// Whether an address may try now, or how long until it may. An attempt counts as failed from here on, until
    /// [`Attempts::succeeded`]: many that are made at once are no way around the count.
    pub(crate) fn begin(&self, from: IpAddr, now: Instant) -> Result<(), Duration> {
        let from = counted_as(from);
        let mut counts = self.lock();
        let of_one = counts
            .by_address
            .get_mut(&from)
            .and_then(|count| count.wait(self.of_one, now));
        if let Some(wait) = of_one.max(counts.all.wait(self.of_all, now)) {
            return Err(wait);
        }
        counts.all.fail(now);
        if counts.by_address.len() >= ADDRESSES && !counts.by_address.contains_key(&from) {
            counts.by_address.retain(|_, count| {
                count.forgive(now);
                count.failures > 0
            });
        }
        if counts.by_address.len() < ADDRESSES || counts.by_address.contains_key(&from) {
            let count = counts.by_address.entry(from);
            count
                .or_insert_with(|| Count::new(self.every, now))
                .fail(now);
        }
        Ok(())
    }

    /// The attempt that was begun was a good one.
    pub(crate) fn succeeded(&self, from: IpAddr) {
        let mut counts = self.lock();
        counts.all.failures = counts.all.failures.saturating_sub(1);
        if let Some(count) = counts.by_address.get_mut(&counted_as(from)) {
            count.failures = count.failures.saturating_sub(1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One customer has a whole /64 of IPv6.
fn counted_as(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            logins_of_one: 3,
            logins: 5,
            login_every: Duration::from_secs(10),
            ..Limits::default()
        }
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn an_address_has_so_many_failures_and_then_one_each_while() {
        let start = Instant::now();
        let attempts = Attempts::new(&limits(), start);
        for _ in 0..3 {
            assert_eq!(attempts.begin(address(1), start), Ok(()));
        }
        assert_eq!(
            attempts.begin(address(1), start),
            Err(Duration::from_secs(10))
        );
        assert_eq!(attempts.begin(address(2), start), Ok(()));
        let later = start + Duration::from_secs(10);
        assert_eq!(attempts.begin(address(1), later), Ok(()));
        assert!(attempts.begin(address(1), later).is_err());
    }

    #[test]
    fn all_addresses_together_have_a_sum() {
        let start = Instant::now();
        let attempts = Attempts::new(&limits(), start);
        for last in 0..5 {
            assert_eq!(attempts.begin(address(last), start), Ok(()));
        }
        assert_eq!(
            attempts.begin(address(9), start),
            Err(Duration::from_secs(1))
        );
    }

    #[test]
    fn who_gets_in_is_not_counted() {
        let start = Instant::now();
        let attempts = Attempts::new(&limits(), start);
        for _ in 0..20 {
            assert_eq!(attempts.begin(address(1), start), Ok(()));
            attempts.succeeded(address(1));
        }
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let start = Instant::now();
        let attempts = Attempts::new(&limits(), start);
        for last in 0..3 {
            let from = IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, last]);
            assert_eq!(attempts.begin(from, start), Ok(()));
        }
        assert!(
            attempts
                .begin(IpAddr::from([0x2001, 0xdb8, 0, 1, 9, 9, 9, 9]), start)
                .is_err()
        );
    }
}
