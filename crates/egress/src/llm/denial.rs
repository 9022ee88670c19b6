//! Refusals in the words of the provider, so that its clients understand them.

use hyper::StatusCode;
use serde_json::json;

use super::LlmApi;
use super::budget::Exhausted;
use crate::record::RefusalCode;

/// A call to a model that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    api: LlmApi,
    why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Exhausted(Exhausted),
    UnknownModel(String),
    Unmetered(&'static str),
    Unreadable,
}

impl Denial {
    pub(crate) fn new(api: LlmApi, why: Why) -> Self {
        Self { api, why }
    }

    pub(crate) fn code(&self) -> RefusalCode {
        match self.why {
            Why::Exhausted(Exhausted::Tokens) => RefusalCode::Tokens,
            Why::Exhausted(Exhausted::Cost) => RefusalCode::Cost,
            Why::UnknownModel(_) => RefusalCode::UnknownModel,
            Why::Unmetered(_) => RefusalCode::Unmetered,
            Why::Unreadable => RefusalCode::Malformed,
        }
    }

    pub(crate) fn detail(&self) -> Option<String> {
        match &self.why {
            Why::UnknownModel(model) => Some(crate::record::printable(model.as_bytes())),
            Why::Unmetered(what) => Some((*what).to_owned()),
            Why::Exhausted(_) | Why::Unreadable => None,
        }
    }

    /// Not 429: clients would try again, and nothing would change.
    pub(crate) fn status(&self) -> StatusCode {
        match (&self.why, self.api) {
            (Why::Exhausted(_), LlmApi::OpenAi) => StatusCode::PAYMENT_REQUIRED,
            (Why::Exhausted(_), _) => StatusCode::FORBIDDEN,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    fn message(&self) -> String {
        match &self.why {
            Why::Exhausted(Exhausted::Tokens) => {
                "Belljar: the token budget of this run is used up".to_owned()
            }
            Why::Exhausted(Exhausted::Cost) => {
                "Belljar: the money budget of this run is used up".to_owned()
            }
            Why::UnknownModel(model) => {
                let model = crate::record::printable(model.as_bytes());
                format!("Belljar: the model {model} has no price, and this run has a money budget")
            }
            Why::Unmetered(what) => {
                format!("Belljar: {what} can't be metered, and this run has a budget")
            }
            Why::Unreadable => "Belljar: this call to a model can't be read".to_owned(),
        }
    }

    /// The body of the answer.
    pub(crate) fn body(&self) -> String {
        let message = self.message();
        let exhausted = matches!(self.why, Why::Exhausted(_));
        let body = match self.api {
            LlmApi::OpenAi => {
                let kind = if exhausted {
                    "insufficient_quota"
                } else {
                    "invalid_request_error"
                };
                json!({"error": {"message": message, "type": kind, "param": null, "code": self.code().code()}})
            }
            LlmApi::Anthropic => {
                let kind = if exhausted {
                    "billing_error"
                } else {
                    "invalid_request_error"
                };
                json!({"type": "error", "error": {"type": kind, "message": message}})
            }
            LlmApi::Gemini => {
                let status = if exhausted {
                    "RESOURCE_EXHAUSTED"
                } else {
                    "INVALID_ARGUMENT"
                };
                json!({"error": {"code": self.status().as_u16(), "message": message, "status": status}})
            }
        };
        body.to_string()
    }
}
