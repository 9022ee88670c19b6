//! Where providers say what a call used.

use serde::Serialize;
use serde_json::Value;

use super::LlmApi;

/// Tokens of a call, by kind; no token is in two of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tokens {
    /// In the prompt, read anew.
    pub input: u64,
    /// In the prompt, read from a cache.
    pub cache_read: u64,
    /// In the prompt, written to a cache.
    pub cache_write: u64,
    /// Of these, for an hour.
    pub cache_write_long: u64,
    /// In the answers, with what was thought.
    pub output: u64,
}

impl Tokens {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.prompt().saturating_add(self.output)
    }

    pub(crate) fn prompt(&self) -> u64 {
        self.input
            .saturating_add(self.cache_read)
            .saturating_add(self.cache_write)
    }

    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            cache_write: self.cache_write.saturating_add(other.cache_write),
            cache_write_long: self.cache_write_long.saturating_add(other.cache_write_long),
            output: self.output.saturating_add(other.output),
        }
    }

    pub(crate) fn minus(&self, other: &Self) -> Self {
        Self {
            input: self.input.saturating_sub(other.input),
            cache_read: self.cache_read.saturating_sub(other.cache_read),
            cache_write: self.cache_write.saturating_sub(other.cache_write),
            cache_write_long: self.cache_write_long.saturating_sub(other.cache_write_long),
            output: self.output.saturating_sub(other.output),
        }
    }
}

/// Takes what a message says about usage into `known`. `true` when it said something.
pub(crate) fn take_usage(api: LlmApi, message: &Value, known: &mut Tokens) -> bool {
    let found = match api {
        LlmApi::OpenAi => {
            open_ai(&message["usage"]).or_else(|| open_ai(&message["response"]["usage"]))
        }
        LlmApi::Anthropic => anthropic(&message["message"]["usage"], known)
            .or_else(|| anthropic(&message["usage"], known)),
        LlmApi::Gemini => match message.as_array() {
            // A stream that is not one of events is a list.
            Some(list) => list
                .iter()
                .rev()
                .find_map(|part| gemini(&part["usageMetadata"])),
            None => gemini(&message["usageMetadata"]),
        },
    };
    match found {
        Some(tokens) => {
            *known = tokens;
            true
        }
        None => false,
    }
}

/// Chat and responses name the same things differently. What was cached is part of the prompt.
fn open_ai(usage: &Value) -> Option<Tokens> {
    let prompt = number(&usage["prompt_tokens"]).or_else(|| number(&usage["input_tokens"]))?;
    let output = number(&usage["completion_tokens"]).or_else(|| number(&usage["output_tokens"]));
    let cached = number(&usage["prompt_tokens_details"]["cached_tokens"])
        .or_else(|| number(&usage["input_tokens_details"]["cached_tokens"]))
        .unwrap_or(0)
        .min(prompt);
    Some(Tokens {
        input: prompt - cached,
        cache_read: cached,
        output: output.unwrap_or(0),
        ..Tokens::default()
    })
}

/// What was cached is not part of `input_tokens`. Later messages leave out what they said before.
fn anthropic(usage: &Value, known: &Tokens) -> Option<Tokens> {
    let input = number(&usage["input_tokens"]);
    let output = number(&usage["output_tokens"]);
    if input.is_none() && output.is_none() {
        return None;
    }
    let or = |value: &Value, before: u64| number(value).unwrap_or(before);
    Some(Tokens {
        input: input.unwrap_or(known.input),
        cache_read: or(&usage["cache_read_input_tokens"], known.cache_read),
        cache_write: or(&usage["cache_creation_input_tokens"], known.cache_write),
        cache_write_long: or(
            &usage["cache_creation"]["ephemeral_1h_input_tokens"],
            known.cache_write_long,
        ),
        output: output.unwrap_or(known.output),
    })
}

/// What was cached is part of the prompt; what was thought comes on top of the answer.
fn gemini(usage: &Value) -> Option<Tokens> {
    let prompt = number(&usage["promptTokenCount"])?
        .saturating_add(number(&usage["toolUsePromptTokenCount"]).unwrap_or(0));
    let cached = number(&usage["cachedContentTokenCount"])
        .unwrap_or(0)
        .min(prompt);
    let answer = number(&usage["candidatesTokenCount"]).unwrap_or(0);
    Some(Tokens {
        input: prompt - cached,
        cache_read: cached,
        output: answer.saturating_add(number(&usage["thoughtsTokenCount"]).unwrap_or(0)),
        ..Tokens::default()
    })
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64()
}

/// Bytes of text that a piece of an answer carries, wherever the provider puts it.
pub(crate) fn text_bytes(message: &Value) -> u64 {
    const TEXTS: [&str; 10] = [
        "content",
        "text",
        "delta",
        "partial_json",
        "thinking",
        "arguments",
        "reasoning",
        "reasoning_content",
        "refusal",
        "input",
    ];
    match message {
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| match value {
                Value::String(text) if TEXTS.contains(&key.as_str()) => text.len() as u64,
                // Whole answers are repeated at the end of some streams.
                Value::Object(_) if key == "response" => 0,
                value => text_bytes(value),
            })
            .sum(),
        Value::Array(list) => list.iter().map(text_bytes).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_provider_is_understood() {
        let check = |api, message: Value, expect: (u64, u64, u64, u64)| {
            let mut tokens = Tokens::default();
            assert!(take_usage(api, &message, &mut tokens), "{message}");
            let found = (
                tokens.input,
                tokens.cache_read,
                tokens.cache_write,
                tokens.output,
            );
            assert_eq!(found, expect, "{message}");
        };
        let chat = json!({"usage": {"prompt_tokens": 10, "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 4}}});
        check(LlmApi::OpenAi, chat, (6, 4, 0, 5));
        let responses = json!({"type": "response.completed", "response": {"usage": {"input_tokens": 10,
            "output_tokens": 7, "input_tokens_details": {"cached_tokens": 1}}}});
        check(LlmApi::OpenAi, responses, (9, 1, 0, 7));
        check(
            LlmApi::OpenAi,
            json!({"usage": {"prompt_tokens": 3, "total_tokens": 3}}),
            (3, 0, 0, 0),
        );
        let messages = json!({"usage": {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 100,
            "cache_creation_input_tokens": 50}});
        check(LlmApi::Anthropic, messages, (3, 100, 50, 2));
        let gemini = json!({"usageMetadata": {"promptTokenCount": 10, "cachedContentTokenCount": 2,
            "candidatesTokenCount": 5, "thoughtsTokenCount": 20}});
        check(LlmApi::Gemini, gemini.clone(), (8, 2, 0, 25));
        let early = json!({"usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 1}});
        check(LlmApi::Gemini, json!([early, gemini]), (8, 2, 0, 25));
    }

    #[test]
    fn later_messages_of_a_stream_overwrite() {
        let mut tokens = Tokens::default();
        let start = json!({"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1,
            "cache_read_input_tokens": 4}}});
        let delta = json!({"type": "message_delta", "usage": {"output_tokens": 30}});
        assert!(take_usage(LlmApi::Anthropic, &start, &mut tokens));
        assert!(take_usage(LlmApi::Anthropic, &delta, &mut tokens));
        assert_eq!((tokens.input, tokens.cache_read, tokens.output), (9, 4, 30));
        assert!(!take_usage(
            LlmApi::Anthropic,
            &json!({"type": "ping"}),
            &mut tokens
        ));
        assert!(!take_usage(
            LlmApi::OpenAi,
            &json!({"usage": null}),
            &mut tokens
        ));
        assert_eq!(tokens.total(), 43);
    }
}
