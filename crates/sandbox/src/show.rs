//! What a box is shown below `/belljar`: things that are not of the host's tree but of its keeper's making.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directory inside the box that holds every [`Show`]. It is there only when there is something to show.
pub const OWN_PLACE: &str = "/belljar";

/// The most bytes of one text.
pub const LONGEST_TEXT: usize = 1 << 20;
/// The most bytes of all texts of a box: they are held in memory on the box's account.
pub const ALL_TEXTS: usize = 4 << 20;
/// The most things shown to one box.
const MOST_SHOWS: usize = 64;
/// The most doors: an agent's to its keeper, and one to its MCP servers.
pub(crate) const MOST_DOORS: usize = 2;
const LONGEST_NAME: usize = 100;
const DEEPEST_NAME: usize = 4;

/// One thing that is shown. Nothing of it can be changed from inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Show {
    /// A file with these contents.
    Text {
        /// Where.
        name: ShowName,
        /// Its contents, at most [`LONGEST_TEXT`]. Shared: many boxes may be shown the same.
        bytes: Arc<[u8]>,
    },
    /// A program of the host's.
    Program {
        /// Where.
        name: ShowName,
        /// The host's file; no symbolic link is followed on the way.
        source: PathBuf,
    },
    /// A Unix stream socket that listens outside: a box connects to these few of the host's and no others.
    Door {
        /// Where.
        name: ShowName,
        /// The host's socket; no symbolic link is followed on the way.
        socket: PathBuf,
    },
}

impl Show {
    /// Where it is shown.
    pub fn name(&self) -> &ShowName {
        match self {
            Show::Text { name, .. } | Show::Program { name, .. } | Show::Door { name, .. } => name,
        }
    }
}

/// A path below [`OWN_PLACE`], such as `bin/belljar`: a few plain words, no way up or out.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShowName(String);

impl ShowName {
    /// Checks a name: words of letters, digits, `.`, `_` and `-`, not starting with a dot, separated by `/`.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidShow> {
        let name = name.into();
        let is_word = |word: &str| {
            !word.is_empty()
                && !word.starts_with('.')
                && word
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        };
        if name.len() <= LONGEST_NAME
            && name.split('/').count() <= DEEPEST_NAME
            && name.split('/').all(is_word)
        {
            Ok(Self(name))
        } else {
            Err(InvalidShow::Name { name })
        }
    }

    /// The full path inside the box.
    pub fn path(&self) -> PathBuf {
        Path::new(OWN_PLACE).join(&self.0)
    }

    /// Relative to [`OWN_PLACE`].
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ShowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Something that can't be shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidShow {
    /// Not a name for something below `/belljar`.
    #[error("{name:?} is no name below {OWN_PLACE}: plain words separated by '/'")]
    Name {
        /// As given.
        name: String,
    },
    /// Two things in one place, or one inside the other.
    #[error("{OWN_PLACE}/{name} is shown twice")]
    Twice {
        /// Where.
        name: ShowName,
    },
    /// A text that is too long, alone or with the others.
    #[error(
        "{OWN_PLACE}/{name} is too long: a text may have {LONGEST_TEXT} bytes, all together {ALL_TEXTS}"
    )]
    TooLong {
        /// Which.
        name: ShowName,
    },
    /// More than a box is shown.
    #[error("more than {MOST_SHOWS} things are shown in {OWN_PLACE}")]
    TooMany,
    /// More doors than a box has.
    #[error("{OWN_PLACE}/{name} is a door too many: a box has {MOST_DOORS} at most")]
    TooManyDoors {
        /// The one too many.
        name: ShowName,
    },
    /// The view has something else there.
    #[error("{} of the host's is shown where the box has its own {OWN_PLACE}", path.display())]
    Taken {
        /// What.
        path: PathBuf,
    },
    /// The host's file is not what it should be.
    #[error("{} is not {expected}", path.display())]
    NotThat {
        /// Which.
        path: PathBuf,
        /// What it should be.
        expected: &'static str,
    },
    /// The box's user has no right to use it.
    #[error("{} can't be used by the box's user {uid}: {missing}", path.display())]
    NoRight {
        /// Which.
        path: PathBuf,
        /// Who.
        uid: u32,
        /// The permission that is missing.
        missing: &'static str,
    },
}

/// Checks what can be checked without looking at the host.
pub fn check(shows: &[Show]) -> Result<(), InvalidShow> {
    if shows.len() > MOST_SHOWS {
        return Err(InvalidShow::TooMany);
    }
    let mut total = 0;
    let mut doors = 0;
    for (number, show) in shows.iter().enumerate() {
        let name = show.name();
        let overlaps = |other: &Show| {
            let (a, b) = (name.path(), other.name().path());
            a.starts_with(&b) || b.starts_with(&a)
        };
        if shows.iter().take(number).any(overlaps) {
            return Err(InvalidShow::Twice { name: name.clone() });
        }
        match show {
            Show::Text { bytes, .. } => {
                total += bytes.len();
                if bytes.len() > LONGEST_TEXT || total > ALL_TEXTS {
                    return Err(InvalidShow::TooLong { name: name.clone() });
                }
            }
            Show::Program { .. } => {}
            Show::Door { .. } => {
                doors += 1;
                if doors > MOST_DOORS {
                    return Err(InvalidShow::TooManyDoors { name: name.clone() });
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str, length: usize) -> Show {
        Show::Text {
            name: ShowName::new(name).expect("a name"),
            bytes: vec![0; length].into(),
        }
    }

    #[test]
    fn names_lead_nowhere_else() {
        for good in ["state", "bin/belljar", "manifest.json", "a/b/c/d-e_f.g"] {
            assert_eq!(ShowName::new(good).expect(good).as_str(), good);
        }
        let long = "x".repeat(LONGEST_NAME + 1);
        for bad in [
            "",
            "/",
            "/etc",
            "..",
            "a/../b",
            ".",
            "a/./b",
            "a//b",
            "a/",
            ".hidden",
            "a b",
            "a\0b",
            "ä",
            "a/b/c/d/e",
            &long,
        ] {
            assert!(ShowName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn places_sizes_and_doors_are_bounded() {
        assert_eq!(check(&[text("a", LONGEST_TEXT), text("b/c", 0)]), Ok(()));
        let is_twice = |shows: &[Show]| matches!(check(shows), Err(InvalidShow::Twice { .. }));
        assert!(is_twice(&[text("a", 0), text("a", 0)]));
        assert!(is_twice(&[text("a/b", 0), text("a", 0)]));
        assert!(is_twice(&[text("a", 0), text("a/b", 0)]));
        let is_long = |shows: &[Show]| matches!(check(shows), Err(InvalidShow::TooLong { .. }));
        assert!(is_long(&[text("a", LONGEST_TEXT + 1)]));
        let names = ["a", "b", "c", "d", "e"];
        assert!(is_long(&names.map(|name| text(name, LONGEST_TEXT))));
        let door = |name| Show::Door {
            name: ShowName::new(name).expect("a name"),
            socket: "/run/x".into(),
        };
        assert_eq!(check(&[door("a"), door("b")]), Ok(()));
        assert!(matches!(
            check(&[door("a"), door("b"), door("c")]),
            Err(InvalidShow::TooManyDoors { .. })
        ));
        let many: Vec<Show> = (0..=MOST_SHOWS).map(|n| text(&n.to_string(), 0)).collect();
        assert_eq!(check(&many), Err(InvalidShow::TooMany));
    }
}
