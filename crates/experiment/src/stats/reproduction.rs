//! The reproduction number: how many children a worker has in its life, although many lives are cut short by the end of a run.
//!
//! A life that is not over says nothing of the children that were to come, and in a population that grows most lives are not over. So
//! children are counted by the age at which they come, against those that reached that age: R is the sum of survival times
//! births (the net reproduction rate of demography, with the actuarial estimate of what was cut). Whoever is born when a limit
//! is met has no children for that reason, and whoever is born last has none at all: while generations grow, those count that came before
//! the largest one. Where a population doubled although it seems not to, and a limit or the end of the run stopped it, nobody can tell.

use crate::rng::Stream;
use crate::tally::{Run, RunEnd};

use super::estimate::Estimate;

/// Above this share of lives that nobody saw the end of, there is no upper bound.
const UNSEEN: f64 = 0.05;
/// The most groups of runs that are drawn anew.
const BATCHES: usize = 40;
const ROUNDS: usize = 400;

/// Lives by the age at which something happened to them.
#[derive(Clone, Debug, Default)]
struct LifeTable {
    /// At each age: births, ends, cuts, and cuts before anything happened.
    ages: Vec<[u64; 4]>,
}

/// What a life table says.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Said {
    r: f64,
    /// The share of lives that go on beyond what anybody saw.
    unseen: f64,
}

/// How many lives are over, and how many were cut by the end of their run or by the kill switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LifeCounts {
    /// Over.
    pub over: u64,
    /// Cut.
    pub cut: u64,
}

/// Counts lives.
#[must_use]
pub fn life_counts(runs: &[Run]) -> LifeCounts {
    let mut counts = LifeCounts::default();
    for run in runs {
        let killed = run.ends.get("killed_kill_switch").copied().unwrap_or(0);
        let over = run.ends.values().sum::<u64>().saturating_sub(killed);
        counts.over += over;
        counts.cut += run.parents.saturating_sub(over);
    }
    counts
}

impl LifeTable {
    /// Of those that some generation had.
    fn of<'r>(runs: impl Iterator<Item = &'r Run>, below: Option<u64>) -> Self {
        let mut table = Self::default();
        for entry in runs.flat_map(|run| run.ages.iter().flatten()) {
            let [depth, bin, counts @ ..] = *entry;
            if below.is_some_and(|below| depth >= below) {
                continue;
            }
            let at = usize::try_from(bin)
                .unwrap_or(0)
                .min(crate::tally::MOST_AGES);
            if table.ages.len() <= at {
                table.ages.resize(at + 1, [0; 4]);
            }
            if let Some(age) = table.ages.get_mut(at) {
                for (own, more) in age.iter_mut().zip(counts) {
                    *own += more;
                }
            }
        }
        table
    }

    fn add(&mut self, other: &Self) {
        if self.ages.len() < other.ages.len() {
            self.ages.resize(other.ages.len(), [0; 4]);
        }
        for (own, more) in self.ages.iter_mut().zip(&other.ages) {
            for (own, more) in own.iter_mut().zip(more) {
                *own += more;
            }
        }
    }

    fn read(&self) -> Option<Said> {
        let of = |[_, ends, cuts, before]: &[u64; 4]| ends + cuts + before;
        let mut at_risk: u64 = self.ages.iter().map(of).sum();
        if at_risk == 0 {
            return None;
        }
        let (mut r, mut survival) = (0.0, 1.0);
        for [births, ends, cuts, before] in &self.ages {
            at_risk = at_risk.saturating_sub(*before);
            if at_risk == 0 {
                break;
            }
            // Who is cut within an age was there for half of it.
            let there = at_risk as f64 - *cuts as f64 / 2.0;
            r += survival * *births as f64 / there;
            survival *= (1.0 - *ends as f64 / there).max(0.0);
            at_risk = at_risk.saturating_sub(ends + cuts);
        }
        Some(Said {
            r,
            unseen: survival,
        })
    }
}

/// Whether there were twice as many boxes at once as there were roots.
pub(super) fn doubles(runs: &[Run]) -> bool {
    let sum = |of: fn(&Run) -> u64| runs.iter().map(of).sum::<u64>();
    sum(|run| run.peak) >= 2 * sum(|run| run.roots)
}

/// Whether in more than one run of a hundred somebody had no child, or not all, for what the contract or the experiment allows.
pub(super) fn is_bounded(runs: &[Run]) -> bool {
    const BOUNDS: [&str; 4] = [
        "deny_quota",
        "deny_depth",
        "deny_budget",
        "deny_stop_condition",
    ];
    let is_refused = |run: &Run| BOUNDS.iter().any(|code| run.denials.contains_key(*code));
    let is_bounded = |run: &&Run| run.end == RunEnd::TooMany || is_refused(run);
    100 * runs.iter().filter(is_bounded).count() > runs.len()
}

/// Whether a number below one is no more than what stopped the population.
fn is_hidden(runs: &[Run], r: f64) -> bool {
    r < 1.0 && doubles(runs) && (is_bounded(runs) || super::is_cut(runs))
}

/// The largest generation, if it is not the first: those before it count.
fn growing(runs: &[Run]) -> Option<u64> {
    let mut sizes: Vec<u64> = Vec::new();
    for [depth, _, _, ends, cuts, before] in runs.iter().flat_map(|run| run.ages.iter().flatten()) {
        let at = usize::try_from(*depth)
            .unwrap_or(0)
            .min(crate::tally::MOST_DEPTHS);
        if sizes.len() <= at {
            sizes.resize(at + 1, 0);
        }
        if let Some(size) = sizes.get_mut(at) {
            *size += ends + cuts + before;
        }
    }
    // The last class holds many generations, and is not one of them.
    sizes.truncate(crate::tally::MOST_DEPTHS);
    let largest = sizes.iter().copied().max()?;
    let is_largest = |size: &u64| *size == largest;
    // In a population that grows, generations of one size are of one size because each worker has a child.
    let at = match doubles(runs) {
        true => sizes.iter().rposition(is_largest)?,
        false => sizes.iter().position(is_largest)?,
    };
    (at > 0).then_some(at as u64)
}

/// The reproduction number of these runs; none if they say nothing of it.
pub(super) fn reproduction(runs: &[Run]) -> Option<f64> {
    if runs.iter().any(|run| run.ages.is_none()) {
        return whole(runs);
    }
    let r = LifeTable::of(runs.iter(), growing(runs)).read()?.r;
    (!is_hidden(runs, r)).then_some(r)
}

/// Of results without ages: where every life is over, they are not needed, but for growth, which nobody sees.
fn whole(runs: &[Run]) -> Option<f64> {
    let (parents, children) = runs.iter().fold((0, 0), |sum, run| {
        (sum.0 + run.parents, sum.1 + run.children)
    });
    let is_whole = life_counts(runs).cut == 0 && !doubles(runs) && parents > 0;
    is_whole.then(|| children as f64 / parents as f64)
}

/// The same with its interval. Where lives were not seen to their end it has no upper one.
pub(super) fn estimate(runs: &[Run], values: &[f64]) -> Option<Estimate> {
    let r = reproduction(runs)?;
    let mut estimate = Estimate::point(r, values);
    if runs.iter().any(|run| run.ages.is_none()) {
        return Some(estimate);
    }
    let below = growing(runs);
    let size = runs.len().div_ceil(BATCHES).max(1);
    let batches: Vec<LifeTable> = runs
        .chunks(size)
        .map(|batch| LifeTable::of(batch.iter(), below))
        .collect();
    if batches.len() > 1 {
        let mut stream = Stream::of_run(runs.len() as u64, 0x11fe, 0);
        let mut drawn: Vec<f64> = (0..ROUNDS)
            .filter_map(|_| {
                let mut table = LifeTable::default();
                for _ in 0..batches.len() {
                    let at = stream.below(batches.len() as u64) as usize;
                    table.add(batches.get(at)?);
                }
                Some(table.read()?.r)
            })
            .collect();
        drawn.sort_by(f64::total_cmp);
        let at = |part: usize| drawn.get(part).copied().unwrap_or(r);
        estimate.low = at(drawn.len() / 40).min(r);
        estimate.high = at(drawn.len().saturating_sub(1 + drawn.len() / 40)).max(r);
    } else {
        // One run: as if lives were independent of each other.
        let sum = |part: fn(&Run) -> u64| runs.iter().map(part).sum::<u64>() as f64;
        let (n, squares) = (sum(|run| run.parents), sum(|run| run.children_squared));
        let mean = sum(|run| run.children) / n;
        let error = 1.96 * ((squares / n - mean * mean).max(0.0) / n).sqrt();
        (estimate.low, estimate.high) = ((r - error).max(0.0), r + error);
    }
    let said = LifeTable::of(runs.iter(), below).read()?;
    if said.unseen > UNSEEN {
        estimate.high = f64::INFINITY;
    }
    Some(estimate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_is_neither_an_end_nor_childless() {
        // Everybody has one child at each of three ages and ends; half are cut before the second.
        let table = LifeTable {
            ages: vec![
                [8, 0, 0, 0],
                [0, 0, 0, 2],
                [0, 0, 2, 0],
                [4, 0, 0, 0],
                [4, 4, 0, 0],
            ],
        };
        let said = table.read().unwrap();
        assert!(
            (said.r - 3.0).abs() < 1e-12 && said.unseen == 0.0,
            "{said:?}"
        );
        // Nobody was seen to end.
        let table = LifeTable {
            ages: vec![[4, 0, 0, 0], [4, 0, 4, 0]],
        };
        let said = table.read().unwrap();
        assert_eq!((said.r, said.unseen), (3.0, 1.0));
    }
}
