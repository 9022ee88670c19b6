//! The bounds on a document, checked before anything looks at what it says.

use std::ops::Range;
use std::sync::Arc;

use crate::error::ManifestError;
use crate::node::{Problem, Span};

/// The most bytes a policy file may have.
pub const MAX_FILE_BYTES: usize = 1024 * 1024;

/// The deepest nesting a document may have.
pub(crate) const MAX_DEPTH: usize = 32;

/// The most keys and values a document may have.
pub(crate) const MAX_NODES: usize = 10_000;

/// A document that is small enough, UTF-8, without a byte order mark and without control characters.
pub(crate) struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    pub(crate) fn read(file: &Arc<str>, bytes: &'a [u8]) -> Result<Self, ManifestError> {
        let whole_file = |message: String| ManifestError::without_place(file, message);
        if bytes.len() > MAX_FILE_BYTES {
            return Err(whole_file("the file is larger than 1 MiB".to_owned()));
        }
        let text = std::str::from_utf8(bytes).map_err(|error| {
            whole_file(format!(
                "the file is not UTF-8 (byte {})",
                error.valid_up_to()
            ))
        })?;
        let text = Self(text.strip_prefix('\u{feff}').unwrap_or(text));
        text.check_characters()
            .map_err(|problem| problem.into_error(file, &text))?;
        Ok(text)
    }

    pub(crate) fn as_str(&self) -> &'a str {
        self.0
    }

    /// Refuses what a reader would not see: a NUL that ends the text for a parser, an escape that
    /// rewrites the terminal, a mark that turns the reading direction.
    fn check_characters(&self) -> Result<(), Problem> {
        let unseen = |c: char| {
            (c.is_control() && !matches!(c, '\t' | '\n' | '\r'))
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
        };
        match self.0.char_indices().find(|(_, c)| unseen(*c)) {
            None => Ok(()),
            Some((at, c)) => Err(Problem::new(
                self.span(at..at + c.len_utf8()),
                format!(
                    "the invisible character U+{:04X} is not accepted",
                    u32::from(c)
                ),
            )),
        }
    }

    /// The span of a byte range. For one place; see [`Lines`] for many.
    pub(crate) fn span(&self, range: Range<usize>) -> Span {
        Lines::new(self).span(range)
    }
}

/// Where the lines of a document start, to place many spans without counting from the top each time.
pub(crate) struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
    ascii: bool,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(text: &Text<'a>) -> Self {
        let text = text.as_str();
        let after = text
            .bytes()
            .enumerate()
            .filter(|(_, b)| *b == b'\n')
            .map(|(at, _)| at + 1);
        let starts = std::iter::once(0).chain(after).collect();
        Self {
            text,
            starts,
            ascii: text.is_ascii(),
        }
    }

    /// The span of a byte range, with the line and column of its start.
    pub(crate) fn span(&self, range: Range<usize>) -> Span {
        let start = self.floor(range.start);
        let end = self.floor(range.end).max(start);
        let line = self.starts.partition_point(|at| *at <= start);
        let line_start = line
            .checked_sub(1)
            .and_then(|at| self.starts.get(at))
            .unwrap_or(&0);
        let before = &self.text[*line_start..start];
        let column = if self.ascii {
            before.len()
        } else {
            before.chars().count()
        };
        Span {
            start,
            end,
            line: count(line),
            column: count(column + 1),
        }
    }

    /// The nearest character boundary at or before an offset.
    fn floor(&self, offset: usize) -> usize {
        let offset = offset.min(self.text.len());
        (0..=offset)
            .rev()
            .find(|at| self.text.is_char_boundary(*at))
            .unwrap_or(0)
    }
}

/// Lines and columns fit 32 bits because files are at most 1 MiB.
pub(crate) fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
