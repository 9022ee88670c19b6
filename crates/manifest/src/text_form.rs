//! Values whose one form in documents is text: what `Display` writes, `FromStr` reads, and nothing else.

/// Writes a type by its `Display` and reads it by its `FromStr`.
macro_rules! text_form {
    ($name:ident) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

/// A number of fixed width whose form is lower-case hexadecimal.
macro_rules! hex_form {
    ($name:ident, $bytes:literal, $invalid:ident, $what:literal) => {
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut digits = [0; 2 * $bytes];
                f.write_str(data_encoding::HEXLOWER.encode_mut_str(&self.0, &mut digits))
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        #[doc = concat!("A text that is no ", $what, ".")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        #[error("{what} is {digits} lower-case hexadecimal digits", what = $what, digits = 2 * $bytes)]
        pub struct $invalid;

        impl std::str::FromStr for $name {
            type Err = $invalid;

            fn from_str(text: &str) -> Result<Self, $invalid> {
                $crate::text_form::bytes_of_hex(text).map(Self).ok_or($invalid)
            }
        }

        $crate::text_form::text_form!($name);
    };
}

pub(crate) use {hex_form, text_form};

/// The bytes of a hexadecimal text of exactly that length, in lower case.
pub(crate) fn bytes_of_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    // The length is looked at first: decoding into a buffer of another size panics.
    if text.len() != 2 * N {
        return None;
    }
    data_encoding::HEXLOWER
        .decode_mut(text.as_bytes(), &mut bytes)
        .ok()
        .map(|_| bytes)
}
