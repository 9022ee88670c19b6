//! Names inside a tree. One that could mean another place, on this system or on another, is none.

use std::fmt;

use serde::{Deserialize, Serialize};
use unicode_normalization::UnicodeNormalization as _;

const LONGEST: usize = 1024;
const DEEPEST: usize = 64;

/// A path inside a tree: relative, plain, with `/` between its parts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct TreePath(String);

/// Why a path is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPath {
    /// Nothing, or far too much.
    #[error("a path has 1 to {LONGEST} bytes and at most {DEEPEST} parts")]
    Length,
    /// `/etc/passwd`, `C:\`.
    #[error("{0:?} is not relative to the project")]
    Absolute(String),
    /// `..`, `.`, `a//b`.
    #[error("{0:?} leads elsewhere: no part may be empty, '.' or '..'")]
    Elsewhere(String),
    /// `.git`, whatever its case, and what file systems take for it.
    #[error("{0:?} is git's own")]
    Git(String),
    /// Control characters, backslashes, names that file systems change.
    #[error("{0:?} has characters that are read differently elsewhere")]
    Characters(String),
}

impl TreePath {
    /// Checks a path.
    ///
    /// # Errors
    /// When it is not one.
    pub fn new(path: impl Into<String>) -> Result<Self, InvalidPath> {
        let path = path.into();
        if path.is_empty() || path.len() > LONGEST || path.split('/').count() > DEEPEST {
            return Err(InvalidPath::Length);
        }
        if path.starts_with('/') || path.starts_with('~') || path.get(1..2) == Some(":") {
            return Err(InvalidPath::Absolute(path));
        }
        let is_odd = |c: char| c.is_control() || c == '\\' || is_invisible(c);
        // A project has thousands of names, and most of them are plain.
        if path.chars().any(is_odd) || (!path.is_ascii() && path.nfc().ne(path.chars())) {
            return Err(InvalidPath::Characters(path));
        }
        for part in path.split('/') {
            if matches!(part, "" | "." | "..") {
                return Err(InvalidPath::Elsewhere(path));
            }
            if part.ends_with(['.', ' ']) {
                return Err(InvalidPath::Characters(path));
            }
            if is_git(part) {
                return Err(InvalidPath::Git(path));
            }
        }
        Ok(Self(path))
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last part.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// What follows the last dot of its name.
    #[must_use]
    pub fn extension(&self) -> Option<&str> {
        let (stem, extension) = self.name().rsplit_once('.')?;
        (!stem.is_empty()).then_some(extension)
    }

    /// How a file system that knows no case, and no second spelling, would call it.
    #[must_use]
    pub fn folded(&self) -> String {
        if self.0.is_ascii() {
            return self.0.to_ascii_lowercase();
        }
        self.0.nfkc().flat_map(char::to_lowercase).nfkc().collect()
    }

    /// The directories above it, the nearest first.
    pub fn above(&self) -> impl Iterator<Item = &str> {
        self.0.rmatch_indices('/').map(|(at, _)| &self.0[..at])
    }
}

/// Git's directory by any name: case, an ignored character, or the short name of another system.
pub(crate) fn is_git(part: &str) -> bool {
    let seen: String = part.chars().filter(|c| !is_invisible(*c)).collect();
    let seen = seen.trim_end_matches(['.', ' ']).to_ascii_lowercase();
    matches!(
        seen.as_str(),
        ".git" | "git~1" | ".gitmodules" | ".gitattributes"
    )
}

/// Characters that some file systems leave out of names, and people can't see.
pub(crate) fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{e0000}'..='\u{e0fff}')
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for TreePath {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_elsewhere_are_none() {
        for path in [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a/./b",
            "a//b",
            "a/",
            "~/x",
            "C:/x",
            "a\\..\\b",
            "a\nb",
            "a\0b",
            ".git/config",
            "a/.git/hooks/x",
            ".GIT/config",
            "GIT~1/x",
            ".g\u{200c}it/config",
            ".git./x",
            ".git /x",
            ".gitmodules",
            "sub/.gitattributes",
            "a\u{202e}b.py",
            "e\u{301}.py",
            "aux.",
        ] {
            assert!(TreePath::new(path).is_err(), "{path:?}");
        }
        for path in [
            "a.py",
            "src/lib.rs",
            ".github/workflows/ci.yml",
            ".gitignore",
            "é.py",
            "a..b",
        ] {
            assert!(TreePath::new(path).is_ok(), "{path:?}");
        }
    }

    #[test]
    fn names_that_differ_in_case_or_spelling_fold_to_one() {
        let folded = |path: &str| TreePath::new(path).unwrap().folded();
        assert_eq!(folded("Src/A.py"), folded("src/a.py"));
        assert_eq!(folded("\u{ff41}.py"), folded("a.py"));
        assert_ne!(folded("a.py"), folded("b.py"));
    }
}
