//! What a server bears from its peers.

use std::time::{Duration, Instant};

/// Bounds of a server. All of them hold; the values are a caller's to change, for tests above all.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a request's head. curl's has about 150; nothing of ours needs a cookie.
    pub head_bytes: usize,
    /// Bytes of a request's body: 1 MiB of state, a quarter more for JSON escapes and the other fields.
    pub body_bytes: usize,
    /// Bytes of a reply's body: some 40,000 workers in one list.
    pub reply_bytes: usize,
    /// Connections of one listener at once; more wait in the kernel's queue. An agent needs one per process that asks.
    pub connections: usize,
    /// Connections of all listeners at once, well below the usual 1,024 open files. When they are used up, the listener
    /// with the most gives one up for one that has fewer.
    pub connections_in_all: usize,
    /// Bytes of bodies and replies held for one listener: six of the largest requests.
    pub memory_bytes: usize,
    /// How long a connection may stay open between requests.
    pub idle: Duration,
    /// How long an idle connection is kept though another peer waits for its place.
    pub idle_when_full: Duration,
    /// How long a whole request may take to arrive. Against peers that send a byte now and then.
    pub request: Duration,
    /// How long the decision may take.
    pub answer: Duration,
    /// How long a reply may take to be read.
    pub reply: Duration,
    /// How long we go on reading from a peer that we refused, so that it sees why.
    pub linger: Duration,
    /// Requests of one agent's listener.
    pub requests: Rate,
    /// Requests of an operator's listener. Whoever may open it could do worse than ask often, and somebody who watches must not be in
    /// the way of somebody who stops.
    pub operator_requests: Rate,
    /// New connections of one listener. Opening and closing costs us as much as a request does.
    pub accepts: Rate,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes: 8 * 1024,
            body_bytes: 1024 * 1024 + 256 * 1024,
            reply_bytes: 48 * 1024 * 1024,
            connections: 32,
            connections_in_all: 512,
            memory_bytes: 8 * 1024 * 1024,
            idle: Duration::from_secs(60),
            idle_when_full: Duration::from_secs(1),
            request: Duration::from_secs(10),
            answer: Duration::from_secs(60),
            reply: Duration::from_secs(10),
            linger: Duration::from_secs(2),
            requests: Rate {
                burst: 100,
                per_second: 50,
            },
            operator_requests: Rate {
                burst: 4_000,
                per_second: 2_000,
            },
            accepts: Rate {
                burst: 200,
                per_second: 100,
            },
        }
    }
}

/// How often something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// At once, after a rest.
    pub burst: u32,
    /// In the long run. At least 1; 0 counts as 1.
    pub per_second: u32,
}

/// A token bucket, counted in nanoseconds of credit so that nothing is lost to rounding.
#[derive(Debug)]
pub(crate) struct Bucket {
    cost: Duration,
    most: Duration,
    credit: Duration,
    counted_at: Instant,
}

impl Bucket {
    pub(crate) fn new(rate: Rate, now: Instant) -> Self {
        let cost = Duration::from_secs(1) / rate.per_second.max(1);
        let most = cost * rate.burst.max(1);
        Self {
            cost,
            most,
            credit: most,
            counted_at: now,
        }
    }

    /// Takes one, or says how long until there is one.
    pub(crate) fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let gained = now.saturating_duration_since(self.counted_at);
        self.counted_at = self.counted_at.max(now);
        self.credit = self.credit.saturating_add(gained).min(self.most);
        match self.credit.checked_sub(self.cost) {
            Some(rest) => {
                self.credit = rest;
                Ok(())
            }
            None => Err(self.cost - self.credit),
        }
    }

    /// Undoes a [`take`](Self::take) that was not used.
    pub(crate) fn give_back(&mut self) {
        self.credit = (self.credit + self.cost).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::new(
            Rate {
                burst: 3,
                per_second: 10,
            },
            start,
        );
        for _ in 0..3 {
            assert_eq!(bucket.take(start), Ok(()));
        }
        assert_eq!(bucket.take(start), Err(Duration::from_millis(100)));
        let later = start + Duration::from_millis(60);
        assert_eq!(bucket.take(later), Err(Duration::from_millis(40)));
        assert_eq!(bucket.take(start + Duration::from_millis(100)), Ok(()));
        bucket.give_back();
        assert_eq!(bucket.take(start + Duration::from_millis(100)), Ok(()));
        // An earlier time gives nothing and takes nothing away.
        assert_eq!(bucket.take(start), Err(Duration::from_millis(100)));
        let much_later = start + Duration::from_secs(1_000_000);
        for _ in 0..3 {
            assert_eq!(bucket.take(much_later), Ok(()));
        }
        assert!(bucket.take(much_later).is_err());
    }
}
