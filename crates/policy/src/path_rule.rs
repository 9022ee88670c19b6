//! A path as a rule names it.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use crate::Places;

/// A path as a rule names it: anchored at the root, at the home directory (`~/x`) or at the working
/// directory (`x`, `./x`, `.`). The paths inside are relative to their anchor and hold no `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathRule {
    /// An absolute path.
    Root(PathBuf),
    /// Below the home directory; empty for the home directory itself.
    Home(PathBuf),
    /// Below the working directory; empty for the working directory itself.
    Work(PathBuf),
    /// Any file of this name, wherever the launch's bounded search finds it (`**/NAME`).
    AnyNamed(String),
}

/// Why a text is not a path rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPathRule {
    /// Nothing there.
    #[error("a path rule is empty")]
    Empty,
    /// A NUL byte, which no path can hold.
    #[error("a path holds a NUL byte")]
    Nul,
    /// More `..` than there are components before it.
    #[error("a path climbs above where it starts")]
    Climbs,
    /// `*`, `?` or `[` outside the one form there is.
    #[error("a path holds a glob character")]
    Glob,
    /// `~name`.
    #[error("`~name` is not supported")]
    OtherUser,
    /// `$HOME/x` and the like.
    #[error("variables in paths are not expanded")]
    Variable,
}

impl InvalidPathRule {
    /// What to write instead.
    #[must_use]
    pub fn hint(self) -> &'static str {
        match self {
            Self::Empty => "write `.` for the working directory",
            Self::Nul => "remove the NUL byte",
            Self::Climbs => "write the absolute path",
            Self::Glob => {
                "name the directory: a rule covers everything below it (only hidden_paths accepts `**/NAME`)"
            }
            Self::OtherUser => "write the absolute path of that home directory",
            Self::Variable => "write `~/` for the home directory, or the absolute path",
        }
    }
}

impl PathRule {
    /// Reads a path rule. `**/NAME` is refused here: see [`PathRule::parse_hidden`].
    ///
    /// # Errors
    /// When the text is no path rule; see [`InvalidPathRule`].
    pub fn parse(text: &str) -> Result<Self, InvalidPathRule> {
        if text.is_empty() {
            return Err(InvalidPathRule::Empty);
        }
        if text.contains('\0') {
            return Err(InvalidPathRule::Nul);
        }
        if text.contains(['*', '?', '[']) {
            return Err(InvalidPathRule::Glob);
        }
        if text.starts_with('$') {
            return Err(InvalidPathRule::Variable);
        }
        if let Some(rest) = text.strip_prefix('~') {
            return match rest.strip_prefix('/') {
                Some(below) => normalise(below).map(Self::Home),
                None if rest.is_empty() => Ok(Self::Home(PathBuf::new())),
                None => Err(InvalidPathRule::OtherUser),
            };
        }
        match text.strip_prefix('/') {
            Some(below) => normalise(below).map(|path| Self::Root(Path::new("/").join(path))),
            None => normalise(text).map(Self::Work),
        }
    }

    /// Reads a path rule of `hidden_paths`, where `**/NAME` hides every file of that name.
    ///
    /// # Errors
    /// When the text is no path rule; see [`InvalidPathRule`].
    pub fn parse_hidden(text: &str) -> Result<Self, InvalidPathRule> {
        match text.strip_prefix("**/") {
            Some(name) if is_file_name(name) => Ok(Self::AnyNamed(name.to_owned())),
            _ => Self::parse(text),
        }
    }

    /// The absolute path on a host with these places; `None` for a rule that names no one path.
    #[must_use]
    pub fn resolve(&self, places: &Places) -> Option<PathBuf> {
        match self {
            Self::Root(path) => Some(path.clone()),
            Self::Home(below) => Some(join(&places.home, below)),
            Self::Work(below) => Some(join(&places.work, below)),
            Self::AnyNamed(_) => None,
        }
    }

    /// Whether the rule names a place by where the launch happens to be (`.` or `~`). Such a rule
    /// can't be meant as an exception to a hidden path: whoever starts an agent in `~/.ssh` has not
    /// said "show it my keys".
    pub(crate) fn is_bare_anchor(&self) -> bool {
        matches!(self, Self::Home(below) | Self::Work(below) if below.as_os_str().is_empty())
    }
}

/// Joins without the trailing slash that joining an empty path would leave.
fn join(anchor: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() {
        anchor.to_path_buf()
    } else {
        anchor.join(below)
    }
}

fn is_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '*', '?', '[', '\0'])
}

/// Removes `.`, `..` and empty components without looking at the disk.
fn normalise(text: &str) -> Result<PathBuf, InvalidPathRule> {
    let mut path = PathBuf::new();
    for component in text.split('/') {
        match component {
            "" | "." => {}
            ".." if path.pop() => {}
            ".." => return Err(InvalidPathRule::Climbs),
            name => path.push(name),
        }
    }
    Ok(path)
}

impl fmt::Display for PathRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(path) => write!(f, "{}", path.display()),
            Self::Home(below) if below.as_os_str().is_empty() => f.write_str("~"),
            Self::Home(below) => write!(f, "~/{}", below.display()),
            Self::Work(below) if below.as_os_str().is_empty() => f.write_str("."),
            Self::Work(below) => write!(f, "{}", below.display()),
            Self::AnyNamed(name) => write!(f, "**/{name}"),
        }
    }
}

impl Serialize for PathRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &str) {
        let shown = match PathRule::parse_hidden(text) {
            Ok(rule) => format!("{rule:?}"),
            Err(error) => format!("{error:?}"),
        };
        assert_eq!(shown, expect, "{text:?}");
    }

    #[test]
    fn rules_are_anchored_and_normalised() {
        check("/a//b/./c/", r#"Root("/a/b/c")"#);
        check("/", r#"Root("/")"#);
        check("/a/../b", r#"Root("/b")"#);
        check("~", r#"Home("")"#);
        check("~/", r#"Home("")"#);
        check("~/.ssh", r#"Home(".ssh")"#);
        check(".", r#"Work("")"#);
        check("./src/..", r#"Work("")"#);
        check("src", r#"Work("src")"#);
        check("**/.env", r#"AnyNamed(".env")"#);
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        check("", "Empty");
        check("a\0b", "Nul");
        check("../x", "Climbs");
        check("/../etc", "Climbs");
        check("~/../other", "Climbs");
        check("~bob/x", "OtherUser");
        check("$HOME/x", "Variable");
        check("*.pem", "Glob");
        check("**/*.pem", "Glob");
        check("**/a/b", "Glob");
        check("a/**/b", "Glob");
        check("**/..", "Glob");
        assert_eq!(PathRule::parse("**/.env"), Err(InvalidPathRule::Glob));
    }

    #[test]
    fn a_rule_reads_back_as_it_is_shown() {
        for text in ["/", "/a/b", "~", "~/x/y", ".", "src/a", "**/.env"] {
            let rule = PathRule::parse_hidden(text).unwrap();
            assert_eq!(PathRule::parse_hidden(&rule.to_string()), Ok(rule));
        }
    }
}
