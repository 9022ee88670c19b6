//! One host asked for over and over: too often, or as regular as a clock. What is kept of a host are a few numbers, however often
//! it is asked for.

use std::collections::HashMap;

/// Refusals of one host within [`RATE_WINDOW`] that are too many.
pub(crate) const RATE: u64 = 30;
/// In milliseconds.
pub(crate) const RATE_WINDOW: u64 = 600_000;
/// Refusals of one host within [`DAY`] that are too many, however far apart.
pub(crate) const DAILY: u64 = 200;
/// In milliseconds.
pub(crate) const DAY: u64 = 86_400_000;
/// Attempts in a row, evenly apart, that are no accident.
pub(crate) const REGULAR: u32 = 8;
/// Even is what differs from the mean by no more than this part of it, in percent, and [`SLACK`].
pub(crate) const EVEN_PERCENT: u64 = 25;
/// What the count comes late by, in milliseconds.
const SLACK: u64 = 1_500;
/// The least and the most between two attempts, in milliseconds. What comes quicker is one attempt, or too many by rate.
pub(crate) const GAPS: std::ops::RangeInclusive<u64> = 3_000..=3_600_000;
/// Names looked up at once and tried again at once are one attempt.
pub(crate) const ONE_ATTEMPT: u64 = 2_000;
/// Hosts that are watched at once; whoever was not asked for the longest gives way.
const MOST_HOSTS: usize = 4_096;
/// Hosts of one agent.
const MOST_OF_ONE: usize = 64;

/// An agent's attempts at one host.
#[derive(Clone, Copy, Debug, Default)]
struct Beat {
    last: u64,
    mean: u64,
    even: u32,
    rate_from: u64,
    rate: u64,
    day_from: u64,
    daily: u64,
}

/// What looks like a beacon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Beacon {
    pub(super) text: String,
    /// How long it may be quiet and yet not be over, in milliseconds.
    pub(super) quiet: u64,
}

/// All that agents ask for again and again.
#[derive(Debug, Default)]
pub(super) struct Beacons {
    beats: HashMap<String, HashMap<String, Beat>>,
    count: usize,
}

impl Beacons {
    /// An agent was refused a place so often since this was told last.
    pub(super) fn refused(
        &mut self,
        now: u64,
        agent: &str,
        place: &str,
        count: u64,
    ) -> Option<Beacon> {
        let key = site(place);
        let known = self.beats.get(agent);
        if known.is_none_or(|beats| !beats.contains_key(&key)) {
            self.make_room(agent);
            self.count += 1;
        }
        let beats = self.beats.entry(agent.to_owned()).or_default();
        beats
            .entry(key)
            .or_default()
            .refused(now, count)
            .map(|(how, quiet)| Beacon {
                text: format!("asks for {place} {how}, and is refused each time"),
                quiet,
            })
    }

    /// What was seen so far is dealt with.
    pub(super) fn forget(&mut self, agent: &str) {
        self.count -= self.beats.remove(agent).map_or(0, |beats| beats.len());
    }

    fn make_room(&mut self, agent: &str) {
        if let Some(beats) = self.beats.get_mut(agent)
            && beats.len() >= MOST_OF_ONE
            && let Some(oldest) = oldest(beats)
        {
            beats.remove(&oldest);
            self.count -= 1;
        }
        if self.count < MOST_HOSTS {
            return;
        }
        let quietest = self
            .beats
            .iter()
            .min_by_key(|(_, beats)| beats.values().map(|beat| beat.last).max());
        if let Some(quietest) = quietest.map(|(agent, _)| agent.clone()) {
            self.forget(&quietest);
        }
    }
}

fn oldest(beats: &HashMap<String, Beat>) -> Option<String> {
    let oldest = beats.iter().min_by_key(|(_, beat)| beat.last);
    oldest.map(|(site, _)| site.clone())
}

impl Beat {
    fn refused(&mut self, now: u64, count: u64) -> Option<(String, u64)> {
        count_within(&mut self.rate_from, &mut self.rate, RATE_WINDOW, now, count);
        count_within(&mut self.day_from, &mut self.daily, DAY, now, count);
        let gap = now.saturating_sub(self.last);
        if self.last == 0 {
            self.last = now;
        } else if gap >= ONE_ATTEMPT {
            self.last = now;
            let allowed = self.mean * EVEN_PERCENT / 100 + SLACK;
            match GAPS.contains(&gap) {
                true if self.even > 0 && gap.abs_diff(self.mean) <= allowed => {
                    let so_far = self.mean.saturating_mul(u64::from(self.even));
                    self.even = self.even.saturating_add(1);
                    self.mean = so_far.saturating_add(gap) / u64::from(self.even);
                }
                true => (self.even, self.mean) = (1, gap),
                false => (self.even, self.mean) = (0, 0),
            }
        }
        if self.even >= REGULAR {
            let (times, every) = (self.even + 1, self.mean / 1000);
            return Some((format!("{times} times, every {every} s"), self.mean * 3));
        }
        if self.rate >= RATE {
            return Some((
                format!(
                    "{} times within {} minutes",
                    self.rate,
                    RATE_WINDOW / 60_000
                ),
                0,
            ));
        }
        (self.daily >= DAILY).then(|| (format!("{} times within a day", self.daily), 0))
    }
}

fn count_within(from: &mut u64, total: &mut u64, window: u64, now: u64, count: u64) {
    if now.saturating_sub(*from) >= window {
        (*from, *total) = (now, 0);
    }
    *total = total.saturating_add(count);
}

/// A name's last two parts: what sends a new name each time is still one place.
fn site(place: &str) -> String {
    let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
    let is_name = host.contains(|c: char| c.is_ascii_alphabetic()) && !host.contains(':');
    if !is_name {
        return place.to_owned();
    }
    let mut parts: Vec<&str> = host.trim_end_matches('.').rsplitn(3, '.').take(2).collect();
    parts.reverse();
    parts.join(".").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many attempts at these times, in seconds, somebody is told.
    fn told_after(times: impl IntoIterator<Item = u64>) -> Option<usize> {
        let mut beacons = Beacons::default();
        let begin = 1_800_000_000;
        let mut times = times.into_iter();
        let told = times.position(|at| {
            let now = (begin + at) * 1000;
            beacons.refused(now, "a", "c2.example:443", 1).is_some()
        });
        told.map(|index| index + 1)
    }

    #[test]
    fn what_is_regular_or_frequent_is_told_and_what_is_neither_is_not() {
        let jitter = [0, 3, 1, 4, 1, 5, 2, 0, 5, 3, 1, 4];
        let spread = [7, 900, 40, 3000, 100, 2000, 11, 600];
        let scattered = |count: usize| {
            (0..count).scan(0, move |at, index| {
                *at += spread[index % spread.len()];
                Some(*at)
            })
        };
        // Every minute, with up to a tenth of jitter; every quarter of an hour; a tight loop.
        assert_eq!(
            told_after((0..12).map(|n| n * 60 + jitter[n as usize])),
            Some(9)
        );
        assert_eq!(told_after((0..20).map(|n| n * 900)), Some(9));
        assert_eq!(told_after(0..600), Some(30));
        // Seven even gaps are an accident still; retries that back off and stray attempts are none of it.
        assert_eq!(told_after((0..8).map(|n| n * 60)), None);
        assert_eq!(told_after([0, 1, 3, 7, 15, 31, 63, 127, 255, 511]), None);
        assert_eq!(told_after(scattered(100)), None);
    }

    #[test]
    fn memory_is_bounded_and_new_names_of_one_site_are_one_place() {
        let mut beacons = Beacons::default();
        for number in 0..100_000_u64 {
            let agent = format!("agent{}", number % 700);
            beacons.refused(number * 10_000, &agent, &format!("h.x{number}.example"), 1);
        }
        let kept: usize = beacons.beats.values().map(HashMap::len).sum();
        assert_eq!(kept, beacons.count);
        assert!(kept <= MOST_HOSTS);
        for (place, expect) in [
            ("a8f3.t.evil.example:443", "evil.example"),
            ("evil.example", "evil.example"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("[fe80::1]:80", "[fe80::1]:80"),
            ("any host", "any host"),
        ] {
            assert_eq!(site(place), expect);
        }
    }
}
