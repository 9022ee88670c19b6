//! Messages of JSON-RPC, read strictly.
//!
//! Two readers that disagree about a message are how a filter is gone around: one takes the first of two keys, the other
//! the last, or takes `Name` for `name`. So a message that could be read in two ways is no message, and what goes on is
//! written again from what was read.

mod strict;

use serde_json::{Map, Value, json};
use std::fmt;

/// How deep a message may be nested.
pub const DEEPEST: usize = 64;

/// A request's id. JSON-RPC's null and fractions are refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Id {
    /// `1`
    Number(i64),
    /// `"1"`, which is another
    Text(String),
}

/// The longest id, method or cursor that is kept in mind.
const LONGEST_WORD: usize = 256;

impl Id {
    /// Reads an id.
    #[must_use]
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => number.as_i64().map(Self::Number),
            Value::String(text) if text.len() <= LONGEST_WORD => Some(Self::Text(text.clone())),
            _ => None,
        }
    }

    /// The same as JSON.
    #[must_use]
    pub fn to_value(&self) -> Value {
        match self {
            Self::Number(number) => (*number).into(),
            Self::Text(text) => text.as_str().into(),
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// Why bytes are no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// More than the limit.
    #[error("a message of more than {limit} bytes")]
    TooLong {
        /// In bytes.
        limit: usize,
    },
    /// Not JSON, or JSON that can be read in two ways.
    #[error("{0}")]
    Json(String),
    /// An array of messages, where calls hide from who looks at objects.
    #[error("a batch: one message at a time")]
    Batch,
    /// A value that is neither.
    #[error("a message that is not an object")]
    NotAnObject,
    /// An object that is no JSON-RPC.
    #[error("{0}")]
    Envelope(&'static str),
    /// A key that some readers take for another.
    #[error("the key {key:?}, which some readers take for {known:?}")]
    LooksLike {
        /// What is there.
        key: String,
        /// What it resembles.
        known: &'static str,
    },
}

impl Malformed {
    /// JSON-RPC's code for it.
    #[must_use]
    pub fn code(&self) -> i64 {
        match self {
            Self::Json(_) => PARSE_ERROR,
            _ => INVALID_REQUEST,
        }
    }
}

/// JSON-RPC: no JSON.
pub const PARSE_ERROR: i64 = -32700;
/// JSON-RPC: no request.
pub const INVALID_REQUEST: i64 = -32600;
/// JSON-RPC: a request with parameters it can't have.
pub const INVALID_PARAMS: i64 = -32602;

/// What a message is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// It wants an answer.
    Request(Id),
    /// It does not.
    Notification,
    /// It is an answer.
    Response(Id),
    /// It is an answer to something that could not be read.
    ErrorToNobody,
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    fields: Map<String, Value>,
    kind: Kind,
}

const ENVELOPE: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];

/// What judged methods say in their parameters.
const JUDGED_PARAMETERS: [&str; 6] = ["name", "arguments", "uri", "ref", "_meta", "requestId"];

impl Message {
    /// Reads one message.
    ///
    /// # Errors
    /// When it is none, or could be taken for two; see [`Malformed`].
    pub fn read(bytes: &[u8], limit: usize) -> Result<Self, Malformed> {
        if bytes.len() > limit {
            return Err(Malformed::TooLong { limit });
        }
        match strict::read(bytes)? {
            Value::Object(fields) => Self::of(fields),
            Value::Array(_) => Err(Malformed::Batch),
            _ => Err(Malformed::NotAnObject),
        }
    }

    fn of(fields: Map<String, Value>) -> Result<Self, Malformed> {
        look_alikes(&fields, &ENVELOPE)?;
        if fields.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
            return Err(Malformed::Envelope("not JSON-RPC 2.0"));
        }
        match fields.get("params") {
            None => {}
            Some(Value::Object(params)) => {
                look_alikes(params, &JUDGED_PARAMETERS)?;
                if let Some(Value::Object(arguments)) = params.get("arguments") {
                    no_twins(arguments)?;
                }
            }
            Some(_) => return Err(Malformed::Envelope("params that are not an object")),
        }
        let kind = kind_of(&fields)?;
        Ok(Self { fields, kind })
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// A request's or a notification's method; empty for answers.
    #[must_use]
    pub fn method(&self) -> &str {
        self.fields
            .get("method")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// A parameter.
    #[must_use]
    pub fn param(&self, name: &str) -> Option<&Value> {
        self.fields.get("params")?.get(name)
    }

    /// All parameters; an empty object if there are none.
    #[must_use]
    pub fn param_object(&self) -> Value {
        let params = self.fields.get("params").cloned();
        params.unwrap_or_else(|| Value::Object(Map::new()))
    }

    /// The parameters, to change them.
    pub fn params_mut(&mut self) -> Option<&mut Map<String, Value>> {
        self.fields.get_mut("params")?.as_object_mut()
    }

    /// Says this in the parameters, which are made if there are none.
    pub fn set_param(&mut self, name: &str, value: Value) {
        let params = self.fields.entry("params");
        if let Value::Object(params) = params.or_insert_with(|| Value::Object(Map::new())) {
            params.insert(name.to_owned(), value);
        }
    }

    /// What an answer says went wrong with the request itself.
    #[must_use]
    pub fn error_object(&self) -> Option<&Value> {
        self.fields.get("error")
    }

    /// The result of an answer.
    #[must_use]
    pub fn result(&self) -> Option<&Value> {
        self.fields.get("result")
    }

    /// The same, to change it.
    pub fn result_mut(&mut self) -> Option<&mut Value> {
        self.fields.get_mut("result")
    }

    /// Whether it is an answer that says what went wrong.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.fields.contains_key("error")
            || self.result().and_then(|result| result.get("isError")) == Some(&Value::Bool(true))
    }

    /// Gives a request or an answer another id.
    pub fn set_id(&mut self, id: Id) {
        self.fields.insert("id".into(), id.to_value());
        self.kind = match self.kind {
            Kind::Request(_) => Kind::Request(id),
            _ => Kind::Response(id),
        };
    }

    /// An answer that says what went wrong.
    #[must_use]
    pub fn error(id: Option<&Id>, code: i64, message: &str, data: Option<Value>) -> Self {
        let mut error = Map::new();
        error.insert("code".into(), code.into());
        error.insert("message".into(), message.into());
        if let Some(data) = data {
            error.insert("data".into(), data);
        }
        let mut fields = Map::new();
        fields.insert("jsonrpc".into(), "2.0".into());
        fields.insert("id".into(), id.map_or(Value::Null, Id::to_value));
        fields.insert("error".into(), Value::Object(error));
        let kind = match id {
            Some(id) => Kind::Response(id.clone()),
            None => Kind::ErrorToNobody,
        };
        Self { fields, kind }
    }

    /// An answer.
    #[must_use]
    pub fn answer(id: &Id, result: Value) -> Self {
        let mut fields = Map::new();
        fields.insert("jsonrpc".into(), "2.0".into());
        fields.insert("id".into(), id.to_value());
        fields.insert("result".into(), result);
        Self {
            fields,
            kind: Kind::Response(id.clone()),
        }
    }

    /// A question.
    #[must_use]
    pub fn request(id: &Id, method: &str, params: Value) -> Self {
        let mut fields = Map::new();
        fields.insert("jsonrpc".into(), "2.0".into());
        fields.insert("id".into(), id.to_value());
        fields.insert("method".into(), method.into());
        fields.insert("params".into(), params);
        Self {
            fields,
            kind: Kind::Request(id.clone()),
        }
    }

    /// Something said without asking.
    #[must_use]
    pub fn notification(method: &str, params: Option<Value>) -> Self {
        let mut fields = Map::new();
        fields.insert("jsonrpc".into(), "2.0".into());
        fields.insert("method".into(), method.into());
        if let Some(params) = params {
            fields.insert("params".into(), params);
        }
        Self {
            fields,
            kind: Kind::Notification,
        }
    }

    /// That the other side takes nothing any more from this request.
    #[must_use]
    pub fn cancelled(id: &Id, reason: &str) -> Self {
        let params = json!({"requestId": id.to_value(), "reason": reason});
        Self::notification("notifications/cancelled", Some(params))
    }

    /// Writes it, in one line without its end.
    pub fn write(&self, to: &mut Vec<u8>) {
        // Strings, numbers and nothing else: a vector takes them all.
        let _ = serde_json::to_writer(to, &self.fields);
    }

    /// The same, in bytes of its own.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(256);
        self.write(&mut bytes);
        bytes
    }
}

fn kind_of(fields: &Map<String, Value>) -> Result<Kind, Malformed> {
    let has = |key: &str| fields.contains_key(key);
    if has("method") {
        let method = fields.get("method").and_then(Value::as_str);
        if !method.is_some_and(is_method) {
            return Err(Malformed::Envelope("a method with a name it can't have"));
        }
        if has("result") || has("error") {
            return Err(Malformed::Envelope("a question that is an answer too"));
        }
        return match fields.get("id") {
            None => Ok(Kind::Notification),
            Some(id) => match Id::of(id) {
                Some(id) => Ok(Kind::Request(id)),
                None => Err(Malformed::Envelope("an id that is no whole number or text")),
            },
        };
    }
    match (has("result"), has("error")) {
        (true, true) => return Err(Malformed::Envelope("an answer that is an error too")),
        (false, false) => return Err(Malformed::Envelope("neither question nor answer")),
        _ => {}
    }
    if has("params") {
        return Err(Malformed::Envelope("an answer with parameters"));
    }
    match fields.get("id") {
        Some(Value::Null) | None if has("error") => Ok(Kind::ErrorToNobody),
        Some(id) => match Id::of(id) {
            Some(id) => Ok(Kind::Response(id)),
            None => Err(Malformed::Envelope("an id that is no whole number or text")),
        },
        None => Err(Malformed::Envelope("an answer without an id")),
    }
}

fn is_method(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_/.$-".contains(&byte);
    !text.is_empty() && text.len() <= LONGEST_WORD && text.bytes().all(fits)
}

/// Whether a tool or a prompt can have this name: `^[A-Za-z0-9_.-]{1,128}$`.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    !text.is_empty() && text.len() <= 128 && text.bytes().all(fits)
}

/// Refuses keys that a reader without regard to case takes for a known one.
fn look_alikes(fields: &Map<String, Value>, known: &[&'static str]) -> Result<(), Malformed> {
    for key in fields.keys() {
        if known.contains(&key.as_str()) {
            continue;
        }
        if let Some(known) = known.iter().find(|known| same_folded(key, known)) {
            let key = key.clone();
            return Err(Malformed::LooksLike { key, known });
        }
    }
    Ok(())
}

/// Refuses two keys that differ in case alone.
fn no_twins(fields: &Map<String, Value>) -> Result<(), Malformed> {
    let mut folded: Vec<String> = fields.keys().map(|key| fold(key).collect()).collect();
    folded.sort_unstable();
    match folded.windows(2).any(|pair| pair.first() == pair.last()) {
        true => Err(Malformed::Envelope("arguments that differ in case alone")),
        false => Ok(()),
    }
}

fn same_folded(a: &str, b: &str) -> bool {
    fold(a).eq(fold(b))
}

/// Up and down again: so that `ſ` is `s` and the Kelvin sign is `k`, as for readers that fold. What can't be seen is not there.
fn fold(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars()
        .filter(|char| !is_unseen(*char))
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
}

fn is_unseen(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests;
