//! Words from outside, held to a length and to harmless characters when they are read.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// One line of text: not empty, at most `MOST` bytes, no control characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Line<const MOST: usize>(String);

/// Why somebody asks for something; it goes to the ledger.
pub type Reason = Line<512>;

/// The name of a model or the like.
pub type Name = Line<128>;

/// A text that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidText {
    /// Nothing in it.
    #[error("it is empty")]
    Empty,
    /// Too many bytes.
    #[error("it has {have} bytes, and {most} is the most")]
    TooLong {
        /// How many it has.
        have: usize,
        /// How many it may have.
        most: usize,
    },
    /// A character that does not belong there.
    #[error("it holds the character {0:?}")]
    Character(char),
}

impl<const MOST: usize> Line<MOST> {
    /// Takes a text that keeps to the rules.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidText> {
        let text = text.into();
        check_length(&text, MOST)?;
        match text.chars().find(|c| is_unprintable(*c)) {
            Some(bad) => Err(InvalidText::Character(bad)),
            None => Ok(Self(text)),
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<const MOST: usize> fmt::Display for Line<MOST> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de, const MOST: usize> Deserialize<'de> for Line<MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl<const MOST: usize> JsonSchema for Line<MOST> {
    fn schema_name() -> Cow<'static, str> {
        format!("Line{MOST}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "minLength": 1,
            "maxLength": MOST,
            "pattern": PRINTABLE,
            "description": format!("One line: at most {MOST} bytes of UTF-8, no control characters."),
        })
    }

    fn inline_schema() -> bool {
        true
    }
}

/// Text for people, made from text nobody vouches for: cut to length, control characters replaced.
///
/// An operator's terminal prints it, so an agent must not be able to put escape sequences there, nor to make a listing
/// too long to send.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(transparent)]
pub struct Shown(String);

impl Shown {
    /// The most bytes a shown text has.
    pub const MOST: usize = 256;

    /// Cuts and cleans a text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(shorten(text, Self::MOST))
    }

    /// A command line as a person would read it; arguments with blanks are quoted.
    #[must_use]
    pub fn command(arguments: &[String]) -> Self {
        let mut line = String::new();
        for argument in arguments {
            if !line.is_empty() {
                line.push(' ');
            }
            // Nothing past the limit is shown, so nothing past it is copied.
            let head = shorten(argument, Self::MOST);
            if head.is_empty() || head.contains(' ') {
                line.push_str(&format!("'{head}'"));
            } else {
                line.push_str(&head);
            }
            if line.len() > Self::MOST {
                break;
            }
        }
        Self::new(&line)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What comes over the wire is cleaned again: the reader prints it too.
impl<'de> Deserialize<'de> for Shown {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::new(&String::deserialize(deserializer)?))
    }
}

/// The rule of [`is_unprintable`] for schemas.
const PRINTABLE: &str =
    "^[^\\u0000-\\u001f\\u007f-\\u009f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff]*$";

/// Cuts at a character boundary so that the result, mark included, has at most `most` bytes.
pub(crate) fn shorten(text: &str, most: usize) -> String {
    const MARK: &str = "…";
    let mut short = String::new();
    for c in text.chars() {
        short.push(if is_unprintable(c) { '\u{fffd}' } else { c });
        if short.len() > most {
            short.truncate(short.floor_char_boundary(most - MARK.len()));
            short.push_str(MARK);
            break;
        }
    }
    short
}

/// Controls, and the marks that reorder or hide text on a screen.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

pub(super) fn check_length(text: &str, most: usize) -> Result<(), InvalidText> {
    match text.len() {
        0 => Err(InvalidText::Empty),
        have if have > most => Err(InvalidText::TooLong { have, most }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_keep_to_the_rules() {
        assert_eq!(Line::<4>::new("abcd").unwrap().as_str(), "abcd");
        assert_eq!(Line::<4>::new(""), Err(InvalidText::Empty));
        assert_eq!(
            Line::<4>::new("abcde"),
            Err(InvalidText::TooLong { have: 5, most: 4 })
        );
        assert_eq!(
            Line::<4>::new("a\x1b[m"),
            Err(InvalidText::Character('\x1b'))
        );
    }

    #[test]
    fn shown_text_is_short_and_harmless() {
        assert_eq!(Shown::new("plain").as_str(), "plain");
        assert_eq!(
            Shown::new("a\x1b[2Jb\u{202e}").as_str(),
            "a\u{fffd}[2Jb\u{fffd}"
        );
        for text in ["ä".repeat(10_000), "\0".repeat(10_000), "x".repeat(257)] {
            let shown = Shown::new(&text);
            assert!(
                shown.as_str().len() <= Shown::MOST,
                "{}",
                shown.as_str().len()
            );
            assert!(shown.as_str().ends_with('…'));
        }
        assert_eq!(Shown::new(&"x".repeat(256)).as_str(), "x".repeat(256));
        assert_eq!(Shown::new("").as_str(), "");
    }

    #[test]
    fn command_lines_are_quoted() {
        let words = ["sh", "-c", "echo hello", ""].map(str::to_owned);
        assert_eq!(Shown::command(&words).as_str(), "sh -c 'echo hello' ''");
        let long = vec!["x".repeat(1000); 1000];
        assert!(Shown::command(&long).as_str().len() <= Shown::MOST);
    }
}
