//! Names and moments. The caller makes all of them: nothing here reads a clock or draws a number.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Text that is not 32 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 32 lower-case hexadecimal digits")]
pub struct InvalidId;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let digits = hex(self.0);
                f.write_str(std::str::from_utf8(&digits).map_err(|_| fmt::Error)?)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:x})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                number(text).map(Self).ok_or(InvalidId)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let digits = hex(self.0);
                let text = std::str::from_utf8(&digits).map_err(serde::ser::Error::custom)?;
                serializer.serialize_str(text)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(IdText).map(Self)
            }
        }
    };
}

/// An id in its one spelling.
fn hex(number: u128) -> [u8; 32] {
    let mut digits = [0; 32];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(number.to_be_bytes()) {
        pair[0] = HEX[usize::from(byte >> 4)];
        pair[1] = HEX[usize::from(byte & 15)];
    }
    digits
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The number of an id. One spelling per id, so that equal ids are equal texts in a ledger.
fn number(text: &str) -> Option<u128> {
    if text.len() != 32 {
        return None;
    }
    text.bytes().try_fold(0u128, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

/// Reads an id where it stands, without a copy: a log holds millions of them.
struct IdText;

impl serde::de::Visitor<'_> for IdText {
    type Value = u128;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("32 lower-case hexadecimal digits")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u128, E> {
        number(text).ok_or_else(|| E::custom(InvalidId))
    }
}

id! {
    /// A worker: one box in the family. Random, and chosen by the controller's owner, never by an agent.
    WorkerId
}

id! {
    /// The single-use number of a manifest.
    Jti
}

id! {
    /// One boot of the host: the boot clock of another boot means nothing here.
    BootId
}

/// A moment, as the caller's clocks tell it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Now {
    /// `CLOCK_BOOTTIME` in nanoseconds. Every wait and every expiry goes by it.
    pub boot_ns: u64,
    /// Unix time in milliseconds: for people, and to notice a clock that was turned back.
    pub wall_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_spelling() {
        let id = WorkerId(0xabc);
        assert_eq!(id.to_string(), "00000000000000000000000000000abc");
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in [
            "abc",
            "00000000000000000000000000000ABC",
            "+0000000000000000000000000000abc",
            "",
        ] {
            assert_eq!(bad.parse::<WorkerId>(), Err(InvalidId), "{bad}");
        }
        let text = serde_json::to_string(&Jti(u128::MAX)).expect("an id is a string");
        assert_eq!(
            serde_json::from_str::<Jti>(&text).expect("the same"),
            Jti(u128::MAX)
        );
    }
}
