//! A program with its arguments.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A program and its arguments: 1 to 256 words of 32 KiB in all, the first not empty, none with a zero byte.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Command(Vec<String>);

/// A command that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCommand {
    /// No program.
    #[error("a command names a program")]
    NoProgram,
    /// Too many words.
    #[error("a command has at most {} words", Command::MOST_WORDS)]
    TooManyWords,
    /// Too many bytes.
    #[error("a command has at most {} bytes", Command::MOST_BYTES)]
    TooLong,
    /// No program could be given such an argument.
    #[error("a word of a command holds a zero byte")]
    ZeroByte,
}

impl Command {
    /// Words in a command. Enough for any program that is given a file for more.
    pub const MOST_WORDS: usize = 256;
    /// Bytes in all words, zero bytes at their ends included. The kernel's own limit is per word, at 128 KiB.
    pub const MOST_BYTES: usize = 32 * 1024;

    /// Takes a command that keeps to the rules.
    pub fn new(words: impl IntoIterator<Item = String>) -> Result<Self, InvalidCommand> {
        let mut command = Gathered::default();
        for word in words {
            command.push(word)?;
        }
        command.finish()
    }

    /// The program and its arguments.
    #[must_use]
    pub fn words(&self) -> &[String] {
        &self.0
    }

    /// Gives the words away.
    #[must_use]
    pub fn into_words(self) -> Vec<String> {
        self.0
    }
}

/// Stops at the first word too many, so that a long list is never held.
#[derive(Default)]
struct Gathered {
    words: Vec<String>,
    bytes: usize,
}

impl Gathered {
    fn push(&mut self, word: String) -> Result<(), InvalidCommand> {
        self.bytes += word.len() + 1;
        if self.words.len() == Command::MOST_WORDS {
            return Err(InvalidCommand::TooManyWords);
        }
        if self.bytes > Command::MOST_BYTES {
            return Err(InvalidCommand::TooLong);
        }
        if word.contains('\0') {
            return Err(InvalidCommand::ZeroByte);
        }
        self.words.push(word);
        Ok(())
    }

    fn finish(self) -> Result<Command, InvalidCommand> {
        match self.words.first() {
            Some(program) if !program.is_empty() => Ok(Command(self.words)),
            _ => Err(InvalidCommand::NoProgram),
        }
    }
}

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = Command;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of words: a program and its arguments")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Command, A::Error> {
                let mut command = Gathered::default();
                while let Some(word) = list.next_element()? {
                    command.push(word).map_err(A::Error::custom)?;
                }
                command.finish().map_err(A::Error::custom)
            }
        }
        deserializer.deserialize_seq(Words)
    }
}

impl JsonSchema for Command {
    fn schema_name() -> Cow<'static, str> {
        "Command".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "items": {"type": "string", "pattern": "^[^\\u0000]*$"},
            "minItems": 1,
            "maxItems": Command::MOST_WORDS,
            "description": "A program and its arguments, 32 KiB in all.",
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(text: &str) -> Result<Command, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn a_command_keeps_to_the_rules() {
        assert_eq!(read(r#"["sh","-c",""]"#).unwrap().words().len(), 3);
        for bad in ["[]", r#"[""]"#, r#"["a\u0000"]"#, r#""sh""#, "[1]"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let many = serde_json::to_string(&vec!["a"; 257]).unwrap();
        assert!(read(&many).unwrap_err().to_string().contains("256 words"));
        let long = serde_json::to_string(&["a".repeat(32 * 1024)]).unwrap();
        assert!(read(&long).unwrap_err().to_string().contains("32768 bytes"));
    }
}
