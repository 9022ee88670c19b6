//! What agents used: amounts by second in memory, the same by second and by minute in the store.

mod chunk;
mod meter;
mod query;
mod ring;

pub(crate) use chunk::{decode, encode, read_number, write_number};
pub(crate) use meter::Meter;
pub(crate) use query::{Plan, Tier, thin};
pub(crate) use ring::Ring;

/// What is kept of each stretch of time. Rates are made of amounts when somebody asks: amounts add up, rates do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Column {
    CpuMs,
    Memory,
    Processes,
    Read,
    Written,
    Sent,
    Received,
    Tokens,
    MicroUsd,
}

/// How many columns there are.
pub(crate) const COLUMNS: usize = 9;

/// What was used in one stretch, a second or a minute: amounts, and the most memory and processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Point {
    /// Seconds or minutes since 1970.
    pub(crate) at: u64,
    pub(crate) values: [u64; COLUMNS],
}

impl Point {
    pub(crate) fn at(at: u64) -> Self {
        Self {
            at,
            ..Self::default()
        }
    }

    pub(crate) fn of(&self, column: Column) -> u64 {
        self.values[column as usize]
    }

    /// Takes in a later part of the same stretch: amounts add up, of levels the highest counts.
    pub(crate) fn absorb(&mut self, later: &Self) {
        for (column, (mine, theirs)) in self.values.iter_mut().zip(later.values).enumerate() {
            *mine = if is_level(column) {
                (*mine).max(theirs)
            } else {
                mine.saturating_add(theirs)
            };
        }
    }

    /// Takes in what somebody else used in the same stretch: everything adds up.
    pub(crate) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.values.iter_mut().zip(other.values) {
            *mine = mine.saturating_add(theirs);
        }
    }
}

fn is_level(column: usize) -> bool {
    column == Column::Memory as usize || column == Column::Processes as usize
}

/// Points by second as points by minute. They come in order.
pub(crate) fn by_minute(seconds: &[Point]) -> Vec<Point> {
    let mut minutes: Vec<Point> = Vec::new();
    for second in seconds {
        let at = second.at / 60;
        match minutes.last_mut() {
            Some(last) if last.at == at => last.absorb(second),
            _ => minutes.push(Point { at, ..*second }),
        }
    }
    minutes
}
