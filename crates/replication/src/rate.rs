//! How often something happened in the last minute, counted by the second.

use serde::{Deserialize, Serialize};

const SECONDS: u64 = 60;
const SECOND_NS: u64 = 1_000_000_000;

/// Counts of the last sixty seconds of the boot clock, the present one included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rate {
    /// Seconds with a count, oldest first.
    seconds: std::collections::VecDeque<(u64, u64)>,
}

impl Rate {
    pub(crate) fn add(&mut self, at_ns: u64) {
        let second = at_ns / SECOND_NS;
        match self.seconds.back_mut() {
            Some((last, count)) if *last >= second => *count = count.saturating_add(1),
            _ => {
                self.seconds.push_back((second, 1));
                while self
                    .seconds
                    .front()
                    .is_some_and(|(s, _)| s + SECONDS <= second)
                {
                    self.seconds.pop_front();
                }
            }
        }
    }

    pub(crate) fn per_minute(&self, now_ns: u64) -> u64 {
        let now = now_ns / SECOND_NS;
        let recent = self
            .seconds
            .iter()
            .filter(|(second, _)| second + SECONDS > now);
        recent
            .map(|(_, count)| count)
            .fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// What a snapshot may hold: no more seconds than there are, in order.
    pub(crate) fn is_sound(&self) -> bool {
        let ordered = self
            .seconds
            .iter()
            .zip(self.seconds.iter().skip(1))
            .all(|(a, b)| a.0 < b.0);
        ordered
            && self.seconds.len() <= SECONDS as usize
            && self.seconds.iter().all(|(s, _)| *s <= u64::MAX / SECOND_NS)
    }
}
