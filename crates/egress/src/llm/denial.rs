//! Refusals in the words of the provider, so that its clients understand them.

use hyper::StatusCode;
use serde_json::json;

use super::LlmApi;
use super::budget::{Exhausted, Standing};
use super::money::PicoUsd;
use crate::record::{RefusalCode, printable};

/// A call to a model that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    api: LlmApi,
    why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Exhausted(Exhausted, Box<Shortfall>),
    UnknownModel(String),
    Unmetered(String),
    WebSocket,
    Unreadable(&'static str),
}

/// What there is, and what a call would have needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shortfall {
    pub(super) standing: Standing,
    pub(super) model: String,
    /// What a new call needs; nothing for an answer that was cut.
    pub(super) need: Option<Need>,
}

/// What a call could come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Tokens of its prompt, and what they could cost.
    pub(super) input: u64,
    pub(super) input_cost: PicoUsd,
    /// Tokens of its answers as it wants them, and what all of it could cost.
    pub(super) output: u64,
    pub(super) cost: PicoUsd,
    /// Whether the call itself says how long its answers may be.
    pub(super) is_bounded: bool,
}

impl Denial {
    pub(crate) fn new(api: LlmApi, why: Why) -> Self {
        Self { api, why }
    }

    pub(crate) fn code(&self) -> RefusalCode {
        match self.why {
            Why::Exhausted(Exhausted::Tokens, _) => RefusalCode::Tokens,
            Why::Exhausted(Exhausted::Cost, _) => RefusalCode::Cost,
            Why::UnknownModel(_) => RefusalCode::UnknownModel,
            Why::Unmetered(_) | Why::WebSocket => RefusalCode::Unmetered,
            Why::Unreadable(_) => RefusalCode::Malformed,
        }
    }

    pub(crate) fn detail(&self) -> Option<String> {
        Some(match &self.why {
            Why::UnknownModel(model) => printable(model.as_bytes()),
            Why::Unmetered(what) => what.clone(),
            Why::WebSocket => "a WebSocket; the same over HTTPS is metered".to_owned(),
            Why::Exhausted(which, shortfall) => shortfall.tell(*which),
            Why::Unreadable(why) => (*why).to_owned(),
        })
    }

    /// Not 429: clients would try again, and nothing would change. A WebSocket is refused in the way that clients fall back from.
    pub(crate) fn status(&self) -> StatusCode {
        match &self.why {
            Why::Exhausted(..) => StatusCode::PAYMENT_REQUIRED,
            Why::WebSocket => StatusCode::UPGRADE_REQUIRED,
            Why::UnknownModel(_) | Why::Unmetered(_) | Why::Unreadable(_) => {
                StatusCode::BAD_REQUEST
            }
        }
    }

    fn message(&self) -> String {
        match &self.why {
            Why::Exhausted(which, shortfall) => format!("Belljar: {}", shortfall.tell(*which)),
            Why::UnknownModel(model) => {
                let model = printable(model.as_bytes());
                format!("Belljar: the model {model} has no price, and this run has a money budget")
            }
            Why::Unmetered(what) => format!(
                "Belljar: {what} can't be metered, and this run has a budget. Switch it off in the client, or run without \
                 max_tokens and max_cost_usd"
            ),
            Why::WebSocket => {
                "Belljar: a WebSocket can't be metered, and this run has a budget. Use HTTPS"
                    .to_owned()
            }
            Why::Unreadable(why) => {
                format!("Belljar: this call to a model can't be read: {why}")
            }
        }
    }

    /// The body of the answer.
    pub(crate) fn body(&self) -> String {
        let message = self.message();
        let exhausted = matches!(self.why, Why::Exhausted(..));
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

impl Shortfall {
    /// What was spent, what is left, what this would have needed and why, and what to set.
    fn tell(&self, which: Exhausted) -> String {
        let model = printable(self.model.as_bytes());
        let (what, spent, left, key) = match which {
            Exhausted::Tokens => (
                "token",
                format!("{} tokens", self.standing.spent_tokens),
                format!("{} tokens", self.standing.left_tokens.unwrap_or(0)),
                "resource_limits.max_tokens",
            ),
            Exhausted::Cost => (
                "money",
                self.standing.spent_cost.to_string(),
                self.standing.left_cost.unwrap_or_default().to_string(),
                "resource_limits.max_cost_usd",
            ),
        };
        let there =
            format!("the {what} budget of this run does not cover it: {spent} spent, {left} left");
        let Some(need) = self.need else {
            return format!(
                "{there}; the answer of {model} went on beyond what it could be set aside for, and was cut"
            );
        };
        let length = match (need.is_bounded, need.output) {
            (_, 0) => String::new(),
            (true, output) => format!(" and answers of up to {output} tokens, as it asks"),
            (false, output) => {
                format!(" and answers of up to {output} tokens, as it sets no max_tokens")
            }
        };
        let (whole, alone, enough) = match which {
            Exhausted::Tokens => {
                let whole = need.input.saturating_add(need.output);
                let least = self.standing.spent_tokens.saturating_add(need.input);
                (
                    format!("{whole} tokens"),
                    format!("{} tokens", need.input),
                    format!("more than {least}"),
                )
            }
            Exhausted::Cost => {
                let least = self.standing.spent_cost.plus(need.input_cost);
                (
                    need.cost.to_string(),
                    need.input_cost.to_string(),
                    format!("more than {:.6}", least.as_usd()),
                )
            }
        };
        format!(
            "{there}; this call to {model} could come to {whole} (a prompt of up to {} tokens{length}), and its prompt alone to \
             {alone}, which is set aside before it is made. Set {key} to {enough}",
            need.input
        )
    }
}
