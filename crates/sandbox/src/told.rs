//! What a kernel other than the host's tells of its program, in a file that it shares with the box's init: how the program
//! ended, and how often each of its calls was refused.
//!
//! Everything has its fixed place there. So whatever a kernel that was broken out of writes, it changes a few numbers, and
//! init's work and its words to the keeper are bounded.

use rustix::io::Errno;

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

/// Where it is told that the last of the program's processes is gone, too.
pub(crate) const OVER: u64 = (ProgramEnd::SIZE + 4 * MOST_RULES) as u64;

/// The file's size: the end, then how often each rule was hit, then whether all is over.
pub(crate) const SIZE: usize = OVER as usize + 1;

/// Whether the file says that all is over.
pub(crate) fn is_over(file: &[u8; SIZE]) -> bool {
    file.last() != Some(&0)
}

/// Where the hits of a rule are.
pub(crate) fn place_of(rule: usize) -> u64 {
    (ProgramEnd::SIZE + 4 * rule.min(MOST_RULES - 1)) as u64
}

/// What was told of each rule so far. Nothing here allocates.
pub(crate) struct Account([u32; MOST_RULES]);

/// Whether more can come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    SoFar,
    All,
}

impl Account {
    pub(crate) const fn new() -> Self {
        Self([0; MOST_RULES])
    }

    /// Takes in what the file says now. `tell` hears of a rule and its hits when it was hit first and when they have doubled,
    /// so some thirty times at most; and of all in the end.
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
        for (rule, (told, count)) in self.0.iter_mut().zip(counts).enumerate() {
            let is_news = match heard {
                Heard::SoFar => count > 0 && count / 2 >= *told,
                // A word on the way may have been lost.
                Heard::All => count > 0 && count >= *told,
            };
            if is_news {
                *told = count;
                tell(rule, count);
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
        let all: Vec<_> = (0..MOST_RULES).map(|rule| (rule, u32::MAX)).collect();
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
}
