//! Which paths a rule is about: `*` within a part, `**` for any number of parts, `?` for a character. Case does not count:
//! on some systems it does not, and a rule must hold there too.

use unicode_normalization::UnicodeNormalization as _;

use crate::path::TreePath;

/// A pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    written: String,
    parts: Vec<Vec<char>>,
}

impl Glob {
    /// A pattern; without a `/` it is about names in any directory.
    #[must_use]
    pub fn new(pattern: &str) -> Self {
        let folded: String = pattern.nfkc().flat_map(char::to_lowercase).collect();
        let whole = match folded.trim_end_matches('/') {
            name if name.contains('/') => name.trim_start_matches('/').to_owned(),
            name => format!("**/{name}"),
        };
        Self {
            written: pattern.to_owned(),
            parts: whole
                .split('/')
                .map(|part| part.chars().collect())
                .collect(),
        }
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.written
    }

    /// Whether it is about this path.
    #[must_use]
    pub fn matches(&self, path: &TreePath) -> bool {
        whole(&self.parts, &parts(path))
    }
}

fn parts(path: &TreePath) -> Vec<Vec<char>> {
    let folded = path.folded();
    folded
        .split('/')
        .map(|part| part.chars().collect())
        .collect()
}

fn whole(pattern: &[Vec<char>], path: &[Vec<char>]) -> bool {
    match pattern.split_first() {
        None => path.is_empty(),
        Some((first, rest)) if first.as_slice() == ['*', '*'] => {
            (0..=path.len()).any(|skip| whole(rest, &path[skip..]))
        }
        Some((first, rest)) => match path.split_first() {
            Some((part, more)) => within(first, part) && whole(rest, more),
            None => false,
        },
    }
}

fn within(pattern: &[char], part: &[char]) -> bool {
    match pattern.split_first() {
        None => part.is_empty(),
        Some(('*', rest)) => (0..=part.len()).any(|skip| within(rest, &part[skip..])),
        Some((c, rest)) => part
            .split_first()
            .is_some_and(|(own, more)| (*c == '?' || c == own) && within(rest, more)),
    }
}

/// The first of these that is about a path.
#[must_use]
pub fn first<'a>(globs: &'a [Glob], path: &TreePath) -> Option<&'a Glob> {
    let parts = parts(path);
    globs.iter().find(|glob| whole(&glob.parts, &parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_about_names_or_places() {
        let is =
            |pattern: &str, path: &str| Glob::new(pattern).matches(&TreePath::new(path).unwrap());
        assert!(is("*.key", "a/b.key") && is("*.key", "B.KEY") && !is("*.key", "a.keys"));
        assert!(is("tests/**", "tests/a/b.py") && !is("tests/**", "x/tests/a.py"));
        assert!(is("**/tests/**", "x/tests/a.py") && is("**/tests/**", "tests/a.py"));
        assert!(
            is("conftest.py", "a/b/ConfTest.py")
                && is("src/?.py", "src/a.py")
                && !is("src/?.py", "src/ab.py")
        );
    }
}
