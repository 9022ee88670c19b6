//! The image a box takes its files from.

use std::fmt;

use serde::{Serialize, Serializer};

/// The most bytes of an image's name.
const LONGEST: usize = 128;

/// What an image is called, or its digest: letters, digits and `._:-`, beginning with a letter or a digit. Nothing in it leads
/// up or out of wherever images are kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageName(String);

/// A text that names no image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidImageName {
    text: String,
}

impl fmt::Display for InvalidImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no name of an image", self.text)
    }
}

impl std::error::Error for InvalidImageName {}

impl InvalidImageName {
    /// What to write instead.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        "name an image as `belljar image list` does"
    }
}

impl ImageName {
    /// Reads a name.
    ///
    /// # Errors
    /// When the text can't be one.
    pub fn parse(text: &str) -> Result<Self, InvalidImageName> {
        let begins_well = text.starts_with(|first: char| first.is_ascii_alphanumeric());
        let is_plain = text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte));
        match text.len() <= LONGEST && begins_well && is_plain {
            true => Ok(Self(text.to_owned())),
            false => Err(InvalidImageName {
                text: text.chars().take(LONGEST).collect(),
            }),
        }
    }

    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for ImageName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere() {
        for good in ["agent", "debian:12-slim", "sha256:00ff", "a_b-c.d"] {
            assert_eq!(ImageName::parse(good).expect(good).as_str(), good);
        }
        let long = "x".repeat(LONGEST + 1);
        for bad in [
            "", ".", "..", "/etc", "a/b", "a b", "a\0", "-rf", "~x", ".a", &long,
        ] {
            assert!(ImageName::parse(bad).is_err(), "{bad:?}");
        }
    }
}
