//! Which tier answers a question, and how points become the samples of an answer.

use belljar_api::{MetricsQuery, MetricsReply, Sample};

use super::{Column, Point};

const MOST_POINTS: u64 = 2_000;
const USUAL_POINTS: u64 = 600;
const USUAL_MS: u64 = 600_000;

/// How finely the store keeps what it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    Seconds,
    Minutes,
}

impl Tier {
    pub(crate) fn seconds(self) -> u64 {
        match self {
            Self::Seconds => 1,
            Self::Minutes => 60,
        }
    }
}

/// A question, with everything it left open decided. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) tier: Tier,
    /// Where the first stretch begins.
    pub(crate) from: u64,
    /// Where the last one ends.
    pub(crate) until: u64,
    /// The length of a stretch.
    pub(crate) step: u64,
}

impl Plan {
    /// Decides. Seconds that are not over, or that some agent may not have told of yet, are left out.
    pub(crate) fn of(query: &MetricsQuery, now_ms: u64, seconds_kept: u64) -> Self {
        let over = (now_ms / 1000).saturating_sub(1);
        let until = query
            .until_ms
            .map_or(over, |until| until.div_ceil(1000))
            .min(over);
        let from = query
            .since_ms
            .unwrap_or_else(|| now_ms.saturating_sub(USUAL_MS))
            / 1000;
        let from = from.min(until);
        let points = query.points.unwrap_or(USUAL_POINTS).clamp(1, MOST_POINTS);
        let step = (until - from).div_ceil(points).max(1);
        let is_kept = from + seconds_kept >= now_ms / 1000;
        let tier = match step < 60 && is_kept {
            true => Tier::Seconds,
            false => Tier::Minutes,
        };
        let mut step = step.next_multiple_of(tier.seconds());
        // Whole stretches that begin at round times: up to one more than fits, so they are made longer.
        while (until.next_multiple_of(step) - from / step * step) / step > points {
            step += tier.seconds();
        }
        Self {
            tier,
            from: from / step * step,
            until,
            step,
        }
    }
}

/// Points in order as samples of the plan's length. A stretch without any point has no sample.
pub(crate) fn thin(plan: &Plan, points: &[Point]) -> MetricsReply {
    let unit = plan.tier.seconds();
    let mut stretches: Vec<Point> = Vec::new();
    for point in points {
        let second = point.at * unit;
        if second < plan.from || second >= plan.until {
            continue;
        }
        let at = second / plan.step * plan.step;
        match stretches.last_mut() {
            Some(last) if last.at == at => last.absorb(point),
            _ => stretches.push(Point { at, ..*point }),
        }
    }
    let sample = |point: &Point| {
        let length = plan.step.min(plan.until - point.at).max(1) as f64;
        let rate = |column| point.of(column) as f64 / length;
        Sample {
            at_ms: point.at * 1000,
            cpu_percent: rate(Column::CpuMs) / 10.0,
            memory_bytes: point.of(Column::Memory),
            processes: point.of(Column::Processes),
            read_rate: rate(Column::Read),
            write_rate: rate(Column::Written),
            send_rate: rate(Column::Sent),
            receive_rate: rate(Column::Received),
            tokens: point.of(Column::Tokens),
            micro_usd: point.of(Column::MicroUsd),
        }
    };
    MetricsReply {
        every_ms: plan.step * 1000,
        samples: stretches.iter().map(sample).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_800_000_000;

    fn plan(since: u64, until: u64, points: Option<u64>) -> Plan {
        let query = MetricsQuery {
            agent: None,
            since_ms: Some(since * 1000),
            until_ms: Some(until * 1000),
            points,
        };
        Plan::of(&query, NOW * 1000, 86_400)
    }

    #[test]
    fn the_finest_tier_that_is_kept_and_needed_answers() {
        assert_eq!(plan(NOW - 600, NOW, None).tier, Tier::Seconds);
        assert_eq!(plan(NOW - 80_000, NOW, Some(2_000)).tier, Tier::Seconds);
        assert_eq!(plan(NOW - 80_000, NOW, Some(600)).tier, Tier::Minutes);
        // Older than seconds are kept, however short.
        assert_eq!(plan(NOW - 100_000, NOW - 99_990, None).tier, Tier::Minutes);
    }

    #[test]
    fn rates_are_means_and_levels_are_the_highest() {
        let plan = Plan {
            tier: Tier::Seconds,
            from: 100,
            until: 110,
            step: 10,
        };
        let points: Vec<Point> = (100..110)
            .map(|at| {
                let mut point = Point::at(at);
                point.values[Column::CpuMs as usize] = 500;
                point.values[Column::Memory as usize] = at;
                point.values[Column::Read as usize] = at % 2 * 2_000;
                point.values[Column::Tokens as usize] = 3;
                point
            })
            .collect();
        let reply = thin(&plan, &points);
        assert_eq!(reply.samples.len(), 1);
        let sample = reply.samples[0];
        assert_eq!((sample.cpu_percent, sample.memory_bytes), (50.0, 109));
        assert_eq!((sample.read_rate, sample.tokens), (1_000.0, 30));
    }

    proptest! {
        #[test]
        fn no_answer_has_more_points_than_asked_for(since in 0..NOW + 100, length in 0..10_000_000_u64, points in 1..5_000_u64) {
            let plan = plan(since, since + length, Some(points));
            let count = (plan.until.saturating_sub(plan.from)).div_ceil(plan.step);
            prop_assert!(count <= points.min(2_000), "{plan:?}");
            prop_assert_eq!(plan.step % plan.tier.seconds(), 0);
            prop_assert!(plan.until < NOW);
        }
    }
}
