//! What a kernel other than the host's tells of its program, in a file that it shares with the box's init: how the program
//! ended, how often each of its calls was refused, and how often a process was too many.
//!
//! Everything has its fixed place there. So whatever a kernel that was broken out of writes, it changes a few numbers, and
//! init's work and its words to the keeper are bounded.

use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramEnd {
    /// With this wait status.
    Ended(i32),
    /// It could not be executed.
    NotStarted(Errno),
}

impl ProgramEnd {
    pub(crate) const SIZE: usize = 8;

    pub(crate) fn encode(self) -> [u8; Self::SIZE] {
        let (kind, value) = match self {
            ProgramEnd::Ended(status) => (1i32, status),
            ProgramEnd::NotStarted(errno) => (2, errno.raw_os_error()),
        };
        let mut bytes = [0; Self::SIZE];
        let (first, second) = bytes.split_at_mut(4);
        first.copy_from_slice(&kind.to_le_bytes());
        second.copy_from_slice(&value.to_le_bytes());
        bytes
    }

    /// Nothing, while it is not told.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first_chunk()?;
        let value = i32::from_le_bytes(*rest.first_chunk()?);
        match i32::from_le_bytes(*kind) {
            1 => Some(ProgramEnd::Ended(value)),
            2 => Some(ProgramEnd::NotStarted(Errno::from_raw_os_error(value))),
            _ => None,
        }
    }
}

/// How many rules there may be.
pub(crate) const MOST_RULES: usize = 128;

/// What is counted: hits of each rule, by its number, and after them this.
pub(crate) const FORKS: usize = MOST_RULES;
const COUNTS: usize = MOST_RULES + 1;

/// Where it is told that the last of the program's processes is gone, too.
const OVER: u64 = (ProgramEnd::SIZE + 4 * COUNTS) as u64;

/// The file's size: the end, then the counts, then whether all is over.
pub(crate) const SIZE: usize = OVER as usize + 1;

/// Whether the file says that all is over.
pub(crate) fn is_over(file: &[u8; SIZE]) -> bool {
    file.last() != Some(&0)
}

/// Where a count is.
pub(crate) fn place_of(count: usize) -> u64 {
    (ProgramEnd::SIZE + 4 * count.min(COUNTS - 1)) as u64
}

/// Where it is told.
pub(crate) struct Report(File);

impl Report {
    pub(crate) fn open(file: &Path) -> io::Result<Self> {
        File::options().write(true).open(file).map(Self)
    }

    pub(crate) fn ended(&mut self, end: ProgramEnd) -> io::Result<()> {
        self.0.write_all_at(&end.encode(), 0)
    }

    /// There is nobody left but pid 1. Nothing is told after this.
    pub(crate) fn over(&mut self) -> io::Result<()> {
        self.0.write_all_at(&[1], OVER)
    }

    /// Something was refused so often until now.
    pub(crate) fn refused(&mut self, which: usize, hits: u32) -> io::Result<()> {
        self.0.write_all_at(&hits.to_le_bytes(), place_of(which))
    }
}

/// Whether hits are worth a word when so many were told of: the first is, and when they have doubled. That is some thirty
/// times at most, so a program that hammers a wall drowns nobody.
fn is_news(hits: u32, told: u32) -> bool {
    hits > 0 && hits / 2 >= told
}

/// Who counts, and what was told of it. Nothing here allocates.
pub(crate) struct Tally {
    hits: [u32; COUNTS],
    told: [u32; COUNTS],
}

impl Tally {
    pub(crate) const fn new() -> Self {
        Self {
            hits: [0; COUNTS],
            told: [0; COUNTS],
        }
    }

    /// One more; how many, if that is to be told.
    pub(crate) fn count(&mut self, which: usize) -> Option<u32> {
        let hits = self.hits.get(which)?.saturating_add(1);
        self.reach(which, hits)
    }

    /// So many, as somebody else counted; how many, if that is to be told.
    pub(crate) fn reach(&mut self, which: usize, hits: u32) -> Option<u32> {
        let (known, told) = self.hits.get_mut(which).zip(self.told.get_mut(which))?;
        *known = hits.max(*known);
        is_news(*known, *told).then(|| {
            *told = *known;
            *known
        })
    }

    /// What was counted in all.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (usize, u32)> {
        let all = self.hits.iter().copied().enumerate();
        all.filter(|(_, hits)| *hits > 0)
    }

    /// What was counted since it was last told.
    pub(crate) fn untold(&self) -> impl Iterator<Item = (usize, u32)> {
        let told = &self.told;
        self.sums()
            .filter(|(which, hits)| told.get(*which).is_some_and(|told| hits > told))
    }
}

/// Whether what somebody tells is what a [`Tally`] tells: news, or last of all a sum.
pub(crate) struct Checked {
    told: [u32; COUNTS],
    is_summed: [bool; COUNTS],
}

impl Checked {
    pub(crate) const fn new() -> Self {
        Self {
            told: [0; COUNTS],
            is_summed: [false; COUNTS],
        }
    }

    /// Whether it can be; it is counted as told, then.
    pub(crate) fn take(&mut self, which: usize, hits: u32) -> bool {
        let both = self.told.get_mut(which).zip(self.is_summed.get_mut(which));
        let Some((told, is_summed)) =
            both.filter(|(told, is_summed)| !**is_summed && hits > **told)
        else {
            return false;
        };
        *is_summed = !is_news(hits, *told);
        *told = hits;
        true
    }
}

/// What was told of each count so far. Nothing here allocates.
pub(crate) struct Account([u32; COUNTS]);

/// Whether more can come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    SoFar,
    All,
}

impl Account {
    pub(crate) const fn new() -> Self {
        Self([0; COUNTS])
    }

    /// Takes in what the file says now. `tell` hears of a count when it is news, and of all in the end.
    pub(crate) fn take(
        &mut self,
        file: &[u8; SIZE],
        heard: Heard,
        mut tell: impl FnMut(usize, u32),
    ) {
        let (_, counts) = file.split_at(ProgramEnd::SIZE);
        let counts = counts.chunks_exact(4).map(|bytes| match bytes {
            &[a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
            _ => 0,
        });
        for (which, (told, count)) in self.0.iter_mut().zip(counts).enumerate() {
            let is_news = match heard {
                Heard::SoFar => is_news(count, *told),
                // A word on the way may have been lost.
                Heard::All => count > 0 && count >= *told,
            };
            if is_news {
                *told = count;
                tell(which, count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(counts: &[(usize, u32)]) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        for (rule, count) in counts {
            let at = place_of(*rule) as usize;
            bytes[at..at + 4].copy_from_slice(&count.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn an_end_survives_the_way() {
        for end in [
            ProgramEnd::Ended(0x100),
            ProgramEnd::NotStarted(Errno::NOENT),
        ] {
            assert_eq!(ProgramEnd::decode(&end.encode()), Some(end));
        }
        assert_eq!(ProgramEnd::decode(&[0; SIZE]), None);
        assert_eq!(ProgramEnd::decode(&[1]), None);
    }

    #[test]
    fn it_is_over_when_that_is_told_and_not_when_rules_were_hit() {
        let all: Vec<_> = (0..COUNTS).map(|rule| (rule, u32::MAX)).collect();
        let mut bytes = file(&all);
        assert!(!is_over(&bytes));
        bytes[OVER as usize] = 1;
        assert!(is_over(&bytes));
    }

    #[test]
    fn hits_are_told_first_when_they_have_doubled_and_in_the_end() {
        let mut account = Account::new();
        let mut take = |counts: &[(usize, u32)], heard| {
            let mut told = Vec::new();
            account.take(&file(counts), heard, |rule, count| {
                told.push((rule, count));
            });
            told
        };
        assert_eq!(take(&[], Heard::SoFar), []);
        assert_eq!(take(&[(3, 1), (127, 9)], Heard::SoFar), [(3, 1), (127, 9)]);
        assert_eq!(take(&[(3, 1), (127, 17)], Heard::SoFar), []);
        assert_eq!(
            take(&[(3, 2), (127, 18)], Heard::SoFar),
            [(3, 2), (127, 18)]
        );
        assert_eq!(take(&[(3, 3), (127, 5)], Heard::All), [(3, 3)]);
    }

    #[test]
    fn whatever_is_written_there_is_told_some_thirty_times_a_rule() {
        let mut account = Account::new();
        let mut words = 0;
        for count in 0..20_000 {
            account.take(&file(&[(0, count)]), Heard::SoFar, |_, _| words += 1);
            account.take(&file(&[(0, 1)]), Heard::SoFar, |_, _| words += 1);
        }
        assert!(words <= 15, "{words}");
    }

    /// What a tally of so many tells on the way, and in the end.
    fn words_of(hits: u32) -> Vec<u32> {
        let mut tally = Tally::new();
        let mut words: Vec<u32> = (0..hits).filter_map(|_| tally.count(5)).collect();
        words.extend(tally.untold().map(|(_, hits)| hits));
        words
    }

    #[test]
    fn a_tally_tells_of_doublings_and_of_what_is_left() {
        assert!(words_of(0).is_empty());
        assert_eq!(words_of(1), [1]);
        assert_eq!(words_of(4), [1, 2, 4]);
        assert_eq!(
            words_of(1000),
            [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000]
        );

        let mut tally = Tally::new();
        assert_eq!(tally.reach(FORKS, 0), None);
        assert_eq!(tally.reach(FORKS, 7), Some(7));
        assert_eq!(tally.reach(FORKS, 13), None);
        assert_eq!(tally.reach(FORKS, 3), None);
        assert_eq!(tally.untold().collect::<Vec<_>>(), [(FORKS, 13)]);
        assert_eq!(tally.reach(FORKS, u32::MAX), Some(u32::MAX));
        assert_eq!(tally.count(FORKS), None);
        assert_eq!(tally.sums().collect::<Vec<_>>(), [(FORKS, u32::MAX)]);
        assert_eq!(tally.count(FORKS + 1), None);
    }

    #[test]
    fn what_a_tally_tells_is_taken_and_what_none_tells_is_not() {
        for hits in 0..300 {
            let mut checked = Checked::new();
            assert!(words_of(hits).iter().all(|word| checked.take(5, *word)));
        }
        let refused = |words: &[u32]| {
            let mut checked = Checked::new();
            words.iter().position(|word| !checked.take(9, *word))
        };
        assert_eq!(refused(&[0]), Some(0), "nothing is no news");
        assert_eq!(refused(&[4, 4]), Some(1), "the same twice");
        assert_eq!(refused(&[4, 3]), Some(1), "less than before");
        assert_eq!(refused(&[4, 7, 8]), Some(2), "more after the sum");
        assert_eq!(refused(&[3, u32::MAX]), None);
        assert!(
            !Checked::new().take(FORKS + 1, 1),
            "nothing is counted there"
        );
    }

    #[test]
    fn nobody_is_heard_of_one_count_more_often_than_it_can_double() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut checked = Checked::new();
        let mut words = [0; 4];
        for _ in 0..200_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let (which, hits) = ((state >> 62) as usize, (state >> 20) as u32);
            let hits = hits >> (state >> 52 & 31);
            words[which] += i32::from(checked.take(which, hits));
        }
        assert!(
            words.iter().all(|words| (1..=33).contains(words)),
            "{words:?}"
        );
    }
}
