//! Reading JSON from outside: what is not there is nothing.

use serde_json::{Map, Value};

static NOTHING: Value = Value::Null;

/// Where a field may be.
pub(super) trait Fields {
    fn field(&self, key: &str) -> Option<&Value>;
}

impl Fields for Value {
    fn field(&self, key: &str) -> Option<&Value> {
        self.get(key)
    }
}

impl Fields for Map<String, Value> {
    fn field(&self, key: &str) -> Option<&Value> {
        self.get(key)
    }
}

/// A field of an object; null where there is none.
pub(super) fn at<'v>(value: &'v impl Fields, key: &str) -> &'v Value {
    value.field(key).unwrap_or(&NOTHING)
}

/// A field within fields.
pub(super) fn within<'v>(value: &'v Value, keys: &[&str]) -> &'v Value {
    keys.iter().fold(value, |value, key| at(value, key))
}

/// Whether a field is there and is not null.
pub(super) fn is_given(value: &impl Fields, key: &str) -> bool {
    !at(value, key).is_null()
}
