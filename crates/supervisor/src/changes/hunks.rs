//! The hunks of a changed text, and the text that some of them make.

use super::shown::harmless_lines;
use similar::udiff::UnifiedDiffHunk;
use similar::{DiffTag, TextDiff};

/// Lines that are shown around a change, as git does.
const CONTEXT: usize = 3;

/// A changed text in parts that can be applied one by one.
#[derive(Debug, Clone)]
pub struct FileHunks {
    before: String,
    after: String,
    hunks: Vec<Hunk>,
}

#[derive(Debug, Clone)]
struct Hunk {
    text: String,
    old_start: usize,
}

impl FileHunks {
    pub(super) fn new(before: String, after: String) -> Self {
        let hunks = hunks_of(&before, &after);
        Self {
            before,
            after,
            hunks,
        }
    }

    /// Each as people read it; no terminal obeys anything in it.
    pub fn texts(&self) -> impl ExactSizeIterator<Item = &str> {
        self.hunks.iter().map(|hunk| hunk.text.as_str())
    }

    /// The old text with those hunks in it for which `chosen` says so; what it says nothing of stays out.
    pub fn compose(&self, chosen: &[bool]) -> String {
        let diff = TextDiff::from_lines(&self.before, &self.after);
        let (old, new) = (diff.old_slices(), diff.new_slices());
        let mut text = String::with_capacity(self.before.len().max(self.after.len()));
        for operation in diff.ops() {
            let (old_range, new_range) = (operation.old_range(), operation.new_range());
            // A hunk reaches from its first line to the first of the next.
            let later = |hunk: &Hunk| hunk.old_start > old_range.start;
            let number = self.hunks.iter().position(later);
            let number = number.unwrap_or(self.hunks.len()).checked_sub(1);
            let is_chosen = number.is_some_and(|number| chosen.get(number) == Some(&true));
            let lines = match operation.tag() {
                DiffTag::Equal => old.get(old_range),
                _ if is_chosen => new.get(new_range),
                _ => old.get(old_range),
            };
            text.extend(lines.unwrap_or_default().iter().copied());
        }
        text
    }
}

fn hunks_of(before: &str, after: &str) -> Vec<Hunk> {
    let diff = TextDiff::from_lines(before, after);
    let groups = diff.grouped_ops(CONTEXT).into_iter();
    let hunk = |group: Vec<similar::DiffOp>| {
        let old_start = group.first()?.old_range().start;
        let text = UnifiedDiffHunk::new(group, &diff, true).to_string();
        Some(Hunk {
            text: harmless_lines(&text),
            old_start,
        })
    };
    groups.filter_map(hunk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// All of them make the new text, none the old one, and one after the other gets there too.
        #[test]
        fn hunks_add_up(
            old in prop::collection::vec(0u8..6, 0..60),
            new in prop::collection::vec(0u8..6, 0..60),
            same in prop::collection::vec(0u8..6, 0..30),
            cut in any::<bool>(),
            end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
        ) {
            let lines = |numbers: &[u8]| -> String {
                numbers.iter().map(|number| format!("{number}{end}")).collect()
            };
            let mut before = lines(&[old.clone(), same.clone(), new.clone()].concat());
            let after = lines(&[new, same, old].concat());
            if cut {
                before.pop();
            }
            let hunks = FileHunks::new(before.clone(), after.clone());
            let count = hunks.texts().len();
            prop_assert_eq!(hunks.compose(&vec![true; count]), after.clone());
            prop_assert_eq!(hunks.compose(&[]), before.clone());
            let mut text = before;
            for _ in 0..200 {
                if text == after {
                    break;
                }
                let rest = FileHunks::new(text, after.clone());
                prop_assert!(rest.texts().len() > 0);
                text = rest.compose(&[true]);
            }
            prop_assert_eq!(text, after);
        }
    }
}
