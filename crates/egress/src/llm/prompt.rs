//! What a call asks a model for, and the most it could cost.

use serde_json::{Map, Value, json};

use super::contents::Found;
use super::endpoint::Action;
use super::json::{at, is_given};
use super::prices::Price;
use super::unmetered::unmetered;

/// Providers turn tools and roles into text of their own.
const OVERHEAD: u64 = 2048;
/// More than any provider counts for one picture.
const PER_PICTURE: u64 = 65_536;
/// The longest prompt of a model that says nothing about it.
const LONGEST_INPUT: u64 = 2_000_000;
/// The longest answer of a model that says nothing about it.
const LONGEST_OUTPUT: u64 = 131_072;
const MOST_ANSWERS: u64 = 128;
/// Values in a call: read, each takes many times the bytes it was sent in.
const MOST_VALUES: usize = 2_000_000;
/// Words by which some servers let an answer be limited, beside those of the API.
const OTHER_LIMITS: [&str; 3] = ["n_predict", "max_new_tokens", "max_length"];
/// The two spellings of one field of Gemini's.
const GENERATION: [&str; 2] = ["generationConfig", "generation_config"];

/// A call that was read.
#[derive(Debug)]
pub(crate) struct Prompt {
    fields: Map<String, Value>,
    action: Action,
    pub(crate) model: String,
    /// Whether the answer comes in pieces.
    pub(crate) streams: bool,
    /// Whether the piece that tells the usage was not asked for, and is to be taken out again.
    pub(crate) hide_usage: bool,
    /// Tokens the prompt can't exceed.
    pub(crate) input: u64,
    /// Tokens an answer is to have at most, as asked.
    asked: Option<u64>,
    /// How many answers.
    pub(crate) answers: u64,
    /// What would be charged for but not reported.
    pub(crate) unmetered: Option<String>,
}

/// Why a call can't be read.
pub(crate) type Unread = &'static str;

impl Prompt {
    /// Reads a call.
    ///
    /// # Errors
    /// What keeps it from being one.
    pub(crate) fn read(action: Action, model: Option<&str>, bytes: &[u8]) -> Result<Self, Unread> {
        if count_values(bytes) > MOST_VALUES {
            return Err("it holds too many values");
        }
        let body: Value = serde_json::from_slice(bytes).map_err(|_| "it is not JSON")?;
        let Value::Object(mut fields) = body else {
            return Err("it is not an object");
        };
        check_shape(action, &fields)?;
        drop_odd_limits(&mut fields);
        let model = match model {
            Some(model) => model.to_owned(),
            None => at(&fields, "model")
                .as_str()
                .ok_or("`model` is not a text")?
                .to_owned(),
        };
        let streams = match action {
            Action::GeminiStream => true,
            Action::Gemini | Action::Embeddings => false,
            _ => at(&fields, "stream").as_bool().unwrap_or(false),
        };
        let told = at(&fields, "stream_options")
            .get("include_usage")
            .is_some_and(|told| told == true);
        let mut found = Found::default();
        found.look_at_call(&fields);
        let plain = (bytes.len() as u64)
            .saturating_add(OVERHEAD)
            .saturating_add(found.pictures.saturating_mul(PER_PICTURE));
        Ok(Self {
            unmetered: unmetered(action, &model, &fields).or(found.dear.map(str::to_owned)),
            input: if found.elsewhere { u64::MAX } else { plain },
            asked: asked(action, &fields),
            answers: answers(action, &fields)?,
            hide_usage: streams && matches!(action, Action::Chat | Action::Completions) && !told,
            streams,
            model,
            action,
            fields,
        })
    }

    /// Tokens the prompt can't exceed, for a model with this price.
    pub(crate) fn most_input(&self, price: Option<&Price>) -> u64 {
        let window = price.and_then(|price| price.most_input);
        self.input.min(window.unwrap_or(LONGEST_INPUT))
    }

    /// Tokens each answer can have when nobody cuts it.
    pub(crate) fn wanted_output(&self, price: Option<&Price>) -> u64 {
        if self.action == Action::Embeddings {
            return 0;
        }
        let most = price.and_then(|price| price.most_output);
        match (self.asked, most) {
            (Some(asked), _) => asked,
            (None, most) => most.unwrap_or(LONGEST_OUTPUT),
        }
    }

    /// Whether the call itself says how long its answers may be.
    pub(crate) fn is_bounded(&self) -> bool {
        self.asked.is_some()
    }

    /// The call to send, with answers of at most `granted` tokens where that is less than wanted.
    pub(crate) fn write(mut self, provider: &str, granted: u64, price: Option<&Price>) -> Vec<u8> {
        let known = price.is_some_and(|price| price.most_output.is_some());
        let cut = granted < self.wanted_output(price);
        if self.action != Action::Embeddings
            && (cut || (self.asked.is_none() && !known && granted < LONGEST_OUTPUT))
        {
            self.limit(provider, granted);
        }
        if granted < LONGEST_OUTPUT {
            for word in OTHER_LIMITS {
                if is_given(&self.fields, word) {
                    self.fields.insert(word.to_owned(), json!(granted));
                }
            }
        }
        if self.streams && matches!(self.action, Action::Chat | Action::Completions) {
            set_within(
                &mut self.fields,
                "stream_options",
                "include_usage",
                json!(true),
            );
        }
        Value::Object(self.fields).to_string().into_bytes()
    }

    /// Has the call served at the price of the table, where the account's own setting could choose a dearer one.
    pub(crate) fn serve_as_usual(&mut self, provider: &str) {
        let takes = matches!(self.action, Action::Chat | Action::Responses);
        let tier = at(&self.fields, "service_tier");
        if provider == "openai" && takes && (tier.is_null() || tier == "auto") {
            self.fields
                .insert("service_tier".to_owned(), json!("default"));
        }
    }

    fn limit(&mut self, provider: &str, granted: u64) {
        let mut set = |key: &str| self.fields.insert(key.to_owned(), json!(granted));
        match self.action {
            Action::Completions | Action::Messages => drop(set("max_tokens")),
            Action::Responses => drop(set("max_output_tokens")),
            Action::Chat => {
                let old = is_given(&self.fields, "max_tokens");
                let new = is_given(&self.fields, "max_completion_tokens");
                let mut set = |key: &str| self.fields.insert(key.to_owned(), json!(granted));
                // Newer models of OpenAI refuse the old word; others may not know the new one.
                if new || (!old && provider == "openai") {
                    set("max_completion_tokens");
                }
                if old || (!new && provider != "openai") {
                    set("max_tokens");
                }
            }
            Action::Gemini | Action::GeminiStream => {
                let [camel, snake] = GENERATION;
                let key = if is_given(&self.fields, snake) {
                    snake
                } else {
                    camel
                };
                let config = at(&self.fields, key);
                let word = match config.get("max_output_tokens") {
                    None | Some(Value::Null) => "maxOutputTokens",
                    Some(_) => "max_output_tokens",
                };
                set_within(&mut self.fields, key, word, json!(granted));
            }
            Action::Embeddings => {}
        }
    }
}

/// Sets a field of an object within the call; what is there and is none gives way.
fn set_within(fields: &mut Map<String, Value>, key: &str, word: &str, value: Value) {
    let mut inner = match fields.remove(key) {
        Some(Value::Object(inner)) => inner,
        _ => Map::new(),
    };
    inner.insert(word.to_owned(), value);
    fields.insert(key.to_owned(), Value::Object(inner));
}

/// What is read here must have the shape it is read in: what another would make of the rest nobody can tell.
fn check_shape(action: Action, fields: &Map<String, Value>) -> Result<(), Unread> {
    let is = |key: &str, fits: fn(&Value) -> bool| {
        let value = at(fields, key);
        value.is_null() || fits(value)
    };
    if !is("tools", |tools| {
        tools
            .as_array()
            .is_some_and(|list| list.iter().all(Value::is_object))
    }) {
        return Err("`tools` is not a list of objects");
    }
    if !is("service_tier", Value::is_string) || !is("serviceTier", Value::is_string) {
        return Err("`service_tier` is not a text");
    }
    match action {
        Action::Gemini | Action::GeminiStream => {
            let [camel, snake] = GENERATION;
            if !is(camel, Value::is_object) {
                return Err("`generationConfig` is not an object");
            }
            if !is(snake, Value::is_object) {
                return Err("`generation_config` is not an object");
            }
            if fields.contains_key(camel) && fields.contains_key(snake) {
                return Err("`generationConfig` is there in two spellings");
            }
            let config = generation_config(fields);
            let twice = |one: &str, other: &str| {
                config.is_some_and(|config| config.contains_key(one) && config.contains_key(other))
            };
            if twice("maxOutputTokens", "max_output_tokens")
                || twice("candidateCount", "candidate_count")
            {
                return Err("a field of `generationConfig` is there in two spellings");
            }
        }
        Action::Embeddings => {}
        Action::Chat | Action::Completions | Action::Responses | Action::Messages => {
            if !is("stream", Value::is_boolean) {
                return Err("`stream` is neither true nor false");
            }
            if !is("stream_options", Value::is_object) {
                return Err("`stream_options` is not an object");
            }
        }
    }
    Ok(())
}

fn asked(action: Action, fields: &Map<String, Value>) -> Option<u64> {
    let number = |key: &str| fields.get(key).and_then(Value::as_u64);
    match action {
        Action::Chat => match (number("max_tokens"), number("max_completion_tokens")) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (one, other) => one.or(other),
        },
        Action::Completions | Action::Messages => number("max_tokens"),
        Action::Responses => number("max_output_tokens"),
        Action::Gemini | Action::GeminiStream => {
            let config = generation_config(fields)?;
            let number = |key: &str| config.get(key).and_then(Value::as_u64);
            number("maxOutputTokens").or(number("max_output_tokens"))
        }
        Action::Embeddings => None,
    }
}

fn generation_config(fields: &Map<String, Value>) -> Option<&Map<String, Value>> {
    GENERATION
        .iter()
        .find_map(|key| fields.get(*key)?.as_object())
}

/// How many answers a call asks for. An error when nobody can say: some servers read `5.0` or `"5"` as a number, too.
fn answers(action: Action, fields: &Map<String, Value>) -> Result<u64, Unread> {
    let read = |value: &Value, otherwise: Unread| match value {
        Value::Null => Ok(1),
        value => value.as_u64().ok_or(otherwise),
    };
    let number = |key: &str| read(at(fields, key), "`n` or `best_of` is not a whole number");
    let count = match action {
        Action::Chat => number("n")?,
        Action::Completions => {
            let prompts = at(fields, "prompt").as_array().map_or(1, |list| {
                // A list of numbers is one prompt, given as tokens.
                if list.iter().all(Value::is_number) {
                    1
                } else {
                    list.len() as u64
                }
            });
            number("n")?.max(number("best_of")?).saturating_mul(prompts)
        }
        Action::Gemini | Action::GeminiStream => {
            let none = Map::new();
            let config = generation_config(fields).unwrap_or(&none);
            let count = |key: &str| read(at(config, key), "`candidateCount` is not a whole number");
            count("candidateCount")?.max(count("candidate_count")?)
        }
        Action::Responses | Action::Messages | Action::Embeddings => 1,
    };
    // More than that no provider gives; a number from outside must not overflow what is counted with it.
    Ok(count.clamp(1, MOST_ANSWERS * 64))
}

/// Takes out limits that are no whole numbers, such as `-1` or `1e9`: they limit nothing, and what is granted takes their place.
fn drop_odd_limits(fields: &mut Map<String, Value>) {
    const LIMITS: [&str; 5] = [
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "maxOutputTokens",
        "n_predict",
    ];
    let drop = |fields: &mut Map<String, Value>| {
        for key in LIMITS {
            if fields.get(key).is_some_and(|value| !value.is_u64()) {
                fields.remove(key);
            }
        }
    };
    drop(fields);
    for key in GENERATION {
        if let Some(config) = fields.get_mut(key).and_then(Value::as_object_mut) {
            drop(config);
        }
    }
}

/// About how many values a JSON text holds, without reading it.
fn count_values(bytes: &[u8]) -> usize {
    let (mut count, mut quoted, mut escaped) = (0_usize, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b',' | b'[' | b'{' if !quoted => count = count.saturating_add(1),
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(action: Action, body: Value) -> Prompt {
        Prompt::read(action, None, body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_stream_is_asked_for_its_usage() {
        let prompt = read(Action::Chat, json!({"model": "m", "stream": true}));
        assert!(prompt.hide_usage);
        let sent: Value = serde_json::from_slice(&prompt.write("openai", 1 << 20, None)).unwrap();
        assert_eq!(sent["stream_options"]["include_usage"], true);
        let told = json!({"model": "m", "stream": true, "stream_options": {"include_usage": true}});
        assert!(!read(Action::Chat, told).hide_usage);
        assert!(!read(Action::Messages, json!({"model": "m", "stream": true})).hide_usage);
    }

    #[test]
    fn answers_are_limited_in_the_words_of_the_api() {
        let check = |action, provider, body: Value, path: &str, expect: Option<u64>| {
            let prompt = Prompt::read(action, Some("m"), body.to_string().as_bytes()).unwrap();
            let sent: Value = serde_json::from_slice(&prompt.write(provider, 7, None)).unwrap();
            assert_eq!(sent.pointer(path).and_then(Value::as_u64), expect, "{sent}");
        };
        check(
            Action::Chat,
            "openai",
            json!({}),
            "/max_completion_tokens",
            Some(7),
        );
        check(
            Action::Chat,
            "openai",
            json!({"max_tokens": 9}),
            "/max_tokens",
            Some(7),
        );
        check(
            Action::Chat,
            "openai",
            json!({"max_tokens": 9}),
            "/max_completion_tokens",
            None,
        );
        check(
            Action::Chat,
            "openai",
            json!({"max_tokens": 5}),
            "/max_tokens",
            Some(5),
        );
        check(Action::Chat, "local", json!({}), "/max_tokens", Some(7));
        check(
            Action::Chat,
            "local",
            json!({"max_tokens": 3, "max_completion_tokens": 90}),
            "/max_completion_tokens",
            Some(7),
        );
        check(
            Action::Responses,
            "openai",
            json!({"max_output_tokens": 90}),
            "/max_output_tokens",
            Some(7),
        );
        check(
            Action::Messages,
            "anthropic",
            json!({"max_tokens": 90}),
            "/max_tokens",
            Some(7),
        );
        check(
            Action::Gemini,
            "gemini",
            json!({}),
            "/generationConfig/maxOutputTokens",
            Some(7),
        );
        check(Action::Embeddings, "openai", json!({}), "/max_tokens", None);
    }

    #[test]
    fn numbers_that_servers_read_differently_are_not_left_to_them() {
        let check = |action, text: &str, expect: Option<(u64, &str)>| {
            let prompt = Prompt::read(action, Some("m"), text.as_bytes());
            let found = prompt.ok().map(|prompt| {
                let answers = prompt.answers;
                let sent = String::from_utf8(prompt.write("local", 7, None)).unwrap();
                (answers, sent)
            });
            let expect = expect.map(|(answers, sent)| (answers, sent.to_owned()));
            assert_eq!(found, expect, "{text}");
        };
        let limited = r#"{"max_tokens":7}"#;
        check(Action::Chat, r#"{"max_tokens": -1}"#, Some((1, limited)));
        check(Action::Chat, r#"{"max_tokens": 1e9}"#, Some((1, limited)));
        check(Action::Chat, r#"{"max_tokens": "900"}"#, Some((1, limited)));
        let twice = r#"{"max_tokens": 3, "max_tokens": 900}"#;
        check(Action::Chat, twice, Some((1, limited)));
        let other = r#"{"max_tokens": 3, "n_predict": 900}"#;
        let both = r#"{"max_tokens":3,"n_predict":7}"#;
        check(Action::Chat, other, Some((1, both)));
        let gemini = r#"{"generationConfig": {"maxOutputTokens": -5}}"#;
        let cut = r#"{"generationConfig":{"maxOutputTokens":7}}"#;
        check(Action::Gemini, gemini, Some((1, cut)));
        for many in ["5.0", "\"5\"", "-1", "true", "[5]"] {
            check(Action::Chat, &format!("{{\"n\": {many}}}"), None);
            check(
                Action::Completions,
                &format!("{{\"best_of\": {many}}}"),
                None,
            );
            let gemini = format!("{{\"generationConfig\": {{\"candidateCount\": {many}}}}}");
            check(Action::Gemini, &gemini, None);
        }
    }

    #[test]
    fn a_call_that_would_grow_when_it_is_read_is_not_read() {
        let check = |text: String, expect: bool| {
            let read = Prompt::read(Action::Embeddings, Some("m"), text.as_bytes());
            assert_eq!(read.is_ok(), expect, "{} bytes", text.len());
        };
        let list = |count: usize| format!("{{\"input\": [{}1]}}", "1,".repeat(count));
        check(list(100_000), true);
        check(list(MOST_VALUES), false);
        // Within a text they are only text.
        let quoted = "\\\"[,{".repeat(MOST_VALUES);
        check(format!("{{\"input\": \"{quoted}\"}}"), true);
        check("[".repeat(100_000), false);
    }

    #[test]
    fn a_prompt_is_bounded_by_its_bytes_or_by_the_window() {
        let plain = read(
            Action::Chat,
            json!({"model": "m", "messages": [{"content": "hi"}]}),
        );
        assert!(plain.most_input(None) < 3000);
        let picture = json!({"model": "m", "messages": [{"content": [{"type": "image_url",
            "image_url": {"url": "https://x/y.png"}}]}]});
        assert!(read(Action::Chat, picture).most_input(None) > PER_PICTURE);
        let stored = json!({"model": "m", "previous_response_id": "r"});
        assert_eq!(
            read(Action::Responses, stored).most_input(None),
            LONGEST_INPUT
        );
        assert_eq!(
            read(Action::Chat, json!({"model": "m", "n": u64::MAX})).answers,
            MOST_ANSWERS * 64
        );
        assert!(Prompt::read(Action::Chat, None, b"[]").is_err());
        assert!(Prompt::read(Action::Chat, None, b"{}").is_err());
        // The last of two is the one that is sent, and the one that is charged.
        let twice = Prompt::read(Action::Chat, None, br#"{"model": "a", "model": "b"}"#).unwrap();
        assert_eq!(twice.model, "b");
        assert_eq!(twice.write("openai", u64::MAX, None), br#"{"model":"b"}"#);
    }
}
