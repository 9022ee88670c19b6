//! From counters that only go up to what was used in each second.

use belljar_api::{AgentView, UsageNow};

use super::{COLUMNS, Column, Point};

/// A gap longer than this is not filled: nobody knows what happened in it.
const LONGEST_GAP_MS: u64 = 120_000;

/// What one agent's counters last said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    at_ms: u64,
    started_at_ms: u64,
    counters: [u64; COLUMNS],
}

impl Meter {
    /// Begins with an agent's first sample. One that began under our eyes has used all it did since then; what another did before
    /// is for a former life of ours to have told.
    pub(crate) fn begin(
        now_ms: u64,
        agent: &AgentView,
        watched_since_ms: u64,
    ) -> (Self, Vec<Point>) {
        let is_new = agent.started_at_ms >= watched_since_ms;
        let mut meter = Self {
            at_ms: if is_new {
                agent.started_at_ms.min(now_ms)
            } else {
                now_ms
            },
            started_at_ms: agent.started_at_ms,
            counters: if is_new {
                [0; COLUMNS]
            } else {
                counters(&agent.usage)
            },
        };
        let points = meter.read(now_ms, agent);
        (meter, points)
    }

    /// What was used since the last sample, shared out over the seconds in between.
    pub(crate) fn read(&mut self, now_ms: u64, agent: &AgentView) -> Vec<Point> {
        let counters = counters(&agent.usage);
        let began_anew = agent.started_at_ms != self.started_at_ms;
        let from_ms = self.at_ms.min(now_ms);
        let is_gap = now_ms - from_ms > LONGEST_GAP_MS;
        let used: [u64; COLUMNS] = std::array::from_fn(|column| {
            match counters[column].checked_sub(self.counters[column]) {
                _ if super::is_level(column) => counters[column],
                Some(more) => more,
                // It counts from zero again, or it lost something it had counted: a process that is gone.
                None if began_anew => counters[column],
                None => 0,
            }
        });
        let reading = Self {
            at_ms: now_ms,
            started_at_ms: agent.started_at_ms,
            // A counter that lost something is not counted twice when it comes back.
            counters: std::array::from_fn(|column| match began_anew {
                true => counters[column],
                false => counters[column].max(self.counters[column]),
            }),
        };
        *self = reading;
        if is_gap {
            return vec![Point {
                at: now_ms / 1000,
                values: used,
            }];
        }
        spread(from_ms, now_ms, &used)
    }
}

/// Shares amounts out over the seconds they were used in, to the last byte. Levels hold for all of them.
fn spread(from_ms: u64, until_ms: u64, used: &[u64; COLUMNS]) -> Vec<Point> {
    let length = until_ms - from_ms;
    let share = |amount: u64, at_ms: u64| {
        let part = u128::from(amount) * u128::from(at_ms - from_ms) / u128::from(length.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    };
    let seconds = from_ms / 1000..=until_ms / 1000;
    let last = *seconds.end();
    seconds
        .map(|second| {
            let begin = (second * 1000).max(from_ms);
            let end = if second == last {
                until_ms
            } else {
                (second + 1) * 1000
            };
            let values = std::array::from_fn(|column| {
                if super::is_level(column) {
                    // The first second has its level from the sample before.
                    return if begin == from_ms && second != last {
                        0
                    } else {
                        used[column]
                    };
                }
                match length {
                    0 => used[column],
                    _ => share(used[column], end) - share(used[column], begin),
                }
            });
            Point { at: second, values }
        })
        .collect()
}

fn counters(usage: &UsageNow) -> [u64; COLUMNS] {
    let mut all = [0; COLUMNS];
    for (column, value) in [
        (Column::CpuMs, usage.cpu_ms),
        (Column::Memory, usage.memory_bytes),
        (Column::Processes, usage.processes),
        (Column::Read, usage.read_bytes),
        (Column::Written, usage.written_bytes),
        (Column::Sent, usage.sent_bytes),
        (Column::Received, usage.received_bytes),
        (Column::Tokens, usage.tokens),
        (Column::MicroUsd, usage.micro_usd),
    ] {
        all[column as usize] = value;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::agent;

    fn total(points: &[Point], column: Column) -> u64 {
        points.iter().map(|point| point.of(column)).sum()
    }

    #[test]
    fn nothing_is_lost_in_sharing_out() {
        let mut view = agent("a");
        view.started_at_ms = 10_990;
        view.usage.read_bytes = 7;
        let (mut meter, mut points) = Meter::begin(12_010, &view, 0);
        view.usage.read_bytes = 1_000_003;
        points.extend(meter.read(15_555, &view));
        assert_eq!(total(&points, Column::Read), 1_000_003);
        assert_eq!(points.first().map(|point| point.at), Some(10));
        assert_eq!(points.last().map(|point| point.at), Some(15));
        // Whole seconds of an even stretch get even shares.
        let thirteen: Vec<_> = points.iter().filter(|point| point.at == 13).collect();
        let fourteen: Vec<_> = points.iter().filter(|point| point.at == 14).collect();
        assert!(
            thirteen[0]
                .of(Column::Read)
                .abs_diff(fourteen[0].of(Column::Read))
                <= 1
        );
    }

    #[test]
    fn a_counter_that_goes_back_is_never_counted_twice() {
        let mut view = agent("a");
        view.started_at_ms = 1_000;
        view.usage.cpu_ms = 500;
        let (mut meter, mut points) = Meter::begin(2_000, &view, 0);
        view.usage.cpu_ms = 100; // a process it had counted is gone
        points.extend(meter.read(3_000, &view));
        view.usage.cpu_ms = 600;
        points.extend(meter.read(4_000, &view));
        assert_eq!(total(&points, Column::CpuMs), 600);
        view.started_at_ms = 5_000; // begun anew: it counts from zero
        view.usage.cpu_ms = 50;
        points.extend(meter.read(6_000, &view));
        assert_eq!(total(&points, Column::CpuMs), 650);
    }

    #[test]
    fn one_that_was_there_before_us_is_not_charged_with_its_past() {
        let mut view = agent("a");
        view.started_at_ms = 1_000;
        view.usage.tokens = 1_000_000;
        let (mut meter, mut points) = Meter::begin(10_000_000, &view, 5_000_000);
        view.usage.tokens = 1_000_010;
        points.extend(meter.read(10_001_000, &view));
        assert_eq!(total(&points, Column::Tokens), 10);
    }

    #[test]
    fn a_clock_that_stands_or_goes_back_makes_no_point_in_the_past() {
        let mut view = agent("a");
        view.started_at_ms = 1_000;
        let (mut meter, _) = Meter::begin(20_000, &view, 0);
        view.usage.tokens = 5;
        let points = meter.read(20_000, &view);
        assert_eq!(total(&points, Column::Tokens), 5);
        view.usage.tokens = 9;
        let points = meter.read(19_000, &view);
        assert_eq!(total(&points, Column::Tokens), 4);
        assert!(points.iter().all(|point| point.at == 19));
    }
}
