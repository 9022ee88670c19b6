//! What a call asks a model for, and the most it could cost.

use serde_json::{Map, Value, json};

use super::contents::{Found, unmetered};
use super::endpoint::Action;
use super::prices::Price;

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

/// A call that was read.
#[derive(Debug)]
pub(crate) struct Prompt {
    body: Value,
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
    pub(crate) unmetered: Option<&'static str>,
}

impl Prompt {
    /// Reads a call. `None` when it is not one.
    pub(crate) fn read(action: Action, model: Option<&str>, bytes: &[u8]) -> Option<Self> {
        if count_values(bytes) > MOST_VALUES {
            return None;
        }
        let mut body: Value = serde_json::from_slice(bytes).ok()?;
        drop_odd_limits(&mut body);
        let fields = body.as_object()?;
        let model = match model {
            Some(model) => model.to_owned(),
            None => fields.get("model")?.as_str()?.to_owned(),
        };
        let streams = match action {
            Action::GeminiStream => true,
            Action::Gemini | Action::Embeddings => false,
            _ => fields
                .get("stream")
                .and_then(Value::as_bool)
                .unwrap_or(false),
        };
        let told = fields
            .get("stream_options")
            .is_some_and(|options| options["include_usage"] == true);
        let mut found = Found::default();
        found.look_at_call(fields);
        let plain = (bytes.len() as u64)
            .saturating_add(OVERHEAD)
            .saturating_add(found.pictures * PER_PICTURE);
        Some(Self {
            unmetered: unmetered(action, fields).or(found.audio.then_some("audio")),
            input: if found.elsewhere { u64::MAX } else { plain },
            asked: asked(action, fields),
            answers: answers(action, fields)?,
            hide_usage: streams && matches!(action, Action::Chat | Action::Completions) && !told,
            streams,
            model,
            action,
            body,
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
                if !self.body[word].is_null() {
                    self.body[word] = json!(granted);
                }
            }
        }
        if self.streams && matches!(self.action, Action::Chat | Action::Completions) {
            self.body["stream_options"]["include_usage"] = json!(true);
        }
        self.body.to_string().into_bytes()
    }

    fn limit(&mut self, provider: &str, granted: u64) {
        let granted = json!(granted);
        match self.action {
            Action::Chat => {
                let given = |body: &Value, key: &str| !body[key].is_null();
                let old = given(&self.body, "max_tokens");
                let new = given(&self.body, "max_completion_tokens");
                // Newer models of OpenAI refuse the old word; others may not know the new one.
                if new || (!old && provider == "openai") {
                    self.body["max_completion_tokens"] = granted.clone();
                }
                if old || (!new && provider != "openai") {
                    self.body["max_tokens"] = granted;
                }
            }
            Action::Completions | Action::Messages => self.body["max_tokens"] = granted,
            Action::Responses => self.body["max_output_tokens"] = granted,
            Action::Gemini | Action::GeminiStream => {
                let snake = self.body["generation_config"].is_object();
                let key = if snake {
                    "generation_config"
                } else {
                    "generationConfig"
                };
                let word = if self.body[key]["max_output_tokens"].is_null() {
                    "maxOutputTokens"
                } else {
                    "max_output_tokens"
                };
                self.body[key][word] = granted;
            }
            Action::Embeddings => {}
        }
    }
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
    fields
        .get("generationConfig")
        .or_else(|| fields.get("generation_config"))?
        .as_object()
}

/// How many answers a call asks for. `None` when nobody can say: some servers read `5.0` or `"5"` as a number, too.
fn answers(action: Action, fields: &Map<String, Value>) -> Option<u64> {
    let number = |key: &str| match fields.get(key) {
        None | Some(Value::Null) => Some(1),
        Some(value) => value.as_u64(),
    };
    let count = match action {
        Action::Chat => number("n")?,
        Action::Completions => {
            let prompts = fields
                .get("prompt")
                .and_then(Value::as_array)
                .map_or(1, |list| {
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
            let config = generation_config(fields);
            let count = |key: &str| match config.and_then(|config| config.get(key)) {
                None | Some(Value::Null) => Some(1),
                Some(value) => value.as_u64(),
            };
            count("candidateCount")?.max(count("candidate_count")?)
        }
        Action::Responses | Action::Messages | Action::Embeddings => 1,
    };
    // More than that no provider gives; a number from outside must not overflow what is counted with it.
    Some(count.clamp(1, MOST_ANSWERS * 64))
}

/// Takes out limits that are no whole numbers, such as `-1` or `1e9`: they limit nothing, and what is granted takes their place.
fn drop_odd_limits(body: &mut Value) {
    const LIMITS: [&str; 5] = [
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "maxOutputTokens",
        "n_predict",
    ];
    let drop = |fields: Option<&mut Map<String, Value>>| {
        let Some(fields) = fields else { return };
        for key in LIMITS {
            if fields.get(key).is_some_and(|value| !value.is_u64()) {
                fields.remove(key);
            }
        }
    };
    drop(body.as_object_mut());
    for key in ["generationConfig", "generation_config"] {
        drop(body.get_mut(key).and_then(Value::as_object_mut));
    }
}

/// About how many values a JSON text holds, without reading it.
fn count_values(bytes: &[u8]) -> usize {
    let (mut count, mut quoted, mut escaped) = (0, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b',' | b'[' | b'{' if !quoted => count += 1,
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
            let found = prompt.map(|prompt| {
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
            assert_eq!(read.is_some(), expect, "{} bytes", text.len());
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
        assert!(Prompt::read(Action::Chat, None, b"[]").is_none());
        assert!(Prompt::read(Action::Chat, None, b"{}").is_none());
        // The last of two is the one that is sent, and the one that is charged.
        let twice = Prompt::read(Action::Chat, None, br#"{"model": "a", "model": "b"}"#).unwrap();
        assert_eq!(twice.model, "b");
        assert_eq!(twice.write("openai", u64::MAX, None), br#"{"model":"b"}"#);
    }
}
