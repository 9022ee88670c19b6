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
                write!(f, "{:032x}", self.0)
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
                // One spelling per id, so that equal ids are equal texts in a ledger.
                let plain = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
                if text.len() != 32 || !plain {
                    return Err(InvalidId);
                }
                u128::from_str_radix(text, 16).map(Self).map_err(|_| InvalidId)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
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
