//! Enums as objects whose first field says which variant they are: `{"kind":"issued", …}`.
//!
//! serde's own `tag = "kind"` takes the tag wherever it stands, and so has to keep a whole object before it can read it: for
//! a controller that folds a million entries that is most of its start. What stands in a log has one spelling, the
//! kind first, and is read as it comes.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::{Error as PlainError, MapAccessDeserializer, StrDeserializer};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny, MapAccess, VariantAccess, Visitor,
};

/// An enum that is read this way. [`kind_first!`](crate::kind_first!) writes the implementation.
pub trait KindFirst: Sized {
    /// Reads what follows the kind.
    fn of_kind<'de, A: MapAccess<'de>>(kind: &str, rest: A) -> Result<Self, A::Error>;
}

/// Defines an enum that is written with serde's `tag = "kind"` and read by its first field. The first argument is the
/// enum's name once more, as a text.
#[macro_export]
macro_rules! kind_first {
    ($path:literal, $(#[$attribute:meta])* $visibility:vis enum $name:ident { $($variants:tt)* }) => {
        $(#[$attribute])*
        #[derive(::serde::Serialize)]
        #[serde(tag = "kind", rename_all = "snake_case")]
        $visibility enum $name { $($variants)* }

        const _: () = {
            #[derive(::serde::Deserialize)]
            #[serde(remote = $path, rename_all = "snake_case", deny_unknown_fields)]
            #[allow(dead_code)]
            enum Form { $($variants)* }

            impl $crate::KindFirst for $name {
                fn of_kind<'de, A: ::serde::de::MapAccess<'de>>(
                    kind: &str,
                    rest: A,
                ) -> ::std::result::Result<Self, A::Error> {
                    Form::deserialize($crate::OfKind::new(kind, rest))
                }
            }

            impl $name {
                /// All kinds there are, as they are written.
                $visibility fn kinds() -> &'static [&'static str] {
                    static KINDS: ::std::sync::OnceLock<&'static [&'static str]> =
                        ::std::sync::OnceLock::new();
                    KINDS.get_or_init(|| $crate::kinds_of(|probe| Form::deserialize(probe)))
                }
            }

            impl<'de> ::serde::Deserialize<'de> for $name {
                fn deserialize<D: ::serde::Deserializer<'de>>(
                    deserializer: D,
                ) -> ::std::result::Result<Self, D::Error> {
                    $crate::read_kind_first(deserializer)
                }
            }
        };
    };
}

/// Reads the kind, and then the rest by it.
pub fn read_kind_first<'de, D: Deserializer<'de>, T: KindFirst>(
    deserializer: D,
) -> Result<T, D::Error> {
    deserializer.deserialize_map(Reads(PhantomData))
}

struct Reads<T>(PhantomData<T>);

impl<'de, T: KindFirst> Visitor<'de> for Reads<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object whose first field is its `kind`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        match map.next_key::<Text<'de>>()? {
            Some(Text(name)) if name == "kind" => {}
            _ => return Err(A::Error::custom("the first field is not the `kind`")),
        }
        let Text(kind) = map.next_value()?;
        T::of_kind(&kind, map)
    }
}

/// A text, not copied where it need not be.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AsIs;
        impl<'de> Visitor<'de> for AsIs {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(AsIs)
    }
}

/// An enum whose variant is known, with the fields still to be read.
pub struct OfKind<'k, A> {
    kind: &'k str,
    rest: A,
}

impl<'k, A> OfKind<'k, A> {
    #[doc(hidden)]
    pub fn new(kind: &'k str, rest: A) -> Self {
        Self { kind, rest }
    }
}

impl<'de, A: MapAccess<'de>> Deserializer<'de> for OfKind<'_, A> {
    type Error = A::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, A::Error> {
        Err(A::Error::custom("only an enum has a kind"))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        visitor.visit_enum(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl<'de, A: MapAccess<'de>> EnumAccess<'de> for OfKind<'_, A> {
    type Error = A::Error;
    type Variant = Rest<A>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Rest<A>), A::Error> {
        let variant = seed.deserialize(StrDeserializer::new(self.kind))?;
        Ok((variant, Rest(self.rest)))
    }
}

/// The fields after the kind.
pub struct Rest<A>(A);

impl<'de, A: MapAccess<'de>> VariantAccess<'de> for Rest<A> {
    type Error = A::Error;

    fn unit_variant(mut self) -> Result<(), A::Error> {
        match self.0.next_key::<IgnoredAny>()? {
            None => Ok(()),
            Some(_) => Err(A::Error::custom("this kind has no fields")),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, A::Error> {
        seed.deserialize(MapAccessDeserializer::new(self.0))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, A::Error> {
        Err(A::Error::custom("this kind has no names for its fields"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        visitor.visit_map(self.0)
    }
}

/// Finds out which kinds an enum has by asking it to be read.
#[doc(hidden)]
pub fn kinds_of<T>(
    read: impl FnOnce(KindsProbe<'_>) -> Result<T, PlainError>,
) -> &'static [&'static str] {
    let mut kinds: &'static [&'static str] = &[];
    let _ = read(KindsProbe(&mut kinds));
    kinds
}

#[doc(hidden)]
pub struct KindsProbe<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for KindsProbe<'_> {
    type Error = PlainError;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, PlainError> {
        Err(PlainError::custom("a probe"))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        kinds: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, PlainError> {
        *self.0 = kinds;
        Err(PlainError::custom("a probe"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    kind_first! {
        "Sample",
        /// Variants of each form that is in use.
        #[derive(Clone, Debug, PartialEq)]
        enum Sample {
            Empty {},
            Named { one: u32, two: Option<String> },
            Held(Box<Inner>),
        }
    }

    #[derive(Clone, Debug, PartialEq, serde::Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        three: u32,
    }

    #[test]
    fn what_is_written_is_read() {
        let samples = [
            Sample::Empty {},
            Sample::Named {
                one: 1,
                two: Some("a \"quoted\" text".to_owned()),
            },
            Sample::Held(Box::new(Inner { three: 3 })),
        ];
        for sample in samples {
            let text = serde_json::to_string(&sample).expect("plain data");
            let read: Sample = serde_json::from_str(&text).expect("what was written");
            assert_eq!(read, sample);
            assert!(text.starts_with(r#"{"kind":""#), "{text}");
        }
        assert_eq!(Sample::kinds(), ["empty", "named", "held"]);
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            r#"{}"#,
            r#"{"kind":"other"}"#,
            r#"{"one":1,"kind":"named"}"#,
            r#"{"kind":"empty","one":1}"#,
            r#"{"kind":"named","two":"x"}"#,
            r#"{"kind":"named","one":1,"one":2}"#,
            r#"{"kind":"held","three":3,"four":4}"#,
            r#"{"kind":7}"#,
            r#""empty""#,
        ] {
            assert!(serde_json::from_str::<Sample>(text).is_err(), "{text}");
        }
    }
}
