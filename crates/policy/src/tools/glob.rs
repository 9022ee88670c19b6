//! Texts with `*` in them.

use std::fmt;

/// A text in which `*` stands for any characters, or none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Glob(String);

impl Glob {
    /// Takes the text as a pattern. Two stars in a row say what one says, and are kept as one.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut pattern = String::with_capacity(text.len());
        for c in text.chars() {
            if c != '*' || !pattern.ends_with('*') {
                pattern.push(c);
            }
        }
        Self(pattern)
    }

    /// Whether the text is one of the pattern's.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        matches(self.0.as_bytes(), text.as_bytes())
    }

    /// Whether every text of `other` is one of this pattern's. Only a star of ours stands for all that a star of
    /// theirs stands for, so it is enough to match their pattern as a text in which the star is a letter of its own.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.matches(&other.0)
    }

    /// Whether some text is of both patterns.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        overlap(self.0.as_bytes(), other.0.as_bytes())
    }

    /// The pattern as it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Goes back to the last star only, so it takes at most the product of both lengths.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p) == Some(&text[t]) {
            p += 1;
            t += 1;
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            p = at + 1;
            t = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Row by row: which ends of `b` can be reached with what was read of `a`.
fn overlap(a: &[u8], b: &[u8]) -> bool {
    let mut row = vec![false; b.len() + 1];
    row[0] = true;
    for j in 0..b.len() {
        row[j + 1] = row[j] && b[j] == b'*';
    }
    for x in a {
        let mut next = vec![false; b.len() + 1];
        next[0] = row[0] && *x == b'*';
        for (j, y) in b.iter().enumerate() {
            next[j + 1] = match (*x, *y) {
                (b'*', _) => row[j + 1] || next[j] || (row[j] && *y == b'*'),
                (_, b'*') => row[j + 1] || next[j],
                (x, y) => row[j] && x == y,
            };
        }
        row = next;
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        let table = [
            ("read_*", "read_file", true),
            ("read_*", "read_", true),
            ("read_*", "bread_", false),
            ("*_file", "read_file_file", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("**", "", true),
            ("", "", true),
            ("", "x", false),
        ];
        for (pattern, text, want) in table {
            assert_eq!(Glob::new(pattern).matches(text), want, "{pattern} {text}");
        }
    }

    #[test]
    fn covering_and_overlapping_agree_with_matching() {
        let words = ["", "a", "b", "ab", "ba", "aab", "abb", "aba", "abab", "bb"];
        let patterns = [
            "", "*", "a", "a*", "*b", "a*b", "*a*", "ab", "*ab*", "b*a", "a*a*",
        ];
        for (a, b) in patterns
            .iter()
            .flat_map(|a| patterns.iter().map(move |b| (a, b)))
        {
            let (one, two) = (Glob::new(a), Glob::new(b));
            let both = words.iter().any(|w| one.matches(w) && two.matches(w));
            let beyond = words.iter().any(|w| two.matches(w) && !one.matches(w));
            assert!(!both || one.overlaps(&two), "{a} overlaps {b}");
            assert_eq!(one.overlaps(&two), two.overlaps(&one), "{a} {b}");
            assert!(!(beyond && one.covers(&two)), "{a} covers {b}");
        }
        assert!(!Glob::new("a*").overlaps(&Glob::new("b*")));
        assert!(Glob::new("*b").overlaps(&Glob::new("a*")));
        assert!(Glob::new("a*c").covers(&Glob::new("a*b*c")));
    }
}
