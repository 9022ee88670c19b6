//! Where providers say what a call used.

use serde::Serialize;
use serde_json::Value;

use super::LlmApi;
use super::json::{at, is_given, within};
use super::money::PicoUsd;

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

    /// All that were in the prompt.
    #[must_use]
    pub fn prompt(&self) -> u64 {
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

    /// The larger of both, kind by kind.
    fn at_least(&self, other: &Self) -> Self {
        Self {
            input: self.input.max(other.input),
            cache_read: self.cache_read.max(other.cache_read),
            cache_write: self.cache_write.max(other.cache_write),
            cache_write_long: self.cache_write_long.max(other.cache_write_long),
            output: self.output.max(other.output),
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

/// What a provider said about one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) tokens: Tokens,
    /// What it says the call cost, fees and all.
    pub(crate) cost: PicoUsd,
    /// Searches and the like that are charged by the piece.
    pub(crate) pieces: u64,
    /// Whether it served the call at a dearer tier than it was asked to.
    pub(crate) is_dearer: bool,
}

/// Takes what a message says about usage into `known`. `true` when it said something.
pub(crate) fn take_usage(api: LlmApi, message: &Value, known: &mut Told) -> bool {
    let usage = usage_of(api, message);
    let found = match api {
        LlmApi::OpenAi => open_ai(usage),
        LlmApi::Anthropic => anthropic(usage, &known.tokens),
        LlmApi::Gemini => gemini(usage),
    };
    let Some(mut tokens) = found else {
        return false;
    };
    // What was said of an answer is not taken back by what is said later.
    tokens.output = tokens.output.max(known.tokens.output);
    let tier = [usage, message, at(message, "response")];
    let is_dearer = api == LlmApi::OpenAi
        && tier
            .iter()
            .any(|place| at(*place, "service_tier") == "priority");
    *known = Told {
        tokens,
        cost: told_cost(usage).max(known.cost),
        pieces: pieces(usage).max(known.pieces),
        is_dearer: is_dearer || known.is_dearer,
    };
    true
}

/// Where a message says what was used; null where it does not.
fn usage_of(api: LlmApi, message: &Value) -> &Value {
    let first = |places: [&'_ [&str]; 2]| {
        let found = places.map(|place| within(message, place));
        let [one, other] = found;
        if one.is_object() { one } else { other }
    };
    match api {
        LlmApi::OpenAi => first([&["usage"], &["response", "usage"]]),
        LlmApi::Anthropic => first([&["message", "usage"], &["usage"]]),
        LlmApi::Gemini => match message.as_array() {
            // A stream that is not one of events is a list.
            Some(list) => list
                .iter()
                .rev()
                .map(|part| at(part, "usageMetadata"))
                .find(|usage| usage.is_object())
                .unwrap_or(&Value::Null),
            None => at(message, "usageMetadata"),
        },
    }
}

/// Chat and responses name the same things differently. What was cached is part of the prompt. What was thought is part of the
/// answer with most, and beside it with some: then the whole is more than its parts.
fn open_ai(usage: &Value) -> Option<Tokens> {
    let either =
        |one: &str, other: &str| number(at(usage, one)).or_else(|| number(at(usage, other)));
    let detail = |key: &str, word: &str| number(within(usage, &[key, word]));
    let prompt = either("prompt_tokens", "input_tokens")?;
    let total = number(at(usage, "total_tokens"));
    // Without either nobody says what the answer was.
    let answer = match either("completion_tokens", "output_tokens") {
        Some(answer) => answer,
        None if is_given(usage, "completion_tokens") || is_given(usage, "output_tokens") => {
            return None;
        }
        None => total.map(|_| 0)?,
    };
    let thought = detail("completion_tokens_details", "reasoning_tokens")
        .or_else(|| detail("output_tokens_details", "reasoning_tokens"))
        .or_else(|| number(at(usage, "reasoning_tokens")))
        .unwrap_or(0);
    let output = match total {
        Some(total) => answer.max(total.saturating_sub(prompt)).max(thought),
        // Nobody says whether what was thought is in it.
        None => answer.saturating_add(thought),
    };
    let cached = detail("prompt_tokens_details", "cached_tokens")
        .or_else(|| detail("input_tokens_details", "cached_tokens"))
        .or_else(|| number(at(usage, "prompt_cache_hit_tokens")))
        .unwrap_or(0)
        .min(prompt);
    let cited = number(at(usage, "citation_tokens")).unwrap_or(0);
    Some(Tokens {
        input: prompt.saturating_sub(cached).saturating_add(cited),
        cache_read: cached,
        output,
        ..Tokens::default()
    })
}

/// What was cached is not part of `input_tokens`. Later messages leave out what they said before. Where a call took several
/// rounds at the provider's, the figures beside the list of them are of the last.
fn anthropic(usage: &Value, known: &Tokens) -> Option<Tokens> {
    let input = number(at(usage, "input_tokens"));
    let output = number(at(usage, "output_tokens"));
    if input.is_none() && output.is_none() {
        return None;
    }
    let one = |usage: &Value, known: &Tokens| {
        let or = |value: &Value, before: u64| number(value).unwrap_or(before);
        Tokens {
            input: or(at(usage, "input_tokens"), known.input),
            cache_read: or(at(usage, "cache_read_input_tokens"), known.cache_read),
            cache_write: or(at(usage, "cache_creation_input_tokens"), known.cache_write),
            cache_write_long: or(
                within(usage, &["cache_creation", "ephemeral_1h_input_tokens"]),
                known.cache_write_long,
            ),
            output: or(at(usage, "output_tokens"), known.output),
        }
    };
    let last = one(usage, known);
    let rounds = at(usage, "iterations").as_array();
    let all = rounds.into_iter().flatten();
    let sum = all.fold(Tokens::default(), |sum, round| {
        sum.plus(&one(round, &Tokens::default()))
    });
    Some(last.at_least(&sum))
}

/// What was cached is part of the prompt; what was thought comes on top of the answer.
fn gemini(usage: &Value) -> Option<Tokens> {
    let count = |key: &str| number(at(usage, key)).unwrap_or(0);
    let told = |key: &str| number(at(usage, key)).is_some();
    // A part of the figures, as it comes where only some fields were asked for, says nothing about the rest.
    if !told("totalTokenCount") && !told("candidatesTokenCount") {
        return None;
    }
    let prompt =
        number(at(usage, "promptTokenCount"))?.saturating_add(count("toolUsePromptTokenCount"));
    let cached = count("cachedContentTokenCount").min(prompt);
    let answer = count("candidatesTokenCount").saturating_add(count("thoughtsTokenCount"));
    Some(Tokens {
        input: prompt.saturating_sub(cached),
        cache_read: cached,
        output: answer.max(count("totalTokenCount").saturating_sub(prompt)),
        ..Tokens::default()
    })
}

/// Some providers say what a call cost: in ten-billionths of a dollar, or in dollars.
fn told_cost(usage: &Value) -> PicoUsd {
    let ticks = number(at(usage, "cost_in_usd_ticks")).unwrap_or(0);
    let cost = at(usage, "cost");
    let usd = cost
        .as_f64()
        .or_else(|| at(cost, "total_cost").as_f64())
        .unwrap_or(0.0);
    PicoUsd(ticks.saturating_mul(100)).max(PicoUsd::from_usd(usd))
}

/// What is charged by the piece, whatever it is called.
fn pieces(usage: &Value) -> u64 {
    let single = [
        "num_search_queries",
        "num_sources_used",
        "num_server_side_tools_used",
    ];
    let single = single.iter().map(|key| number(at(usage, key)).unwrap_or(0));
    let listed = ["server_tool_use", "server_side_tool_usage_details"];
    let listed = listed
        .iter()
        .filter_map(|key| at(usage, key).as_object())
        .flat_map(|tools| tools.values())
        .map(|count| number(count).unwrap_or(0));
    single.chain(listed).fold(0, u64::saturating_add)
}

/// Some write whole numbers with a point.
fn number(value: &Value) -> Option<u64> {
    let with_point = || {
        let number = value.as_f64().filter(|number| *number >= 0.0)?;
        Some(number.ceil() as u64)
    };
    value.as_u64().or_else(with_point)
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
            let mut told = Told::default();
            assert!(take_usage(api, &message, &mut told), "{message}");
            let tokens = told.tokens;
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
        let total = json!({"usageMetadata": {"promptTokenCount": 10, "totalTokenCount": 45}});
        check(LlmApi::Gemini, total, (10, 0, 0, 35));
        // Thought beside the answer, within it, and nobody says where.
        let beside = json!({"usage": {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 30020,
            "completion_tokens_details": {"reasoning_tokens": 30000}}});
        check(LlmApi::OpenAi, beside, (10, 0, 0, 30010));
        let inside = json!({"usage": {"input_tokens": 10, "output_tokens": 40, "total_tokens": 50,
            "output_tokens_details": {"reasoning_tokens": 30}}});
        check(LlmApi::OpenAi, inside, (10, 0, 0, 40));
        let unsaid = json!({"usage": {"prompt_tokens": 10, "completion_tokens": 5, "reasoning_tokens": 7,
            "citation_tokens": 3, "prompt_cache_hit_tokens": 4}});
        check(LlmApi::OpenAi, unsaid, (9, 4, 0, 12));
        let rounds = json!({"usage": {"input_tokens": 5, "output_tokens": 2, "iterations": [
            {"input_tokens": 90, "output_tokens": 30, "cache_read_input_tokens": 7}, {"input_tokens": 5, "output_tokens": 2}]}});
        check(LlmApi::Anthropic, rounds, (95, 7, 0, 32));
    }

    #[test]
    fn half_a_report_is_none() {
        for usage in [
            json!({"prompt_tokens": 10}),
            json!({"prompt_tokens": 10, "completion_tokens": "30000"}),
            json!({"prompt_tokens": 10, "completion_tokens": -1, "total_tokens": 9}),
            json!({"input_tokens": 10, "output_tokens": [5]}),
        ] {
            let message = json!({"usage": usage});
            let found = take_usage(LlmApi::OpenAi, &message, &mut Told::default());
            assert!(!found, "{message}");
        }
        let masked = json!({"usageMetadata": {"promptTokenCount": 10}});
        assert!(!take_usage(LlmApi::Gemini, &masked, &mut Told::default()));
        let mut told = Told::default();
        let point = json!({"usage": {"prompt_tokens": 10.0, "completion_tokens": 30000.0}});
        assert!(take_usage(LlmApi::OpenAi, &point, &mut told));
        assert_eq!(told.tokens.output, 30_000);
        let less = json!({"usage": {"prompt_tokens": 10, "completion_tokens": 1}});
        assert!(take_usage(LlmApi::OpenAi, &less, &mut told));
        assert_eq!(told.tokens.output, 30_000);
    }

    #[test]
    fn later_messages_of_a_stream_overwrite() {
        let mut told = Told::default();
        let start = json!({"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1,
            "cache_read_input_tokens": 4}}});
        let delta = json!({"type": "message_delta", "usage": {"output_tokens": 30}});
        assert!(take_usage(LlmApi::Anthropic, &start, &mut told));
        assert!(take_usage(LlmApi::Anthropic, &delta, &mut told));
        assert_eq!(
            (
                told.tokens.input,
                told.tokens.cache_read,
                told.tokens.output
            ),
            (9, 4, 30)
        );
        assert!(!take_usage(
            LlmApi::Anthropic,
            &json!({"type": "ping"}),
            &mut told
        ));
        assert!(!take_usage(
            LlmApi::OpenAi,
            &json!({"usage": null}),
            &mut told
        ));
        assert_eq!(told.tokens.total(), 43);
    }

    #[test]
    fn what_is_charged_beside_tokens_is_heard() {
        let told = |api, usage: Value| {
            let mut told = Told::default();
            assert!(take_usage(api, &json!({"usage": usage}), &mut told));
            (told.cost, told.pieces, told.is_dearer)
        };
        let ticks = json!({"prompt_tokens": 1, "total_tokens": 1, "cost_in_usd_ticks": 37_756_000, "num_sources_used": 4});
        assert_eq!(
            told(LlmApi::OpenAi, ticks),
            (PicoUsd(3_775_600_000), 4, false)
        );
        let usd = json!({"prompt_tokens": 1, "total_tokens": 1, "cost": {"total_cost": 0.5}, "num_search_queries": 28});
        assert_eq!(
            told(LlmApi::OpenAi, usd),
            (PicoUsd(500_000_000_000), 28, false)
        );
        let searched = json!({"input_tokens": 1, "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 1}});
        assert_eq!(told(LlmApi::Anthropic, searched), (PicoUsd(0), 3, false));
        let tier = json!({"prompt_tokens": 1, "total_tokens": 1, "service_tier": "priority"});
        assert_eq!(told(LlmApi::OpenAi, tier), (PicoUsd(0), 0, true));
    }
}
