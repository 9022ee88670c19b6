//! The one form of every error reply.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::shorten;

/// Why a request was not granted. The body of every reply that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// A stable word for programs, such as `deny_quota` or `rate_limited`.
    pub code: Cow<'static, str>,
    /// What happened, for people.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// When asking again may help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

impl Problem {
    /// The most bytes of a message or a hint: texts may quote what was sent.
    const MOST: usize = 1024;

    /// A problem with a stable code and a text.
    #[must_use]
    pub fn new(code: impl Into<Cow<'static, str>>, message: impl AsRef<str>) -> Self {
        Self {
            code: code.into(),
            message: shorten(message.as_ref(), Self::MOST),
            hint: None,
            retry_after_ms: None,
        }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl AsRef<str>) -> Self {
        self.hint = Some(shorten(hint.as_ref(), Self::MOST));
        self
    }

    /// Adds when asking again may help.
    #[must_use]
    pub fn retry_after_ms(mut self, milliseconds: u64) -> Self {
        self.retry_after_ms = Some(milliseconds);
        self
    }
}
