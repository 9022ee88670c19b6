//! JSON in which no key is there twice, nothing is too deep, and nothing comes after.

use super::{DEEPEST, Malformed};
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

pub(super) fn read(bytes: &[u8]) -> Result<Value, Malformed> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = Strict { left: DEEPEST }
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value));
    value.map_err(|error| Malformed::Json(error.to_string()))
}

/// Reads one value, of which so many levels are left.
#[derive(Clone, Copy)]
struct Strict {
    left: usize,
}

impl Strict {
    fn below<E: Error>(self) -> Result<Self, E> {
        match self.left.checked_sub(1) {
            Some(left) => Ok(Self { left }),
            None => Err(E::custom(format_args!(
                "nested deeper than {DEEPEST} levels"
            ))),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("a number without end"))?;
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let below = self.below()?;
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(below)? {
            all.push(item);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let below = self.below()?;
        let mut all = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            if key.contains('\0') {
                return Err(A::Error::custom("a key with a NUL in it"));
            }
            let value = fields.next_value_seed(below)?;
            match all.entry(key) {
                serde_json::map::Entry::Vacant(place) => place.insert(value),
                serde_json::map::Entry::Occupied(place) => {
                    let key = place.key();
                    return Err(A::Error::custom(format_args!("the key {key:?} twice")));
                }
            };
        }
        Ok(Value::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_was_said() {
        let text =
            r#"{"a":[1,-2,18446744073709551615,0.1,1e300,true,null,"\u00e9\n"],"b":{"c":{}}}"#;
        let ours = read(text.as_bytes()).unwrap();
        assert_eq!(ours, serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn depth_is_limited_to_the_level() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(read(nested(DEEPEST).as_bytes()).is_ok());
        assert!(read(nested(DEEPEST + 1).as_bytes()).is_err());
        assert!(read("{\"a\":".repeat(100_000).as_bytes()).is_err());
    }
}
