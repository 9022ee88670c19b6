//! One tree with positions, whatever the format it was written in.

use std::borrow::Cow;
use std::sync::Arc;

use belljar_policy::{Origin, Source};

use crate::error::ManifestError;
use crate::text::Text;

/// A place in a document: byte range, 1-based line and column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) line: u32,
    pub(crate) column: u32,
}

impl Span {
    pub(crate) fn origin(self, file: &Arc<str>, source: Source) -> Origin {
        Origin {
            file: Arc::clone(file),
            line: self.line,
            column: self.column,
            source,
        }
    }
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub struct Node<'a> {
    pub(crate) value: Value<'a>,
    /// Where it stands.
    pub span: Span,
}

#[derive(Clone, Debug)]
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Cow<'a, str>),
    /// A date or time, which TOML has and no policy uses.
    Date,
    List(Vec<Node<'a>>),
    Map(Vec<(Key<'a>, Node<'a>)>),
}

/// A key of a mapping and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Key<'a> {
    pub(crate) text: Cow<'a, str>,
    pub(crate) span: Span,
}

impl<'a> Node<'a> {
    /// The value of a key, if this is a mapping that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node<'a>> {
        match &self.value {
            Value::Map(entries) => entries
                .iter()
                .find(|(own, _)| own.text == key)
                .map(|(_, node)| node),
            _ => None,
        }
    }

    /// The keys and values, if it is a mapping.
    pub(crate) fn entries(&self) -> &[(Key<'a>, Node<'a>)] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// Whether it is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// The items, if it is a list.
    #[must_use]
    pub fn items(&self) -> &[Node<'a>] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }
}

impl Value<'_> {
    /// What it is, for messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Int(value) => value.to_string(),
            Self::Float(value) if value.is_nan() => "NaN".to_owned(),
            Self::Float(f64::INFINITY) => "infinity".to_owned(),
            Self::Float(f64::NEG_INFINITY) => "minus infinity".to_owned(),
            Self::Float(value) => shown_float(*value),
            Self::Text(text) => format!("the text {}", quoted(text)),
            Self::Date => "a date".to_owned(),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// A number as a person writes it: no hundred digits, no `.0`.
pub(crate) fn shown_float(value: f64) -> String {
    if value.abs() >= 1e15 {
        format!("{value:e}")
    } else {
        value.to_string()
    }
}

/// Text from a document as messages show it: short, and with characters that could be mistaken for
/// others spelled out.
pub(crate) fn quoted(text: &str) -> String {
    const MOST: usize = 60;
    let mut shown = String::from("'");
    for c in text.chars().take(MOST) {
        match c {
            '\'' | '"' => shown.push(c),
            _ => shown.extend(c.escape_default()),
        }
    }
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown.push('\'');
    shown
}

/// Something wrong in a document, before the file is known.
#[derive(Debug)]
pub struct Problem {
    pub(crate) span: Span,
    pub(crate) message: String,
    /// What stands there instead of what the message asks for.
    found: Option<String>,
    pub(crate) hint: Option<String>,
    source: SourceText,
}

/// Whether the document may be shown with a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceText {
    Shown,
    /// The lines may hold a secret.
    Withheld,
}

impl Problem {
    /// Something wrong at a place.
    pub fn new(span: Span, message: impl Into<String>) -> Self {
        Self {
            span,
            message: message.into(),
            found: None,
            hint: None,
            source: SourceText::Shown,
        }
    }

    /// With what stands there instead.
    pub(crate) fn instead_of(mut self, found: impl Into<String>) -> Self {
        self.found = Some(found.into());
        self
    }

    /// Without what stands there, which may be a secret, or the lines around it.
    pub(crate) fn guarded(mut self) -> Self {
        self.found = None;
        self.source = SourceText::Withheld;
        self
    }

    /// With what to write instead.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn into_error(self, file: &Arc<str>, text: &Text<'_>) -> ManifestError {
        ManifestError {
            file: Arc::clone(file),
            line: self.span.line,
            column: self.span.column,
            message: match self.found {
                Some(found) => format!("{}, not {found}", self.message),
                None => self.message,
            },
            hint: self.hint,
            span: self.span.start..self.span.end,
            source_text: match self.source {
                SourceText::Shown => Arc::from(text.as_str()),
                SourceText::Withheld => Arc::from(""),
            },
        }
    }
}
