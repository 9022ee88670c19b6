//! Where a rule was written. Every decision carries it, so a denial can name the line to change.

use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize, Serializer};

/// Who wrote a rule. Later variants outrank earlier ones: a user's own document may make an
/// exception to what Belljar ships, never the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Hard-wired in this crate.
    BuiltIn,
    /// A profile shipped with Belljar.
    Profile,
    /// A file the user wrote.
    Document,
}

/// The place a rule was written. Displays as `file:line`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// File name as the user gave it, `profile NAME`, or `built-in`.
    pub file: Arc<str>,
    /// 1-based line; 0 when the rule is not on any line.
    pub line: u32,
    /// 1-based column; 0 when the rule is not on any line.
    pub column: u32,
    /// Who wrote it.
    pub source: Source,
}

/// Shared, because every launch makes a few hundred built-in rules.
static BUILT_IN: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from("built-in"));

impl Origin {
    /// The origin of a rule hard-wired in Belljar.
    #[must_use]
    pub fn built_in() -> Self {
        Self {
            file: Arc::clone(&BUILT_IN),
            line: 0,
            column: 0,
            source: Source::BuiltIn,
        }
    }

    /// A whole document: used when a decision comes from the file but from no line in it.
    #[must_use]
    pub fn whole(file: Arc<str>) -> Self {
        Self {
            file,
            line: 0,
            column: 0,
            source: Source::Document,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        Ok(())
    }
}

impl Serialize for Origin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A value together with the place that said so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rule<T> {
    /// What the rule says.
    pub value: T,
    /// Where it was written.
    pub origin: Origin,
}

impl<T> Rule<T> {
    /// Pairs a value with its origin.
    pub fn new(value: T, origin: Origin) -> Self {
        Self { value, origin }
    }
}
