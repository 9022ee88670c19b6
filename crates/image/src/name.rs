//! What images are called: names that people choose, and digests.

use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use std::fmt;

/// A name is also the name of a file.
const MOST_BYTES: usize = 128;
const SHA256: &str = "sha256:";
/// So much of a digest's hexadecimal digits names it, as engines show it.
const LEAST_DIGITS: usize = 12;

/// What an image is called: letters, digits and `._:-`, beginning with a letter or a digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageName(String);

/// Not the name of an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} can't be the name of an image")]
pub struct InvalidName(pub String);

impl ImageName {
    /// Takes a name.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidName> {
        let text = text.into();
        let begins_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        let is_plain = text
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || b"._:-".contains(&c));
        if begins_well && is_plain && text.len() <= MOST_BYTES && !text.starts_with(SHA256) {
            Ok(Self(text))
        } else {
            Err(InvalidName(text))
        }
    }

    /// As it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ImageName {
    type Error = InvalidName;
    fn try_from(text: String) -> Result<Self, InvalidName> {
        Self::new(text)
    }
}

impl From<ImageName> for String {
    fn from(name: ImageName) -> Self {
        name.0
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A SHA-256 digest, as `sha256:` and 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// Takes one written as `sha256:` and 64 small hexadecimal digits.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidName> {
        let text = text.into();
        let is_good = text
            .strip_prefix(SHA256)
            .is_some_and(|hex| hex.len() == 64 && is_hexadecimal(hex));
        if is_good {
            Ok(Self(text))
        } else {
            Err(InvalidName(text))
        }
    }

    /// Of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_hasher(sha2::Sha256::new_with_prefix(bytes))
    }

    pub(crate) fn from_hasher(hasher: sha2::Sha256) -> Self {
        let hex = data_encoding::HEXLOWER.encode(&hasher.finalize());
        Self(format!("{SHA256}{hex}"))
    }

    /// In full.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The digits alone.
    #[must_use]
    pub fn hex(&self) -> &str {
        self.0.strip_prefix(SHA256).unwrap_or_default()
    }

    /// So much of the digits as people compare.
    #[must_use]
    pub fn short(&self) -> &str {
        self.hex().get(..LEAST_DIGITS).unwrap_or_default()
    }

    /// Whether somebody who wrote this means it: all of it, or enough of its beginning.
    pub(crate) fn is_meant_by(&self, text: &str) -> bool {
        let digits = text.strip_prefix(SHA256).unwrap_or(text);
        digits.len() >= LEAST_DIGITS && self.hex().starts_with(digits)
    }
}

impl TryFrom<String> for Digest {
    type Error = InvalidName;
    fn try_from(text: String) -> Result<Self, InvalidName> {
        Self::new(text)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_hexadecimal(text: &str) -> bool {
    text.bytes()
        .all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_plain_file_name() {
        for good in ["a", "python3.12", "debian:12-slim", "A_b"] {
            assert!(ImageName::new(good).is_ok(), "{good}");
        }
        let long = "a".repeat(129);
        for bad in [
            "", ".", "..", ".a", "a/b", "a b", "a\n", "-a", "ü", "sha256:a", &long,
        ] {
            assert!(ImageName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_digest_has_one_spelling_and_is_meant_by_its_beginning() {
        let digest = Digest::of(b"");
        let text = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest.as_str(), text);
        assert!(Digest::new(text.to_uppercase()).is_err());
        assert!(Digest::new(&text[7..]).is_err());
        for meant in [text, &text[..19], "e3b0c44298fc"] {
            assert!(digest.is_meant_by(meant), "{meant}");
        }
        for other in ["sha256:", "", "e3b0", "sha256:e3b0c44298fd"] {
            assert!(!digest.is_meant_by(other), "{other}");
        }
    }
}
