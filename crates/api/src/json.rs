//! JSON from outside, read within bounds.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::types::Problem;

/// Nesting that a request may have. The deepest of ours has 3 levels.
pub const MOST_DEPTH: usize = 32;

/// Reads a request's body. No body is an empty object, so that `curl -X POST` is enough where nothing need be said.
pub(crate) fn read_request<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let body = if body.is_empty() { b"{}" } else { body };
    if is_deeper_than(body, MOST_DEPTH) {
        let message = format!("the body is nested deeper than {MOST_DEPTH} levels");
        return Err(Problem::new("bad_json", message));
    }
    let read = serde_json::from_slice(body).map(|Object(value)| value);
    read.map_err(|error| {
        let code = if error.is_data() {
            "bad_request"
        } else {
            "bad_json"
        };
        Problem::new(
            code,
            format!("the body is not what this path takes: {error}"),
        )
        .hint("the fields are listed in schemas/*.openapi.json")
    })
}

/// Reads what a `GET` asks in its query.
pub(crate) fn read_query<T: DeserializeOwned>(query: &str) -> Result<T, Problem> {
    serde_urlencoded::from_str(query).map_err(|error| {
        Problem::new(
            "bad_request",
            format!("the query is not what this path takes: {error}"),
        )
        .hint("the fields are listed in schemas/*.openapi.json")
    })
}

/// Something that is written as an object and no other way. serde by itself also takes a list of the fields' values, and what
/// such a list means changes with every field that is added.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields))
            }
        }
        deserializer.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

/// For fields that hold an object or nothing.
pub(crate) fn optional_object<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let read = Option::<Object<T>>::deserialize(deserializer)?;
    Ok(read.map(|Object(value)| value))
}

/// Counts brackets outside strings. Where the text is not JSON the count means nothing, and the parser refuses it.
fn is_deeper_than(text: &[u8], most: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for &byte in text {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > most {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::types::{Empty, ReplicateRequest, ShutdownRequest};
    use serde_json::Value;

    #[test]
    fn depth_is_counted_outside_strings() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        let read = |inner: &str| read_request::<Value>(format!(r#"{{"a":{inner}}}"#).as_bytes());
        assert!(read(&nested(31)).is_ok());
        let deep = read(&nested(32)).unwrap_err();
        assert_eq!(deep.code, "bad_json");
        assert!(deep.message.contains("32 levels"), "{}", deep.message);
        assert!(read(&format!("{:?}", nested(40))).is_ok());
        assert!(read(&format!(r#""\"{}""#, "[".repeat(40))).is_ok());
    }

    #[test]
    fn one_clear_error() {
        let unknown = read_request::<ShutdownRequest>(br#"{"reason":"x","name":"root"}"#);
        let unknown = unknown.unwrap_err();
        assert_eq!(unknown.code, "bad_request");
        assert!(
            unknown.message.contains("unknown field `name`"),
            "{}",
            unknown.message
        );
        let twice = read_request::<ShutdownRequest>(br#"{"reason":"x","reason":"y"}"#);
        assert!(twice.unwrap_err().message.contains("duplicate field"));
        let long = format!(r#"{{"{}":1}}"#, "x".repeat(100_000));
        assert!(
            read_request::<Empty>(long.as_bytes())
                .unwrap_err()
                .message
                .len()
                <= 1024
        );
        assert!(read_request::<Empty>(b"").is_ok());
        assert!(read_request::<Empty>(b"{} {}").is_err());
        assert!(read_request::<Empty>(b"\xff").is_err());
        let list = read_request::<ShutdownRequest>(br#"["x"]"#).unwrap_err();
        assert!(
            list.message.contains("expected an object"),
            "{}",
            list.message
        );
        let nested = br#"{"reason":"x","budget":{"pids":1,"pids":2}}"#;
        let nested = read_request::<ReplicateRequest>(nested).unwrap_err();
        assert!(
            nested.message.contains("duplicate field"),
            "{}",
            nested.message
        );
    }
}
