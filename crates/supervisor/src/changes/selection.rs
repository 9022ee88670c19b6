//! Which changes are meant: by paths and patterns, as they are given on a command line, or one by one.

use super::{Change, Overlay};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// Paths and patterns. A path means what is at it and below it; `*` is any characters, `?` one, `[ab]` one of them, and all of
/// them also stand for `/`, as git has it.
#[derive(Debug, Clone, Default)]
pub struct PathFilter {
    words: Vec<PathWord>,
}

#[derive(Debug, Clone)]
struct PathWord {
    given: PathBuf,
    /// The same as absolute paths: as it is written, and with the links in its directory followed.
    patterns: Vec<Vec<u8>>,
}

impl PathFilter {
    /// Reads words relative to a directory.
    pub fn new(words: &[PathBuf], from: &Path) -> Self {
        let word = |given: &PathBuf| {
            let written = normal(&from.join(given));
            let mut patterns = vec![written.as_os_str().as_bytes().to_vec()];
            let real = written.ancestors().skip(1).find_map(|above| {
                let rest = written.strip_prefix(above).ok()?;
                Some(above.canonicalize().ok()?.join(rest))
            });
            if let Some(real) = real.filter(|real| *real != written) {
                patterns.push(real.into_os_string().into_vec());
            }
            PathWord {
                given: given.clone(),
                patterns,
            }
        };
        Self {
            words: words.iter().map(word).collect(),
        }
    }

    /// Whether nothing was given: then everything is meant.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether a path is meant.
    pub fn matches(&self, path: &Path) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| word.matches(path))
    }

    /// Words that none of these paths fits: a slip of the pen, most likely.
    pub fn unmatched(&self, paths: impl Iterator<Item = PathBuf>) -> Vec<&Path> {
        let mut left: Vec<&PathWord> = self.words.iter().collect();
        for path in paths {
            left.retain(|word| !word.matches(&path));
        }
        left.into_iter().map(|word| word.given.as_path()).collect()
    }
}

impl PathWord {
    fn matches(&self, path: &Path) -> bool {
        let path = path.as_os_str().as_bytes();
        self.patterns.iter().any(|pattern| {
            let below = path.strip_prefix(pattern.as_slice());
            let is_below = |rest: &[u8]| rest.is_empty() || rest.starts_with(b"/");
            pattern == b"/" || below.is_some_and(is_below) || fits_above(pattern, path)
        })
    }
}

/// Whether a pattern fits the path or a directory above it.
fn fits_above(pattern: &[u8], path: &[u8]) -> bool {
    if !pattern
        .iter()
        .any(|byte| matches!(byte, b'*' | b'?' | b'['))
    {
        return false;
    }
    let ends = path
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'/')
        .map(|(at, _)| at)
        .chain([path.len()]);
    ends.filter_map(|end| path.get(..end))
        .any(|above| fits(pattern, above))
}

/// A star is tried again from where it stood, so the time is at most the product of both lengths.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    let mut star = None;
    loop {
        let step = match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
                continue;
            }
            None if from == text.len() => return true,
            None => None,
            Some(_) => text.get(from).and_then(|byte| one(pattern, at, *byte)),
        };
        match (step, star) {
            (Some(next), _) => {
                at = next;
                from += 1;
            }
            (None, Some((place, taken))) if taken < text.len() => {
                star = Some((place, taken + 1));
                at = place + 1;
                from = taken + 1;
            }
            (None, _) => return false,
        }
    }
}

/// Whether one byte fits what stands at a place; where the pattern goes on then.
fn one(pattern: &[u8], at: usize, byte: u8) -> Option<usize> {
    let first = *pattern.get(at)?;
    match first {
        b'?' => Some(at + 1),
        b'[' => match class(pattern.get(at + 1..)?, byte) {
            Some((fits, length)) => fits.then_some(at + 1 + length),
            None => (byte == b'[').then_some(at + 1),
        },
        b'\\' if pattern.get(at + 1).is_some() => {
            (pattern.get(at + 1) == Some(&byte)).then_some(at + 2)
        }
        _ => (first == byte).then_some(at + 1),
    }
}

/// What `[…]` says of a byte, and how long it is; nothing if it has no end.
fn class(rest: &[u8], byte: u8) -> Option<(bool, usize)> {
    let is_negated = matches!(rest.first(), Some(b'!' | b'^'));
    let start = usize::from(is_negated);
    let mut at = start;
    let mut found = false;
    loop {
        let first = *rest.get(at)?;
        if first == b']' && at > start {
            return Some((found != is_negated, at + 1));
        }
        match (rest.get(at + 1), rest.get(at + 2)) {
            (Some(b'-'), Some(last)) if *last != b']' => {
                found |= (first..=*last).contains(&byte);
                at += 3;
            }
            _ => {
                found |= first == byte;
                at += 1;
            }
        }
    }
}

/// An absolute path without `.` and `..`, as it is written.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => {
                normal.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    normal
}

/// Changes that are to be applied or discarded.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    pub(super) whole: BTreeSet<usize>,
    /// What is to become of files of which only some hunks are applied.
    pub(super) composed: BTreeMap<usize, String>,
}

impl Selection {
    /// All of a change.
    pub fn add(&mut self, change: &Change) {
        self.whole.insert(change.node);
    }

    /// Some hunks of a change: the file becomes `text`, and what is missing stays waiting.
    pub fn add_composed(&mut self, change: &Change, text: String) {
        self.composed.insert(change.node, text);
    }

    /// Whether nothing is selected.
    pub fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.composed.is_empty()
    }

    /// Whether something of a change is.
    pub fn has(&self, change: &Change) -> bool {
        self.whole.contains(&change.node) || self.composed.contains_key(&change.node)
    }
}

impl Overlay {
    /// The changes at these paths.
    pub fn select(&self, filter: &PathFilter) -> Selection {
        let mut selection = Selection::default();
        self.changes()
            .filter(|change| filter.matches(&change.path))
            .for_each(|change| selection.add(&change));
        selection
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_patterns_mean_what_gits_do() {
        let means = |word: &str, path: &str| {
            let filter = PathFilter::new(&[PathBuf::from(word)], Path::new("/no/such/work"));
            filter.matches(Path::new(path))
        };
        for (word, path, expected) in [
            ("a", "/no/such/work/a", true),
            ("a", "/no/such/work/a/b/c", true),
            ("a/", "/no/such/work/a/b", true),
            ("a", "/no/such/work/ab", false),
            (".", "/no/such/work/x", true),
            (".", "/no/such/workshop", false),
            ("..", "/no/such/other", true),
            ("/", "/anything", true),
            ("*.rs", "/no/such/work/deep/er/main.rs", true),
            ("*.rs", "/no/such/work/main.rsx", false),
            ("*.d", "/no/such/work/x.d/file", true),
            ("src/*/mod.rs", "/no/such/work/src/a/mod.rs", true),
            ("src/**/mod.rs", "/no/such/work/src/a/b/mod.rs", true),
            ("m?in.txt", "/no/such/work/main.txt", true),
            ("[a-c]x", "/no/such/work/bx", true),
            ("[!a-c]x", "/no/such/work/bx", false),
            ("[", "/no/such/work/[", true),
            ("\\*", "/no/such/work/*", true),
            ("\\*", "/no/such/work/a", false),
            ("../work/./a", "/no/such/work/a", true),
        ] {
            assert_eq!(means(word, path), expected, "{word} {path}");
        }
        // No pattern takes long.
        let pattern = "*a".repeat(200);
        assert!(!means(
            &pattern,
            &format!("/no/such/work/{}", "a".repeat(4000) + "b")
        ));
    }

    #[test]
    fn words_that_fit_nothing_are_named() {
        let words = ["a", "b*"].map(PathBuf::from);
        let filter = PathFilter::new(&words, Path::new("/w"));
        let paths = ["/w/a/x", "/w/c"].map(PathBuf::from);
        assert_eq!(filter.unmatched(paths.into_iter()), [Path::new("b*")]);
    }
}
